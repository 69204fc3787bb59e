"""Which genes are called differentially expressed: precision, recall and agreement of the calls.

The strongest of them are compared in ``de_overlap``; which way and how much genes respond in ``de_direction`` and
``de_fold_change``.
"""

import torch
from torch import Tensor

from prima_bench.metrics.perturbation.de.metric import DEMetric, Tables, share
from prima_bench.metrics.perturbation.params import DE_TABLE, EXCLUDE_DE_TARGETS
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="de_precision",
        version=1,
        inputs="perturbation",
        implementation="DEPrecision",
        title="Precision of differential expression calls",
        summary="Which share of the predicted calls is true.",
        formula="true positives / predicted calls, then mean over perturbations",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation without differentially expressed genes.",
        references=("van Rijsbergen 1979, Information Retrieval",),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS),
        notes="Chance is the share of tested genes that are called. Rewards silence but for one call. None scores 0.",
    ),
    MetricSpec(
        name="de_recall",
        version=1,
        inputs="perturbation",
        implementation="DERecall",
        title="Recall of differential expression calls",
        summary="Which share of the true calls is predicted.",
        formula="true positives / true calls, then mean over perturbations",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation without differentially expressed genes.",
        references=(
            "cell-eval 0.8 `de_sig_genes_recall` (table=cell_eval)",
            "cell-eval2 0.20 `de_wilcoxon_sig_recall`",
        ),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS),
        notes=(
            "A flood of calls wins it: predictions with too little spread between cells, such as tiled means, flood. "
            "Chance is the share of tested genes that the prediction calls."
        ),
    ),
    MetricSpec(
        name="de_sig_jaccard",
        version=1,
        inputs="perturbation",
        implementation="DESigJaccard",
        title="Jaccard index of differential expression calls",
        summary="How far the genes called in the prediction and in truth are the same.",
        formula="|predicted and true calls| / |predicted or true calls|, then mean over perturbations",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation without differentially expressed genes; with table=vcc2026 never.",
        references=("cell-eval2 0.20 `de_wilcoxon_sig_jaccard` (table=vcc2026)", "Jaccard 1912"),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS),
        notes=(
            "With table=vcc2026 a perturbation without true calls counts as in cell-eval2: 1 when nothing is "
            "predicted either, else 0. Panels of weak perturbations then reward silence. Chance depends on the shares "
            "of genes called on both sides."
        ),
    ),
    MetricSpec(
        name="de_sig_mcc",
        version=1,
        inputs="perturbation",
        implementation="DESigMCC",
        title="Matthews correlation of differential expression calls",
        summary="Whether genes are called as in truth, more than the number of calls would have it.",
        formula=(
            "(TP TN - FP FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN)) over the tested genes, then mean over perturbations"
        ),
        direction="max",
        range=(-1.0, 1.0),
        perfect=1.0,
        chance=0.0,
        level="unit",
        unit="perturbation",
        undefined="A perturbation without differentially expressed genes, or with no others.",
        references=(
            "Matthews 1975, doi:10.1016/0005-2795(75)90109-9",
            "cell-eval2 0.20 `de_wilcoxon_sig_mcc` (table=vcc2026, exclude_targets=none)",
        ),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS),
        notes="Neither silence nor a flood gains: calling no gene, or all, scores 0. cell-eval2 gives those -1.",
    ),
)


def de_precision(pred_called: Tensor, true_called: Tensor) -> Tensor:
    """Share of predicted calls that are true.

    Args:
        pred_called: Predicted calls, boolean ``[perturbations, genes]``.
        true_called: True calls, of the same shape.

    Returns:
        float64 ``[perturbations]``: NaN where there are no true calls, else 0 where there are no predicted ones.

    Example:
        >>> de_precision(torch.tensor([[True, True], [False, False]]), torch.tensor([[True, False]] * 2))
        tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    precision = share((pred_called & true_called).sum(dim=1), pred_called.sum(dim=1)).nan_to_num(nan=0.0)
    return torch.where(true_called.any(dim=1), precision, torch.nan)


def de_recall(pred_called: Tensor, true_called: Tensor) -> Tensor:
    """Share of true calls that are predicted.

    Args:
        pred_called: Predicted calls, boolean ``[perturbations, genes]``.
        true_called: True calls, of the same shape.

    Returns:
        float64 ``[perturbations]``, NaN where there are no true calls.

    Example:
        >>> de_recall(torch.tensor([[True, False], [True, True]]), torch.tensor([[True, True], [False, False]]))
        tensor([0.5000,    nan], dtype=torch.float64)
    """
    return share((pred_called & true_called).sum(dim=1), true_called.sum(dim=1))


def de_sig_jaccard(pred_called: Tensor, true_called: Tensor, *, defined_without_calls: bool = False) -> Tensor:
    """Predicted and true calls in common, as a share of all that are predicted or true.

    Args:
        pred_called: Predicted calls, boolean ``[perturbations, genes]``.
        true_called: True calls, of the same shape.
        defined_without_calls: Whether a perturbation without true calls has a value: 1 when nothing is predicted
            either, else 0.

    Returns:
        float64 ``[perturbations]``, NaN where there are no true calls, unless they are not needed.

    Example:
        >>> de_sig_jaccard(torch.tensor([[True, True], [False, False]]), torch.tensor([[True, False], [False, False]]))
        tensor([0.5000,    nan], dtype=torch.float64)
    """
    jaccard = share((pred_called & true_called).sum(dim=1), (pred_called | true_called).sum(dim=1))
    if defined_without_calls:
        return jaccard.nan_to_num(nan=1.0)
    return torch.where(true_called.any(dim=1), jaccard, torch.nan)


def de_sig_mcc(pred_called: Tensor, true_called: Tensor, keep: Tensor | None = None) -> Tensor:
    """Matthews correlation of predicted and true calls.

    Args:
        pred_called: Predicted calls, boolean ``[perturbations, genes]``.
        true_called: True calls, of the same shape.
        keep: Genes that count, boolean of the same shape; all of them when None.

    Returns:
        float64 ``[perturbations]``: NaN where no gene or every gene is a true call, else 0 where so many are predicted.

    Example:
        >>> de_sig_mcc(torch.tensor([[True, False], [True, True]]), torch.tensor([[True, False]] * 2))
        tensor([1., 0.], dtype=torch.float64)
    """
    total = (torch.ones_like(true_called) if keep is None else keep).sum(dim=1).double()
    pred, true, both = (x.sum(dim=1).double() for x in (pred_called, true_called, pred_called & true_called))
    # One root of the product, so that equal calls give exactly 1.
    spread = torch.sqrt((pred * (total - pred)) * (true * (total - true)))
    correlation = torch.where(spread > 0, (both * total - pred * true) / spread, 0.0)
    return torch.where((true > 0) & (true < total), correlation, torch.nan)


class DEPrecision(DEMetric):
    """Precision of calls; see :func:`de_precision`."""

    higher_is_better = True

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        return de_precision(tables.pred_called, tables.true_called)


class DERecall(DEMetric):
    """Recall of calls; see :func:`de_recall`."""

    higher_is_better = True

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        return de_recall(tables.pred_called, tables.true_called)


class DESigJaccard(DEMetric):
    """Jaccard index of calls; see :func:`de_sig_jaccard`."""

    higher_is_better = True

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        silence = self.convention.defined_without_calls
        return de_sig_jaccard(tables.pred_called, tables.true_called, defined_without_calls=silence)


class DESigMCC(DEMetric):
    """Matthews correlation of calls; see :func:`de_sig_mcc`."""

    higher_is_better = True
    otherwise = "every tested gene is differentially expressed in the solution"

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        return de_sig_mcc(tables.pred_called, tables.true_called, tables.keep)
