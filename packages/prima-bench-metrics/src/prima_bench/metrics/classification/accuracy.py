"""The share of rows called rightly: over all rows, and class by class.

Both read the class counts alone. Not here: accuracy with a choice of several classes (``top_k``) or only over the
rows that were answered (``abstention``).
"""

from torch import Tensor

from prima_bench.metrics.base import Score
from prima_bench.metrics.classification.base import CountMetric, per_class, score_counts
from prima_bench.metrics.classification.checks import Scores
from prima_bench.metrics.classification.counts import ClassCounts
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="accuracy",
        version=1,
        inputs="classification",
        implementation="Accuracy",
        title="Accuracy",
        summary="The share of rows whose predicted class is the true one.",
        formula="accuracy = #(label = target) / n",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="global",
        unit=None,
        undefined="Never, once there is a row.",
        references=("scikit-learn, accuracy_score",),
        notes="Equals scikit-learn. torchmetrics calls this average='micro'; its default for several classes is the "
        "macro average. A row for which no class is named counts as wrong. Dominated by the frequent classes.",
    ),
    MetricSpec(
        name="balanced_accuracy",
        version=1,
        inputs="classification",
        implementation="BalancedAccuracy",
        title="Balanced accuracy",
        summary="The share of rows called rightly in each class, averaged over the classes of the solution.",
        formula="balanced_accuracy = mean over classes c of the solution of #(label = target = c) / #(target = c)",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="class",
        undefined="For a class that is absent from the solution.",
        references=(
            "Brodersen et al. 2010, The balanced accuracy and its posterior distribution, doi:10.1109/ICPR.2010.764",
            "scikit-learn, balanced_accuracy_score",
        ),
        notes="Equals scikit-learn. torchmetrics' macro accuracy adds a zero for each class that is only predicted, "
        "so it is lower there. A constant prediction scores 1 / the number of classes in the solution.",
    ),
)


def accuracy(preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability") -> Score:
    """The share of rows whose predicted class is the true one.

    ``#(label = target) / n``; see scikit-learn's ``accuracy_score``.

    Args:
        preds: Class codes, integer [n], -1 where the model abstains; or class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What two-dimensional ``preds`` are: ``"probability"`` or ``"logit"``.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> accuracy(torch.tensor([0, 1, 1, -1]), torch.tensor([0, 1, 0, 1]), num_classes=2).value
        0.5
    """
    return score_counts(_accuracy, preds, target, num_classes, scores)


def balanced_accuracy(preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability") -> Score:
    """Recall of each class, averaged over the classes of the solution.

    ``mean over c of #(label = target = c) / #(target = c)`` (Brodersen et al. 2010).

    Args:
        preds: Class codes, integer [n], -1 where the model abstains; or class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What two-dimensional ``preds`` are: ``"probability"`` or ``"logit"``.

    Returns:
        The mean, with the recall of each class as units.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> balanced_accuracy(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]), num_classes=2).value
        0.75
    """
    return score_counts(_balanced_accuracy, preds, target, num_classes, scores)


class Accuracy(CountMetric):
    """Streaming form of :func:`accuracy`.

    Example:
        >>> import torch
        >>> metric = Accuracy(num_classes=2)
        >>> metric.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([1]), torch.tensor([0]))
        >>> metric.result().value
        0.6666666666666666
    """

    def from_counts(self, counts: ClassCounts) -> Score:
        """Score the counts of all rows."""
        return _accuracy(counts)


class BalancedAccuracy(CountMetric):
    """Streaming form of :func:`balanced_accuracy`.

    Example:
        >>> import torch
        >>> metric = BalancedAccuracy(num_classes=3)
        >>> metric.update(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]))
        >>> metric.result().units.tolist()
        [1.0, 0.5, nan]
    """

    def from_counts(self, counts: ClassCounts) -> Score:
        """Score the counts of all rows."""
        return _balanced_accuracy(counts)


def _accuracy(counts: ClassCounts) -> Score:
    return Score(int(counts.correct.sum()) / counts.n)


def _balanced_accuracy(counts: ClassCounts) -> Score:
    return per_class(counts.correct, counts.support, counts)
