"""Sums over all pairs of cells, in a fixed order of additions and without a matrix of all of them.

Distances are formed from differences, so that cells that agree are exactly 0 apart: a Gram product leaves of small
distances little but rounding.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from prima_bench.metrics.numerics import tree_sum

_BLOCK_PAIRS = 1 << 19


def distances(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean distance of every row of ``x`` to every row of ``y``, each made of the two rows alone.

    Args:
        x: float64 ``[n, d]``.
        y: float64 ``[m, d]``.

    Returns:
        float64 ``[n, m]``.

    Example:
        >>> distances(torch.tensor([[0.0, 3.0]]), torch.tensor([[4.0, 0.0], [0.0, 3.0]]))
        tensor([[5., 0.]])
    """
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


def row_sums(x: Tensor, y: Tensor, of: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """For each row of ``x``, the sum over the rows of ``y`` of a function of the distance.

    Args:
        x: float64 ``[n, d]``.
        y: float64 ``[m, d]``, of at least one row.
        of: An elementwise function of distances; the distance itself when None.

    Returns:
        float64 ``[n]``; a value depends neither on the other rows of ``x`` nor on how many there are.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [4.0]], dtype=torch.float64)
        >>> row_sums(x, x)
        tensor([5., 4., 7.], dtype=torch.float64)
    """
    sums = []
    for part in torch.split(x, max(1, _BLOCK_PAIRS // len(y))):
        d = distances(y, part)
        sums.append(tree_sum(d if of is None else of(d), dim=0))
    return torch.cat(sums)


def pair_sum(x: Tensor, y: Tensor, of: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """The sum over all pairs of a row of ``x`` and a row of ``y``, 0-d float64; arguments as in :func:`row_sums`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [4.0]], dtype=torch.float64)
        >>> float(pair_sum(x, x))
        16.0
    """
    return tree_sum(row_sums(x, y, of))
