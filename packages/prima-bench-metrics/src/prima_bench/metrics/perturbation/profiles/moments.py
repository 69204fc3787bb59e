"""What sums over the cells of each group are made with, beyond the sums of their values.

Either of whole cells, made into something as they are read (:func:`made_sums`), or of the values stored alone, so
that sparse cells are never made dense (:func:`stored_values`). The latter are added one after another in the order of
the group's cells, whatever the layout, the shards, the blocks or the threads. Nothing here knows what sums are for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from prima_bench.metrics.elements import add_in_order, repeat_each, row_of_each
from prima_bench.metrics.numerics import group_sums
from prima_bench.metrics.rows import RowMatrix
from prima_bench.metrics.threads import Workers

_BLOCK_ELEMENTS = 1 << 20
_PART_ELEMENTS = 1 << 17


@dataclass(frozen=True, slots=True)
class Stored:
    """The nonzeros of some cells.

    Attributes:
        group: The group of each cell, int64 ``[cells]``.
        total: What the values of each cell add up to, float64 ``[cells]``.
        row: The cell of each value, int64 ``[values]``.
        place: Where each value belongs in a flattened ``[groups, genes]``, int64 ``[values]``.
        value: The values, float64 ``[values]``.
    """

    group: Tensor
    total: Tensor
    row: Tensor
    place: Tensor
    value: Tensor


def over_groups(genes: int, group: Tensor, groups: int, work: Callable[[slice, Tensor, Tensor], None]) -> None:
    """Do some work on a few groups at a time, spread over threads.

    Args:
        genes: Number of genes, which says how many groups are a few.
        group: Code of each cell, int64 ``[cells]``; cells of a negative one are left out.
        groups: Number of groups.
        work: Given which groups, the positions of their cells, group by group and ascending within each, and the
            codes of these cells, counted from the first of the groups.
    """
    codes, order = torch.sort(group, stable=True)
    left_out = int((codes < 0).sum())
    ends = (torch.bincount(codes[left_out:], minlength=groups).cumsum(0) + left_out).tolist()
    step = max(1, _PART_ELEMENTS // genes)

    def one(start: int) -> None:
        part = slice(start, min(start + step, groups))
        own = slice(ends[start - 1] if start else left_out, ends[part.stop - 1])
        work(part, order[own], codes[own] - start)

    with Workers(group.device) as workers:
        workers.for_each(one, range(0, groups, step))


def stored_values(cells: RowMatrix, group: Tensor) -> Iterator[Stored]:
    """The nonzeros of all cells, a block of cells at a time.

    Args:
        cells: Expression ``[cells, genes]``, dense or sparse.
        group: Code of each cell, int64 ``[cells]``.
    """
    genes, start = cells.shape[1], 0
    for lengths, columns, value in cells.canonical_blocks(max(1, _BLOCK_ELEMENTS // genes)):
        codes = group[start : start + len(lengths)]
        start += len(lengths)
        row = row_of_each(lengths)
        total = torch.zeros(len(lengths), dtype=torch.float64, device=cells.device)
        add_in_order(total, row, value)
        yield Stored(codes, total, row, repeat_each(codes * genes, lengths).add_(columns), value)


def made_sums(cells: RowMatrix, group: Tensor, groups: int, make: Callable[[Tensor], Tensor]) -> Tensor:
    """Sums over the cells of each group of what is made of each cell, a few cells at a time.

    Args:
        cells: ``[cells, genes]``.
        group: Code of each cell, int64 ``[cells]``; cells of a negative one are left out.
        groups: Number of groups.
        make: Makes the rows ``[k, genes]`` of the cells at some positions, int64 ``[k]``.

    Returns:
        float64 ``[groups, genes]``: what ``numerics.group_sums`` makes of these rows.

    Example:
        >>> x = RowMatrix([torch.tensor([[1.0, 2.0], [3.0, 4.0]])])
        >>> made_sums(x, torch.tensor([0, 0]), 1, lambda positions: x.take(positions) ** 2)
        tensor([[10., 20.]], dtype=torch.float64)
    """
    sums = torch.zeros((groups, cells.shape[1]), dtype=torch.float64, device=cells.device)

    def work(part: slice, positions: Tensor, codes: Tensor) -> None:
        made = _Made(cells.select(positions), lambda rows: make(positions[rows]))
        sums[part] = group_sums(made, codes, part.stop - part.start)

    over_groups(cells.shape[1], group, groups, work)
    return sums


class _Made(RowMatrix):
    def __init__(self, rows: RowMatrix, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__(rows._chunks, rows._order)
        self._make = make

    def take(self, positions: Tensor) -> Tensor:
        return self._make(positions)
