"""Matrices of any accepted kind, read in blocks of rows that are each copied once.

Dense stays dense and sparse stays sparse; a file is never read whole. A block is fresh memory that nobody else holds:
float32 or float64, C-contiguous, or CSR with columns ascending, unique and without explicit zeros.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse as sp
import torch
from anndata import AnnData
from anndata.abc import CSCDataset, CSRDataset

from prima_bench.tasks.errors import PredictionError, PrimaBenchError
from prima_bench.tasks.inputs.columns import kind_of
from prima_bench.tasks.inputs.masks import refuse_masked
from prima_bench.tasks.inputs.sparse import (
    as_csr,
    check_scipy,
    check_stored,
    malformed,
    not_a_table,
    tensor_to_csr,
)

BLOCK_BYTES = 32 * 2**20
"""Size of a dense block, and of each half (values, columns) of a sparse one: small against what is buffered, and large
enough that the allocator takes it straight from the system and gives it back, so that no memory is left in holes."""

_EXACT_FLOAT32 = 2**24
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, TypeError, RuntimeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix that can be read by rows.

    Attributes:
        shape: Rows and columns.
        sparse: Whether blocks come as CSR.
        bytes_per_row: Size of an average row once read.
        read: Rows ``start`` to ``stop`` as a numpy array or CSR.
        error: What to raise.
        fresh: Whether nobody else holds the memory of what ``read`` returns.
        epsilon: Distance from 1 to the next number in the type of the values, 2^-7 for bfloat16; 0 for integers.
    """

    shape: tuple[int, int]
    sparse: bool
    bytes_per_row: float
    read: Callable[[int, int], Any]
    error: type[PrimaBenchError]
    fresh: bool = False
    epsilon: float = 0.0

    def blocks(
        self, columns: npt.NDArray[np.int64] | None = None, keep: npt.NDArray[np.bool_] | None = None
    ) -> Iterator[tuple[npt.NDArray[np.int64], Any]]:
        """Read all rows, block by block.

        Args:
            columns: Which column comes where, int64 [w]; None for all as they lie.
            keep: Which rows to yield, bool [n]; None for all.

        Yields:
            The row numbers, int64 [k], and the rows, [k, w].

        Raises:
            PrimaBenchError: If values are not real numbers, or a sparse matrix is malformed.
        """
        size = BLOCK_BYTES * (9 / 4 if self.sparse else 1)
        step = max(1, int(size // max(self.bytes_per_row, 1)))
        for start in range(0, self.shape[0], step):
            stop = min(start + step, self.shape[0])
            rows = np.arange(start, stop) if keep is None else start + np.flatnonzero(keep[start:stop])
            if len(rows):
                inside = None if len(rows) == stop - start else rows - start
                try:
                    block = self.read(start, stop)
                except _UNREADABLE as cause:
                    raise self.error(
                        f"rows {start} to {stop - 1} of the matrix cannot be read: {cause}",
                        hint="Give a plain matrix of float or integer values that lies in memory or in a sound file.",
                    ) from cause
                yield rows, self._csr(block, columns, inside) if self.sparse else self._dense(block, columns, inside)

    def _dense(self, source: Any, columns: Any, inside: Any) -> npt.NDArray[Any]:
        block = source if inside is None else source[inside]
        if columns is not None:
            block = np.take(block, columns, axis=1)
        block = np.ascontiguousarray(as_real(block, self.error))
        return block.copy() if not self.fresh and np.may_share_memory(block, source) else block

    def _csr(self, source: Any, columns: Any, inside: Any) -> Any:
        check_scipy(source, self.error)
        block = sp.csr_matrix(source, copy=False)
        if inside is not None:
            block = block[inside]
        if columns is not None:
            target = np.empty(self.shape[1], dtype=block.indices.dtype)
            target[columns] = np.arange(len(columns), dtype=target.dtype)
            moved = sp.csr_matrix((block.data, target[block.indices], block.indptr), shape=block.shape)
            block = moved.tocsc().tocsr()  # twice by counting puts columns in order quicker than sorting each row
        elif inside is None and not self.fresh:
            block = block.copy()
        block.data = as_real(block.data, self.error)
        block.sum_duplicates()
        block.eliminate_zeros()
        return block


def open_matrix(x: Any, *, error: type[PrimaBenchError] = PredictionError) -> Matrix:
    """See any accepted matrix as a :class:`Matrix`; nothing is read yet.

    Args:
        x: A numpy array, a torch tensor (dense or sparse), a scipy matrix or sparse array of any format, a data
            frame of numbers, or the matrix of a backed AnnData.
        error: What to raise.

    Raises:
        PrimaBenchError: If it is nothing of that kind, or not two-dimensional.
    """
    refuse_masked(x, "the matrix's rows", error)
    if isinstance(x, torch.Tensor):
        return _from_tensor(x, error)
    if isinstance(x, pd.DataFrame):
        return _from_frame(x, error)
    if isinstance(x, CSRDataset | CSCDataset):
        check_stored(x, error, whole=x.format == "csc")
        if x.format == "csr":
            stored: Any = x
            return _sparse_matrix(
                stored, float(stored.group["indices"].shape[0]), lambda a, b: stored[a:b], True, error
            )
        try:
            x = as_csr(x.to_memory(), error)
        except _UNREADABLE as cause:
            raise malformed(cause, error) from cause
        return _sparse_matrix(x, float(x.nnz), lambda a, b: _slice(x, a, b), True, error)
    if sp.issparse(x):
        # Row slices of anything but CSR cost a pass over the whole matrix each.
        csr = as_csr(x, error)
        return _sparse_matrix(csr, float(csr.nnz), lambda a, b: _slice(csr, a, b), csr is not x, error)
    if isinstance(x, np.ndarray | h5py.Dataset):
        if x.ndim != 2:
            raise not_a_table(x.shape, error)
        plain = np.asarray(x) if isinstance(x, np.ndarray) else x
        item = 4 if x.dtype.itemsize < 4 else x.dtype.itemsize
        shape, epsilon = (x.shape[0], x.shape[1]), _epsilon(x.dtype)
        return Matrix(shape, False, item * x.shape[1], lambda a, b: plain[a:b], error, epsilon=epsilon)
    raise error(
        f"a matrix of type {kind_of(x)} cannot be read",
        hint="Give a numpy array, torch tensor, scipy sparse matrix, DataFrame or AnnData.",
    )


def expression_of(cells: AnnData, error: type[PrimaBenchError]) -> Any:
    """The ``X`` of an AnnData, None where it has none; a view's is checked before anndata takes its rows out of it.

    Raises:
        PrimaBenchError: If it is sparse and malformed, or cannot be read.
    """
    try:
        # Asking a file-backed AnnData for an X that it lacks raises a KeyError of HDF5.
        if cells.isbacked and "X" not in cells.file:
            return None
        if cells.is_view:
            whole: Any = getattr(cells, "_adata_ref").X  # noqa: B009
            if isinstance(whole, CSRDataset | CSCDataset):
                check_stored(whole, error, whole=True)
            elif sp.issparse(whole):
                check_scipy(whole, error)
        return cells.X
    except _UNREADABLE as cause:
        raise error(f"X of the AnnData cannot be read: {cause}", hint="Is the file still there and whole?") from cause


def as_real(values: npt.NDArray[Any], error: type[PrimaBenchError]) -> npt.NDArray[Any]:
    """Values as float32, or as float64 where float32 would not hold them (float64, integers above 2^24).

    Integers above 2^53 are rounded to float64; where they are counts, they are refused by their size.

    Raises:
        PrimaBenchError: If they are no real numbers.
    """
    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind == "f":
        with np.errstate(over="ignore"):  # what float64 cannot hold becomes infinite, and is refused as that
            return values.astype(np.float32 if size <= 4 else np.float64, copy=False)
    if kind == "b":
        return values.astype(np.float32)
    if kind in "iu":
        top = max(abs(int(values.min())), abs(int(values.max()))) if values.size else 0
        return values.astype(np.float32 if top <= _EXACT_FLOAT32 else np.float64)
    raise error(f"values of dtype {values.dtype} are not real numbers", hint="Give float or integer values.")


def _sparse_matrix(
    x: Any, nnz: float, read: Callable[[int, int], Any], fresh: bool, error: type[PrimaBenchError]
) -> Matrix:
    bytes_per_row = (nnz / max(x.shape[0], 1)) * (x.dtype.itemsize + 4) + 8
    return Matrix((x.shape[0], x.shape[1]), True, bytes_per_row, read, error, fresh, _epsilon(x.dtype))


def _slice(x: Any, start: int, stop: int) -> Any:
    low, high = int(x.indptr[start]), int(x.indptr[stop])
    parts = (x.data[low:high], x.indices[low:high], x.indptr[start : stop + 1] - low)
    return sp.csr_matrix(parts, shape=(stop - start, x.shape[1]), copy=False)


def _from_tensor(x: torch.Tensor, error: type[PrimaBenchError]) -> Matrix:
    if x.ndim != 2:
        raise not_a_table(x.shape, error)
    x = x.detach()
    epsilon = torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0
    if x.layout != torch.strided:
        return replace(open_matrix(tensor_to_csr(x, error), error=error), epsilon=epsilon)

    def read(start: int, stop: int) -> npt.NDArray[Any]:
        rows = x[start:stop].cpu()
        return (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()

    shape, bytes_per_row = (x.shape[0], x.shape[1]), max(x.element_size(), 4) * x.shape[1]
    return Matrix(shape, False, bytes_per_row, read, error, epsilon=epsilon)


def _from_frame(x: pd.DataFrame, error: type[PrimaBenchError]) -> Matrix:
    other = [str(name) for name, dtype in x.dtypes.items() if not pd.api.types.is_numeric_dtype(dtype)]
    if other:
        raise error(
            f"column {other[0]!r} is not numeric" + (f" (nor are {len(other) - 1} more)" if len(other) > 1 else ""),
            hint=f"Here columns hold numbers. If it names the rows: frame.set_index({other[0]!r}); else drop it.",
        )
    if len(x.columns) and all(isinstance(dtype, pd.SparseDtype) for dtype in x.dtypes):
        sparse: Any = x.sparse
        return open_matrix(sparse.to_coo().tocsr(), error=error)

    plain = all(isinstance(dtype, np.dtype) for dtype in x.dtypes)
    common = np.result_type(*x.dtypes) if plain and len(x.columns) else np.dtype(np.float64)

    def read(start: int, stop: int) -> npt.NDArray[Any]:
        rows = x.iloc[start:stop]
        return rows.to_numpy(common) if plain else rows.to_numpy(common, na_value=np.nan)

    coarsest = max((_epsilon(dtype) for dtype in x.dtypes if isinstance(dtype, np.dtype)), default=0.0)
    shape, bytes_per_row = (x.shape[0], x.shape[1]), float(common.itemsize * x.shape[1])
    return Matrix(shape, False, bytes_per_row, read, error, epsilon=coarsest)


def _epsilon(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
