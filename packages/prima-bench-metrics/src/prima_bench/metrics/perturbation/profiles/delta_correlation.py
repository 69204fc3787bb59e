"""Agreement in direction between predicted and true effect: Pearson, Spearman and cosine, by perturbation.

An effect is a pseudobulk minus an origin: the solution's control, or the mean of the other perturbations. None of
these sees the size of an effect; ``r2_delta`` and the profile errors do.
"""

from typing import Any

from torch import Tensor

from prima_bench.metrics.numerics import average_ranks, tree_mean
from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.params import CONTROL_SOURCE, EXCLUDE_TARGETS, LEAVE_ONE_OUT, TARGET_SUM
from prima_bench.metrics.perturbation.profiles.metric import Rows, RowwiseMetric
from prima_bench.metrics.perturbation.pseudobulk import mean_of_others
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="pearson_delta",
        version=1,
        inputs="perturbation",
        implementation="PearsonDelta",
        title="Pearson correlation of effects",
        summary="Whether the predicted change against control goes up and down in the same genes as the true one.",
        formula="Pearson over genes of (q_p - m_c) and (m_p - m_c), then mean over perturbations",
        direction="max",
        range=(-1.0, 1.0),
        perfect=1.0,
        chance=0.0,
        level="unit",
        unit="perturbation",
        undefined="A perturbation whose true effect is the same for all genes compared.",
        references=("cell-eval2 0.20 `delta_pearson`", "cell-eval 0.8 `pearson_delta` (control_source=prediction)"),
        params=(CONTROL_SOURCE, EXCLUDE_TARGETS, TARGET_SUM),
        notes=(
            "Both sides share the noise of one control mean, which rewards a null model when control cells are few. "
            "cell-eval 0.8 subtracts the predicted control from the prediction, so that editing predicted control "
            "cells moves the score: 0.247 there where the solution's control gives 0.681. A constant predicted effect "
            "scores 0."
        ),
    ),
    MetricSpec(
        name="spearman_delta",
        version=1,
        inputs="perturbation",
        implementation="SpearmanDelta",
        title="Spearman correlation of effects",
        summary="Whether genes are ordered by predicted change against control as they are by true change.",
        formula="Pearson over genes of the average ranks of (q_p - m_c) and (m_p - m_c), then mean over perturbations",
        direction="max",
        range=(-1.0, 1.0),
        perfect=1.0,
        chance=0.0,
        level="unit",
        unit="perturbation",
        undefined="A perturbation whose true effect is the same for all genes compared.",
        references=("Spearman 1904, doi:10.2307/1412159",),
        params=(CONTROL_SOURCE, EXCLUDE_TARGETS, TARGET_SUM),
        notes="Every gene weighs the same, so the many genes without response dominate. Ties share their mean rank.",
    ),
    MetricSpec(
        name="cosine_delta",
        version=1,
        inputs="perturbation",
        implementation="CosineDelta",
        title="Cosine similarity of effects",
        summary="Whether the predicted change against control points in the direction of the true one.",
        formula="<q_p - m_c, m_p - m_c> / (|q_p - m_c| |m_p - m_c|) over genes, then mean over perturbations",
        direction="max",
        range=(-1.0, 1.0),
        perfect=1.0,
        chance=0.0,
        level="unit",
        unit="perturbation",
        undefined="A perturbation without any true effect in the genes compared.",
        references=("Salton and McGill 1983, Introduction to Modern Information Retrieval",),
        params=(CONTROL_SOURCE, EXCLUDE_TARGETS, TARGET_SUM),
        notes="Unlike Pearson, effects are not centred: a shift of all genes alike counts as an effect.",
    ),
    MetricSpec(
        name="pearson_delta_pertmean",
        version=1,
        inputs="perturbation",
        implementation="PearsonDeltaPertMean",
        title="Pearson correlation of perturbation-specific effects",
        summary="Whether a prediction tells what sets this perturbation apart from the others, not what all share.",
        formula=(
            "Pearson over genes of (q_p - o_p) and (m_p - o_p), o_p = mean of the true pseudobulks of the other "
            "perturbations, then mean over perturbations"
        ),
        direction="max",
        range=(-1.0, 1.0),
        perfect=1.0,
        chance=0.0,
        level="unit",
        unit="perturbation",
        undefined="Fewer than two perturbations; a perturbation that differs from the others' mean alike in all genes.",
        references=("Vinas Torne et al. 2025, Systema, doi:10.1038/s41587-025-02777-8",),
        params=(EXCLUDE_TARGETS, LEAVE_ONE_OUT, TARGET_SUM),
        notes=(
            "The mean leaves the perturbation itself out, so that its own noise is not on both sides. A consequence: "
            "the mean of all true pseudobulks of the panel, as every prediction, lies on the line from o_p to m_p and "
            "scores 1. No model sees that mean, but one close to it scores high; with leave_one_out=false it scores "
            "0. Read this metric beside a retrieval one (pds_cosine) and one that sees scale (r2_delta)."
        ),
    ),
)


def pearson_delta(
    pred: Tensor, target: Tensor, control: Tensor, *, pred_control: Tensor | None = None, keep: Tensor | None = None
) -> Tensor:
    """Pearson correlation over genes of ``pred - control`` and ``target - control``.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        control: True control pseudobulk ``[genes]``.
        pred_control: Control that is subtracted from ``pred``; ``control`` when None.
        keep: Genes that count, boolean ``[perturbations, genes]``; all of them when None.

    Returns:
        float64 ``[perturbations]``: NaN where the true effect is constant, else 0 where the predicted one is.

    Example:
        >>> import torch
        >>> control = torch.tensor([1.0, 1.0, 1.0])
        >>> target = torch.tensor([[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]])
        >>> pearson_delta(target + 5.0, target, control)
        tensor([1., nan], dtype=torch.float64)
        >>> pearson_delta(control.expand(2, 3), target, control)
        tensor([0., nan], dtype=torch.float64)
    """
    e, e_flat = _effect(pred, control if pred_control is None else pred_control, keep)
    d, d_flat = _effect(target, control, keep)
    r = rowwise.cosine(rowwise.centre(e, keep), rowwise.centre(d, keep))
    return rowwise.graded(r, no_skill=e_flat, undefined=d_flat)


def spearman_delta(
    pred: Tensor, target: Tensor, control: Tensor, *, pred_control: Tensor | None = None, keep: Tensor | None = None
) -> Tensor:
    """Spearman correlation over genes of ``pred - control`` and ``target - control``, ties by average rank.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        control: True control pseudobulk ``[genes]``.
        pred_control: Control that is subtracted from ``pred``; ``control`` when None.
        keep: Genes that count, boolean ``[perturbations, genes]``; all of them when None.

    Returns:
        float64 ``[perturbations]``: NaN where the true effect is constant, else 0 where the predicted one is.

    Example:
        >>> import torch
        >>> target = torch.tensor([[1.0, 2.0, 9.0]])
        >>> spearman_delta(target**3, target, torch.zeros(3))
        tensor([1.], dtype=torch.float64)
    """
    e, e_flat = _effect(pred, control if pred_control is None else pred_control, keep)
    d, d_flat = _effect(target, control, keep)
    r = rowwise.cosine(rowwise.centre(average_ranks(e, keep), keep), rowwise.centre(average_ranks(d, keep), keep))
    return rowwise.graded(r, no_skill=e_flat, undefined=d_flat)


def cosine_delta(
    pred: Tensor, target: Tensor, control: Tensor, *, pred_control: Tensor | None = None, keep: Tensor | None = None
) -> Tensor:
    """Cosine over genes of the angle between ``pred - control`` and ``target - control``.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        control: True control pseudobulk ``[genes]``.
        pred_control: Control that is subtracted from ``pred``; ``control`` when None.
        keep: Genes that count, boolean ``[perturbations, genes]``; all of them when None.

    Returns:
        float64 ``[perturbations]``: NaN where the true effect is zero, else 0 where the predicted one is.

    Example:
        >>> import torch
        >>> target = torch.tensor([[1.0, 0.0]])
        >>> cosine_delta(-target, target, torch.zeros(2))
        tensor([-1.], dtype=torch.float64)
    """
    e = rowwise.difference(pred, control if pred_control is None else pred_control)
    d = rowwise.difference(target, control)
    similarity = rowwise.cosine(rowwise.kept(e, keep), rowwise.kept(d, keep))
    return rowwise.graded(similarity, no_skill=rowwise.is_zero(e, keep), undefined=rowwise.is_zero(d, keep))


def pearson_delta_pertmean(
    pred: Tensor, target: Tensor, *, leave_one_out: bool = True, keep: Tensor | None = None
) -> Tensor:
    """Pearson correlation over genes after subtracting the mean of the other perturbations' true pseudobulks.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``: all perturbations of the panel.
        target: True pseudobulks, of the same shape.
        leave_one_out: Whether a perturbation is left out of the mean that it is measured from.
        keep: Genes that count, boolean of the same shape; all of them when None.

    Returns:
        float64 ``[perturbations]``: NaN where the truth differs from that mean alike in all genes.

    Example:
        >>> import torch
        >>> target = torch.tensor([[0.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
        >>> pearson_delta_pertmean(target, target)
        tensor([1., 1.], dtype=torch.float64)
    """
    origin = mean_of_others(target.double()) if leave_one_out else tree_mean(target, dim=0).expand_as(target)
    return pearson_delta(pred, target, origin, keep=keep)


def _effect(profile: Tensor, origin: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    effect = rowwise.difference(profile, origin)
    return effect, rowwise.is_constant(effect, keep, profile, origin)


class PearsonDelta(RowwiseMetric):
    """Pearson correlation of predicted and true effects; see :func:`pearson_delta`."""

    higher_is_better = True

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return pearson_delta(rows.pred, rows.true, rows.origin, pred_control=rows.pred_origin, keep=rows.keep)


class SpearmanDelta(RowwiseMetric):
    """Spearman correlation of predicted and true effects; see :func:`spearman_delta`."""

    higher_is_better = True

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return spearman_delta(rows.pred, rows.true, rows.origin, pred_control=rows.pred_origin, keep=rows.keep)


class CosineDelta(RowwiseMetric):
    """Cosine similarity of predicted and true effects; see :func:`cosine_delta`."""

    higher_is_better = True
    degenerate = "zero solution effect"

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return cosine_delta(rows.pred, rows.true, rows.origin, pred_control=rows.pred_origin, keep=rows.keep)


class PearsonDeltaPertMean(RowwiseMetric):
    """Pearson correlation of perturbation-specific effects; see :func:`pearson_delta_pertmean`.

    Args:
        *args: As in ``PerturbationMetric``.
        leave_one_out: Whether a perturbation is left out of the mean that it is measured from.
        **kwargs: As in ``ProfileMetric``.
    """

    higher_is_better = True
    origin = "others"

    def __init__(self, *args: Any, leave_one_out: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.leave_one_out = bool(leave_one_out)

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return pearson_delta(rows.pred, rows.true, rows.origin, keep=rows.keep)
