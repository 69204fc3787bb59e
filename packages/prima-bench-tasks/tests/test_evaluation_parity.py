"""End to end on real screens: from two files to the columns that another tool computed from the same two files."""

from pathlib import Path

import anndata
import pandas as pd
import pytest

from prima_bench.tasks.evaluation import Evaluation

COLUMNS = {"mse": "mse", "mae": "mae", "pearson_delta(control_source=prediction)": "pearson_delta"}


@pytest.mark.parametrize("screen_name", ["k562", "papalexi"])
def test_files_to_the_columns_of_cell_eval(repository: Path, screen_name: str) -> None:
    folder = repository.parent / "shared" / "data" / "perturbation"
    if not folder.is_dir():
        pytest.skip("the reference data are not here")
    real = folder / f"{screen_name}_real.h5ad"
    labels = anndata.read_h5ad(real, backed="r").obs["target_gene"].unique()
    run = Evaluation(
        "perturbation_prediction",
        solution=real,
        perturbation_key="target_gene",
        control="non-targeting",
        scale="log1p_cp10k",
        target_map={label: label for label in labels},
        metrics=list(COLUMNS),
        device="cpu",
    )
    run.update(folder / f"{screen_name}_pred.h5ad")
    result = run.compute()
    table = pd.read_csv(
        folder / "reference" / f"cell_eval_0.8.2_{screen_name}" / "results.csv", index_col="perturbation"
    )
    assert set(result.per_unit.index) == set(table.index)
    for ours, theirs in COLUMNS.items():
        expected = table[theirs].reindex(result.per_unit.index)
        pd.testing.assert_series_equal(
            result.per_unit[ours],
            expected,
            rtol=0,
            atol=1e-6,
            check_names=False,
            check_index_type=False,
            check_index=False,
        )
        assert result.scores[ours].value == pytest.approx(expected.mean(), abs=1e-6)
