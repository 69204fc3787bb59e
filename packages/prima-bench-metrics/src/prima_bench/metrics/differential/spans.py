"""Cuts the genes into spans of about equally many nonzeros, and takes the nonzeros of a span out of the cells."""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from prima_bench.metrics.differential.cells import Cells
from prima_bench.metrics.elements import repeat_each
from prima_bench.metrics.primitives import all_true, compared, nonzero_places, plus_
from prima_bench.metrics.rows import SparseRows
from prima_bench.metrics.spill import is_kept, relieve, take_rows, take_runs
from prima_bench.metrics.threads import Workers

_SAMPLED_ROWS = 256
_TAKEN = 1 << 17  # elements that are taken at a time, so that they stay in the processor's cache
_SEARCHED = 1 << 14
_COPIED_ROWS = 1 << 14
_HELD_BYTES = 256 << 20  # of what does not lie in memory, as much is copied there at once
_SPANS_PER_THREAD = 4
_LEAST_SPAN = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class Nonzeros:
    """The nonzeros of some genes, in any order.

    Attributes:
        gene: Column of each, counted from the first of these genes, int32 ``[k]``.
        value: ``[k]``, divided by the cell's total, in float64 then.
        group: Int32 ``[k]``.
    """

    gene: Tensor
    value: Tensor
    group: Tensor


class SparseColumns:
    """Takes column spans out of sparse cells: the columns of a row ascend, so each span is one run of a row.

    Attributes:
        x: The rows of these cells, and perhaps of others.
    """

    def __init__(self, cells: Cells, x: SparseRows) -> None:
        self._cells = cells
        self.x = x
        ends = x.lengths.cumsum(0)
        starts = ends - x.lengths
        self._starts, self._ends = (e if cells.rows is None else e[cells.rows] for e in (starts, ends))
        self._cuts = torch.empty(0)

    def counts(self) -> Tensor:
        """How many nonzeros each gene has, estimated from some of the cells."""
        sample, weight = _sample(len(self._starts), self.x.device)
        starts = self._starts[sample]
        columns = take_runs(self.x.columns, starts, self._ends[sample] - starts)
        found = torch.bincount(columns, minlength=self.x.n_columns)
        return found.to(torch.float64) * weight

    def cut(self, starts: list[int], workers: Workers) -> None:
        """Find where the spans that begin at these columns begin in each row."""
        cells, device = len(self._starts), self.x.device
        edges = torch.tensor(starts[1:], dtype=torch.int32, device=device)[:, None]
        cuts = torch.empty((len(starts) + 1, cells), dtype=torch.int64, device=device)
        cuts[0], cuts[-1] = self._starts, self._ends
        last = max(0, len(self.x.columns) - 1)

        def search(rows: slice) -> None:
            lengths = self._ends[rows] - self._starts[rows]
            relieve(int(lengths.sum()) * self.x.columns.element_size())
            before = self._starts[rows].expand(len(edges), -1) - 1  # the last column known to be before the edge
            for bit in reversed(range(int(lengths.max()).bit_length())):
                ahead = before + (1 << bit)
                found = self.x.columns.index_select(0, ahead.clamp(max=last).view(-1)).view_as(ahead)
                before.add_((found < edges) & (ahead < self._ends[rows]), alpha=1 << bit)
            cuts[1:-1, rows] = before + 1

        if len(edges):
            step = max(1, _SEARCHED // len(edges))
            workers.for_each(search, [slice(i, min(i + step, cells)) for i in range(0, cells, step)])
        self._cuts = cuts

    def nbytes(self) -> Tensor:
        """About how much memory :meth:`held` takes for each gene, float64 ``[genes]``."""
        return self.counts() * (self.x.values.element_size() + self.x.columns.element_size())

    def held(self, number: int, first: int, last: int) -> "SparseColumns":
        """Span ``number``, which reaches from gene ``first`` to before ``last``, copied into memory."""
        lengths = self._cuts[number + 1] - self._cuts[number]
        stored = int(lengths.sum())
        values = self.x.values.new_empty(stored)
        columns = self.x.columns.new_empty(stored)
        done = 0
        for rows in torch.split(torch.arange(len(lengths), device=self.x.device), _COPIED_ROWS):
            starts = self._cuts[number][rows]
            part = slice(done, done + int(lengths[rows].sum()))
            values[part] = take_runs(self.x.values, starts, lengths[rows])
            columns[part] = take_runs(self.x.columns, starts, lengths[rows]) - first
            done = part.stop
        x = SparseRows(values, columns, lengths, last - first)
        return SparseColumns(Cells(x, None, self._cells.group, self._cells.total), x)

    def take(self, number: int, first: int, last: int) -> list[Nonzeros]:
        """The nonzeros of span ``number``, which reaches from gene ``first`` to before ``last``."""
        cells, ends = self._cells, self._cuts[number + 1]
        step = max(1, len(ends) * _TAKEN // max(1, int((ends - self._cuts[number]).sum())))
        parts = []
        for start in range(0, len(ends), step):
            part = slice(start, start + step)
            where, lengths = _runs(self._cuts[number][part], ends[part])
            stored = len(where)
            gene = self.x.columns.index_select(0, where).to(torch.int32).sub_(first)
            value = self.x.values.index_select(0, where)
            group = repeat_each(cells.group[part], lengths, stored)
            total = cells.total
            if total is not None:
                total = repeat_each(total[part], lengths, stored)
            parts.append(_divided(Nonzeros(gene, value, group), total))
        return parts


class DenseColumns:
    """Takes column spans out of dense cells, some rows at a time; the matrix is never copied whole.

    Attributes:
        x: The rows of these cells, and perhaps of others.
    """

    def __init__(self, cells: Cells, x: Tensor) -> None:
        self._cells = cells
        self.x = x

    def counts(self) -> Tensor:
        """How many nonzeros each gene has, estimated from some of the cells."""
        sample, weight = _sample(len(self._cells.group), self.x.device)
        rows = sample if self._cells.rows is None else self._cells.rows[sample]
        return (take_rows(self.x, rows) != 0).sum(dim=0).to(torch.float64) * weight

    def cut(self, starts: list[int], workers: Workers) -> None:
        """Nothing to find."""

    def nbytes(self) -> Tensor:
        """How much memory :meth:`held` takes for each gene, float64 ``[genes]``."""
        size = len(self._cells.group) * self.x.element_size()
        return torch.full((self.x.shape[1],), float(size), dtype=torch.float64, device=self.x.device)

    def held(self, number: int, first: int, last: int) -> "DenseColumns":
        """Genes ``first`` to before ``last``, copied into memory."""
        n, width = len(self._cells.group), self.x.shape[1]
        rows = torch.arange(n, device=self.x.device) if self._cells.rows is None else self._cells.rows
        if is_kept(self.x):
            x = take_runs(self.x.view(-1), rows * width + first, torch.full_like(rows, last - first))
            x = x.view(n, last - first)
        else:
            x = self.x[:, first:last].index_select(0, rows)
        return DenseColumns(Cells(x, None, self._cells.group, self._cells.total), x)

    def take(self, number: int, first: int, last: int) -> list[Nonzeros]:
        """The nonzeros of genes ``first`` to before ``last``."""
        cells, n = self._cells, len(self._cells.group)
        bits = (last - first - 1).bit_length()
        step = min(n, max(8, _TAKEN >> bits))
        mask = torch.zeros((step + (step + 7) // 8, 1 << bits), dtype=torch.bool, device=self.x.device)
        parts = []
        for start in range(0, n, step):
            part = slice(start, min(start + step, n))
            x = self.x[part, first:last] if cells.rows is None else self.x[cells.rows[part], first:last]
            place = nonzero_places(x, mask)
            row, gene = place >> bits, place & ((1 << bits) - 1)
            value = _flat(x).index_select(0, row * x.stride(0) + gene * x.stride(1))
            total = None if cells.total is None else cells.total[part].index_select(0, row)
            stored = Nonzeros(gene.to(torch.int32), value, cells.group[part].index_select(0, row))
            parts.append(_divided(stored, total))
        return parts


def _sample(n: int, device: torch.device) -> tuple[Tensor, float]:
    """Some of ``n`` rows, evenly spread, and how many rows each stands for."""
    sample = torch.arange(0, n, max(1, n // _SAMPLED_ROWS), device=device)
    return sample, n / len(sample)


def _runs(starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """All positions from each start to before its end, one run after the other, and the length of each run."""
    lengths = ends - starts
    total = int(lengths.sum())
    shift = starts - (lengths.cumsum(0) - lengths)
    return plus_(repeat_each(shift, lengths, total), torch.arange(total, device=starts.device)), lengths


def _flat(x: Tensor) -> Tensor:
    extent = (x.shape[0] - 1) * x.stride(0) + (x.shape[1] - 1) * x.stride(1) + 1
    return x.as_strided((extent,), (1,))


def _divided(stored: Nonzeros, total: Tensor | None) -> Nonzeros:
    value = stored.value
    if total is not None:
        value = value.to(torch.float64) / total
        kept = compared(operator.ne, value, 0)  # a quotient may be too small for float64
        if not all_true(kept):
            return Nonzeros(stored.gene[kept], value[kept], stored.group[kept])
    elif value.dtype in (torch.float16, torch.bfloat16):
        value = value.to(torch.float32)
    elif value.dtype != torch.float32:
        value = value.to(torch.float64)
    return Nonzeros(stored.gene, value, stored.group)


Columns = SparseColumns | DenseColumns


def columns_of(cells: Cells) -> Columns:
    """A taker of column spans for each layout."""
    return SparseColumns(cells, cells.x) if isinstance(cells.x, SparseRows) else DenseColumns(cells, cells.x)


def plan_spans(
    sources: list[Columns], genes: int, elements: int, widest: int, workers: Workers
) -> list[tuple[int, int]]:
    """Cut the genes so that a span holds about so many nonzeros, or one gene, and at most ``widest`` genes.

    Where there are threads to share them, spans are smaller if need be.
    """
    counts = torch.zeros(genes, dtype=torch.float64, device="cpu")
    for source in sources:
        counts += source.counts().cpu()
    if workers.threads > 1:
        elements = min(elements, max(_LEAST_SPAN, int(counts.sum()) // (_SPANS_PER_THREAD * workers.threads)))
    held, spans, first = counts.cumsum(0), list[tuple[int, int]](), 0
    while first < genes:
        before = float(held[first - 1]) if first else 0.0
        last = int(torch.searchsorted(held, before + elements, right=True))
        width = min(max(1, last - first), widest, genes - first)
        if any(isinstance(s, DenseColumns) for s in sources):
            width = 1 << (width.bit_length() - 1)  # what they are cut into without waste
        spans.append((first, first + width))
        first += width
    for source in sources:
        source.cut([start for start, _ in spans], workers)
    return spans


def lie_on_disk(sources: list[Columns]) -> bool:
    """Whether any of the cells lie in a file: then genes are taken into memory some at a time (:func:`held_blocks`)."""
    return any(is_kept(x.values if isinstance(x, SparseRows) else x) for x in (s.x for s in sources))


def held_blocks(sources: list[Columns], genes: int, workers: Workers) -> Iterator[tuple[slice, list[Columns]]]:
    """Some genes after the other, of about as many bytes each, with the columns of all cells in memory."""
    counts = torch.zeros(genes, dtype=torch.float64, device="cpu")
    for source in sources:
        counts += source.nbytes().cpu()
    edges = [0]
    running = counts.cumsum(0)
    while edges[-1] < genes:
        before = float(running[edges[-1] - 1]) if edges[-1] else 0.0
        edges.append(max(edges[-1] + 1, int(torch.searchsorted(running, before + _HELD_BYTES, right=True))))
    for source in sources:
        source.cut(edges[:-1], workers)
    for number, (first, last) in enumerate(pairwise(edges)):
        yield slice(first, last), [source.held(number, first, last) for source in sources]
