"""The strongest calls of differential expression: how far the predicted list and the true one overlap.

Which genes are called at all is compared in ``de_calls``; which way and how much they respond in ``de_direction`` and
``de_fold_change``.
"""

from typing import Any

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation.de.metric import DEMetric, Tables, share
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
