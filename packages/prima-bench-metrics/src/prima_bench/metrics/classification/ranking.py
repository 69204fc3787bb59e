"""Ranking quality of each class against the rest: area under the ROC curve, and average precision.

Both are exact (no bins) and come from one sort per class, which ``one_vs_rest`` does once for both.
"""

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, Score
from prima_bench.metrics.classification.base import (
    ABSENT,
    ONE_CLASS,
    ScoreMetric,
    mean_over_classes,
    score_probabilities,
)
from prima_bench.metrics.classification.checks import Scores
from prima_bench.metrics.classification.one_vs_rest import OneVsRest, rank_one_vs_rest
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="auroc_macro",
        version=1,
        inputs="classification",
        implementation="AurocMacro",
        title="Macro AUROC, one against the rest",
        summary="How likely a row of a class gets a higher probability of it than a row of another, averaged over "
        "classes.",
        formula="AUROC_c = (#pairs with p_c(i) > p_c(j) + #pairs with p_c(i) = p_c(j) / 2) / #pairs, over pairs of a "
        "row i of class c and a row j of another; auroc_macro = mean of AUROC_c over the classes of the solution",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=0.5,
        level="unit",
        unit="class",
        undefined="For a class that is absent from the solution; for all when the solution holds one class only or "
        "only labels are predicted.",
        references=(
            "Hanley and McNeil 1982, Radiology 143:29-36, doi:10.1148/radiology.143.1.7063747",
            "Fawcett 2006, An introduction to ROC analysis, doi:10.1016/j.patrec.2005.10.010",
            "scikit-learn, roc_auc_score(multi_class='ovr')",
        ),
        notes="Each class equals scikit-learn's binary roc_auc_score. When a class is absent from the solution, "
        "scikit-learn's macro is NaN and torchmetrics' counts it as 0; here it is left out. Logits become "
        "probabilities first: a shift of a whole row of logits says nothing and changes nothing. A constant "
        "prediction scores 0.5.",
    ),
    MetricSpec(
        name="auprc_macro",
        version=1,
        inputs="classification",
        implementation="AuprcMacro",
        title="Macro average precision, one against the rest",
        summary="The precision met while going down the ranking of each class, averaged over its rows and over "
        "classes.",
        formula="AP_c = mean over rows i of class c of #(rows of class c with p_c >= p_c(i)) / #(rows with p_c >= "
        "p_c(i)); auprc_macro = mean of AP_c over the classes of the solution",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="class",
        undefined="For a class that is absent from the solution; for all when the solution holds one class only or "
        "only labels are predicted.",
        references=(
            "Davis and Goadrich 2006, Proceedings of ICML 23, doi:10.1145/1143844.1143874",
            "scikit-learn, average_precision_score",
        ),
        notes="Steps, no interpolation. Each class equals scikit-learn's and torchmetrics' binary average precision. "
        "scikit-learn's macro counts an absent class as 0; torchmetrics and we leave it out. "
        "A constant prediction scores the mean share of a class, 1 / the number of classes in the solution.",
    ),
)


def auroc_macro(preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability") -> Score:
    """Area under the ROC curve of each class against the rest, averaged over the classes of the solution.

    ``AUROC_c`` is the share of pairs (a row of c, a row of another class) in which the former has the higher
    probability of c; ties count half (Hanley and McNeil 1982).

    Args:
        preds: Class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What ``preds`` are: ``"probability"`` or ``"logit"``.

    Returns:
        The mean, with the AUROC of each class as units.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> preds = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.6, 0.4], [0.2, 0.8]])
        >>> auroc_macro(preds, torch.tensor([0, 0, 1, 1]), num_classes=2).value
        0.875
    """
    return score_probabilities(lambda p, t: _auroc(rank_one_vs_rest(p, t)), preds, target, num_classes, scores)


def auprc_macro(preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability") -> Score:
    """Average precision of each class against the rest, averaged over the classes of the solution.

    ``AP_c`` is the mean over rows of c of the precision among all rows that score at least as high (the steps of the
    precision-recall curve, no interpolation; Davis and Goadrich 2006).

    Args:
        preds: Class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What ``preds`` are: ``"probability"`` or ``"logit"``.

    Returns:
        The mean, with the average precision of each class as units.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> preds = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
        >>> auprc_macro(preds, torch.tensor([0, 0, 1, 1]), num_classes=2).units.tolist()
        [0.8333333333333333, 0.8333333333333333]
    """
    return score_probabilities(
        lambda p, t: _average_precision(rank_one_vs_rest(p, t)), preds, target, num_classes, scores
    )


class _RankingMetric(ScoreMetric):
    """Shares one ranking of every class among the metrics of a panel that read it."""

    def ranks(self, batch: Batch) -> OneVsRest:
        return batch.memo(
            ("one_vs_rest", self.scores), lambda: rank_one_vs_rest(self.probabilities(batch), batch.tensor("target"))
        )


class AurocMacro(_RankingMetric):
    """Streaming form of :func:`auroc_macro`.

    Example:
        >>> import torch
        >>> metric = AurocMacro(num_classes=2)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.6, 0.4], [0.2, 0.8]]), torch.tensor([0, 0, 1, 1]))
        >>> metric.result().value
        0.875
    """

    def from_scores(self, batch: Batch) -> Score:
        """Score the class scores of all rows."""
        return _auroc(self.ranks(batch))


class AuprcMacro(_RankingMetric):
    """Streaming form of :func:`auprc_macro`.

    Example:
        >>> import torch
        >>> metric = AuprcMacro(num_classes=2)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]]), torch.tensor([0, 0, 1, 1]))
        >>> metric.result().units.tolist()
        [0.8333333333333333, 0.8333333333333333]
    """

    def from_scores(self, batch: Batch) -> Score:
        """Score the class scores of all rows."""
        return _average_precision(self.ranks(batch))


def _auroc(ranks: OneVsRest) -> Score:
    return _over_present(ranks.auroc, ranks)


def _average_precision(ranks: OneVsRest) -> Score:
    return _over_present(ranks.average_precision, ranks)


def _over_present(units: Tensor, ranks: OneVsRest) -> Score:
    present = ranks.support > 0
    if int(present.sum()) < 2:
        units = torch.full_like(units, torch.nan)
        return Score(None, ONE_CLASS, units, {c: ONE_CLASS if present[c] else ABSENT for c in range(len(units))})
    return mean_over_classes(units, present, ABSENT)
