"""Precision and recall, class by class and averaged.

Their harmonic mean is in ``f1``; recall under its other name, balanced accuracy, is in ``accuracy``.
"""

from torch import Tensor

from prima_bench.metrics.base import Score
from prima_bench.metrics.classification.base import AveragedCountMetric, per_class, score_counts
from prima_bench.metrics.classification.checks import Labels, Scores, check_averaged_labels
from prima_bench.metrics.classification.counts import ClassCounts
from prima_bench.metrics.classification.params import AVERAGED_LABELS
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="precision_macro",
        version=1,
        inputs="classification",
        implementation="PrecisionMacro",
        title="Macro precision",
        summary="The share of the calls of each class that are right, averaged over classes.",
        formula="P_c = #(label = target = c) / #(label = c); precision_macro = mean of P_c over the classes",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="class",
        undefined="For a class that is absent from the solution (with labels=union: from the predictions, too).",
        references=(
            "van Rijsbergen 1979, Information Retrieval, chapter 7",
            "scikit-learn, precision_score(average='macro')",
        ),
        params=(AVERAGED_LABELS,),
        notes="A class of the solution that is never called has precision 0, as in scikit-learn, which warns: a model "
        "must not gain by not calling it. scikit-learn's default and torchmetrics average over every class that is "
        "true or predicted somewhere; labels=union gives their value.",
    ),
    MetricSpec(
        name="recall_macro",
        version=1,
        inputs="classification",
        implementation="RecallMacro",
        title="Macro recall",
        summary="The share of the rows of each class that are called so, averaged over classes.",
        formula="R_c = #(label = target = c) / #(target = c); recall_macro = mean of R_c over the classes",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="class",
        undefined="For a class that is absent from the solution (with labels=union: from the predictions, too).",
        references=(
            "van Rijsbergen 1979, Information Retrieval, chapter 7",
            "scikit-learn, recall_score(average='macro')",
        ),
        params=(AVERAGED_LABELS,),
        notes="With the default labels it equals balanced_accuracy. scikit-learn's default and torchmetrics add a 0 "
        "for each class that is only predicted; labels=union gives their value. A row for which no class is named "
        "counts as missed.",
    ),
)


def precision_macro(
    preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability", labels: Labels = "present"
) -> Score:
    """The share of the calls of each class that are right, averaged over classes.

    ``P_c = #(label = target = c) / #(label = c)``, 0 for a class that is never called.

    Args:
        preds: Class codes, integer [n], -1 where the model abstains; or class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What two-dimensional ``preds`` are: ``"probability"`` or ``"logit"``.
        labels: Average over the classes of the solution (``"present"``), or over those of the solution and the
            predictions (``"union"``, scikit-learn's default).

    Returns:
        The mean, with the precision of each class as units.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> precision_macro(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]), num_classes=2).units.tolist()
        [0.6666666666666666, 1.0]
    """
    check_averaged_labels(labels)
    return score_counts(lambda counts: _precision(counts, labels), preds, target, num_classes, scores)


def recall_macro(
    preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability", labels: Labels = "present"
) -> Score:
    """The share of the rows of each class that are called so, averaged over classes.

    ``R_c = #(label = target = c) / #(target = c)``, 0 for a class that is only predicted.

    Args:
        preds: Class codes, integer [n], -1 where the model abstains; or class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What two-dimensional ``preds`` are: ``"probability"`` or ``"logit"``.
        labels: Average over the classes of the solution (``"present"``), or over those of the solution and the
            predictions (``"union"``, scikit-learn's default).

    Returns:
        The mean, with the recall of each class as units.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> recall_macro(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]), num_classes=2).units.tolist()
        [1.0, 0.5]
    """
    check_averaged_labels(labels)
    return score_counts(lambda counts: _recall(counts, labels), preds, target, num_classes, scores)


class PrecisionMacro(AveragedCountMetric):
    """Streaming form of :func:`precision_macro`.

    Example:
        >>> import torch
        >>> metric = PrecisionMacro(num_classes=2)
        >>> metric.update(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]))
        >>> metric.result().units.tolist()
        [0.6666666666666666, 1.0]
    """

    def from_counts(self, counts: ClassCounts) -> Score:
        """Score the counts of all rows."""
        return _precision(counts, self.labels)


class RecallMacro(AveragedCountMetric):
    """Streaming form of :func:`recall_macro`.

    Example:
        >>> import torch
        >>> metric = RecallMacro(num_classes=2)
        >>> metric.update(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
    """

    def from_counts(self, counts: ClassCounts) -> Score:
        """Score the counts of all rows."""
        return _recall(counts, self.labels)


def _precision(counts: ClassCounts, labels: Labels) -> Score:
    return per_class(counts.correct, counts.called, counts, labels)


def _recall(counts: ClassCounts, labels: Labels) -> Score:
    return per_class(counts.correct, counts.support, counts, labels)
