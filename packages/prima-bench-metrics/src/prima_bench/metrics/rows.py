"""Matrices of rows, dense or sparse, seen through one view that never concatenates them.

``SparseRows`` is how a sparse matrix enters (CSR without scipy); ``RowMatrix`` is how a metric reads what was
buffered: chunks of either layout and of float32 or float64, behind a permutation. No arithmetic lives here.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Self

import torch
from torch import Tensor

from prima_bench.metrics.elements import repeat_each, row_of_each
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.primitives import all_true, compared
from prima_bench.metrics.spill import take_rows, take_runs

_BLOCK_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """Rows of a sparse matrix: CSR with row lengths in the place of row pointers.

    Attributes:
        values: The stored values, row by row, ``[nnz]``.
        columns: The column of each value, ``[nnz]``, an integer dtype.
        lengths: How many values each row holds, ``[n]``, an integer dtype.
        n_columns: The width of the matrix.

    Example:
        >>> x = SparseRows.from_dense(torch.tensor([[0.0, 2.0], [0.0, 0.0], [3.0, 4.0]]))
        >>> x.values, x.lengths, x.shape
        (tensor([2., 3., 4.]), tensor([1, 0, 2]), (3, 2))
    """

    values: Tensor
    columns: Tensor
    lengths: Tensor
    n_columns: int

    @classmethod
    def from_dense(cls, x: Tensor) -> Self:
        """The nonzeros of a dense ``[n, w]`` matrix."""
        stored = x != 0
        return cls(x[stored], stored.nonzero()[:, 1].to(torch.int32), stored.sum(dim=1), x.shape[1])

    @classmethod
    def from_csr(cls, x: Tensor) -> Self:
        """The rows of a ``torch.sparse_csr`` matrix."""
        return cls(x.values(), x.col_indices(), x.crow_indices().diff().to(torch.int64), x.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return self.lengths.shape[0], self.n_columns

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stored values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.values.device

    def to(self, device: torch.device) -> "SparseRows":
        """The same rows on another device."""
        return SparseRows(self.values.to(device), self.columns.to(device), self.lengths.to(device), self.n_columns)

    def canonical(self, name: str = "rows") -> "SparseRows":
        """The same rows with columns ascending, no explicit zeros, int32 columns and int64 lengths.

        Args:
            name: What error messages call the matrix.

        Raises:
            InputError: If the parts do not fit together, or a row names a column twice or one out of range.
        """
        values, columns, lengths = self.values, self.columns, self.lengths
        if any(t.dim() != 1 for t in (values, columns, lengths)) or values.shape != columns.shape:
            raise InputError(f"{name}: values and columns must be 1-d and equally long, lengths 1-d")
        if columns.is_floating_point() or lengths.is_floating_point():
            raise InputError(f"{name}: columns and lengths must be integers")
        lengths = lengths.to(torch.int64)
        if bool((lengths < 0).any()) or int(lengths.sum()) != values.shape[0]:
            raise InputError(f"{name}: row lengths must be non-negative and sum to the {values.shape[0]} stored values")
        if values.numel():
            low, high = (int(v) for v in torch.aminmax(columns))
            if low < 0 or high >= self.n_columns:
                raise InputError(f"{name}: column {low if low < 0 else high} is outside 0 to {self.n_columns - 1}")
        parts = SparseRows(values, columns.to(torch.int32), lengths, self.n_columns)
        return parts._sorted(name)._without_zeros()

    def _sorted(self, name: str) -> "SparseRows":
        rising = compared(operator.gt, self.columns[1:], self.columns[:-1])
        starts = self.lengths.cumsum(0)[:-1]
        rising[starts[(starts > 0) & (starts < self.values.shape[0])] - 1] = True
        if all_true(rising):
            return self
        row = row_of_each(self.lengths)
        keys, order = torch.sort(row * self.n_columns + self.columns)
        twice = (keys[1:] == keys[:-1]).nonzero().flatten()
        if len(twice):
            first = int(keys[int(twice[0])])
            raise InputError(
                f"{name}: row {first // self.n_columns} holds column {first % self.n_columns} twice",
                hint="Sum the duplicate entries first.",
            )
        values, columns = (part.index_select(0, order) for part in (self.values, self.columns))
        return SparseRows(values, columns, self.lengths, self.n_columns)

    def _without_zeros(self) -> "SparseRows":
        stored = compared(operator.ne, self.values, 0)
        if all_true(stored):
            return self
        running = torch.cat([stored.new_zeros(1, dtype=torch.int64), stored.cumsum(0)])
        ends = self.lengths.cumsum(0)
        lengths = running[ends] - running[ends - self.lengths]
        return SparseRows(self.values[stored], self.columns[stored], lengths, self.n_columns)


class RowMatrix:
    """A real matrix ``[n, w]`` held as chunks of dense or sparse rows, read in a given order.

    Args:
        chunks: Dense ``[k, w]`` tensors or canonical :class:`SparseRows`, of float32 and float64 or of int64, on one
            device.
        order: Row ``i`` of the view is row ``order[i]`` of the chunks laid end to end, ``[n]``; None when as they lie.

    Example:
        >>> x = RowMatrix([torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])], torch.tensor([1, 0]))
        >>> x.shape, x.take(torch.tensor([0]))
        ((2, 2), tensor([[3., 4.]]))
    """

    def __init__(self, chunks: Sequence[Tensor | SparseRows], order: Tensor | None = None) -> None:
        if not chunks or len({c.shape[1] for c in chunks}) > 1:
            raise InputError("a matrix of rows needs at least one chunk, and chunks of one width")
        self._chunks = tuple(chunks)
        self._order = order
        sizes = [c.shape[0] for c in chunks]
        self.device = chunks[0].device
        self._starts = torch.tensor([0, *sizes], device=self.device).cumsum(0)[:-1]
        n = sum(sizes) if order is None else order.shape[0]
        self.shape: tuple[int, int] = (n, chunks[0].shape[1])
        self.dtype = reduce(torch.promote_types, (c.dtype for c in chunks))
        self._offsets = [c.lengths.cumsum(0) - c.lengths if isinstance(c, SparseRows) else None for c in chunks]

    def take(self, positions: Tensor) -> Tensor:
        """Copy rows out as a dense matrix.

        Args:
            positions: Which rows of the view, int64 ``[k]``, in any order, repeated or not.

        Returns:
            ``[k, w]`` in the chunks' dtype; in float64 when only some are float32.
        """
        if len(self._chunks) == 1 and isinstance(self._chunks[0], Tensor):
            return take_rows(self._chunks[0], self._source(positions))
        out = torch.zeros((len(positions), self.shape[1]), dtype=self.dtype, device=self.device)
        for number, slots, rows in self._by_chunk(positions):
            chunk = self._chunks[number]
            if isinstance(chunk, Tensor):
                out.index_copy_(0, slots, take_rows(chunk, rows).to(self.dtype))
            else:
                lengths, columns, values = self._stored(number, rows)
                place = repeat_each(slots * self.shape[1], lengths)
                place += columns
                out.view(-1).scatter_(0, place, values.to(self.dtype))
        return out

    @property
    def is_sparse(self) -> bool:
        """Whether all chunks are sparse."""
        return all(isinstance(c, SparseRows) for c in self._chunks)

    def take_sparse(self, positions: Tensor) -> SparseRows:
        """Copy rows out as a canonical sparse matrix of float64.

        Args:
            positions: Which rows of the view, int64 ``[k]``, in any order, repeated or not.
        """
        if not self.is_sparse:
            return SparseRows.from_dense(self.take(positions).to(torch.float64))
        lengths, columns, values = self._gather(positions)
        return SparseRows(values, columns, lengths, self.shape[1])

    def select(self, positions: Tensor) -> "RowMatrix":
        """Some rows as a view over the same chunks, in any order, repeated or not.

        Args:
            positions: Which rows of this view, int64 ``[k]``.
        """
        return RowMatrix(self._chunks, self._source(positions))

    @classmethod
    def stacked(cls, views: "Sequence[RowMatrix]") -> "RowMatrix":
        """The rows of several views over the same chunks, one view after the other, as one view.

        Raises:
            ValueError: If the views are not over the same chunks.
        """
        first = views[0]
        if any(len(v._chunks) != len(first._chunks) or any(map(_other, v._chunks, first._chunks)) for v in views):
            raise ValueError("only views over the same chunks can be stacked")
        return cls(first._chunks, torch.cat([v._source(torch.arange(v.shape[0], device=v.device)) for v in views]))

    def equal_rows(self, a: Tensor, b: Tensor) -> Tensor:
        """Whether rows ``a[i]`` and ``b[i]`` hold the same values, whatever their layout and dtype: bool ``[k]``."""
        rows_per_block = max(1, _BLOCK_ELEMENTS // self.shape[1])
        same = [
            (self.take(a[i : i + rows_per_block]) == self.take(b[i : i + rows_per_block])).all(dim=1)
            for i in range(0, len(a), rows_per_block)
        ]
        return torch.cat(same) if same else torch.zeros(0, dtype=torch.bool, device=self.device)

    def canonical_blocks(self, rows_per_block: int = 256) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The nonzeros in row order, for fingerprints: the same bytes whatever the layout and dtype.

        Yields:
            For each block of rows: how many nonzeros each row has (int64), their columns (int32), ascending within a
            row, and their values (float64).
        """
        for start in range(0, self.shape[0], rows_per_block):
            positions = torch.arange(start, min(start + rows_per_block, self.shape[0]), device=self.device)
            block = self.take_sparse(positions)
            yield block.lengths, block.columns, block.values

    def _source(self, positions: Tensor) -> Tensor:
        return positions if self._order is None else self._order.index_select(0, positions)

    def _by_chunk(self, positions: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each chunk concerned: its number, the slots of ``positions`` that it fills, and its own rows."""
        rows = self._source(positions)
        if len(self._chunks) == 1:
            yield 0, torch.arange(len(rows), device=self.device), rows
            return
        number, slots = torch.sort(torch.searchsorted(self._starts, rows, right=True) - 1, stable=True)
        which, counts = torch.unique_consecutive(number, return_counts=True)
        start = 0
        for i, count in zip(which.tolist(), counts.tolist(), strict=True):
            part = slots[start : start + count]
            yield i, part, rows[part] - self._starts[i]
            start += count

    def _stored(self, number: int, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lengths of a sparse chunk's ``rows``, their columns and their values, row by row."""
        chunk, offsets = self._chunks[number], self._offsets[number]
        if offsets is None or isinstance(chunk, Tensor):
            raise TypeError("a dense chunk stores no columns")
        lengths, starts = chunk.lengths.index_select(0, rows), offsets.index_select(0, rows)
        return lengths, take_runs(chunk.columns, starts, lengths), take_runs(chunk.values, starts, lengths)

    def _gather(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lengths of rows, their columns and their values in float64, row by row, of sparse chunks alone."""
        parts = [(slots, *self._stored(number, rows)) for number, slots, rows in self._by_chunk(positions)]
        if len(parts) == 1:
            _, lengths, columns, values = parts[0]
            return lengths, columns, values.to(torch.float64)
        lengths = torch.zeros(len(positions), dtype=torch.int64, device=self.device)
        for slots, own, _, _ in parts:
            lengths[slots] = own
        starts, total = lengths.cumsum(0) - lengths, int(lengths.sum())
        columns = torch.empty(total, dtype=torch.int32, device=self.device)
        values = torch.empty(total, dtype=torch.float64, device=self.device)
        for slots, own, own_columns, own_values in parts:
            place = repeat_each(starts[slots] - (own.cumsum(0) - own), own)
            place += torch.arange(len(place), device=self.device)
            columns.index_copy_(0, place, own_columns)
            values.index_copy_(0, place, own_values.to(torch.float64))
        return lengths, columns, values


def _other(a: Tensor | SparseRows, b: Tensor | SparseRows) -> bool:
    return a is not b
