"""Which way genes respond: signs of log fold changes, over the genes that either side calls."""

import torch
from torch import Tensor

from prima_bench.metrics.perturbation.de.metric import DEMetric, Tables, compacted, share
from prima_bench.metrics.perturbation.params import DE_TABLE, EXCLUDE_DE_TARGETS
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="de_direction_match",
        version=1,
        inputs="perturbation",
        implementation="DEDirectionMatch",
        title="Direction of differentially expressed genes",
        summary="Which share of the true calls is predicted to change in the right direction.",
        formula=(
            "share of true calls with sign(predicted log fold change) = sign(true one), then mean over perturbations"
        ),
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=0.5,
        level="unit",
        unit="perturbation",
        undefined="A perturbation without differentially expressed genes.",
        references=(
            "cell-eval 0.8 `de_direction_match` (table=cell_eval)",
            "cell-eval2 0.20 `de_wilcoxon_direction_match` (table=vcc2026, exclude_targets=none)",
        ),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS),
        notes=(
            "What is predicted needs no significance, so that any small leaning counts. No predicted change scores 0. "
            "Where all genes respond one way, as after the loss of a repressor, a constant leaning scores 1."
        ),
    ),
    MetricSpec(
        name="de_direction_fidelity",
        version=1,
        inputs="perturbation",
        implementation="DEDirectionFidelity",
        title="Directional fidelity of differential expression calls",
        summary="Whether calls are made, as many as there should be, with the right direction.",
        formula=(
            "k / max(predicted calls, true calls), k = predicted calls with the sign of the true log fold change, "
            "then mean over perturbations; genes without any true fold change are not counted"
        ),
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=0.5,
        level="unit",
        unit="perturbation",
        undefined=(
            "A perturbation without differentially expressed genes; with table=vcc2026 only when nothing is predicted "
            "either."
        ),
        references=("cell-eval2 0.20 `de_wilcoxon_direction_fidelity_yield_raw` (table=vcc2026)",),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS),
        notes=(
            "A predicted call counts whether or not the truth calls it: signs alone are compared. About half of a "
            "flood of calls is right by chance, so calling all of G genes scores 0.5, not the share of true calls. "
            "Nothing called scores 0. cell-eval2 counts true calls without fold change, so that a copy of the truth "
            "falls short of 1. Without true calls, table=vcc2026 gives the share of predicted calls that are "
            "right, and none when nothing is predicted, as cell-eval2 does: there, what is predicted decides whether a "
            "perturbation counts."
        ),
    ),
    MetricSpec(
        name="de_direction_reach",
        version=1,
        inputs="perturbation",
        implementation="DEDirectionReach",
        title="Reach of right directions",
        summary="How far down its own order of confidence a prediction keeps the directions right.",
        formula=(
            "largest k / true calls such that at least 0.9 of the first k true calls have the right sign, true calls "
            "ordered by the predicted p-value, then by |predicted log fold change|; then mean over perturbations"
        ),
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=0.0,
        level="unit",
        unit="perturbation",
        undefined="A perturbation without differentially expressed genes.",
        references=("cell-eval2 0.20 `de_wilcoxon_direction_reach_raw` (table=vcc2026)",),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS),
        notes=(
            "With n true calls, coin flips score about 1 / n, not 0: the first gene is right half of the time. Genes "
            "that are still tied count wrong ones first; cell-eval2 takes them by name. No predicted change scores 0."
        ),
    ),
)

PURITY = 0.9
"""Which share of the genes down to a depth must have the right direction."""


def de_direction_match(pred_lfc: Tensor, true_lfc: Tensor, true_called: Tensor) -> Tensor:
    """Share of true calls whose predicted and true log fold changes have one sign.

    Args:
        pred_lfc: Predicted log fold changes, float64 ``[perturbations, genes]``.
        true_lfc: True log fold changes, of the same shape.
        true_called: True calls, boolean of the same shape.

    Returns:
        float64 ``[perturbations]``, NaN where there are no true calls.

    Example:
        >>> lfc = torch.tensor([[2.0, -1.0, 3.0]])
        >>> de_direction_match(torch.tensor([[0.1, 0.0, -9.0]]), lfc, lfc < 3)
        tensor([0.5000], dtype=torch.float64)
    """
    right = (pred_lfc.sign() == true_lfc.sign()) & true_called
    return share(right.sum(dim=1), true_called.sum(dim=1))


def de_direction_fidelity(
    pred_lfc: Tensor,
    true_lfc: Tensor,
    pred_called: Tensor,
    true_called: Tensor,
    *,
    defined_without_calls: bool = False,
) -> Tensor:
    """Predicted calls with the right sign, as a share of the larger number of calls.

    Args:
        pred_lfc: Predicted log fold changes, float64 ``[perturbations, genes]``.
        true_lfc: True log fold changes, of the same shape.
        pred_called: Predicted calls, boolean of the same shape.
        true_called: True calls, boolean of the same shape; neither is counted where the true fold change is 0.
        defined_without_calls: Whether predicted calls give a perturbation without true calls a value.

    Returns:
        float64 ``[perturbations]``, NaN where there are no true calls, nor predicted ones that take their place.

    Example:
        >>> lfc = torch.tensor([[2.0, -1.0, 3.0]])
        >>> de_direction_fidelity(lfc.abs(), lfc, torch.tensor([[True, True, False]]), lfc > 0)
        tensor([0.5000], dtype=torch.float64)
    """
    directed = true_lfc != 0
    right = (pred_called & directed & (pred_lfc.sign() == true_lfc.sign())).sum(dim=1)
    n_pred, n_true = ((called & directed).sum(dim=1) for called in (pred_called, true_called))
    fidelity = share(right, torch.maximum(n_pred, n_true))
    return fidelity if defined_without_calls else torch.where(n_true > 0, fidelity, torch.nan)


def de_direction_reach(pred_p: Tensor, pred_lfc: Tensor, true_lfc: Tensor, true_called: Tensor) -> Tensor:
    """The deepest place, in the prediction's own order of the true calls, down to which signs are mostly right.

    Args:
        pred_p: Predicted p-values, float64 ``[perturbations, genes]``.
        pred_lfc: Predicted log fold changes, of the same shape.
        true_lfc: True log fold changes, of the same shape.
        true_called: True calls, boolean of the same shape; not counted where the true fold change is 0.

    Returns:
        float64 ``[perturbations]``: that place as a share of the true calls; NaN where there are none.

    Example:
        >>> p, lfc = torch.tensor([[0.01, 0.02, 0.9, 0.5]]), torch.ones(1, 4)
        >>> de_direction_reach(p, torch.tensor([[1.0, 1.0, -1.0, 0.0]]), lfc, torch.ones(1, 4, dtype=torch.bool))
        tensor([0.5000], dtype=torch.float64)
    """
    directed = true_called & (true_lfc != 0)
    there, p, pred, true = compacted(directed, pred_p.double(), pred_lfc.double(), true_lfc.double())
    right = (pred.sign() == true.sign()) & there
    order = torch.sort(right.to(torch.int8), dim=1, stable=True).indices
    for key in (-pred.abs(), torch.where(there, p, torch.inf)):
        order = order.gather(1, torch.sort(key.gather(1, order), dim=1, stable=True).indices)
    depth = torch.arange(1, there.shape[1] + 1, device=p.device)
    purity = right.gather(1, order).cumsum(dim=1).double() / depth
    reached = torch.where((purity >= PURITY) & there.gather(1, order), depth, 0)
    return share(reached.amax(dim=1), there.sum(dim=1))


class DEDirectionMatch(DEMetric):
    """Direction of true calls; see :func:`de_direction_match`."""

    higher_is_better = True

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        return de_direction_match(tables.pred.log_fold_change, tables.true.log_fold_change, tables.true_called)


class DEDirectionFidelity(DEMetric):
    """Direction and number of predicted calls; see :func:`de_direction_fidelity`."""

    higher_is_better = True

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        return de_direction_fidelity(
            tables.pred.log_fold_change,
            tables.true.log_fold_change,
            tables.pred_called,
            tables.true_called,
            defined_without_calls=self.convention.defined_without_calls,
        )


class DEDirectionReach(DEMetric):
    """Depth of right directions; see :func:`de_direction_reach`."""

    higher_is_better = True

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        pred, true = tables.pred, tables.true
        return de_direction_reach(pred.p_value, pred.log_fold_change, true.log_fold_change, tables.true_called)
