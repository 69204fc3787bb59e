"""Against what cell-eval 0.8.2 says about real screens."""

import runpy
from pathlib import Path

import pandas as pd
import pytest

from prima_bench.metrics.perturbation.anchors import other_perturbations, pasted_control
from prima_bench.metrics.perturbation.cells.edistance import EDistancePearson
from prima_bench.metrics.perturbation.cells.energy import EnergyRatio

PARITY = runpy.run_path(str(Path(__file__).with_name("test_perturbation_parity.py")))
FOLDER = PARITY["FOLDER"]

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the reference data are not part of the repository")


@pytest.fixture(scope="module", params=["papalexi", "k562"])
def pair(request: pytest.FixtureRequest):
    return PARITY["_pair"](request.param, "", "log1p_cp10k"), request.param


def test_the_correlation_of_distances_equals_cell_eval(pair) -> None:
    ours, name = pair
    table = pd.read_csv(FOLDER / "reference" / f"cell_eval_0.8.2_{name}" / "results.csv")
    (theirs,) = table["pearson_edistance"].unique()
    values = {}
    for source in ("prediction", "solution"):
        metric = EDistancePearson(ours.reference, control_source=source)
        metric.update(ours.preds, perturbation=ours.codes)
        values[source] = metric.result().value
    assert values["prediction"] == pytest.approx(theirs, abs=1e-6)
    assert abs(values["prediction"] - values["solution"]) > 1e-5  # what the tolerance can tell apart


def test_a_replicate_beats_the_naive_on_real_cells(pair) -> None:
    ours, _ = pair
    metric = EnergyRatio(ours.reference)
    metric.update(ours.preds, perturbation=ours.codes)
    replicate = metric.result()
    shared, pasted = (
        EnergyRatio(a.reference).score(a.batch).value
        for a in (f(ours.reference) for f in (other_perturbations, pasted_control))
    )
    assert abs(replicate.value) < 0.1
    assert 0.5 < shared < 1.3
    assert 0.9 < pasted < 1.3
    assert 0 < len(replicate.undefined) < len(ours.labels) - 5
