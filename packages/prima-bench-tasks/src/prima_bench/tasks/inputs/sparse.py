"""Checks what a sparse matrix says about itself before anything follows its pointers: the compiled code that slices
and converts sparse matrices trusts them, and reads or writes outside of memory where they are wrong. No values here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from prima_bench.tasks.errors import PrimaBenchError, counted

_PIECE = 1 << 20
_UNREADABLE = (ValueError, IndexError, KeyError, TypeError, OSError, RuntimeError, OverflowError)
_HINT = "Its indices, pointers and values contradict each other; save it anew from a matrix that holds together."


def malformed(why: object, error: type[PrimaBenchError]) -> PrimaBenchError:
    """The error for a sparse matrix that contradicts itself."""
    return error(f"the sparse matrix is malformed: {why}", hint=_HINT)


def not_a_table(shape: Sequence[int], error: type[PrimaBenchError]) -> PrimaBenchError:
    """The error for an array that is no matrix."""
    hint = "Give rows and columns" + ("; one row alone is array[None, :]." if len(shape) == 1 else ".")
    held = f"the array has {counted(len(shape), 'dimension')}, shape {tuple(shape)}"
    return error(f"{held}, where a matrix has two", hint=hint)


def as_csr(x: Any, error: type[PrimaBenchError]) -> Any:
    """A scipy matrix or array of any format as CSR; ``x`` itself where it is CSR.

    Raises:
        PrimaBenchError: If it is malformed, or not two-dimensional.
    """
    if x.ndim != 2:
        raise not_a_table(x.shape, error)
    check_scipy(x, error)
    if x.format == "csr":
        return x
    try:
        converted = sp.csr_matrix(x)
    except _UNREADABLE as cause:
        raise malformed(cause, error) from cause
    check_scipy(converted, error)
    return converted


def check_scipy(x: Any, error: type[PrimaBenchError]) -> None:
    """Check a scipy matrix or array; formats that only Python code walks through are checked once converted.

    Raises:
        PrimaBenchError: If it is malformed.
    """
    rows, columns = x.shape
    if x.format == "csr":
        check_compressed(x.indptr, x.indices, len(x.data), rows, columns, error)
    elif x.format == "csc":
        check_compressed(x.indptr, x.indices, len(x.data), columns, rows, error)
    elif x.format == "bsr":
        height, width = x.data.shape[1:]
        check_compressed(x.indptr, x.indices, len(x.data), rows // height, columns // width, error)
    elif x.format == "coo":
        for positions, size in zip(x.coords, x.shape, strict=True):
            if len(positions) != len(x.data):
                raise malformed(f"{len(positions)} positions for {len(x.data)} values", error)
            _check_range(np.asarray(positions), size, error)


def check_compressed(
    indptr: Any, indices: Any, n_values: int, majors: int, minors: int, error: type[PrimaBenchError]
) -> None:
    """Check the pointers and indices of a compressed matrix.

    Args:
        indptr: Where each row (CSR) or column (CSC) begins, integer [majors + 1].
        indices: The column (CSR) or row (CSC) of each value; None to leave them for later.
        n_values: Number of values.
        majors: Rows of CSR, columns of CSC.
        minors: Columns of CSR, rows of CSC.
        error: What to raise.

    Raises:
        PrimaBenchError: If they contradict each other.
    """
    pointers = np.asarray(indptr)
    if pointers.ndim != 1 or pointers.dtype.kind not in "iu" or len(pointers) != majors + 1:
        raise malformed(f"pointers of shape {pointers.shape} and dtype {pointers.dtype}, not [{majors + 1}]", error)
    if pointers[0] != 0 or (pointers[1:] < pointers[:-1]).any():
        raise malformed("the pointers must start at 0 and not decrease", error)
    if pointers[-1] > n_values:
        raise malformed(f"the pointers reach {pointers[-1]}, past the {n_values} values", error)
    if indices is not None:
        if len(indices) != n_values:
            raise malformed(f"{len(indices)} indices for {n_values} values", error)
        _check_range(np.asarray(indices), minors, error)


def check_stored(x: Any, error: type[PrimaBenchError], *, whole: bool) -> None:
    """Check a sparse matrix in a file.

    Args:
        x: anndata's view of it.
        error: What to raise.
        whole: Whether to look at the indices too; those of rows that are read block by block are checked then.

    Raises:
        PrimaBenchError: If it is malformed or cannot be read.
    """
    try:
        indptr, indices, n_values = x.group["indptr"][()], x.group["indices"], len(x.group["data"])
        majors, minors = (int(n) for n in (x.shape if x.format == "csr" else x.shape[::-1]))
        if len(indices) != n_values:
            raise malformed(f"{len(indices)} indices for {n_values} values", error)
        check_compressed(indptr, None, n_values, majors, minors, error)
        for start in range(0, n_values if whole else 0, _PIECE):
            _check_range(indices[start : start + _PIECE], minors, error)
    except _UNREADABLE as cause:
        raise malformed(cause, error) from cause


def tensor_to_csr(x: torch.Tensor, error: type[PrimaBenchError]) -> Any:
    """A two-dimensional sparse tensor of any layout as scipy CSR.

    Raises:
        PrimaBenchError: If it is malformed.
    """
    try:
        if x.layout == torch.sparse_coo:
            values, positions = x._values(), x._indices()
            parts = (_plain(values), tuple(_plain(positions)))
            if values.ndim != 1:
                raise malformed(f"its values have {values.ndim} dimensions", error)
            for axis, size in zip(parts[1], x.shape, strict=True):
                _check_range(axis, size, error)
            return as_csr(sp.coo_matrix(parts, shape=tuple(x.shape)), error)
        if x.layout in (torch.sparse_csr, torch.sparse_csc):
            csr = x.layout == torch.sparse_csr
            indptr = _plain(x.crow_indices() if csr else x.ccol_indices())
            indices = _plain(x.col_indices() if csr else x.row_indices())
            data = _plain(x.values())
            majors, minors = (x.shape[0], x.shape[1]) if csr else (x.shape[1], x.shape[0])
            check_compressed(indptr, indices, len(data), majors, minors, error)
            kind = sp.csr_matrix if csr else sp.csc_matrix
            return as_csr(kind((data, indices, indptr), shape=tuple(x.shape)), error)
        rows = x.layout == torch.sparse_bsr
        pointers = x.crow_indices() if rows else x.ccol_indices()
        inner = x.col_indices() if rows else x.row_indices()
        checked = torch.sparse_compressed_tensor(
            pointers, inner, x.values(), size=x.shape, layout=x.layout, check_invariants=True
        )
        return as_csr(sp.csr_matrix(_plain(checked.to_dense())), error)
    except _UNREADABLE as cause:
        raise malformed(cause, error) from cause


def _plain(x: torch.Tensor) -> Any:
    return (x.float() if x.dtype == torch.bfloat16 else x).cpu().numpy()


def _check_range(positions: Any, size: int, error: type[PrimaBenchError]) -> None:
    if positions.ndim != 1 or positions.dtype.kind not in "iu":
        raise malformed(f"indices of shape {positions.shape} and dtype {positions.dtype}", error)
    if len(positions) and (positions.min() < 0 or positions.max() >= size):
        raise malformed(f"an index of {positions.min()} or {positions.max()}, outside 0 to {size - 1}", error)
