"""Which genes are called differentially expressed: overlap, precision, recall and agreement of the calls.

Which genes respond is compared here; which way and how much they do is ``de_direction``'s and ``de_fold_change``'s.
"""

from typing import Any

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation.de_metric import DEMetric, Tables, share
from prima_bench.metrics.perturbation.params import DE_K, DE_TABLE, EXCLUDE_DE_TARGETS
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="de_overlap_at_n",
        version=1,
        inputs="perturbation",
        implementation="DEOverlapAtN",
        title="Overlap of the strongest differentially expressed genes",
        summary="Whether the genes predicted to respond most are those that do.",
        formula=(
            "|A & B| / n: n = number of true calls (with k: at most k), A = the n predicted calls and B = the n true "
            "calls with the largest |log fold change|; then mean over perturbations"
        ),
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation without differentially expressed genes.",
        references=("cell-eval 0.8 `overlap_at_N`, `overlap_at_50` and others (table=cell_eval)", "Arc VCC 2025, DES"),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS, DE_K),
        notes=(
            "Chance depends on the share of genes that are called. Calls tied at the end of a list share its last "
            "places, and of a gene in both lists the smaller share counts; with table=vcc2026 and table=cell_eval "
            "they are taken in the order of the genes. Nothing called scores 0. Without true calls the peers give 0, "
            "here the perturbation is undefined."
        ),
    ),
    MetricSpec(
        name="de_precision_at_n",
        version=1,
        inputs="perturbation",
        implementation="DEPrecisionAtN",
        title="Precision of the strongest predicted calls",
        summary="Whether the genes predicted to respond most are among those that respond as strongly.",
        formula=(
            "|A & B| / n: n = number of predicted calls (with k: at most k), A = the n predicted calls and B = the n "
            "true calls with the largest |log fold change|; then mean over perturbations"
        ),
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation without differentially expressed genes.",
        references=("cell-eval 0.8 `precision_at_N`, `precision_at_50` and others (table=cell_eval)",),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS, DE_K),
        notes=(
            "The true list is cut to the length of the predicted one, so that one call, if it is the strongest true "
            "one, is enough for 1: read it beside de_recall. Ties as in de_overlap_at_n. Nothing called scores 0."
        ),
    ),
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


def de_overlap_at_n(
    pred_size: Tensor,
    true_size: Tensor,
    pred_called: Tensor,
    true_called: Tensor,
    *,
    k: int = 0,
    shares_ties: bool = True,
) -> Tensor:
    """Overlap of the largest predicted and true calls, as many as there are true ones.

    Args:
        pred_size: Absolute predicted log fold changes, float64 ``[perturbations, genes]``.
        true_size: Absolute true log fold changes, of the same shape.
        pred_called: Predicted calls, boolean of the same shape.
        true_called: True calls.
        k: At most so many genes of each list; 0 for as many as there are true calls.
        shares_ties: Whether calls tied at the end of a list share its last places, or are taken by column.

    Returns:
        float64 ``[perturbations]``, NaN where there are no true calls.

    Example:
        >>> size = torch.tensor([[3.0, 2.0, 1.0]])
        >>> true, pred = torch.tensor([[True, True, False]]), torch.tensor([[True, False, True]])
        >>> de_overlap_at_n(size, size, pred, true)
        tensor([0.5000], dtype=torch.float64)
    """
    n = _at_most(true_called.sum(dim=1), k)
    pred, true = (
        _strongest(size, called, n, shares_ties)
        for size, called in ((pred_size, pred_called), (true_size, true_called))
    )
    return share(tree_sum(torch.minimum(pred, true), dim=1), n)


def de_precision_at_n(
    pred_size: Tensor,
    true_size: Tensor,
    pred_called: Tensor,
    true_called: Tensor,
    *,
    k: int = 0,
    shares_ties: bool = True,
) -> Tensor:
    """Overlap of the largest predicted and true calls, as many as there are predicted ones.

    Args:
        pred_size: Absolute predicted log fold changes, float64 ``[perturbations, genes]``.
        true_size: Absolute true log fold changes, of the same shape.
        pred_called: Predicted calls, boolean of the same shape.
        true_called: True calls.
        k: At most so many genes of each list; 0 for as many as there are predicted calls.
        shares_ties: Whether calls tied at the end of a list share its last places, or are taken by column.

    Returns:
        float64 ``[perturbations]``: NaN where there are no true calls, else 0 where there are no predicted ones.

    Example:
        >>> size = torch.tensor([[3.0, 2.0, 1.0]])
        >>> true, pred = torch.tensor([[True, True, False]]), torch.tensor([[False, True, False]])
        >>> de_precision_at_n(size, size, pred, true)
        tensor([0.], dtype=torch.float64)
    """
    n = _at_most(pred_called.sum(dim=1), k)
    pred, true = (
        _strongest(size, called, n, shares_ties)
        for size, called in ((pred_size, pred_called), (true_size, true_called))
    )
    overlap = share(tree_sum(torch.minimum(pred, true), dim=1), n).nan_to_num(nan=0.0)
    return torch.where(true_called.any(dim=1), overlap, torch.nan)


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


def _at_most(n: Tensor, k: int) -> Tensor:
    return n.clamp(max=k) if k else n


def _strongest(size: Tensor, called: Tensor, n: Tensor, shares_ties: bool) -> Tensor:
    """How much of each gene is among the ``n`` calls of the largest size, float64 from 0 to 1."""
    value, order = torch.sort(torch.where(called, size.double(), -1.0), dim=1, descending=True, stable=True)
    first = torch.arange(size.shape[1], device=size.device).expand_as(value)
    last = first + 1
    if shares_ties:
        new = torch.ones_like(called)
        new[:, 1:] = value[:, 1:] != value[:, :-1]
        ends = torch.ones_like(called)
        ends[:, :-1] = new[:, 1:]
        first = torch.where(new, first, 0).cummax(dim=1).values
        last = torch.where(ends, last, size.shape[1]).flip(1).cummin(dim=1).values.flip(1)
    part = ((n.unsqueeze(1) - first).double() / (last - first)).clamp(0.0, 1.0) * (value >= 0)
    return torch.zeros_like(part).scatter_(1, order, part)


class _AtN(DEMetric):
    """A metric of the strongest calls.

    Args:
        *args: As in ``DEMetric``.
        k: At most so many genes of each list; 0 for as many as there are.
        **kwargs: As in ``DEMetric``.

    Raises:
        InputError: If ``k`` is negative, or another argument is wrong.
    """

    higher_is_better = True

    def __init__(self, *args: Any, k: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if k < 0:
            raise InputError(f"k must not be negative, not {k}", hint="0 takes as many genes as there are calls.")
        self.k = int(k)


class DEOverlapAtN(_AtN):
    """Overlap of the strongest calls; see :func:`de_overlap_at_n`."""

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        sizes = (tables.pred.log_fold_change.abs(), tables.true.log_fold_change.abs())
        calls = (tables.pred_called, tables.true_called)
        return de_overlap_at_n(*sizes, *calls, k=self.k, shares_ties=self.convention.shares_ties)


class DEPrecisionAtN(_AtN):
    """Precision of the strongest calls; see :func:`de_precision_at_n`."""

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        sizes = (tables.pred.log_fold_change.abs(), tables.true.log_fold_change.abs())
        calls = (tables.pred_called, tables.true_called)
        return de_precision_at_n(*sizes, *calls, k=self.k, shares_ties=self.convention.shares_ties)


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
