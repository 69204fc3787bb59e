"""F1, the harmonic mean of precision and recall, class by class: averaged, weighted, or listed.

All three are one formula over the class counts. Precision and recall by themselves are in ``precision_recall``.
"""

import math

from torch import Tensor

from prima_bench.metrics.base import Score
from prima_bench.metrics.classification.base import AveragedCountMetric, CountMetric, per_class, ratio, score_counts
from prima_bench.metrics.classification.checks import Labels, Scores, check_averaged_labels
from prima_bench.metrics.classification.counts import ClassCounts
from prima_bench.metrics.classification.params import AVERAGED_LABELS
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="f1_macro",
        version=1,
        inputs="classification",
        implementation="F1Macro",
        title="Macro F1",
        summary="F1 of each class, averaged over classes: rare classes weigh as much as frequent ones.",
        formula="F1_c = 2 #(label = target = c) / (#(label = c) + #(target = c)); f1_macro = mean of F1_c over the "
        "classes",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="class",
        undefined="For a class that is absent from the solution (with labels=union: from the predictions, too).",
        references=(
            "van Rijsbergen 1979, Information Retrieval, chapter 7",
            "Opitz and Burst 2019, Macro F1 and Macro F1, arXiv:1911.03347",
            "scikit-learn, f1_score(average='macro')",
        ),
        params=(AVERAGED_LABELS,),
        notes="scikit-learn's default and torchmetrics average over every class that is true or predicted somewhere, "
        "so one stray call of a foreign class adds a zero to the mean; labels=union gives their value. Here the "
        "solution alone says which classes count, and a stray call costs the true class recall. A fixed list with zero "
        "division (scikit-learn with labels=) differs from both. The mean of F1 is not the F1 of mean precision and "
        "mean recall (Opitz and Burst). A row for which no class is named counts against recall.",
    ),
    MetricSpec(
        name="f1_weighted",
        version=1,
        inputs="classification",
        implementation="F1Weighted",
        title="Weighted F1",
        summary="F1 of each class, averaged with the number of its rows in the solution as weight.",
        formula="f1_weighted = Σ_c #(target = c) F1_c / n",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="global",
        unit=None,
        undefined="Never, once there is a row.",
        references=("scikit-learn, f1_score(average='weighted')",),
        notes="Equals scikit-learn and torchmetrics: a class that is absent from the solution has weight zero. "
        "Dominated by the frequent classes.",
    ),
    MetricSpec(
        name="f1_per_class",
        version=1,
        inputs="classification",
        implementation="F1PerClass",
        title="F1 by class",
        summary="F1 of each class of the solution, for the table by class.",
        formula="F1_c = 2 #(label = target = c) / (#(label = c) + #(target = c)) for each class c",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="class",
        undefined="For a class that is absent from the solution.",
        references=("scikit-learn, f1_score(average=None)",),
        notes="The values are those of scikit-learn for the classes of the solution; the aggregate is that of "
        "f1_macro. Where scikit-learn and torchmetrics put 0 for a class that is absent from the solution, there is "
        "no value here.",
    ),
)


def f1_macro(
    preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability", labels: Labels = "present"
) -> Score:
    """F1 of each class, averaged over classes.

    ``F1_c = 2 #(label = target = c) / (#(label = c) + #(target = c))`` (van Rijsbergen 1979).

    Args:
        preds: Class codes, integer [n], -1 where the model abstains; or class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What two-dimensional ``preds`` are: ``"probability"`` or ``"logit"``.
        labels: Average over the classes of the solution (``"present"``), or over those of the solution and the
            predictions (``"union"``, scikit-learn's default).

    Returns:
        The mean, with the F1 of each class as units.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> f1_macro(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 0, 1, 1]), num_classes=3).units.tolist()
        [1.0, 0.6666666666666666, nan]
    """
    check_averaged_labels(labels)
    return score_counts(lambda counts: _f1_by_class(counts, labels), preds, target, num_classes, scores)


def f1_weighted(preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability") -> Score:
    """F1 of each class, weighted by the number of its rows in the solution.

    ``Σ_c #(target = c) F1_c / n``; see scikit-learn's ``f1_score(average="weighted")``.

    Args:
        preds: Class codes, integer [n], -1 where the model abstains; or class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What two-dimensional ``preds`` are: ``"probability"`` or ``"logit"``.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> f1_weighted(torch.tensor([0, 0, 1, 0]), torch.tensor([0, 0, 1, 1]), num_classes=2).value
        0.7333333333333334
    """
    return score_counts(_f1_weighted, preds, target, num_classes, scores)


def f1_per_class(preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability") -> Score:
    """F1 of each class of the solution; the aggregate is that of :func:`f1_macro`.

    ``F1_c = 2 #(label = target = c) / (#(label = c) + #(target = c))`` (van Rijsbergen 1979).

    Args:
        preds: Class codes, integer [n], -1 where the model abstains; or class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What two-dimensional ``preds`` are: ``"probability"`` or ``"logit"``.

    Returns:
        The mean, with the F1 of each class as units.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> f1_per_class(torch.tensor([0, 0, 1, 0]), torch.tensor([0, 0, 1, 1]), num_classes=2).units.tolist()
        [0.8, 0.6666666666666666]
    """
    return score_counts(_f1_by_class, preds, target, num_classes, scores)


class F1Macro(AveragedCountMetric):
    """Streaming form of :func:`f1_macro`.

    Example:
        >>> import torch
        >>> metric = F1Macro(num_classes=3, labels="union")
        >>> metric.update(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 0, 1, 1]))
        >>> metric.result().units.tolist()
        [1.0, 0.6666666666666666, 0.0]
    """

    def from_counts(self, counts: ClassCounts) -> Score:
        """Score the counts of all rows."""
        return _f1_by_class(counts, self.labels)


class F1Weighted(CountMetric):
    """Streaming form of :func:`f1_weighted`.

    Example:
        >>> import torch
        >>> metric = F1Weighted(num_classes=2)
        >>> metric.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    def from_counts(self, counts: ClassCounts) -> Score:
        """Score the counts of all rows."""
        return _f1_weighted(counts)


class F1PerClass(CountMetric):
    """Streaming form of :func:`f1_per_class`.

    Example:
        >>> import torch
        >>> metric = F1PerClass(num_classes=2)
        >>> metric.update(torch.tensor([0, 0, 1, 0]), torch.tensor([0, 0, 1, 1]))
        >>> metric.result().units.tolist()
        [0.8, 0.6666666666666666]
    """

    def from_counts(self, counts: ClassCounts) -> Score:
        """Score the counts of all rows."""
        return _f1_by_class(counts)


def _f1_by_class(counts: ClassCounts, labels: Labels = "present") -> Score:
    return per_class(2 * counts.correct, counts.called + counts.support, counts, labels)


def _f1_weighted(counts: ClassCounts) -> Score:
    units = ratio(2 * counts.correct, counts.called + counts.support)
    return Score(math.fsum((counts.support * units).tolist()) / counts.n)
