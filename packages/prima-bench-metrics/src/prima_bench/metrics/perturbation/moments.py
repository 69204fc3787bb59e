"""Sums over the cells of each group that read only the values stored: sparse cells are never made dense.

Every sum here is one addition after another in the order of the group's cells, whatever the layout, the shards, the
blocks or the threads: a zero adds nothing, so it need not be seen. Nothing here knows what the sums are for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from prima_bench.metrics.differential.parallel import Workers
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


Transform = Callable[[Stored], Tensor]


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


def squared_deviations(cells: RowMatrix, group: Tensor, means: Tensor, transform: Transform | None = None) -> Tensor:
    """Sums over the cells of each group of squared differences from the group's mean.

    Args:
        cells: Expression ``[cells, genes]``, dense or sparse.
        group: Code of each cell, int64 ``[cells]``.
        means: What the differences are taken from, float64 ``[groups, genes]``.
        transform: What is made of the nonzero values first, leaving zeros zero; nothing when None.

    Returns:
        float64 ``[groups, genes]``; zero for a group of one cell.

    Example:
        >>> x = RowMatrix([torch.tensor([[0.0, 1.0], [4.0, 1.0]])])
        >>> squared_deviations(x, torch.tensor([0, 0]), torch.tensor([[2.0, 1.0]], dtype=torch.float64))
        tensor([[8., 0.]], dtype=torch.float64)
    """
    n = torch.bincount(group, minlength=len(means)).unsqueeze(1)
    result = torch.zeros_like(means)

    def work(part: slice, cells: RowMatrix, group: Tensor) -> None:
        mean, squares, stored = means[part].reshape(-1), *(torch.zeros_like(means[part]).view(-1) for _ in range(2))
        for block in stored_values(cells, group):
            value = block.value if transform is None else transform(block)
            add(squares, block.place, (value - mean[block.place]).square())
            add(stored, block.place, torch.ones_like(value))
        zeros = n[part] - stored.view(result[part].shape)
        result[part] = torch.where(n[part] > 1, squares.view(zeros.shape) + zeros * means[part].square(), 0.0)

    over_groups(cells, group, len(means), work)
    return result


def group_means(cells: RowMatrix, group: Tensor, groups: int, transform: Transform) -> Tensor:
    """Means over the cells of each group of what is made of the nonzero values.

    Args:
        cells: Expression ``[cells, genes]``, dense or sparse.
        group: Code of each cell, int64 ``[cells]``.
        groups: Number of groups.
        transform: What is made of the nonzero values, leaving zeros zero.

    Returns:
        float64 ``[groups, genes]``; zero for a group without cells.

    Example:
        >>> x = RowMatrix([torch.tensor([[0.0, 1.0], [3.0, 1.0]])])
        >>> group_means(x, torch.tensor([0, 0]), 1, lambda block: block.value / block.total[block.row])
        tensor([[0.3750, 0.6250]], dtype=torch.float64)
    """
    n = torch.bincount(group, minlength=groups).clamp(min=1).unsqueeze(1)
    result = torch.zeros((groups, cells.shape[1]), dtype=torch.float64, device=cells.device)

    def work(part: slice, cells: RowMatrix, group: Tensor) -> None:
        for block in stored_values(cells, group):
            add(result[part].view(-1), block.place, transform(block))

    over_groups(cells, group, groups, work)
    return result / n


def log1p_cp10k(block: Stored) -> Tensor:
    """Counts as ``log1p`` of counts per 10,000 of their cell."""
    return torch.log1p(block.value / block.total[block.row] * 1e4)
