"""Pseudobulks: one expression profile per group of cells, and what is derived from all of them.

Pure functions of sums and cell counts. What a solution's profiles are is asked of ``PerturbationReference``, those of
predictions are in ``profiles.predicted``; effects are formed where they are used, a few perturbations at a time, since
a panel of them would cost as much memory as the profiles.
"""

from typing import Literal

import torch
from torch import Tensor

from prima_bench.metrics.numerics import tree_sum

Scale = Literal["counts", "log1p_cp10k"]

LARGEST = 1e100
"""What no value of a pseudobulk may exceed: beyond it, squares and sums over genes may leave float64's range."""

LARGEST_TARGET_SUM = 1e15
"""What no total of counts may exceed."""


def log_profiles(sums: Tensor, target_sum: float) -> Tensor:
    """Pseudobulks of counts: the logarithm of each group's counts, scaled to one total.

    Args:
        sums: Counts summed over the cells of each group, float64 ``[groups, genes]``.
        target_sum: The total that every group is scaled to.

    Returns:
        ``log1p(target_sum * sums / total)``, float64 ``[groups, genes]``; zero for a group without counts, NaN where
        the total leaves float64's range.

    Example:
        >>> log_profiles(torch.tensor([[1.0, 3.0], [0.0, 0.0]]), 4.0).expm1()
        tensor([[1., 3.],
                [0., 0.]], dtype=torch.float64)
    """
    totals = tree_sum(sums, dim=1).unsqueeze(1)
    # Divided first: a share of the total cannot overflow, whatever it is scaled to.
    shares = sums.double() / torch.where(totals > 0, totals, 1.0)
    return torch.log1p(torch.where(totals.isfinite(), shares, torch.nan) * target_sum)


def too_large(profiles: Tensor) -> Tensor:
    """Whether a pseudobulk cannot be scored, boolean ``[groups]``: a value is not finite, or above 1e100 in size.

    Example:
        >>> too_large(torch.tensor([[1.0, 2.0], [1.0, float("nan")]]))
        tensor([False,  True])
    """
    return ~(profiles.abs() <= LARGEST).all(dim=1)


def mean_profiles(sums: Tensor, cells: Tensor) -> Tensor:
    """Pseudobulks of log-normalised expression: the mean over the cells of each group.

    Args:
        sums: Expression summed over the cells of each group, float64 ``[groups, genes]``.
        cells: Number of cells, ``[groups]``.

    Returns:
        float64 ``[groups, genes]``; zero for a group without cells.

    Example:
        >>> mean_profiles(torch.tensor([[2.0, 6.0]]), torch.tensor([2]))
        tensor([[1., 3.]], dtype=torch.float64)
    """
    return sums.double() / cells.clamp(min=1).unsqueeze(1)


def median_total(sums: Tensor) -> float:
    """The median of the groups' totals, over groups that have any counts; 1 when none has.

    Args:
        sums: Counts summed over the cells of each group, float64 ``[groups, genes]``.

    Example:
        >>> median_total(torch.tensor([[1.0, 1.0], [4.0, 4.0], [0.0, 0.0]]))
        5.0
    """
    totals = tree_sum(sums, dim=1)
    totals = torch.sort(totals[totals > 0]).values
    if len(totals) == 0:
        return 1.0
    return float((totals[(len(totals) - 1) // 2] + totals[len(totals) // 2]) / 2)


def mean_of_others(profiles: Tensor) -> Tensor:
    """For each row, the mean of all other rows, float64 of the same shape; at least two rows are needed.

    Example:
        >>> mean_of_others(torch.tensor([[1.0], [2.0], [6.0]]))
        tensor([[4.0000],
                [3.5000],
                [1.5000]], dtype=torch.float64)
    """
    return others_mean(tree_sum(profiles, dim=0), profiles.double(), profiles.shape[0])


def others_mean(total: Tensor, rows: Tensor, n: int) -> Tensor:
    """The mean of the other ``n - 1`` rows for some ``rows`` of a matrix whose rows sum to ``total``."""
    return (total - rows) / (n - 1)
