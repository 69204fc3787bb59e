"""Tables of differential expression: every perturbation tested against control, gene by gene, true and predicted.

How genes are chosen and fold changes formed is a ``DEConvention``'s matter, the tests are ``de_rank_sums``'s. The true
table is made once for a solution and a convention, the predicted one once for all metrics of a panel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch
from prima_bench.metrics.differential.fdr import benjamini_hochberg
from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.de.convention import DEConvention
from prima_bench.metrics.perturbation.de.rank_sums import DETests, predicted_tests, true_tests
from prima_bench.metrics.perturbation.profiles.predicted import predicted_profiles
from prima_bench.metrics.perturbation.reference import PerturbationReference

_BLOCK_ROWS = 16


@dataclass(frozen=True, slots=True, eq=False)
class DETable:
    """DETests of all perturbations against control, all ``[perturbations, genes]``.

    Attributes:
        p_value: Two-sided p-value of the rank-sum test, float64; 1 where both sides are alike.
        fdr: The same adjusted for the genes tested, by perturbation (Benjamini-Hochberg); 1 for a gene not tested.
        log_fold_change: Log2 of the ratio of mean expression, float64; exactly 0 where the means agree.
        statistic: The signed z score of the test, float64.
        tested: Whether a gene is tested, boolean; the solution's control cells decide.
    """

    p_value: Tensor
    fdr: Tensor
    log_fold_change: Tensor
    statistic: Tensor
    tested: Tensor

    def rows(self, positions: Tensor) -> Self:
        """The rows of some perturbations.

        Args:
            positions: Which, int64 ``[k]``, from 0.
        """
        parts = (self.p_value, self.fdr, self.log_fold_change, self.statistic, self.tested)
        return type(self)(*(x[positions] for x in parts))

    def to(self, device: torch.device) -> Self:
        """The same table on another device."""
        parts = (self.p_value, self.fdr, self.log_fold_change, self.statistic, self.tested)
        return type(self)(*(x.to(device) for x in parts))

    def called(self, alpha: float) -> Tensor:
        """Which genes are differentially expressed, boolean: tested, with a false discovery rate below ``alpha``."""
        return self.tested & (self.fdr < alpha)


@dataclass(frozen=True, slots=True, eq=False)
class _Truth:
    """The solution's table, and what predictions take from it: ``control_mean`` and ``tested`` are ``[genes]``."""

    table: DETable
    control_mean: Tensor
    tested: Tensor
    pseudocount: float


_TRUTHS: WeakKeyDictionary[PerturbationReference, dict[DEConvention, _Truth]] = WeakKeyDictionary()


def true_table(reference: PerturbationReference, convention: DEConvention) -> DETable:
    """The solution's own table, made once for a reference and a convention.

    Args:
        reference: The solution; it needs control cells.
        convention: How tables are made.

    Raises:
        ReferenceDataError: If expression is too large to be tested.

    Example:
        >>> from prima_bench.metrics.perturbation.de.convention import convention_of
        >>> x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [3.0, 0.0]])
        >>> reference = PerturbationReference.from_cells(
        ...     x, torch.tensor([0, 0, 1, 1]), num_perturbations=1, scale="log1p_cp10k"
        ... )
        >>> table = true_table(reference, convention_of("default"))
        >>> table.log_fold_change, table.tested
        (tensor([[2.6577, 0.0000]], dtype=torch.float64), tensor([[ True, False]]))
    """
    return _truth(reference, convention).table


def predicted_table(batch: Batch, reference: PerturbationReference, convention: DEConvention) -> DETable:
    """The table of the predicted cells, made once for all metrics of a panel.

    Args:
        batch: Predicted cells ``x`` and their codes ``group``; control cells among them where the convention has
            predictions tested against their own.
        reference: The solution: its control cells, the genes that are tested, and the pseudocount.
        convention: How tables are made.

    Raises:
        ProfileError: If expression of a perturbation is too large to be tested.
    """

    def build() -> DETable:
        truth, tests = (
            _truth(reference, convention),
            predicted_tests(batch, reference, convention.control_source),
        )
        mean = _means(tests, reference, convention, lambda: predicted_profiles(batch, reference, 0.0)[0])
        own = convention.control_source == "prediction"
        control = mean[0] if own else truth.control_mean.to(batch.device)
        return _table(tests, mean, control, truth.tested.to(batch.device), truth.pseudocount)

    return batch.memo(("de table", reference, convention), build)


def fold_change(mean: Tensor, control: Tensor, pseudocount: float) -> Tensor:
    """Log2 fold change of mean expression, negative means counting as zero.

    Args:
        mean: Mean of normalised expression, float64 ``[perturbations, genes]``.
        control: The same of the control, ``[genes]``.
        pseudocount: What is added to both, not negative.

    Returns:
        ``log2((mean + pseudocount) / (control + pseudocount))``, float64 of the shape of ``mean``; 0 where the two
        agree up to rounding, infinite where only one of them is zero and there is no pseudocount.

    Example:
        >>> fold_change(torch.tensor([[4.0, 0.0, 0.0]]), torch.tensor([1.0, 1.0, 0.0]), 0.0)
        tensor([[2., -inf, 0.]], dtype=torch.float64)
    """
    control = control.double().clamp(min=0.0) + pseudocount
    change = torch.empty(mean.shape, dtype=torch.float64, device=mean.device)
    for rows, out in zip(torch.split(mean, _BLOCK_ROWS), torch.split(change, _BLOCK_ROWS), strict=True):
        own = rows.double().clamp(min=0.0) + pseudocount
        torch.log2(own / control, out=out).masked_fill_(rowwise.difference(own, control) == 0, 0.0)
    return change


def _truth(reference: PerturbationReference, convention: DEConvention) -> _Truth:
    known = _TRUTHS.setdefault(reference, {})
    if convention not in known:
        tests, control = true_tests(reference)
        mean = _means(tests, reference, convention, reference.profiles)
        counts = reference.scale == "counts"
        tested = control.expressed >= convention.min_control_fraction
        if counts:
            tested &= tests.sums.mean[0] * 1e6 > convention.min_control_cpm
        smallest = control.smallest_mean * (convention.target_sum if counts else 1.0)
        # A control that expresses nothing sets no scale; the floor must be above zero all the same.
        pseudocount = (smallest or 1.0) if convention.pseudocount is None else convention.pseudocount
        table = _table(tests, mean, mean[0], tested, pseudocount)
        known[convention] = _Truth(table, mean[0], tested, pseudocount)
    return known[convention]


def _means(
    tests: DETests, reference: PerturbationReference, convention: DEConvention, log_profiles: Callable[[], Tensor]
) -> Tensor:
    """Mean normalised expression by code, float64 ``[1 + perturbations, genes]``."""
    counts = reference.scale == "counts"
    if convention.mean == "geometric":
        return torch.expm1(tests.log_means(convention.target_sum) if counts else log_profiles())
    return tests.sums.mean * convention.target_sum if counts else tests.sums.mean


def _table(tests: DETests, mean: Tensor, control: Tensor, tested: Tensor, pseudocount: float) -> DETable:
    return DETable(
        p_value=tests.sums.p_value,
        fdr=benjamini_hochberg(tests.sums.p_value, tested),
        log_fold_change=fold_change(mean[1:], control, pseudocount),
        statistic=tests.sums.z,
        tested=tested.expand_as(tests.sums.z),
    )
