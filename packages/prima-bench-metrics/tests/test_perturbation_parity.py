"""Against what two published tools say about real screens: their columns where the definitions coincide."""

from pathlib import Path
from typing import NamedTuple

import anndata
import numpy as np
import pandas as pd
import pytest
import torch

from prima_bench.metrics.catalog import load_metric
from prima_bench.metrics.perturbation.reference import PerturbationReference, Scale
from prima_bench.metrics.rows import SparseRows

FOLDER = Path(__file__).parents[4] / "shared" / "data" / "perturbation"
CONTROL = "non-targeting"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the reference data are not part of the repository")


class Pair(NamedTuple):
    """A solution and a prediction, with the labels of codes 1 to P."""

    reference: PerturbationReference
    preds: SparseRows
    codes: torch.Tensor
    labels: list[str]


def _sparse(adata: anndata.AnnData) -> SparseRows:
    x = adata.X
    return SparseRows(
        torch.from_numpy(x.data),
        torch.from_numpy(x.indices),
        torch.from_numpy(np.diff(x.indptr)),
        x.shape[1],
    )


def _pair(name: str, suffix: str, scale: Scale) -> Pair:
    real = anndata.read_h5ad(FOLDER / f"{name}_real{suffix}.h5ad")
    pred = anndata.read_h5ad(FOLDER / f"{name}_pred{suffix}.h5ad")
    assert list(real.var_names) == list(pred.var_names)
    labels = sorted(set(real.obs["target_gene"].astype(str)) - {CONTROL})
    code = {label: i for i, label in enumerate([CONTROL, *labels])}
    column = {gene: i for i, gene in enumerate(real.var_names)}

    def codes(adata: anndata.AnnData) -> torch.Tensor:
        return torch.tensor([code[label] for label in adata.obs["target_gene"].astype(str)])

    reference = PerturbationReference.from_cells(
        _sparse(real),
        codes(real),
        num_perturbations=len(labels),
        scale=scale,
        targets=[[column[gene] for gene in label.split("+") if gene in column] for label in labels],
    )
    return Pair(reference, _sparse(pred), codes(pred), labels)


def _units(pair: Pair, metric: str, **params: object) -> np.ndarray:
    scored = load_metric(metric)(pair.reference, **params)
    scored.update(pair.preds, perturbation=pair.codes)
    return scored.result().units.numpy()


@pytest.fixture(scope="module", params=["papalexi", "k562"])
def log_pair(request: pytest.FixtureRequest) -> tuple[Pair, pd.DataFrame]:
    pair = _pair(request.param, "", "log1p_cp10k")
    table = pd.read_csv(FOLDER / "reference" / f"cell_eval_0.8.2_{request.param}" / "results.csv")
    return pair, table.set_index("perturbation").loc[pair.labels]


@pytest.fixture(scope="module", params=["papalexi", "k562"])
def second_pair(request: pytest.FixtureRequest) -> tuple[Pair, pd.DataFrame, dict[str, object]]:
    counts = request.param == "papalexi"
    pair = _pair(request.param, "_counts" if counts else "", "counts" if counts else "log1p_cp10k")
    table = pd.read_csv(FOLDER / "reference" / f"cell_eval2_0.20.0_{request.param}" / "results_full.csv")
    wide = table.pivot(index="perturbation", columns="metric", values="value").loc[pair.labels]
    return pair, wide, {"target_sum": 5e4} if counts else {}


@pytest.mark.parametrize("metric", ["mse", "mae"])
def test_profile_errors_equal_cell_eval(log_pair: tuple[Pair, pd.DataFrame], metric: str) -> None:
    pair, table = log_pair
    np.testing.assert_allclose(_units(pair, metric), table[metric], rtol=0, atol=1e-6)


def test_pearson_delta_with_the_predicted_control_equals_cell_eval(log_pair: tuple[Pair, pd.DataFrame]) -> None:
    pair, table = log_pair
    ours = _units(pair, "pearson_delta", control_source="prediction")
    np.testing.assert_allclose(ours, table["pearson_delta"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("metric", "column"),
    [
        ("mse", "expr_mse"),
        ("mae", "expr_mae"),
        ("pearson_delta", "delta_pearson"),
        ("pds_cosine", "pds_cosine"),
        ("pds_l1", "pds_l1"),
        ("pds_l2", "pds_l2"),
    ],
)
def test_columns_equal_cell_eval2(
    second_pair: tuple[Pair, pd.DataFrame, dict[str, object]], metric: str, column: str
) -> None:
    pair, table, params = second_pair
    np.testing.assert_allclose(_units(pair, metric, **params), table[column], rtol=0, atol=1e-9)


def test_the_predicted_control_would_change_the_score(log_pair: tuple[Pair, pd.DataFrame]) -> None:
    # What separates the two origins on the same files is far above any tolerance of the tests above.
    pair, _ = log_pair
    ours, theirs = _units(pair, "pearson_delta"), _units(pair, "pearson_delta", control_source="prediction")
    assert np.abs(ours - theirs).max() > 0.1
