"""Means of linear expression that do not depend on the order in which cells are added.

Each gene's values are brought below 4 by a power of two and split into two numbers on a grid so coarse that float64
adds any of them without rounding (reproducible summation, Demmel & Nguyen 2015, doi:10.1109/TC.2014.2345391).
"""

import torch
from torch import Tensor

from prima_bench.metrics.elements import repeat_each

_LEAST, _LARGEST = -1000, 1022  # powers of two that both they and their inverses are normal numbers


def group_means(linear: Tensor, index: Tensor, stored: Tensor, largest: Tensor, n_cells: Tensor) -> Tensor:
    """The mean of each group, zeros not stored included.

    Args:
        linear: Values, gene by gene, float64 ``[k]``; overwritten.
        index: ``gene * groups + group`` of each, int64 ``[k]``.
        stored: How many of them each gene has, int64 ``[genes]``.
        largest: The largest magnitude of each gene, float64 ``[genes]``.
        n_cells: Number of cells by code, int64 ``[groups]``.

    Returns:
        Float64 ``[genes, groups]``, within ``2 ** (2 * bits(n) - 101)`` of the gene's largest magnitude from the exact
        mean of n cells, plus one rounding; zero for a group without cells.
    """
    genes, groups = len(largest), len(n_cells)
    exponent = torch.frexp(largest).exponent.to(torch.int64).clamp(_LEAST, _LARGEST)
    rest = linear.mul_(repeat_each(_power_of_two(-exponent), stored, len(linear)))
    bits = 51 - max(3, int(n_cells.max()).bit_length())
    sums = torch.zeros((2, genes * groups), dtype=torch.float64, device=linear.device)
    for limb in range(2):
        rounder = 1.5 * 2.0 ** (52 - bits * (limb + 1))
        coarse = (rest + rounder).sub_(rounder)
        sums[limb].scatter_add_(0, index, coarse)
        rest.sub_(coarse)
    means = (sums[0] + sums[1]).view(genes, groups) / n_cells.clamp(min=1)
    return means * _power_of_two(exponent)[:, None]


def _power_of_two(exponent: Tensor) -> Tensor:
    return ((exponent + 1023) << 52).view(torch.float64)
