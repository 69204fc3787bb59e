"""Predicted cells that cannot be scored are refused by name; what looks odd and is right is scored."""

from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from prima_bench.tasks.errors import PredictionError


def dense(cells: anndata.AnnData) -> Any:
    return np.asarray(cells.X.toarray())


def with_x(cells: anndata.AnnData, x: Any, **parts: Any) -> anndata.AnnData:
    return anndata.AnnData(x, obs=parts.get("obs", cells.obs).copy(), var=parts.get("var", cells.var).copy())


def poked(cells: anndata.AnnData, value: float, sparse: bool) -> anndata.AnnData:
    x = dense(cells)
    x[3, 2] = value
    return with_x(cells, sp.csr_matrix(x) if sparse else x)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity(screen: Any, refused: Any, value: float, sparse: bool) -> None:
    error = refused(screen, poked(screen.predictions, value, sparse))
    assert "'pred3'" in error.message
    assert "gene00" in error.message


@pytest.mark.parametrize("sparse", [False, True])
def test_negative_values(screen: Any, refused: Any, sparse: bool) -> None:
    error = refused(screen, poked(screen.predictions, -2.0, sparse))
    assert "negative values in 1 row: 'pred3'" in error.message
    assert "-2" in error.message


@pytest.mark.parametrize("sparse", [False, True])
def test_log_values_where_counts_are_declared(screen: Any, log_screen: Any, refused: Any, sparse: bool) -> None:
    x = log_screen.predictions.X if sparse else dense(log_screen.predictions)
    error = refused(screen, with_x(screen.predictions, x))
    assert "fractions" in error.message
    assert "'pred0'" in error.message
    assert "scale='counts' was declared" in error.hint


@pytest.mark.parametrize("sparse", [False, True])
def test_counts_where_log_values_are_declared(screen: Any, log_screen: Any, refused: Any, sparse: bool) -> None:
    x = screen.predictions.X if sparse else dense(screen.predictions)
    error = refused(log_screen, with_x(screen.predictions, x))
    assert "whole numbers" in error.message
    assert "'pred0'" in error.message
    assert "log1p_cp10k" in error.hint


@pytest.mark.parametrize("sparse", [False, True])
def test_logarithms_of_another_total(log_screen: Any, refused: Any, sparse: bool) -> None:
    x = np.log1p(100 * np.expm1(dense(log_screen.predictions)))
    error = refused(log_screen, with_x(log_screen.predictions, sp.csr_matrix(x) if sparse else x))
    assert "more than 10,000 counts, up to 1e+06, once the logarithm is undone, in 17 rows: 'pred0'" in error.message


def test_means_of_cells_are_legal_on_log_scale(log_screen: Any) -> None:
    frame = log_screen.predictions.to_df().groupby(log_screen.predictions.obs["target"].to_numpy()).mean()
    means = anndata.AnnData(frame.to_numpy(), obs=pd.DataFrame({"target": frame.index}, index=frame.index))
    means.var_names = list(frame.columns)
    assert log_screen.result(means).predictions.n_rows == 4


def test_half_precision_is_legal_on_log_scale(log_screen: Any) -> None:
    x = torch.from_numpy(dense(log_screen.predictions)).to(torch.bfloat16)
    run = log_screen.evaluation()
    run.update(x, ids=log_screen.predictions.obs_names, perturbation=log_screen.predictions.obs["target"])
    assert run.compute().predictions.n_rows == 17


def test_missing_and_superfluous_genes(screen: Any, refused: Any) -> None:
    cells = screen.predictions
    assert "lack 2 of the solution's 12 genes: 'gene08', 'gene09'" in refused(screen, cells[:, :-2].copy()).message
    extra = anndata.concat(
        [cells, anndata.AnnData(cells.X[:, :1].copy(), obs=cells.obs, var=pd.DataFrame(index=["TP53"]))],
        axis=1,
        merge="same",
    )
    assert "hold 1 gene that the solution lacks: 'TP53'" in refused(screen, extra).message


def test_a_gene_spelled_otherwise_is_named(screen: Any, refused: Any) -> None:
    var = pd.DataFrame(index=[*screen.predictions.var_names[:-1], "GENE09"])
    error = refused(screen, with_x(screen.predictions, screen.predictions.X, var=var))
    assert "'gene09'" in error.message
    assert "'GENE09' looks like 'gene09'" in error.hint


@pytest.mark.filterwarnings("ignore:Variable names are not unique")
def test_repeated_genes(screen: Any, refused: Any) -> None:
    var = pd.DataFrame(index=[*screen.predictions.var_names[:-1], "AHR"])
    error = refused(screen, with_x(screen.predictions, screen.predictions.X, var=var))
    assert "gene more than once: 'AHR'" in error.message


def test_wrong_width_without_names(screen: Any, refused: Any) -> None:
    x = dense(screen.predictions)[:, :7]
    error = refused(screen, x, ids=screen.predictions.obs_names, perturbation=screen.predictions.obs["target"])
    assert "7 columns, the solution has 12 genes" in error.message


def test_unknown_perturbation_names_the_nearest(screen: Any, refused: Any) -> None:
    obs = screen.predictions.obs.replace({"target": {"KLF1": "KLF2"}})
    error = refused(screen, with_x(screen.predictions, screen.predictions.X, obs=obs))
    assert "unknown perturbation 'KLF2' (4 rows: 'pred5', 'pred6', 'pred7' and 1 more)" in error.message
    assert "'KLF1'" in error.hint


def test_near_miss_is_named_and_never_merged(screen: Any, refused: Any) -> None:
    obs = screen.predictions.obs.replace({"target": {"KLF1": "klf-1"}})
    error = refused(screen, with_x(screen.predictions, screen.predictions.X, obs=obs))
    assert "'klf-1' differs from 'KLF1' only in case, spaces or punctuation" in error.hint


@pytest.mark.parametrize("missing", [None, np.nan, "", "  "])
def test_missing_labels(screen: Any, refused: Any, missing: Any) -> None:
    obs = screen.predictions.obs.astype(object)
    obs.iloc[[1, 4], 0] = missing
    error = refused(screen, with_x(screen.predictions, screen.predictions.X, obs=obs))
    assert "2 rows without a perturbation label" in error.message
    assert "'pred1', 'pred4'" in error.message


def test_no_labels_at_all(screen: Any, refused: Any) -> None:
    cells = screen.predictions.copy()
    del cells.obs["target"]
    assert "there is no column 'target'" in refused(screen, cells).message


def test_empty(screen: Any, refused: Any) -> None:
    assert "no rows" in refused(screen, screen.predictions[:0].copy()).message


def test_repeated_names_within_an_update(screen: Any, refused: Any) -> None:
    ids = [f"cell{i // 2}" for i in range(17)]
    error = refused(screen, screen.predictions, ids=ids)
    assert "rows came more than once with different content: 'cell0', 'cell1'" in error.message
    assert "distinct names" in error.hint


@pytest.mark.parametrize("name", ["screen", "log_screen"])
def test_repeats_count_once_however_they_are_sharded(request: Any, name: str) -> None:
    data = request.getfixturevalue(name)
    rows = np.r_[np.arange(17), [3, 3, 16]]
    expected = data.result()
    for order in ([rows], [rows[:18], rows[18:]], [[row] for row in rows], [rows[::-1]]):
        run = data.evaluation()
        for part in order:
            cells = data.predictions[np.unique(part)]
            places = np.searchsorted(np.unique(part), part)
            run.update(
                cells.X[places], ids=cells.obs_names[places], perturbation=list(cells.obs["target"].iloc[places])
            )
        result = run.compute()
        assert result.result_digest == expected.result_digest
        assert result.predictions.duplicates_dropped == 3


def test_one_name_under_two_perturbations_is_two_cells(screen: Any) -> None:
    cells = screen.predictions
    ids = cells.obs.groupby("target").cumcount().astype(str).to_numpy()
    run = screen.evaluation()
    run.update(cells, ids=ids)
    assert run.compute().predictions.n_rows == 17


def test_conflicting_repeats_across_updates(screen: Any, refused: Any) -> None:
    changed = screen.predictions[[2, 9]].copy()
    changed.X = changed.X + sp.csr_matrix(([1.0], ([0], [4])), shape=(2, 12))
    error = refused(screen, changed)
    assert "1 row came more than once with different content: 'pred2'" in error.message
    assert "distinct names, or pass ids=" in error.hint


def test_equal_repeats_across_updates_count_once(screen: Any) -> None:
    once = screen.result()
    twice = screen.result(screen.predictions, screen.predictions[[0, 3, 11]])
    assert twice.predictions.duplicates_dropped == 3
    assert twice.result_digest == once.result_digest


def test_a_perturbation_without_cells_is_named_at_compute(screen: Any) -> None:
    run = screen.evaluation()
    run.update(screen.predictions[screen.predictions.obs["target"] != "drug X"])
    with pytest.raises(PredictionError, match="1 of 4 perturbations without predicted cells: 'drug X'"):
        run.compute()
    run.update(screen.predictions[screen.predictions.obs["target"] == "drug X"])
    assert run.compute().result_digest == screen.result().result_digest


def test_nothing_at_all(screen: Any) -> None:
    with pytest.raises(PredictionError, match="no predictions were handed in"):
        screen.evaluation().compute()


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        ({"a": 1}, "a dict holds no cells"),
        (None, "a NoneType holds no cells"),
        (object(), "object cannot be read"),
        (np.zeros(3), "the array has 1 dimension, shape (3,)"),
        (np.zeros((17, 12), dtype=complex), "complex128 are not real numbers"),
    ],
)
def test_things_that_are_no_cells(screen: Any, refused: Any, wrong: Any, seen: str) -> None:
    cells = screen.predictions
    assert seen in refused(screen, wrong, ids=cells.obs_names, perturbation=cells.obs["target"]).message


def test_a_matrix_on_its_side_and_expression_in_a_layer(screen: Any, refused: Any) -> None:
    cells = screen.predictions
    turned = refused(screen, dense(cells).T, ids=cells.obs_names, perturbation=cells.obs["target"])
    assert turned.message == "17 ids for 12 rows"
    assert "transpose it" in turned.hint
    layered = anndata.AnnData(None, obs=cells.obs, var=cells.var, layers={"counts": cells.X})
    assert "layers['counts']" in refused(screen, layered).hint
    named = cells.to_df().assign(target=cells.obs["target"]).reset_index(names="cell")
    assert "frame.set_index('cell')" in refused(screen, named).hint


def test_rows_without_names(screen: Any, refused: Any) -> None:
    error = refused(screen, dense(screen.predictions), perturbation=screen.predictions.obs["target"])
    assert "without names" in error.message


@pytest.mark.parametrize("part", ["ids", "perturbation"])
def test_one_name_and_label_for_each_row(screen: Any, refused: Any, part: str) -> None:
    arguments = {"ids": screen.predictions.obs_names, "perturbation": screen.predictions.obs["target"]}
    arguments[part] = arguments[part][:-1]
    assert "16" in refused(screen, dense(screen.predictions), **arguments).message


def permuted_genes(cells: anndata.AnnData) -> anndata.AnnData:
    return cells[:, ::-1].copy()


def unsorted_csr(cells: anndata.AnnData) -> anndata.AnnData:
    x = cells.X.copy()
    for i in range(x.shape[0]):
        span = slice(x.indptr[i], x.indptr[i + 1])
        x.indices[span], x.data[span] = x.indices[span][::-1].copy(), x.data[span][::-1].copy()
    x.has_sorted_indices = False
    return with_x(cells, x)


def explicit_zeros(cells: anndata.AnnData) -> anndata.AnnData:
    x = dense(cells)
    rows, columns = np.indices(x.shape)
    stored = sp.csr_matrix((x.ravel(), (rows.ravel(), columns.ravel())), shape=x.shape)
    assert stored.nnz == x.size
    return with_x(cells, stored)


def split_entries(cells: anndata.AnnData) -> anndata.AnnData:
    x = cells.X
    halves = sp.csr_matrix((np.repeat(x.data / 2, 2), np.repeat(x.indices, 2), x.indptr * 2), shape=x.shape)
    return with_x(cells, halves)


def unused_categories(cells: anndata.AnnData) -> anndata.AnnData:
    obs = cells.obs.assign(target=pd.Categorical(cells.obs["target"], categories=["zzz", *set(cells.obs["target"])]))
    return with_x(cells, cells.X, obs=obs)


def padded_labels(cells: anndata.AnnData) -> anndata.AnnData:
    return with_x(cells, cells.X, obs=cells.obs.assign(target=" " + cells.obs["target"].astype(object) + "\t"))


def negative_zero(cells: anndata.AnnData) -> anndata.AnnData:
    x = dense(cells)
    return with_x(cells, np.where(x == 0, np.float32(-0.0), x))


SAME = {
    "dense": lambda c: with_x(c, dense(c)),
    "float64": lambda c: with_x(c, dense(c).astype(np.float64)),
    "fortran order": lambda c: with_x(c, np.asfortranarray(dense(c))),
    "int32": lambda c: with_x(c, dense(c).astype(np.int32)),
    "uint16 csr": lambda c: with_x(c, c.X.astype(np.uint16)),
    "float16": lambda c: with_x(c, dense(c).astype(np.float16)),
    "big endian": lambda c: with_x(c, dense(c).astype(">f4")),
    "csc": lambda c: with_x(c, c.X.tocsc()),
    "csr_array": lambda c: with_x(c, sp.csr_array(c.X)),
    "csc_array": lambda c: with_x(c, sp.csc_array(c.X)),
    "int64 indices": lambda c: with_x(
        c, sp.csr_matrix((c.X.data, c.X.indices.astype(np.int64), c.X.indptr.astype(np.int64)), shape=c.shape)
    ),
    "unsorted csr": unsorted_csr,
    "explicit zeros": explicit_zeros,
    "entries in two halves": split_entries,
    "negative zero": negative_zero,
    "permuted genes": permuted_genes,
    "permuted genes, dense": lambda c: permuted_genes(with_x(c, dense(c))),
    "permuted rows": lambda c: c[::-1].copy(),
    "a view": lambda c: c[np.arange(17)],
    "unused categories": unused_categories,
    "padded labels": padded_labels,
    "data frame": lambda c: c.to_df().assign(target=c.obs["target"]),
    "sparse data frame": lambda c: pd.DataFrame.sparse.from_spmatrix(c.X, c.obs_names, c.var_names).assign(
        target=c.obs["target"]
    ),
}


@pytest.mark.filterwarnings("ignore:.*target.*:anndata.ImplicitModificationWarning")
@pytest.mark.parametrize("form", SAME)
def test_forms_that_are_the_same_predictions(screen: Any, form: str) -> None:
    result = screen.result(SAME[form](screen.predictions))
    assert result.result_digest == screen.result().result_digest


ARRAYS = {
    "array": lambda x: x,
    "tensor": torch.from_numpy,
    "tensor that requires a gradient": lambda x: torch.from_numpy(x).requires_grad_(),
    "transposed tensor": lambda x: torch.from_numpy(np.ascontiguousarray(x.T)).T,
    "bfloat16": lambda x: torch.from_numpy(x).to(torch.bfloat16),
    "int64 tensor": lambda x: torch.from_numpy(x).long(),
    "sparse coo tensor": lambda x: torch.from_numpy(x).to_sparse(),
    "csr": sp.csr_matrix,
    "coo": sp.coo_array,
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("form", ARRAYS)
def test_arrays_with_names(screen: Any, form: str) -> None:
    cells = screen.predictions
    run = screen.evaluation()
    run.update(ARRAYS[form](dense(cells)), ids=list(cells.obs_names), perturbation=list(cells.obs["target"]))
    assert run.compute().result_digest == screen.result().result_digest


def test_predictions_are_not_kept_or_changed(screen: Any) -> None:
    x = dense(screen.predictions)
    cells = with_x(screen.predictions, x)
    run = screen.evaluation()
    run.update(cells)
    before = run.compute().result_digest
    x *= 0
    cells.X[:] = 0
    assert run.compute().result_digest == before


def test_malformed_csr_is_refused_before_it_is_read(screen: Any, refused: Any) -> None:
    x = screen.predictions.X.copy()
    x.indices[5] = 400_000
    cells = screen.predictions
    error = refused(screen, x, ids=cells.obs_names, perturbation=cells.obs["target"])
    assert "malformed" in error.message


def test_integers_beyond_float32_stay_exact(screen: Any) -> None:
    from prima_bench.tasks.inputs.matrix import open_matrix

    x = np.array([[2**24 + 1, 3]])
    ((_, block),) = open_matrix(x).blocks()
    assert block.dtype == np.float64
    assert block[0, 0] == 2**24 + 1


def test_control_cells_are_ignored_unless_a_metric_uses_them(screen: Any) -> None:
    control = screen.solution[screen.solution.obs["target"] == "ctrl"].copy()
    control.X = control.X * 7
    both = anndata.concat([screen.predictions, control])
    assert screen.result(both).result_digest == screen.result().result_digest
    metric = "pearson_delta(control_source=prediction)"
    assert screen.result(both, metrics=metric).predictions.n_rows == 17
    with pytest.raises(PredictionError, match="no predicted control cells, and 1 metric of the panel must have them"):
        screen.result(metrics=metric)
