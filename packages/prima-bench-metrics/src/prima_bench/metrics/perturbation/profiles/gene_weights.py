"""How much each gene sets a perturbation apart from the others: weights that the solution alone decides.

After Mejia et al. 2025 (arXiv:2506.22641): a t statistic of the perturbation's cells against all other perturbed cells
of the solution, on log-normalised expression, brought to weights by its absolute value. Metrics that use the weights
are elsewhere.
"""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.cells.expression import true_expression
from prima_bench.metrics.perturbation.profiles.moments import made_sums
from prima_bench.metrics.perturbation.pseudobulk import mean_profiles
from prima_bench.metrics.perturbation.reference import PerturbationReference

_BLOCK_ELEMENTS = 1 << 18

_STATISTICS: WeakKeyDictionary[PerturbationReference, Tensor] = WeakKeyDictionary()


def t_statistic(reference: PerturbationReference) -> Tensor:
    """Each perturbation against all other perturbed cells of the solution, made once for a reference.

    Expression is ``log1p`` of counts per 10,000 of each cell, whatever the pseudobulks are made of.

    Args:
        reference: The solution.

    Returns:
        float64 ``[perturbations, genes]``; infinite where neither side has any variance but the means differ; NaN
        for a perturbation where one of the sides has fewer than two cells.

    Raises:
        ReferenceDataError: If the solution's expression is too large to be scored.
    """
    if reference not in _STATISTICS:
        group, n = reference.group.masked_fill(reference.group == 0, -1), reference.cells_per_group
        cells, take = reference.cells, true_expression(reference).take
        means = mean_profiles(made_sums(cells, group, len(n), take), n)
        squares = made_sums(cells, group, len(n), lambda p: take(p).sub_(means[group[p]]).square_())
        _STATISTICS[reference] = against_rest(means[1:], squares[1:], n[1:])
    return _STATISTICS[reference]


def against_rest(means: Tensor, squares: Tensor, cells: Tensor) -> Tensor:
    """A t statistic of each group of cells against the cells of all other groups, the others' variance overestimated.

    ``t = (mean - mean of the rest) / sqrt((s^2 + s^2 of the rest) / n)`` with the group's own ``n`` on both sides:
    scanpy's ``t-test_overestim_var``, which is Welch's where both sides have as many cells.

    Args:
        means: Means of the groups, float64 ``[groups, genes]``.
        squares: Sums of squared differences from them, of the same shape.
        cells: Number of cells, ``[groups]``.

    Returns:
        float64 ``[groups, genes]``; 0 where the means agree, infinite where they differ without any variance, NaN for
        a group that has fewer than two cells, or leaves fewer than two.

    Example:
        >>> means, squares = torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [6.0]])
        >>> against_rest(means.double(), squares.double(), torch.tensor([3, 3]))
        tensor([[-1.7321],
                [ 1.7321]], dtype=torch.float64)
    """
    result = torch.empty_like(means)
    n = cells.to(means.device, torch.float64).unsqueeze(1)
    rest = n.sum() - n
    few = ((n < 2) | (rest < 2)).flatten()
    step = max(1, _BLOCK_ELEMENTS // len(means))
    for start in range(0, means.shape[1], step):
        mean, square = means[:, start : start + step], squares[:, start : start + step]
        centre = tree_sum(n * mean) / n.sum()
        shift = rowwise.difference(mean, centre)
        # About one centre for all: a group's share can be taken out again.
        about = square + n * shift.square()
        others = -shift * (n / rest)
        left = (tree_sum(about) - about - rest * others.square()).clamp(min=0.0)
        variance = square / (n - 1.0) + left / (rest - 1.0)
        # What sums of squares owe to rounding is no variance.
        none = variance <= rowwise.ROUNDING * mean.abs().amax(dim=0).square()
        gap = shift - others
        t = torch.where(none, gap.sign() * torch.inf, gap / (variance / n).sqrt())
        result[:, start : start + step] = torch.where(gap == 0, 0.0, t)
    result[few] = torch.nan
    return result


def gene_weights(statistic: Tensor, keep: Tensor | None = None) -> Tensor:
    """Weights of the genes of each perturbation: ``|t|`` scaled to 0 to 1 by its smallest and largest, squared.

    Args:
        statistic: t statistics, float64 ``[rows, genes]``. Next to an infinite one, finite ones weigh nothing.
        keep: Genes that count, boolean of the same shape; the others weigh nothing and scale nothing. All when None.

    Returns:
        float64 of the same shape, each row summing to 1; equal where all of ``|t|`` are, NaN where all are 0.

    Example:
        >>> gene_weights(torch.tensor([[1.0, -2.0, 3.0], [0.0, 0.0, 0.0]]))
        tensor([[0.0000, 0.2000, 0.8000],
                [   nan,    nan,    nan]], dtype=torch.float64)
    """
    size = statistic.double().abs()
    least = rowwise.kept(size, keep, torch.inf).amin(dim=1, keepdim=True)
    most = rowwise.kept(size, keep, -torch.inf).amax(dim=1, keepdim=True)
    scaled = (size - least) / (most - least)
    scaled = torch.where(most.isinf(), size.isinf().to(torch.float64), scaled)
    scaled = torch.where((least == most) & (most > 0), 1.0, scaled)
    square = rowwise.kept(scaled.square(), keep)
    weights = square / tree_sum(square, dim=1).unsqueeze(1)
    return torch.where(statistic.isnan().any(dim=1, keepdim=True), torch.nan, weights)
