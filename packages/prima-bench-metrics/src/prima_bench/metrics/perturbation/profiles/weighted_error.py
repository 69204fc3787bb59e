"""Errors in which a gene weighs as much as it sets the perturbation apart from the others.

Where few genes respond, plain errors reward the mean of all perturbations; these do not. The weights are the
solution's, see ``gene_weights``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch
from prima_bench.metrics.numerics import tree_mean, tree_sum
from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.params import EXCLUDE_TARGETS, LEAVE_ONE_OUT, TARGET_SUM
from prima_bench.metrics.perturbation.profiles.gene_weights import gene_weights, t_statistic
from prima_bench.metrics.perturbation.profiles.metric import Rows, RowwiseMetric
from prima_bench.metrics.perturbation.pseudobulk import mean_of_others
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="wmse",
        version=1,
        inputs="perturbation",
        implementation="WeightedMSE",
        title="Weighted mean squared error of the pseudobulk",
        summary="How far the predicted mean expression lies from the true one, squared, in the genes that respond.",
        formula=(
            "sum_g w_g (q_pg - m_pg)^2, w = squares of |t| scaled to 0 to 1 by its smallest and largest gene, summing "
            "to 1; t_g = (mean_p - mean_rest) / sqrt((s_p^2 + s_rest^2) / n_p) over cells, log1p of counts per 10,000, "
            "rest = the solution's other perturbed cells; then mean over perturbations"
        ),
        direction="min",
        range=(0.0, None),
        perfect=0.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined=(
            "Fewer than two perturbations; a perturbation of one cell, or that leaves only one; one that no gene sets "
            "apart from the others."
        ),
        references=("Mejia et al. 2025, arXiv:2506.22641",),
        params=(EXCLUDE_TARGETS, TARGET_SUM),
        notes=(
            "The t statistic is the authors' own: scanpy's t-test_overestim_var, Welch's with the perturbation's "
            "number of cells on both sides. With counts it is still taken on log1p of counts per 10,000 of each cell, "
            "so that weights do not depend on target_sum. Excluded genes scale no weights. A gene that separates "
            "without any variance takes all the weight; the authors' code drops it."
        ),
    ),
    MetricSpec(
        name="weighted_r2_delta_pertmean",
        version=1,
        inputs="perturbation",
        implementation="WeightedR2DeltaPertMean",
        title="Weighted R2 of perturbation-specific effects",
        summary="How much of what sets a perturbation apart from the others is predicted, size and direction.",
        formula=(
            "1 - sum_g w_g (q_pg - m_pg)^2 / sum_g w_g (m_pg - o_pg)^2, w as in wmse, o_p = mean of the true "
            "pseudobulks of the other perturbations; then mean over perturbations"
        ),
        direction="max",
        range=(None, 1.0),
        perfect=1.0,
        chance=0.0,
        level="unit",
        unit="perturbation",
        undefined=(
            "Fewer than two perturbations; a perturbation of one cell, or that leaves only one; one that no gene sets "
            "apart from the others."
        ),
        references=("Mejia et al. 2025, arXiv:2506.22641",),
        params=(EXCLUDE_TARGETS, LEAVE_ONE_OUT, TARGET_SUM),
        notes=(
            "Predicting the mean of the others scores exactly 0. The authors' code takes the total about the weighted "
            "mean of the effect over genes, where that prediction scores below 0, and their mean includes the "
            "perturbation itself and control."
        ),
    ),
)

FEW_CELLS = "fewer than two cells of this perturbation, or of all others"


def wmse(pred: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean squared error of each pseudobulk.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        weights: Weights of the genes, of the same shape, each row summing to 1.

    Returns:
        float64 ``[perturbations]``; NaN where there are no weights.

    Example:
        >>> wmse(torch.tensor([[1.0, 4.0]]), torch.tensor([[1.0, 2.0]]), torch.tensor([[0.75, 0.25]]))
        tensor([1.], dtype=torch.float64)
    """
    return tree_sum(weights * (pred.double() - target.double()).square(), dim=1)


def weighted_r2_delta_pertmean(pred: Tensor, target: Tensor, weights: Tensor, *, leave_one_out: bool = True) -> Tensor:
    """Weighted R2 of each pseudobulk, measured from the mean of the other perturbations' true ones.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``: all perturbations of the panel.
        target: True pseudobulks, of the same shape.
        weights: Weights of the genes, of the same shape, each row summing to 1.
        leave_one_out: Whether a perturbation is left out of the mean that it is measured from.

    Returns:
        float64 ``[perturbations]``; NaN where there are no weights, or no difference from that mean.

    Example:
        >>> target = torch.tensor([[0.0, 2.0], [2.0, 2.0]])
        >>> weights = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        >>> weighted_r2_delta_pertmean(torch.tensor([[0.0, 9.0], [1.0, 9.0]]), target, weights)
        tensor([1.0000, 0.7500], dtype=torch.float64)
    """
    origin = mean_of_others(target.double()) if leave_one_out else tree_mean(target, dim=0).expand_as(target)
    return _weighted_r2(pred, target, weights, origin)


def _weighted_r2(pred: Tensor, target: Tensor, weights: Tensor, origin: Tensor) -> Tensor:
    total = tree_sum(weights * rowwise.difference(target, origin).square(), dim=1)
    return torch.where(total > 0, 1.0 - wmse(pred, target, weights) / total, torch.nan)


@dataclass(frozen=True, slots=True)
class WeightedRows(Rows):
    """Some perturbations with what their genes are weighed by.

    Attributes:
        statistic: t statistics of the true cells, ``[rows, genes]``.
    """

    statistic: Tensor

    @property
    def weights(self) -> Tensor:
        """Weights of the genes, ``[rows, genes]``."""
        return gene_weights(self.statistic, self.keep)


class WeightedMetric(RowwiseMetric):
    """A metric that weighs genes by how much they set a perturbation apart from the others.

    Args:
        *args: As in ``PerturbationMetric``.
        **kwargs: As in ``ProfileMetric``.
    """

    origin = "others"
    degenerate = "no gene sets this perturbation apart from the others"

    def unit_values(
        self, batch: Batch, reference: PerturbationReference, chosen: Tensor
    ) -> tuple[Tensor, Mapping[int, str]]:
        """The values of the perturbations that have true cells."""
        values, _ = super().unit_values(batch, reference, chosen)
        cells = reference.cells_per_group[1:]
        few = ((cells > 0) & ((cells < 2) | (cells.sum() - cells < 2))).nonzero().flatten().tolist()
        return values, dict.fromkeys(few, FEW_CELLS)

    def rows(self, batch: Batch, reference: PerturbationReference, chosen: Tensor) -> WeightedRows:
        """The pseudobulks of some perturbations, with what their genes are weighed by."""
        statistic = t_statistic(reference).to(batch.device)
        statistic = statistic if len(chosen) == len(statistic) else statistic[chosen]
        return _with_statistic(super().rows(batch, reference, chosen), statistic)

    def _block(self, rows: Rows, part: slice | Tensor, total: Tensor | None) -> WeightedRows:
        return _with_statistic(super()._block(rows, part, total), cast(WeightedRows, rows).statistic[part])


def _with_statistic(rows: Rows, statistic: Tensor) -> WeightedRows:
    return WeightedRows(**{f.name: getattr(rows, f.name) for f in fields(Rows)}, statistic=statistic)


class WeightedMSE(WeightedMetric):
    """Mean squared error in the genes that set a perturbation apart; see :func:`wmse`."""

    higher_is_better = False

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return wmse(rows.pred, rows.true, cast(WeightedRows, rows).weights)


class WeightedR2DeltaPertMean(WeightedMetric):
    """R2 in the genes that set a perturbation apart; see :func:`weighted_r2_delta_pertmean`.

    Args:
        *args: As in ``PerturbationMetric``.
        leave_one_out: Whether a perturbation is left out of the mean that it is measured from.
        **kwargs: As in ``ProfileMetric``.
    """

    higher_is_better = True

    def __init__(self, *args: Any, leave_one_out: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.leave_one_out = bool(leave_one_out)

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return _weighted_r2(rows.pred, rows.true, cast(WeightedRows, rows).weights, rows.origin)
