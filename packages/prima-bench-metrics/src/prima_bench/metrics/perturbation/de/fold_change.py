"""How much differentially expressed genes change, and how many there are: order and size of log fold changes."""

import math
from typing import Any

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, Score
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.numerics import average_ranks, tree_sum
from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.de.metric import NONE_CALLED, DEMetric, Tables, compacted
from prima_bench.metrics.perturbation.params import DE_TABLE, EXCLUDE_DE_TARGETS
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.spec import MetricSpec, Param

SPECS = (
    MetricSpec(
        name="de_lfc_spearman",
        version=1,
        inputs="perturbation",
        implementation="DELfcSpearman",
        title="Spearman correlation of log fold changes",
        summary="Whether differentially expressed genes are ordered by predicted as by true log fold change.",
        formula="Spearman of predicted and true log fold changes over the true calls, then mean over perturbations",
        direction="max",
        range=(-1.0, 1.0),
        perfect=1.0,
        chance=0.0,
        level="unit",
        unit="perturbation",
        undefined="A perturbation whose true calls are fewer than two, or all have one log fold change.",
        references=(
            "cell-eval 0.8 `de_spearman_lfc_sig` (table=cell_eval)",
            "cell-eval2 0.20 `de_wilcoxon_lfc_spearman` (table=vcc2026, exclude_targets=none)",
        ),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS),
        notes="From few genes it is mostly noise. Predicted changes that are all equal score 0; the peers give NaN.",
    ),
    MetricSpec(
        name="de_lfc_nmae",
        version=1,
        inputs="perturbation",
        implementation="DELfcNmae",
        title="Normalised mean absolute error of log fold changes",
        summary="How far predicted log fold changes are off, as a share of the true ones.",
        formula="sum |predicted lfc - true lfc| / sum |true lfc| over the true calls, then mean over perturbations",
        direction="min",
        range=(0.0, None),
        perfect=0.0,
        chance=1.0,
        level="unit",
        unit="perturbation",
        undefined="A perturbation with fewer true calls than min_genes.",
        references=("cell-eval2 0.20 `de_wilcoxon_lfc_nmae` (table=vcc2026)",),
        params=(
            DE_TABLE,
            EXCLUDE_DE_TARGETS,
            Param(name="min_genes", default=10, summary="So many true calls are needed, at least 1."),
        ),
        notes=(
            "No change at all scores 1. A fold change that is not finite, which table=cell_eval can have, is left out "
            "when it is true and counts as 0 when it is predicted."
        ),
    ),
    MetricSpec(
        name="de_count_spearman",
        version=1,
        inputs="perturbation",
        implementation="DECountSpearman",
        title="Spearman correlation of numbers of differentially expressed genes",
        summary="Whether perturbations are ordered by the strength of their response.",
        formula="Spearman of the numbers of predicted and true calls, over the perturbations with true calls",
        direction="max",
        range=(-1.0, 1.0),
        perfect=1.0,
        chance=0.0,
        level="global",
        unit=None,
        undefined="Fewer than two perturbations with true calls, or all with the same number.",
        references=(
            "cell-eval 0.8 `de_spearman_sig` (table=cell_eval)",
            "cell-eval2 0.20 `de_wilcoxon_nsig_spearman` (table=vcc2026, exclude_targets=none)",
        ),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS),
        notes=(
            "The number of calls grows with the number of cells: where predicted and true perturbations have as many "
            "cells, that alone correlates. Equal predicted numbers score 0. Without any true call cell-eval gives 1."
        ),
    ),
)

FEW = "fewer than min_genes differentially expressed genes in the solution"
CONSTANT = "fewer than two different log fold changes among the differentially expressed genes of the solution"
ONE_COUNT = "fewer than two different numbers of differentially expressed genes in the solution"


def de_lfc_spearman(pred_lfc: Tensor, true_lfc: Tensor, true_called: Tensor) -> Tensor:
    """Spearman correlation of predicted and true log fold changes over the true calls, ties by average rank.

    Args:
        pred_lfc: Predicted log fold changes, float64 ``[perturbations, genes]``; they may be infinite.
        true_lfc: True log fold changes, of the same shape.
        true_called: True calls, boolean of the same shape.

    Returns:
        float64 ``[perturbations]``: NaN where the true ones are all equal, else 0 where the predicted ones are.

    Example:
        >>> lfc = torch.tensor([[2.0, -1.0, 3.0]])
        >>> de_lfc_spearman(lfc**3, lfc, torch.ones(1, 3, dtype=torch.bool))
        tensor([1.], dtype=torch.float64)
    """
    there, pred, true = compacted(true_called, pred_lfc.double(), true_lfc.double())
    return _spearman(pred, true, there)


def de_lfc_nmae(pred_lfc: Tensor, true_lfc: Tensor, true_called: Tensor, *, min_genes: int = 10) -> Tensor:
    """Absolute errors of predicted log fold changes over the true calls, as a share of the true ones.

    Args:
        pred_lfc: Predicted log fold changes, float64 ``[perturbations, genes]``; one that is not finite counts as 0.
        true_lfc: True log fold changes, of the same shape; one that is not finite is left out.
        true_called: True calls, boolean of the same shape.
        min_genes: So many true calls are needed.

    Returns:
        float64 ``[perturbations]``, NaN where true calls are too few or have no fold change.

    Example:
        >>> lfc = torch.tensor([[2.0, -1.0, 3.0]])
        >>> de_lfc_nmae(lfc * 0.5, lfc, torch.ones(1, 3, dtype=torch.bool), min_genes=3)
        tensor([0.5000], dtype=torch.float64)
    """
    there, pred, true = compacted(true_called & true_lfc.isfinite(), pred_lfc.double(), true_lfc.double())
    error = torch.where(pred.isfinite(), pred, 0.0) - true
    size = tree_sum(true.abs(), dim=1)
    enough = (there.sum(dim=1) >= min_genes) & (size > 0)
    return tree_sum(error.abs(), dim=1) / torch.where(enough, size, torch.nan)


def de_count_spearman(pred_counts: Tensor, true_counts: Tensor) -> float | None:
    """Spearman correlation of numbers of calls over the perturbations that have true ones, ties by average rank.

    Args:
        pred_counts: Number of predicted calls, integer ``[perturbations]``.
        true_counts: Number of true calls, of the same shape.

    Returns:
        None where the true numbers are all equal, else 0 where the predicted ones are.

    Example:
        >>> de_count_spearman(torch.tensor([5, 1, 9, 2]), torch.tensor([3, 1, 0, 2]))
        1.0
    """
    some = (true_counts > 0).unsqueeze(0)
    pred, true = (x.double().unsqueeze(0) for x in (pred_counts, true_counts))
    value = float(_spearman(pred, true, some))
    return None if math.isnan(value) else value


def _spearman(x: Tensor, y: Tensor, keep: Tensor) -> Tensor:
    """Row by row: NaN where ``y`` is constant, else 0 where ``x`` is."""
    largest = torch.finfo(torch.float64).max
    # A rank of infinity would be shared with what does not count.
    x, y = (average_ranks(v.clamp(-largest, largest), keep) for v in (x, y))
    x, y = rowwise.centre(x, keep), rowwise.centre(y, keep)
    return rowwise.graded(rowwise.cosine(x, y), no_skill=rowwise.is_zero(x, keep), undefined=rowwise.is_zero(y, keep))


class DELfcSpearman(DEMetric):
    """Spearman correlation of log fold changes; see :func:`de_lfc_spearman`."""

    higher_is_better = True
    otherwise = CONSTANT

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        return de_lfc_spearman(tables.pred.log_fold_change, tables.true.log_fold_change, tables.true_called)


class DELfcNmae(DEMetric):
    """Error of log fold changes; see :func:`de_lfc_nmae`.

    Args:
        *args: As in ``DEMetric``.
        min_genes: So many true calls are needed, at least 1.
        **kwargs: As in ``DEMetric``.

    Raises:
        InputError: If ``min_genes`` is below 1, or another argument is wrong.
    """

    higher_is_better = False
    otherwise = FEW

    def __init__(self, *args: Any, min_genes: int = 10, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if min_genes < 1:
            raise InputError(f"min_genes must be at least 1, not {min_genes}", hint="No genes have no error.")
        self.min_genes = int(min_genes)

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        pred, true = tables.pred.log_fold_change, tables.true.log_fold_change
        return de_lfc_nmae(pred, true, tables.true_called, min_genes=self.min_genes)


class DECountSpearman(DEMetric):
    """Spearman correlation of numbers of calls; see :func:`de_count_spearman`."""

    higher_is_better = True

    def score_against(self, batch: Batch, reference: PerturbationReference) -> Score:
        """One correlation over all perturbations that have true cells."""
        if reason := self.common_reason(reference):
            return Score(None, reason)
        chosen = (reference.cells_per_group[1:] > 0).nonzero().flatten().to(batch.device)
        parts = [(self.row_values(t), t.true_called.sum(dim=1)) for t in self.blocks(batch, reference, chosen)]
        pred, true = (torch.cat(counts) for counts in zip(*parts, strict=True))
        value = de_count_spearman(pred, true)
        return Score(value) if value is not None else Score(None, ONE_COUNT if bool(true.any()) else NONE_CALLED)

    def row_values(self, tables: Tables) -> Tensor:
        """The number of predicted calls of each of some perturbations."""
        return tables.pred_called.sum(dim=1).double()
