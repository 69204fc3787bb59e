"""Sampling noise of pseudobulks: how far each gene's value would stray with other cells of the same kind.

An estimate from the spread of the cells themselves, as a variance for each group and gene; summed over genes it is
what debiased errors subtract. The cells of a group are taken for independent draws. A mean over cells has the textbook
variance; the logarithm of summed counts has the jackknife's. A single cell tells nothing: its noise counts as zero.
"""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from prima_bench.metrics.batch import Batch
from prima_bench.metrics.perturbation.profiles.jackknife import log_sum_noise
from prima_bench.metrics.perturbation.profiles.moments import made_sums
from prima_bench.metrics.perturbation.profiles.predicted import predicted_profiles, predicted_sums
from prima_bench.metrics.perturbation.pseudobulk import median_total
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.rows import RowMatrix

_TRUE: WeakKeyDictionary[PerturbationReference, dict[float, Tensor]] = WeakKeyDictionary()


def true_noise(reference: PerturbationReference, target_sum: float = 0.0) -> Tensor:
    """Noise of the solution's pseudobulks, made once for a reference and a total.

    Args:
        reference: The solution.
        target_sum: As in ``PerturbationReference.profiles``.

    Returns:
        Variances by code, float64 ``[1 + P, genes]``; zero for a group of one cell.
    """
    known = _TRUE.setdefault(reference, {})
    if target_sum not in known:
        cells, group = reference.cells, reference.group
        if reference.scale == "counts":
            known[target_sum] = log_sum_noise(cells, group, reference.sums(), _total(reference, target_sum))
        else:
            known[target_sum] = mean_noise(cells, group, reference.profiles(target_sum))
    return known[target_sum]


def predicted_noise(batch: Batch, reference: PerturbationReference, target_sum: float = 0.0) -> Tensor:
    """Noise of the predicted pseudobulks of perturbations, made once for all metrics of a panel.

    Args:
        batch: Predicted cells ``x`` and their codes ``group``.
        reference: Gives the scale and, for counts, the default total.
        target_sum: As in ``PerturbationReference.profiles``.

    Returns:
        Variances by code, float64 ``[1 + P, genes]``; zero for a group of one cell, and for control.
    """

    def build() -> Tensor:
        cells, group = batch.rows("x"), batch.tensor("group")
        perturbed = group.masked_fill(group == 0, -1)
        if reference.scale != "counts":
            return mean_noise(cells, perturbed, predicted_profiles(batch, reference, target_sum)[0])
        summed, _ = predicted_sums(batch, 1 + reference.num_perturbations)
        return log_sum_noise(cells, perturbed, summed, _total(reference, target_sum))

    return batch.memo(("perturbation noise", reference, target_sum), build)


def mean_noise(cells: RowMatrix, group: Tensor, means: Tensor) -> Tensor:
    """Variance of the mean over the cells of each group: ``s^2 / n``.

    Args:
        cells: Expression ``[cells, genes]``, dense or sparse.
        group: Code of each cell, int64 ``[cells]``; cells of a negative one are left out.
        means: The means, float64 ``[groups, genes]``.

    Returns:
        float64 ``[groups, genes]``; zero for a group of one cell.

    Example:
        >>> x = RowMatrix([torch.tensor([[0.0, 1.0], [4.0, 1.0]])])
        >>> mean_noise(x, torch.tensor([0, 0]), torch.tensor([[2.0, 1.0]], dtype=torch.float64))
        tensor([[4., 0.]], dtype=torch.float64)
    """
    n = torch.bincount(group[group >= 0], minlength=len(means)).to(torch.float64).unsqueeze(1)
    squares = made_sums(cells, group, len(means), lambda p: means[group[p]].sub_(cells.take(p)).square_())
    return squares / (n * (n - 1)).clamp(min=1.0)


def _total(reference: PerturbationReference, target_sum: float) -> float:
    return target_sum or median_total(reference.sums())
