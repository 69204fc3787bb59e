"""Distance between predicted and true pseudobulk, or effect: mean absolute, mean squared, root mean squared error."""

import torch
from torch import Tensor

from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.params import CONTROL_SOURCE, EXCLUDE_TARGETS, TARGET_SUM
from prima_bench.metrics.perturbation.profiles.metric import Rows, RowwiseMetric
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="mae",
        version=1,
        inputs="perturbation",
        implementation="ProfileMAE",
        title="Mean absolute error of the pseudobulk",
        summary="How far the predicted mean expression of a perturbation lies from the true one, per gene.",
        formula="mean over genes of |q_p - m_p|, then mean over perturbations",
        direction="min",
        range=(0.0, None),
        perfect=0.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation whose genes are all excluded.",
        references=("cell-eval 0.8 `mae`", "cell-eval2 0.20 `expr_mae`"),
        params=(EXCLUDE_TARGETS, TARGET_SUM),
        notes=(
            "Poorly calibrated on real screens: the mean of all perturbations often beats an experimental replicate. "
            "Dominated by highly expressed genes, most of which do not respond."
        ),
    ),
    MetricSpec(
        name="mse",
        version=1,
        inputs="perturbation",
        implementation="ProfileMSE",
        title="Mean squared error of the pseudobulk",
        summary="How far the predicted mean expression of a perturbation lies from the true one, squared, per gene.",
        formula="mean over genes of (q_p - m_p)^2, then mean over perturbations",
        direction="min",
        range=(0.0, None),
        perfect=0.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation whose genes are all excluded.",
        references=("cell-eval 0.8 `mse`", "cell-eval2 0.20 `expr_mse`"),
        params=(EXCLUDE_TARGETS, TARGET_SUM),
        notes=(
            "Poorly calibrated on real screens: the mean of all perturbations often beats an experimental replicate. "
            "Contains the sampling noise of both sides, so that few cells look like a bad prediction."
        ),
    ),
    MetricSpec(
        name="rmse",
        version=1,
        inputs="perturbation",
        implementation="ProfileRMSE",
        title="Root mean squared error of the pseudobulk",
        summary="The mean squared error of a perturbation, in the units of expression.",
        formula="sqrt(mean over genes of (q_p - m_p)^2), then mean over perturbations",
        direction="min",
        range=(0.0, None),
        perfect=0.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation whose genes are all excluded.",
        references=("Roohani et al. 2024, GEARS, doi:10.1038/s41587-023-01905-6",),
        params=(EXCLUDE_TARGETS, TARGET_SUM),
        notes="The root is taken per perturbation, before the mean; the root of `mse` is another number.",
    ),
    MetricSpec(
        name="mae_delta",
        version=1,
        inputs="perturbation",
        implementation="DeltaMAE",
        title="Mean absolute error of the effect",
        summary="How far the predicted change against control lies from the true one, per gene.",
        formula="mean over genes of |(q_p - m_c) - (m_p - m_c)|, then mean over perturbations",
        direction="min",
        range=(0.0, None),
        perfect=0.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation whose genes are all excluded.",
        references=("cell-eval2 0.20 `delta_mae`", "cell-eval 0.8 `mae_delta` (control_source=prediction)"),
        params=(CONTROL_SOURCE, EXCLUDE_TARGETS, TARGET_SUM),
        notes=(
            "Against one control on both sides it is `mae`. With control_source=prediction each side has its own, so "
            "that a prediction may be off by the same amount everywhere, and editing predicted control cells moves "
            "the score."
        ),
    ),
    MetricSpec(
        name="mse_delta",
        version=1,
        inputs="perturbation",
        implementation="DeltaMSE",
        title="Mean squared error of the effect",
        summary="How far the predicted change against control lies from the true one, squared, per gene.",
        formula="mean over genes of ((q_p - m_c) - (m_p - m_c))^2, then mean over perturbations",
        direction="min",
        range=(0.0, None),
        perfect=0.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation whose genes are all excluded.",
        references=("cell-eval2 0.20 `delta_mse`", "cell-eval 0.8 `mse_delta` (control_source=prediction)"),
        params=(CONTROL_SOURCE, EXCLUDE_TARGETS, TARGET_SUM),
        notes=(
            "Against one control on both sides it is `mse`. With control_source=prediction each side has its own, so "
            "that a prediction may be off by the same amount everywhere, and editing predicted control cells moves "
            "the score."
        ),
    ),
)


def mae(pred: Tensor, target: Tensor, *, keep: Tensor | None = None) -> Tensor:
    """Mean absolute error of each pseudobulk.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        keep: Genes that count, boolean of the same shape; all of them when None.

    Returns:
        float64 ``[perturbations]``; NaN where no gene counts.

    Example:
        >>> mae(torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 2.0]]))
        tensor([0.5000], dtype=torch.float64)
    """
    return rowwise.mean((pred.double() - target.double()).abs(), keep)


def mse(pred: Tensor, target: Tensor, *, keep: Tensor | None = None) -> Tensor:
    """Mean squared error of each pseudobulk.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        keep: Genes that count, boolean of the same shape; all of them when None.

    Returns:
        float64 ``[perturbations]``; NaN where no gene counts.

    Example:
        >>> mse(torch.tensor([[1.0, 4.0]]), torch.tensor([[1.0, 2.0]]))
        tensor([2.], dtype=torch.float64)
    """
    return rowwise.mean((pred.double() - target.double()).square(), keep)


def rmse(pred: Tensor, target: Tensor, *, keep: Tensor | None = None) -> Tensor:
    """Root mean squared error of each pseudobulk.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        keep: Genes that count, boolean of the same shape; all of them when None.

    Returns:
        float64 ``[perturbations]``; NaN where no gene counts.

    Example:
        >>> rmse(torch.tensor([[0.0, 0.0]]), torch.tensor([[2.0, 2.0]]))
        tensor([2.], dtype=torch.float64)
    """
    return torch.sqrt(mse(pred, target, keep=keep))


def mae_delta(
    pred: Tensor, target: Tensor, control: Tensor, *, pred_control: Tensor | None = None, keep: Tensor | None = None
) -> Tensor:
    """Mean absolute difference of ``pred - control`` and ``target - control``.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        control: True control pseudobulk ``[genes]``.
        pred_control: Control that is subtracted from ``pred``; ``control`` when None.
        keep: Genes that count, boolean ``[perturbations, genes]``; all of them when None.

    Returns:
        float64 ``[perturbations]``; NaN where no gene counts.

    Example:
        >>> control = torch.tensor([1.0, 1.0])
        >>> mae_delta(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 2.0]]), control, pred_control=control + 2.0)
        tensor([0.], dtype=torch.float64)
    """
    return rowwise.mean(_gap(pred, target, control, pred_control).abs(), keep)


def mse_delta(
    pred: Tensor, target: Tensor, control: Tensor, *, pred_control: Tensor | None = None, keep: Tensor | None = None
) -> Tensor:
    """Mean squared difference of ``pred - control`` and ``target - control``.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        control: True control pseudobulk ``[genes]``.
        pred_control: Control that is subtracted from ``pred``; ``control`` when None.
        keep: Genes that count, boolean ``[perturbations, genes]``; all of them when None.

    Returns:
        float64 ``[perturbations]``; NaN where no gene counts.

    Example:
        >>> control = torch.tensor([1.0, 1.0])
        >>> mse_delta(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 2.0]]), control, pred_control=control)
        tensor([4.], dtype=torch.float64)
    """
    return rowwise.mean(_gap(pred, target, control, pred_control).square(), keep)


def _gap(pred: Tensor, target: Tensor, control: Tensor, pred_control: Tensor | None) -> Tensor:
    origin = control if pred_control is None else pred_control
    return (pred.double() - origin) - (target.double() - control)


class ProfileMAE(RowwiseMetric):
    """Mean absolute error between predicted and true pseudobulk; see :func:`mae`."""

    higher_is_better = False
    origin = "none"

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return mae(rows.pred, rows.true, keep=rows.keep)


class ProfileMSE(RowwiseMetric):
    """Mean squared error between predicted and true pseudobulk; see :func:`mse`."""

    higher_is_better = False
    origin = "none"

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return mse(rows.pred, rows.true, keep=rows.keep)


class ProfileRMSE(RowwiseMetric):
    """Root mean squared error between predicted and true pseudobulk; see :func:`rmse`."""

    higher_is_better = False
    origin = "none"

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return rmse(rows.pred, rows.true, keep=rows.keep)


class DeltaMAE(RowwiseMetric):
    """Mean absolute error between predicted and true effect; see :func:`mae_delta`."""

    higher_is_better = False

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return mae_delta(rows.pred, rows.true, rows.origin, pred_control=rows.pred_origin, keep=rows.keep)


class DeltaMSE(RowwiseMetric):
    """Mean squared error between predicted and true effect; see :func:`mse_delta`."""

    higher_is_better = False

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return mse_delta(rows.pred, rows.true, rows.origin, pred_control=rows.pred_origin, keep=rows.keep)
