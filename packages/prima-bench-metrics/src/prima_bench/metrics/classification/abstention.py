"""How often a model names no class, and how right it is when it does name one.

Only labels can abstain (code -1); class scores always name a class. Read the two together: neither is a score of the
whole prediction, which ``accuracy`` is.
"""

from torch import Tensor

from prima_bench.metrics.base import Score
from prima_bench.metrics.classification.base import CountMetric, score_counts
from prima_bench.metrics.classification.checks import Scores
from prima_bench.metrics.classification.counts import ClassCounts
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="unknown_rate",
        version=1,
        inputs="classification",
        implementation="UnknownRate",
        title="Unknown rate",
        summary="The share of rows for which the model names no class.",
        formula="unknown_rate = #(label = unknown) / n",
        direction="min",
        range=(0.0, 1.0),
        perfect=0.0,
        chance=None,
        level="global",
        unit=None,
        undefined="Never, once there is a row.",
        references=("Chow 1970, On optimum recognition error and reject tradeoff, doi:10.1109/TIT.1970.1054406",),
        notes="0 where the task takes no unknown labels, and where class scores are given. Neither scikit-learn nor "
        "torchmetrics has it.",
    ),
    MetricSpec(
        name="coverage_accuracy",
        version=1,
        inputs="classification",
        implementation="CoverageAccuracy",
        title="Accuracy of the answered rows",
        summary="The share of rows called rightly among those for which the model names a class.",
        formula="coverage_accuracy = #(label = target) / #(label ≠ unknown)",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="global",
        unit=None,
        undefined="Never, once there is a row.",
        references=(
            "El-Yaniv and Wiener 2010, On the foundations of noise-free selective classification, JMLR 11:1605-1641",
        ),
        notes="A model that names no class at all scores 0. A model gains by answering only where it is sure: read it "
        "beside unknown_rate. Equals accuracy where every row is answered.",
    ),
)


def unknown_rate(preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability") -> Score:
    """The share of rows for which the model names no class.

    ``#(label = -1) / n`` (Chow 1970).

    Args:
        preds: Class codes, integer [n], -1 where the model abstains; or class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What two-dimensional ``preds`` are: ``"probability"`` or ``"logit"``.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> unknown_rate(torch.tensor([0, 1, -1, -1]), torch.tensor([0, 0, 1, 1]), num_classes=2).value
        0.5
    """
    return score_counts(_unknown_rate, preds, target, num_classes, scores)


def coverage_accuracy(preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability") -> Score:
    """The share of rows called rightly among those for which the model names a class.

    ``#(label = target) / #(label ≠ -1)``, 0 when no row is answered (El-Yaniv and Wiener 2010).

    Args:
        preds: Class codes, integer [n], -1 where the model abstains; or class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What two-dimensional ``preds`` are: ``"probability"`` or ``"logit"``.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> coverage_accuracy(torch.tensor([0, 1, -1, -1]), torch.tensor([0, 0, 1, 1]), num_classes=2).value
        0.5
    """
    return score_counts(_coverage_accuracy, preds, target, num_classes, scores)


class UnknownRate(CountMetric):
    """Streaming form of :func:`unknown_rate`.

    Example:
        >>> import torch
        >>> metric = UnknownRate(num_classes=2)
        >>> metric.update(torch.tensor([0, -1]), torch.tensor([0, 1]))
        >>> metric.result().value
        0.5
    """

    higher_is_better = False

    def from_counts(self, counts: ClassCounts) -> Score:
        """Score the counts of all rows."""
        return _unknown_rate(counts)


class CoverageAccuracy(CountMetric):
    """Streaming form of :func:`coverage_accuracy`.

    Example:
        >>> import torch
        >>> metric = CoverageAccuracy(num_classes=2)
        >>> metric.update(torch.tensor([0, -1]), torch.tensor([0, 1]))
        >>> metric.result().value
        1.0
    """

    def from_counts(self, counts: ClassCounts) -> Score:
        """Score the counts of all rows."""
        return _coverage_accuracy(counts)


def _unknown_rate(counts: ClassCounts) -> Score:
    return Score(counts.abstained / counts.n)


def _coverage_accuracy(counts: ClassCounts) -> Score:
    answered = counts.n - counts.abstained
    return Score(int(counts.correct.sum()) / answered if answered else 0.0)
