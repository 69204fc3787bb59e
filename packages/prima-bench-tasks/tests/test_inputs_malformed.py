"""Matrices that contradict themselves, hide values or hold what no cell does are refused before they are followed."""

from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from prima_bench.tasks.errors import DataError

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse (CSR|CSC|BSR|BSC) tensor support", "ignore:.*masked", "ignore:The PyTorch API of MaskedTensors"
)


def dense(screen: Any) -> Any:
    return np.asarray(screen.predictions.X.toarray())


def names(screen: Any) -> dict[str, Any]:
    return {"ids": list(screen.predictions.obs_names), "perturbation": list(screen.predictions.obs["target"])}


def broken(x: Any, kind: str, how: str) -> Any:
    out = getattr(sp, kind)(x)
    if kind.startswith("coo"):
        row, column = (c.copy() for c in out.coords)
        if how == "short data":
            out.data = out.data[:-3]
        else:
            column[5] = {"high": 10**8, "negative": -1}[how]
        out.coords = (row, column)
    elif how == "short data":
        out.data = out.data[:-3]
    elif how == "pointer":
        out.indptr[3] = 10**7
    else:
        out.indices[5] = {"high": 10**8, "negative": -(10**8)}[how]
    return out


@pytest.mark.parametrize("how", ["high", "negative", "short data", "pointer"])
@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix", "csc_array", "bsr_matrix", "coo_matrix", "coo_array"])
def test_malformed_scipy(screen: Any, refused: Any, kind: str, how: str) -> None:
    if kind.startswith("coo") and how == "pointer":
        how = "high"
    x = broken(dense(screen), kind, how)
    assert "the sparse matrix is malformed" in refused(screen, x, **names(screen)).message


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix"])
def test_malformed_anndata(screen: Any, refused: Any, kind: str, view: bool) -> None:
    cells = screen.predictions.copy()
    cells.X = broken(dense(screen), kind, "high")
    assert "the sparse matrix is malformed" in refused(screen, cells[2:, ::-1] if view else cells).message


@pytest.mark.parametrize("how", ["high", "pointer", "last pointer", "short data", "no data", "short indptr"])
@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix"])
def test_malformed_h5ad(screen: Any, refused: Any, tmp_path: Path, kind: str, how: str) -> None:
    cells = screen.predictions.copy()
    cells.X = getattr(sp, kind)(cells.X)
    cells.write_h5ad(tmp_path / "p.h5ad")
    with h5py.File(tmp_path / "p.h5ad", "r+") as file:
        x = file["X"]
        name = {"high": "indices", "pointer": "indptr", "last pointer": "indptr", "short indptr": "indptr"}.get(
            how, "data"
        )
        values = x[name][()]
        del x[name]
        if how == "high":
            values[5] = 10**8
        elif "pointer" in how:
            values[-1 if how.startswith("last") else 3] = 10**7
        if how != "no data":
            x[name] = values[:-3] if how.startswith("short") else values
    assert "the sparse matrix is malformed" in refused(screen, tmp_path / "p.h5ad").message
    with pytest.raises(DataError, match="the sparse matrix is malformed"):
        screen.evaluation(solution=tmp_path / "p.h5ad", control="drug X")
    if how != "no data":
        backed = anndata.read_h5ad(tmp_path / "p.h5ad", backed="r")
        try:
            assert "the sparse matrix is malformed" in refused(screen, backed[:5, ::-1]).message
        finally:
            backed.file.close()


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_coo])
def test_malformed_tensors(screen: Any, refused: Any, layout: Any) -> None:
    x = torch.from_numpy(dense(screen))
    if layout == torch.sparse_coo:
        good = x.to_sparse()
        positions = good.indices().clone()
        bad = torch.sparse_coo_tensor(positions, good.values(), x.shape, check_invariants=False)
        bad._indices()[1, 4] = 10**8
    else:
        bad = x.to_sparse(layout=layout, blocksize=(1, 2) if layout == torch.sparse_bsr else None)
        (bad.row_indices() if layout == torch.sparse_csc else bad.col_indices())[4] = 10**8
    assert "the sparse matrix is malformed" in refused(screen, bad, **names(screen)).message


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_coo])
def test_sparse_tensors_of_every_layout(screen: Any, layout: Any) -> None:
    x = torch.from_numpy(dense(screen)).to_sparse(
        layout=layout, blocksize=(1, 2) if layout == torch.sparse_bsr else None
    )
    run = screen.evaluation()
    run.update(x, **names(screen))
    assert run.compute().result_digest == screen.result().result_digest


@pytest.mark.parametrize("columns", [6, 24])
@pytest.mark.parametrize("step", [1, -1])
def test_one_gene_name_for_each_column(screen: Any, refused: Any, tmp_path: Path, columns: int, step: int) -> None:
    x = np.hstack([dense(screen), dense(screen)])[:, :columns]
    genes = screen.predictions.var_names.to_numpy(str)[::step]
    arrays = {key: np.array(value) for key, value in zip(("ids", "perturbation"), names(screen).values(), strict=True)}
    np.savez(tmp_path / "p.npz", x=x, genes=genes, **arrays)
    assert f"12 gene names for {columns} columns" in refused(screen, tmp_path / "p.npz").message


def test_an_h5ad_whose_x_is_wider_than_var(screen: Any, refused: Any, tmp_path: Path) -> None:
    cells = screen.predictions.copy()
    cells.X = dense(screen)
    cells.write_h5ad(tmp_path / "p.h5ad")
    with h5py.File(tmp_path / "p.h5ad", "r+") as file:
        del file["X"]
        wide = file.create_dataset("X", data=np.hstack([dense(screen)] * 2))
        wide.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    assert "12 gene names for 24 columns" in refused(screen, tmp_path / "p.h5ad").message
    with pytest.raises(DataError, match="12 gene names for 24 columns"):
        screen.evaluation(solution=tmp_path / "p.h5ad", control="drug X")


@pytest.mark.parametrize("value", [2.0**53, 1e30, 1e308, 2**53 + 1, 2**62])
@pytest.mark.parametrize("sparse", [False, True])
def test_counts_that_float64_cannot_tell_apart(screen: Any, refused: Any, value: Any, sparse: bool) -> None:
    x = dense(screen).astype(np.int64 if isinstance(value, int) else np.float64)
    x[3, 2] = value
    given = sp.csr_matrix(x) if sparse else x
    error = refused(screen, given, **names(screen))
    assert "counts of 2^53 and more" in error.message
    assert "'pred3'" in error.message
    solution = screen.solution.copy()
    wide = solution.X.toarray().astype(x.dtype)
    wide[5, 1] = value
    solution.X = sp.csr_matrix(wide) if sparse else wide
    with pytest.raises(DataError, match=r"counts of 2\^53 and more .* 'real5'"):
        screen.evaluation(solution=solution)


def hidden(n: int, *shape: int) -> Any:
    mask = np.zeros((n, *shape), dtype=bool)
    mask.flat[1] = True
    return mask


def test_masked_cells(screen: Any, refused: Any) -> None:
    x = np.ma.array(dense(screen), mask=hidden(17, 12))
    assert "masked values" in refused(screen, x, **names(screen)).message
    tensor = torch.masked.masked_tensor(torch.from_numpy(dense(screen)), torch.from_numpy(~hidden(17, 12)))
    assert "masked values" in refused(screen, tensor, **names(screen)).message
    for part, values in names(screen).items():
        masked = np.ma.array(np.array(values), mask=hidden(17))
        assert "masked values" in refused(screen, dense(screen), **{**names(screen), part: masked}).message
    none_hidden = np.ma.array(dense(screen), mask=np.zeros((17, 12), dtype=bool))
    run = screen.evaluation()
    run.update(none_hidden, **names(screen))
    assert run.compute().result_digest == screen.result().result_digest


def test_masked_classes(labelled: Any, refused: Any) -> None:
    ids = labelled.predictions.index
    scores = labelled.others["scores"].to_numpy()
    wrong = [
        np.ma.array(np.zeros(24, dtype=int), mask=hidden(24)),
        np.ma.array(labelled.predictions.to_numpy(str), mask=hidden(24)),
        np.ma.array(scores, mask=hidden(24, 4)),
        torch.masked.masked_tensor(torch.zeros(24, dtype=torch.int64), torch.from_numpy(~hidden(24))),
        torch.masked.masked_tensor(torch.tensor(scores), torch.from_numpy(~hidden(24, 4))),
    ]
    for values in wrong:
        assert "masked values" in refused(labelled, values, ids=ids).message
    masked_ids = np.ma.array(ids.to_numpy(str), mask=hidden(24))
    assert "masked values" in refused(labelled, list(labelled.predictions), ids=masked_ids).message
