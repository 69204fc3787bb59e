"""Against two published tools on real screens: errors free of noise, errors of effects, positions in rankings."""

import runpy
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest

from prima_bench.metrics.base import Batch, RowMatrix
from prima_bench.metrics.catalog import load_metric
from prima_bench.metrics.perturbation.profiles.noise import predicted_noise, true_noise
from prima_bench.metrics.perturbation.reference import PerturbationReference

PARITY = runpy.run_path(str(Path(__file__).with_name("test_perturbation_parity.py")))
FOLDER, units = PARITY["FOLDER"], PARITY["_units"]

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the reference data are not part of the repository")


def pair_of(name: str, suffix: str, scale: str):
    """A pair whose targets are what both tools take for one: a gene whose name is the whole label."""
    pair = PARITY["_pair"](name, suffix, scale)
    genes = list(anndata.read_h5ad(FOLDER / f"{name}_real{suffix}.h5ad", backed="r").var_names)
    column = {gene: i for i, gene in enumerate(genes)}
    r = pair.reference
    targets = tuple((column[label],) if label in column else () for label in pair.labels)
    return pair._replace(
        reference=PerturbationReference(
            r.cells, r.group, num_perturbations=r.num_perturbations, scale=r.scale, targets=targets
        )
    )


@pytest.fixture(scope="module", params=["papalexi", "k562"])
def log_pair(request: pytest.FixtureRequest):
    pair = pair_of(request.param, "", "log1p_cp10k")
    table = pd.read_csv(FOLDER / "reference" / f"cell_eval_0.8.2_{request.param}" / "results.csv")
    return pair, table.set_index("perturbation").loc[pair.labels]


@pytest.fixture(scope="module", params=["papalexi/vcc2026", "papalexi/full", "k562/full"])
def second_pair(request: pytest.FixtureRequest):
    name, profile = request.param.split("/")
    counts = name == "papalexi"
    pair = pair_of(name, "_counts" if counts else "", "counts" if counts else "log1p_cp10k")
    table = pd.read_csv(FOLDER / "reference" / f"cell_eval2_0.20.0_{name}" / f"results_{profile}.csv")
    wide = table.pivot(index="perturbation", columns="metric", values="value").loc[pair.labels]
    return pair, wide, {"target_sum": 5e4} if counts else {}


@pytest.mark.parametrize("distance", ["l1", "l2", "cosine"])
def test_positions_equal_cell_eval(log_pair, distance: str) -> None:
    pair, table = log_pair
    options = {"control_source": "prediction", "exclude_targets": "own", "ranking": "position"}
    ours = units(pair, f"pds_{distance}", **options)
    np.testing.assert_allclose(ours, table[f"discrimination_score_{distance}"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("metric", ["mse_delta", "mae_delta"])
def test_errors_of_effects_equal_cell_eval(log_pair, metric: str) -> None:
    pair, table = log_pair
    ours = units(pair, metric, control_source="prediction")
    np.testing.assert_allclose(ours, table[metric], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("metric", "column"), [("mse_delta", "delta_mse"), ("mae_delta", "delta_mae")])
def test_errors_of_effects_equal_cell_eval2(second_pair, metric: str, column: str) -> None:
    pair, table, params = second_pair
    if column in table:
        np.testing.assert_allclose(units(pair, metric, **params), table[column], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("metric", "column"),
    [("mse_debiased", "expr_mse_unbiased_capped"), ("effect_size_debiased", "expr_distance_unbiased")],
)
def test_debiased_errors_and_effects_equal_cell_eval2(second_pair, metric: str, column: str) -> None:
    pair, table, params = second_pair
    ours = units(pair, metric, convention="vcc2026", **params)
    np.testing.assert_allclose(ours, table[column], rtol=0, atol=1e-12)


def test_noise_without_a_cap_equals_cell_eval2(second_pair) -> None:
    pair, table, params = second_pair
    metric = load_metric("mse")(pair.reference, exclude_targets="own", **params)
    batch = Batch.of(metric.fields, {"x": RowMatrix([pair.preds.canonical()]), "group": pair.codes})
    total = params.get("target_sum", 0.0)
    noise = true_noise(pair.reference, total) + predicted_noise(batch, pair.reference, total)
    kept = pair.reference.kept_genes("own").sum(dim=1)
    ours = metric.score(batch).units - noise[1:].sum(dim=1) / kept
    np.testing.assert_allclose(ours.numpy(), table["expr_mse_unbiased"], rtol=0, atol=1e-12)


def test_the_ratio_equals_that_of_cell_eval2s_columns(second_pair) -> None:
    pair, table, params = second_pair
    metric = load_metric("mse_debiased_ratio")(pair.reference, convention="vcc2026", **params)
    metric.update(pair.preds, perturbation=pair.codes)
    score = metric.result()
    error, effect = table["expr_mse_unbiased_capped"].sum(), table["expr_distance_unbiased"].sum()
    if effect > 0:
        assert score.value == pytest.approx(error / effect, rel=1e-9)
    else:  # where cell-eval2 gives up
        assert score.value is None
        assert f"sum to {effect:.6g}, not above zero; errors to {error:.6g}" in score.reason
