"""Share of the true effect's variation over genes that the predicted effect explains: it sees size and direction."""

import torch
from torch import Tensor

from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.params import CONTROL_SOURCE, EXCLUDE_TARGETS, TARGET_SUM
from prima_bench.metrics.perturbation.profiles.metric import Rows, RowwiseMetric
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="r2_delta",
        version=1,
        inputs="perturbation",
        implementation="R2Delta",
        title="R squared of effects",
        summary="How much of the true change's variation over genes the predicted change explains, size included.",
        formula=(
            "1 - sum (e_g - d_g)^2 / sum (d_g - mean d)^2 over genes g, e = q_p - m_c, d = m_p - m_c, "
            "then mean over perturbations"
        ),
        direction="max",
        range=(None, 1.0),
        perfect=1.0,
        chance=0.0,
        level="unit",
        unit="perturbation",
        undefined="A perturbation whose true effect is the same for all genes compared.",
        references=("scikit-learn `r2_score` of one perturbation's effect",),
        params=(CONTROL_SOURCE, EXCLUDE_TARGETS, TARGET_SUM),
        notes=(
            "Negative when the prediction is further from the truth than the mean effect is, without a lower bound: an "
            "overshoot that a correlation forgives costs here. A mean over perturbations is sensitive to those with "
            "little true effect. scikit-learn and torchmetrics give 0 or 1 for a constant truth; here it is undefined."
        ),
    ),
)


def r2_delta(
    pred: Tensor, target: Tensor, control: Tensor, *, pred_control: Tensor | None = None, keep: Tensor | None = None
) -> Tensor:
    """Coefficient of determination over genes of ``pred - control`` for ``target - control``.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        control: True control pseudobulk ``[genes]``.
        pred_control: Control that is subtracted from ``pred``; ``control`` when None.
        keep: Genes that count, boolean ``[perturbations, genes]``; all of them when None.

    Returns:
        float64 ``[perturbations]``, at most 1; NaN where the true effect is constant.

    Example:
        >>> target = torch.tensor([[0.0, 1.0, 2.0]])
        >>> r2_delta(torch.cat([target, 3 * target]), target.expand(2, 3), torch.zeros(3))
        tensor([ 1., -9.], dtype=torch.float64)
    """
    e = rowwise.difference(pred, control if pred_control is None else pred_control)
    d = rowwise.difference(target, control)
    spread = rowwise.centre(d, keep)
    # In units of the largest deviation, so that squares of very small or very large effects stay in float64's range.
    unit = spread.abs().amax(dim=1, keepdim=True)
    residual = rowwise.kept(e - d, keep) / unit
    r2 = 1.0 - tree_sum(residual.square(), dim=1) / tree_sum((spread / unit).square(), dim=1)
    return torch.where(rowwise.is_constant(d, keep, target, control), torch.nan, r2)


class R2Delta(RowwiseMetric):
    """R squared of predicted for true effects; see :func:`r2_delta`."""

    higher_is_better = True

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return r2_delta(rows.pred, rows.true, rows.origin, pred_control=rows.pred_origin, keep=rows.keep)
