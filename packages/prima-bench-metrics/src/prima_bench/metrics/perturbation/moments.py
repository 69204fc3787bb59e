"""What sums over the cells of each group are made with, beyond the sums of their values.

Either of all values, made into something as they are read (:class:`Mapped`), or of the values stored alone, so that
sparse cells are never made dense (:func:`stored_values`). The latter are added one after another in the order of the
group's cells, whatever the layout, the shards, the blocks or the threads. Nothing here knows what the sums are for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from prima_bench.metrics.differential.parallel import Workers
from prima_bench.metrics.numerics import group_sums
from prima_bench.metrics.rows import RowMatrix

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


def over_groups(cells: RowMatrix, group: Tensor, groups: int, work: Callable[[slice, RowMatrix, Tensor], None]) -> None:
    """Do some work on a few groups at a time, spread over threads.

    Args:
        cells: Expression ``[cells, genes]``, dense or sparse.
        group: Code of each cell, int64 ``[cells]``.
        groups: Number of groups.
        work: Given which groups, their cells, group by group and in order within each, and the codes of these cells,
            counted from the first of the groups.
    """
    codes, order = torch.sort(group, stable=True)
    ends = torch.bincount(codes, minlength=groups).cumsum(0).tolist()
    step = max(1, _PART_ELEMENTS // cells.shape[1])

    def one(start: int) -> None:
        part = slice(start, min(start + step, groups))
        own = slice(ends[start - 1] if start else 0, ends[part.stop - 1])
        work(part, cells.select(order[own]), codes[own] - start)

    with Workers(cells.device) as workers:
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
        row = torch.repeat_interleave(torch.arange(len(lengths), device=cells.device), lengths)
        total = torch.zeros(len(lengths), dtype=torch.float64, device=cells.device)
        add(total, row, value)
        yield Stored(codes, total, row, (codes * genes)[row] + columns, value)


def add(sums: Tensor, place: Tensor, value: Tensor) -> None:
    """Add values to places of a flat tensor, in place, one after another in the order given."""
    # Of torch's ways to do this, the one that keeps an order on every device.
    sums.index_put_((place,), value, accumulate=True)


class Mapped(RowMatrix):
    """Rows that are made into something as they are read, for sums over groups of rows.

    Args:
        rows: The rows themselves.
        take: Makes the dense rows ``[k, genes]`` of some positions, int64 ``[k]``.

    Example:
        >>> x = RowMatrix([torch.tensor([[1.0, 2.0]])])
        >>> Mapped(x, lambda positions: x.take(positions) + 1.0).take(torch.tensor([0]))
        tensor([[2., 3.]])
    """

    def __init__(self, rows: RowMatrix, take: Callable[[Tensor], Tensor]) -> None:
        super().__init__(rows._chunks, rows._order)
        self._take = take

    def take(self, positions: Tensor) -> Tensor:
        """What is made of some rows, ``[k, genes]``."""
        return self._take(positions)


def squared_deviations(cells: RowMatrix, group: Tensor, means: Tensor) -> Tensor:
    """Sums over the cells of each group of squared differences from the group's mean.

    Args:
        cells: Expression ``[cells, genes]``, dense or sparse.
        group: Code of each cell, int64 ``[cells]``; cells of a negative one are left out.
        means: What the differences are taken from, float64 ``[groups, genes]``.

    Returns:
        float64 ``[groups, genes]``; zero for a group of one cell.

    Example:
        >>> x = RowMatrix([torch.tensor([[0.0, 1.0], [4.0, 1.0]])])
        >>> squared_deviations(x, torch.tensor([0, 0]), torch.tensor([[2.0, 1.0]], dtype=torch.float64))
        tensor([[8., 0.]], dtype=torch.float64)
    """

    def squares(positions: Tensor) -> Tensor:
        return means[group[positions]].sub_(cells.take(positions)).square_()

    return group_sums(Mapped(cells, squares), group, len(means))
