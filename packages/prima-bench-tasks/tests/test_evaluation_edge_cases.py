"""Ordinary oddities of real screens, through the whole default panel: each gives a value or says what is wrong."""

import math
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from prima_bench.tasks.errors import DataError, PredictionError, PrimaBenchError, UsageError
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.results.schema import EvalResult

GENES = [f"G{i}" for i in range(30)]
LABELS = ("ctrl", "G0", "G1+G2", "ADNP-1", "G3")
TARGETS = {"G0": ["G0"], "G1+G2": ["G1", "G2"], "ADNP-1": [], "G3": ["G3"]}
OPTIONS = {"perturbation_key": "perturbation", "control": "ctrl", "target_map": TARGETS}


def screen(seed: int, *, cells: int = 25, labels: tuple[str, ...] = LABELS) -> anndata.AnnData:
    """Counts of strong effects, every perturbation on genes of its own."""
    rng = np.random.default_rng(seed)
    column = np.repeat(labels, [2 * cells, *[cells] * (len(labels) - 1)])
    level = np.tile(np.linspace(1.0, 8.0, len(GENES)), (len(column), 1))
    for number, label in enumerate(labels[1:]):
        level[np.ix_(column == label, np.arange(5 * number, 5 * number + 5))] *= 4.0
    x = sp.csr_matrix(rng.poisson(level).astype(np.float32))
    obs = pd.DataFrame({"perturbation": pd.Categorical(column)}, index=[f"s{seed}c{i}" for i in range(len(column))])
    return anndata.AnnData(x, obs=obs, var=pd.DataFrame(index=GENES))


def logged(cells: anndata.AnnData) -> anndata.AnnData:
    out, x = cells.copy(), cells.X.toarray()
    out.X = sp.csr_matrix(np.log1p(1e4 * x / np.maximum(x.sum(axis=1, keepdims=True), 1)).astype(np.float32))
    return out


def score(solution: Any, predictions: Any, *, scale: str = "counts", metrics: Any = None, **options: Any) -> EvalResult:
    run = Evaluation(
        "perturbation_prediction",
        solution=solution,
        scale=scale,
        metrics=metrics,
        device="cpu",
        **{**OPTIONS, **options},
    )
    run.update(predictions)
    return run.compute()


@pytest.fixture(scope="module")
def plain() -> EvalResult:
    return score(screen(0), screen(1))


def complete(result: EvalResult) -> None:
    """Every aggregate is a finite number or has a reason, and so has every unit."""
    for name, record in result.scores.items():
        assert record.value is not None or record.reason, name
        assert record.value is None or math.isfinite(record.value), name
        if record.n_units is not None:
            values, reasons = result.per_unit[name], result.units.undefined.get(name, {})
            assert set(values.index[values.isna()]) == set(reasons), name
            assert all(reasons.values()), name


def all_stored(cells: anndata.AnnData) -> anndata.AnnData:
    out, x = cells.copy(), cells.X.toarray()
    n, w = x.shape
    out.X = sp.csr_matrix((x.ravel(), np.tile(np.arange(w), n), np.arange(0, n * w + 1, w)), shape=x.shape)
    assert (out.X.data == 0).any()
    return out


def unused_category(cells: anndata.AnnData) -> anndata.AnnData:
    out = cells.copy()
    out.obs["perturbation"] = out.obs["perturbation"].cat.add_categories(["never", "seen"])
    return out


def as_csr_array(cells: anndata.AnnData) -> anndata.AnnData:
    out = cells.copy()
    out.X = sp.csr_array(out.X)
    return out


def as_csc(cells: anndata.AnnData) -> anndata.AnnData:
    out = cells.copy()
    out.X = sp.csc_matrix(out.X)
    return out


def permuted_genes(cells: anndata.AnnData) -> anndata.AnnData:
    return cells[:, np.random.default_rng(5).permutation(cells.n_vars)].copy()


def permuted_cells(cells: anndata.AnnData) -> anndata.AnnData:
    return cells[np.random.default_rng(6).permutation(cells.n_obs)].copy()


def plain_strings(cells: anndata.AnnData) -> anndata.AnnData:
    out = cells.copy()
    out.obs["perturbation"] = out.obs["perturbation"].astype(str).astype(object)
    return out


@pytest.mark.parametrize(
    "form", [all_stored, unused_category, as_csr_array, as_csc, permuted_genes, permuted_cells, plain_strings]
)
@pytest.mark.parametrize("side", ["solution", "predictions"])
def test_another_form_of_the_same_cells_gives_the_same_result(plain: EvalResult, form: Any, side: str) -> None:
    solution, predictions = screen(0), screen(1)
    result = score(*((form(solution), predictions) if side == "solution" else (solution, form(predictions))))
    assert result.result_digest == plain.result_digest


def test_backed_files_give_the_same_result(plain: EvalResult, tmp_path: Path) -> None:
    for name, cells in (("solution", screen(0)), ("predictions", screen(1))):
        cells.write_h5ad(tmp_path / f"{name}.h5ad")
    backed = [anndata.read_h5ad(tmp_path / f"{name}.h5ad", backed="r") for name in ("solution", "predictions")]
    assert score(*backed).result_digest == plain.result_digest
    for file in backed:
        file.file.close()


def test_log_values_of_the_same_cells_are_scored_too() -> None:
    result = score(logged(screen(0)), logged(screen(1)), scale="log1p_cp10k")
    complete(result)
    assert result.scores["pds_cosine"].value == 1.0


def nan_label(cells: anndata.AnnData) -> anndata.AnnData:
    out = cells.copy()
    out.obs.iloc[3, 0] = np.nan
    return out


def empty_label(cells: anndata.AnnData) -> anndata.AnnData:
    out = plain_strings(cells)
    out.obs.iloc[3, 0] = ""
    return out


def one_nan(cells: anndata.AnnData) -> anndata.AnnData:
    out = cells.copy()
    out.X = out.X.toarray()
    out.X[-1, 2] = np.nan
    return out


def twice_a_gene(cells: anndata.AnnData) -> anndata.AnnData:
    out = cells.copy()
    out.var_names = ["G1", *GENES[1:]]
    return out


def log_values(cells: anndata.AnnData) -> anndata.AnnData:
    return logged(cells)


@pytest.mark.filterwarnings("ignore:Variable names are not unique")
@pytest.mark.parametrize(
    ("form", "said"),
    [
        (nan_label, "s{}c3"),
        (empty_label, "s{}c3"),
        (one_nan, "s{}c149"),
        (twice_a_gene, "G1"),
        (log_values, "counts"),
    ],
)
@pytest.mark.parametrize("side", ["solution", "predictions"])
def test_what_cannot_be_scored_is_named(form: Any, said: str, side: str) -> None:
    solution, predictions = screen(0), screen(1)
    error, given = (DataError, (form(solution), predictions)) if side == "solution" else (PredictionError, None)
    with pytest.raises(error) as raised:
        score(*(given or (solution, form(predictions))))
    assert said.format(0 if side == "solution" else 1) in str(raised.value)
    assert raised.value.hint


def test_counts_where_log_values_are_due_are_told() -> None:
    with pytest.raises(PrimaBenchError, match="log1p"):
        score(logged(screen(0)), screen(1), scale="log1p_cp10k")
    with pytest.raises(PrimaBenchError, match="log1p"):
        score(screen(0), screen(1), scale="log1p_cp10k")


def test_a_missing_perturbation_is_named_and_missing_controls_are_not_missed(plain: EvalResult) -> None:
    predictions = screen(1)
    with pytest.raises(PredictionError, match="ADNP-1"):
        score(screen(0), predictions[predictions.obs["perturbation"] != "ADNP-1"].copy())
    assert (
        score(screen(0), predictions[predictions.obs["perturbation"] != "ctrl"].copy()).result_digest
        == plain.result_digest
    )
    without = screen(0)
    with pytest.raises(UsageError, match="ctrl"):
        score(without[without.obs["perturbation"] != "ctrl"].copy(), predictions)


@pytest.mark.parametrize("metrics", [None, "vcc2026", "fast"])
def test_perturbations_of_one_cell(metrics: Any) -> None:
    def thinned(cells: anndata.AnnData) -> anndata.AnnData:
        repeated = cells.obs.groupby("perturbation", observed=True).cumcount().to_numpy() > 0
        return cells[~(repeated & (cells.obs["perturbation"] == "G3").to_numpy())].copy()

    for solution, predictions in (
        (thinned(screen(0)), screen(1)),
        (screen(0), thinned(screen(1))),
        (thinned(screen(0)), thinned(screen(1))),
    ):
        result = score(solution, predictions, metrics=metrics)
        complete(result)
        assert result.scores["pds_cosine" if metrics != "vcc2026" else next(iter(result.scores))].value == 1.0


def test_no_differentially_expressed_gene_in_one_or_in_all() -> None:
    solution = screen(0)
    idle = (solution.obs["perturbation"] == "G3").to_numpy()
    drawn = screen(7)[:25].X  # control cells
    solution.X = sp.csr_matrix(np.where(idle[:, None], 0, solution.X.toarray()))
    x = solution.X.tolil()
    x[idle] = drawn
    solution.X = x.tocsr()
    result = score(solution, screen(1))
    complete(result)
    for name in ("de_overlap_at_n", "de_auprc_signed"):
        assert set(result.units.undefined[name]) == {"G3"}, name
        assert result.scores[name].value is not None, name

    flat = screen(0)
    rng = np.random.default_rng(8)
    flat.X = sp.csr_matrix(rng.poisson(3.0, flat.shape).astype(np.float32))
    result = score(flat, screen(1))
    complete(result)
    assert result.scores["de_overlap_at_n"].value is None
    assert result.scores["mae"].value is not None


def test_genes_and_cells_of_zeros() -> None:
    for changed in ("solution", "predictions", "both"):
        sides = [screen(0), screen(1)]
        for number, cells in enumerate(sides):
            if changed == "both" or number == ("solution", "predictions").index(changed):
                x = cells.X.toarray()
                x[:, [0, 7, 29]] = 0
                x[[0, 60, 149]] = 0
                cells.X = sp.csr_matrix(x)
        complete(score(*sides))
        complete(score(*map(logged, sides), scale="log1p_cp10k"))


@pytest.mark.parametrize("labels", [LABELS[:3], LABELS[:2]])
def test_two_perturbations_and_one(labels: tuple[str, ...]) -> None:
    targets = {label: TARGETS[label] for label in labels[1:]}
    result = score(screen(0, labels=labels), screen(1, labels=labels), target_map=targets)
    complete(result)
    assert result.scores["pds_cosine"].value == (1.0 if len(labels) == 3 else None)


@pytest.mark.parametrize("preset", ["cell_eval", "vcc2026"])
def test_presets_of_other_tools_end_none_of_these(preset: str) -> None:
    scale = "counts" if preset == "vcc2026" else "log1p_cp10k"
    make = (lambda cells: cells) if preset == "vcc2026" else logged
    flat = screen(0)
    flat.X = sp.csr_matrix(np.random.default_rng(8).poisson(3.0, flat.shape).astype(np.float32))
    for solution in (flat, screen(0)):
        complete(score(make(all_stored(solution)), make(unused_category(screen(1))), scale=scale, metrics=preset))
