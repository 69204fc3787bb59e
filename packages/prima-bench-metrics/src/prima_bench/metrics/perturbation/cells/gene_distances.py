"""Sums of Euclidean distances between cells over all genes, by exact products of rounded expression.

Every cell's expression is rounded to one part in 8 million of its largest value, about what float32 resolves. What
follows is exact up to the square root of each pair, so cells that agree are exactly 0 apart.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation.cells.expression import CellExpression
from prima_bench.metrics.perturbation.cells.integer_product import RoundedRows, row_products
from prima_bench.metrics.perturbation.rowwise import ROUNDING
from prima_bench.metrics.threads import Workers, one_thread

_PART_ELEMENTS = 1 << 22
_PAGE_ELEMENTS = 1 << 25


def distance_sums(
    x: CellExpression, groups: Sequence[Tensor], y: CellExpression, others: Tensor
) -> tuple[Tensor, Tensor]:
    """For each of some groups of cells, the sums of distances to other cells and among themselves.

    Args:
        x: Cells.
        groups: Which of them make each group, int64 ``[n]`` each.
        y: Other cells, or the same.
        others: Which of those, int64 ``[m]``.

    Returns:
        Two float64 ``[groups]``: over all pairs of a cell of the group and one of the others; and over all pairs within
        the group, a pair once in each order and every cell with itself.
    """
    cross, own = (torch.zeros(len(groups), dtype=torch.float64, device=others.device) for _ in range(2))
    pages = others.tensor_split(max(1, -(-len(others) * y.rows.shape[1] // _PAGE_ELEMENTS)))
    with one_thread(), Workers(others.device) as workers:
        for number, page in enumerate(pages):
            held = rounded(y, page)

            def add(group: int, held: RoundedRows = held, first: bool = number == 0) -> None:
                cells = parts(x, groups[group])
                for i, part in enumerate(cells):
                    near = rounded(x, part)
                    cross[group] += tree_sum(tree_sum(rounded_distances(held, near)))
                    if first:
                        own[group] += tree_sum(tree_sum(rounded_distances(near, near)))
                        for later in cells[i + 1 :]:
                            own[group] += 2.0 * tree_sum(tree_sum(rounded_distances(rounded(x, later), near)))

            workers.for_each(add, range(len(groups)))
    return cross, own


def rounded(cells: CellExpression, positions: Tensor) -> RoundedRows:
    """Expression of some cells as whole multiples of a unit of each cell.

    Args:
        cells: Cells.
        positions: Which of them, int64 ``[k]``.
    """
    rows = cells.take_stored(positions) if cells.rows.is_sparse else cells.take(positions)
    return RoundedRows.of(rows, cells.size(positions))


def rounded_distances(x: RoundedRows, y: RoundedRows) -> Tensor:
    """Euclidean distance of every row of ``x`` to every row of ``y``, float64 ``[n, m]``.

    Example:
        >>> x = RoundedRows.of(torch.tensor([[0.0, 3.0], [4.0, 0.0]]), largest=torch.tensor([3.0, 4.0]))
        >>> rounded_distances(x, x)
        tensor([[0., 5.],
                [5., 0.]])
    """
    both = (x.squares * x.unit.square()).unsqueeze(1) + y.squares * y.unit.square()
    squares = both - 2.0 * (row_products(x, y) * (x.unit.unsqueeze(1) * y.unit))
    return torch.where(squares <= ROUNDING * both, 0.0, squares).sqrt_()


def parts(cells: CellExpression, positions: Tensor) -> tuple[Tensor, ...]:
    """Some cells a part at a time, so that a dense copy of a part stays small; none of no cells."""
    return torch.split(positions, max(1, _PART_ELEMENTS // cells.rows.shape[1])) if len(positions) else ()
