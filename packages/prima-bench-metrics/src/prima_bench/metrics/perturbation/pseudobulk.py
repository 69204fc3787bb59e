"""Pseudobulks: one expression profile per group of cells, and what is derived from all of them.

Pure functions of sums and cell counts, and :func:`predicted_profiles`, which the metrics of a panel share. What a
solution's profiles are is asked of ``PerturbationReference``; effects are formed where they are used, a few
perturbations at a time, because a panel of them would cost as much memory as the profiles.
"""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from prima_bench.metrics.batch import Batch
from prima_bench.metrics.numerics import group_sums, tree_sum

if TYPE_CHECKING:
    from prima_bench.metrics.perturbation.reference import PerturbationReference

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


def predicted_sums(batch: Batch, groups: int) -> tuple[Tensor, Tensor]:
    """Predicted expression summed by code, float64 ``[groups, genes]``, and the number of cells; made once."""
    return batch.memo(("perturbation sums", groups), lambda: _sums(batch, groups))


def predicted_profiles(batch: Batch, reference: "PerturbationReference", target_sum: float) -> tuple[Tensor, Tensor]:
    """Pseudobulks of the predicted cells, formed as the reference forms its own; once for all metrics of a panel.

    Args:
        batch: Predicted cells ``x`` and their codes ``group``.
        reference: Gives the scale, the number of groups and, for counts, the default total.
        target_sum: Total for counts; 0 for the reference's median group total.

    Returns:
        Float64 ``[1 + perturbations, genes]`` by code, and the number of predicted cells by code.
    """
    groups = 1 + reference.num_perturbations

    def profiles() -> tuple[Tensor, Tensor]:
        # Sums are kept where one batch has several profiles: for counts, one for each target_sum.
        summed, cells = predicted_sums(batch, groups) if reference.scale == "counts" else _sums(batch, groups)
        return reference.profiles_of(summed, cells, target_sum), cells

    return batch.memo(("perturbation profiles", reference, target_sum), profiles)


def _sums(batch: Batch, groups: int) -> tuple[Tensor, Tensor]:
    group = batch.tensor("group")
    return group_sums(batch.rows("x"), group, groups), torch.bincount(group, minlength=groups)
