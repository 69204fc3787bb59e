"""End to end on real screens: presets for parity, from two files to the columns that other tools computed from them."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.results.schema import EvalResult

NONE_CALLED = "no differentially expressed genes in the solution"
VCC2026 = {
    "pds_cosine": "pds_cosine",
    "direction_fidelity_yield_raw": "de_wilcoxon_direction_fidelity_yield_raw",
    "direction_reach_raw": "de_wilcoxon_direction_reach_raw",
    "sig_jaccard": "de_wilcoxon_sig_jaccard",
    "lfc_nmae": "de_wilcoxon_lfc_nmae",
}


@pytest.fixture(scope="module")
def folder(repository: Path) -> Path:
    path = repository.parent / "shared" / "data" / "perturbation"
    if not path.is_dir():
        pytest.skip("the reference data are not here")
    return path


def evaluated(real: Path, predicted: Path, scale: str, preset: str) -> EvalResult:
    """Scores with targets as a user gives them: labels that are genes, and pairs of genes joined by a plus."""
    run = Evaluation(
        "perturbation_prediction",
        solution=real,
        perturbation_key="target_gene",
        control="non-targeting",
        scale=scale,
        target_map="measured_labels",
        target_separator="+",
        metrics=preset,
        device="cpu",
    )
    run.update(predicted)
    return run.compute()


def differences(result: EvalResult, alias: str, expected: pd.Series) -> list[str]:
    """Units whose value is not that of the other tool, wherever both have one."""
    name, score = next((n, s) for n, s in result.scores.items() if s.alias == alias)
    if score.n_units is None:
        values = pd.Series(score.value, index=expected.index, dtype="float64")
    else:
        values = result.per_unit[name].reindex(expected.index)
    both = values.notna() & expected.notna()
    assert both.any(), alias
    return [u for u in expected.index[both] if not math.isclose(values[u], expected[u], rel_tol=0, abs_tol=1e-6)]


@pytest.mark.parametrize("screen_name", ["k562", "papalexi"])
def test_the_preset_of_cell_eval(folder: Path, screen_name: str) -> None:
    pair = (folder / f"{screen_name}_{side}.h5ad" for side in ("real", "pred"))
    result = evaluated(*pair, "log1p_cp10k", "cell_eval")
    table: Any = pd.read_csv(folder / "reference" / f"cell_eval_0.8.2_{screen_name}" / "results.csv")
    table = table.set_index("perturbation")
    assert set(result.per_unit.index) == set(table.index)
    aliases = [score.alias for score in result.scores.values()]
    assert len(aliases) == 25
    wrong = {alias: differences(result, str(alias), table[alias]) for alias in aliases}
    assert wrong == {alias: [] for alias in aliases}
    for name, score in result.scores.items():
        # Where the other tool has a value and we have none, it is a zero for a perturbation without true calls.
        for unit, reason in result.units.undefined.get(name, {}).items():
            theirs = table[score.alias][unit]
            assert math.isnan(theirs) or (theirs == 0 and reason == NONE_CALLED)


def test_the_preset_of_cell_eval2(folder: Path) -> None:
    result = evaluated(folder / "papalexi_real_counts.h5ad", folder / "papalexi_pred_counts.h5ad", "counts", "vcc2026")
    rows = pd.read_csv(folder / "reference" / "cell_eval2_0.20.0_papalexi" / "results_vcc2026.csv")
    for alias, metric in VCC2026.items():
        theirs = rows[rows["metric"] == metric].set_index("perturbation")["value"].astype("float64")
        assert differences(result, alias, theirs) == [], alias
    ratio = next(s for s in result.scores.values() if s.alias == "expr_mse_unbiased_capped_norm")
    assert ratio.value is None, "the other tool ends the run here"
    assert "not above zero" in str(ratio.reason)
