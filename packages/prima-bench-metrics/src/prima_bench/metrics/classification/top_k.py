"""Whether the true class is among the k that score highest.

With k = 1 and no ties it is accuracy. Ties across the k-th place are shared, so it needs no order among equals.
"""

import math
from typing import Any

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, Score
from prima_bench.metrics.classification.base import ScoreMetric, score_probabilities
from prima_bench.metrics.classification.checks import Scores
from prima_bench.metrics.classification.probabilities import ClassProbabilities
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.spec import MetricSpec, Param

SPECS = (
    MetricSpec(
        name="top_k_accuracy",
        version=1,
        inputs="classification",
        implementation="TopKAccuracy",
        title="Top-k accuracy",
        summary="The share of rows whose true class is among the k classes that score highest.",
        formula="mean over rows of min(max(k - a, 0), e) / e, a = classes that score above the true one, "
        "e = classes that score the same, itself included",
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="global",
        unit=None,
        undefined="When only labels are predicted.",
        references=(
            "Russakovsky et al. 2015, ImageNet Large Scale Visual Recognition Challenge, doi:10.1007/s11263-015-0816-y",
            "scikit-learn, top_k_accuracy_score",
        ),
        params=(
            Param(
                name="k", default=3, range=(1, None), summary="How many of the highest-scoring classes are looked at."
            ),
        ),
        notes="Equals scikit-learn and torchmetrics without ties. Where classes tie across the k-th place, the row "
        "earns the share of their orders in which the true class is among the first k: a constant prediction scores k "
        "/ C, no more. scikit-learn lets the higher class code win, torch.topk an order that depends on the number of "
        "classes.",
    ),
)


def top_k_accuracy(
    preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability", k: int = 3
) -> Score:
    """The share of rows whose true class is among the k classes that score highest.

    A row earns ``min(max(k - a, 0), e) / e``, with a classes above the true one and e at its level, itself included
    (Russakovsky et al. 2015; the share of ties makes it independent of the order of classes).

    Args:
        preds: Class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What ``preds`` are: ``"probability"`` or ``"logit"``.
        k: How many classes are looked at, at least 1.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> preds = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.3, 0.3]])
        >>> top_k_accuracy(preds, torch.tensor([1, 2]), num_classes=3, k=2).value
        0.75
    """
    check_k(k)
    return score_probabilities(lambda p, target: _top_k(p, target, k), preds, target, num_classes, scores)


class TopKAccuracy(ScoreMetric):
    """Streaming form of :func:`top_k_accuracy`.

    Args:
        num_classes: Size of the vocabulary.
        scores: What predictions are: ``"probability"`` or ``"logit"``.
        k: How many classes are looked at, at least 1.
        **kwargs: Passed on to ``torchmetrics.Metric``.

    Raises:
        InputError: If an argument is not one of these.

    Example:
        >>> import torch
        >>> metric = TopKAccuracy(num_classes=3, k=2)
        >>> metric.update(torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.3, 0.3]]), torch.tensor([1, 2]))
        >>> metric.result().value
        0.75
    """

    def __init__(self, num_classes: int, scores: Scores = "probability", k: int = 3, **kwargs: Any) -> None:
        self.k = check_k(k)
        super().__init__(num_classes, scores, **kwargs)

    def from_scores(self, batch: Batch) -> Score:
        """Score the class scores of all rows."""
        return _top_k(self.probabilities(batch), batch.tensor("target"), self.k)


def check_k(k: int) -> int:
    """Return k if it is a positive integer.

    Raises:
        InputError: If it is not.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InputError(f"k must be a positive integer, not {k!r}", hint="Usual choices are 3 and 5.")
    return k


def _top_k(probabilities: ClassProbabilities, target: Tensor, k: int) -> Score:
    n, num_classes = probabilities.shape
    earned = torch.zeros(num_classes + 1, dtype=torch.int64, device=target.device)  # by the number of equals
    for rows, score in probabilities.stored_rows():
        own = score.gather(1, target[rows, None])
        above = torch.count_nonzero(score > own, dim=1)
        equal = torch.count_nonzero(score == own, dim=1)
        earned.index_add_(0, equal, torch.minimum((k - above).clamp(min=0), equal))
    return Score(math.fsum(e / equal for equal, e in enumerate(earned.tolist()) if e) / n)
