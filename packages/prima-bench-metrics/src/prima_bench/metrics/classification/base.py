"""What all classification metrics share: their inputs, their checks, and the quantities that a panel computes once.

A metric of this folder is a formula over one of two things: the class counts of hard labels (:class:`CountMetric`), or
the class scores of all rows (:class:`ScoreMetric`). The formulas are not here; buffering, canonical order and exchange
between ranks are in ``prima_bench.metrics.base``.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, BufferedMetric, Field, Score
from prima_bench.metrics.classification.checks import (
    Labels,
    Scores,
    check_averaged_labels,
    check_num_classes,
    check_rows,
    check_score_kind,
    prediction_field,
    widened,
)
from prima_bench.metrics.classification.counts import ClassCounts, count_classes, hard_labels
from prima_bench.metrics.classification.probabilities import ClassProbabilities

NO_ROWS = "no rows were given"
NEEDS_SCORES = "needs class probabilities or scores"
ABSENT = "class absent from the solution"
ABSENT_FROM_BOTH = "class absent from the solution and the predictions"
ONE_CLASS = "one class only in the solution"


class ClassificationMetric(BufferedMetric):
    """A metric of predicted classes against true classes, one row for each sample.

    Args:
        num_classes: Size of the vocabulary; class codes run from 0 to ``num_classes - 1``.
        scores: What two-dimensional predictions are: ``"probability"`` or ``"logit"``.
        **kwargs: Passed on to ``torchmetrics.Metric``.

    Raises:
        InputError: If an argument is not one of these.
    """

    fields: ClassVar[tuple[Field, ...]] = (
        Field("target", "integer", "scalar"),
        Field("label", "integer", "scalar", optional=True),
        Field("score", "real", "row", optional=True),
    )
    higher_is_better = True

    def __init__(self, num_classes: int, scores: Scores = "probability", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = check_num_classes(num_classes)
        self.scores: Scores = check_score_kind(scores)

    def update(self, preds: Tensor, target: Tensor, index: Tensor | None = None) -> None:
        """Take in a chunk of rows, or none of them if any is wrong.

        Args:
            preds: Class codes, integer [n], -1 where the model abstains; or class scores, real [n, num_classes].
            target: True class codes, integer [n].
            index: Row ids, integer [n]; the running position when left out, in a single process only.

        Raises:
            InputError: If shapes, dtypes or values do not fit.
        """
        preds = widened(preds, self.scores)
        fields = {"target": target, prediction_field(preds): preds}
        check_rows(fields, self.num_classes, self.scores, index)
        self._append(fields, index)

    def check(self, batch: Batch) -> None:
        """Refuse a batch whose rows reached a shared buffer without ``update`` and cannot be scored.

        Raises:
            InputError: If labels and scores are both there, or shapes or values do not fit.
        """
        batch.memo(("checked_classes", self.num_classes, self.scores), lambda: self._check(batch))

    def _check(self, batch: Batch) -> None:
        fields = {name: batch.tensor(name) for name in ("target", "label", "score") if name in batch}
        check_rows(fields, self.num_classes, self.scores, batch.index)


class CountMetric(ClassificationMetric):
    """A metric that is a function of the class counts of hard labels; class scores are reduced to labels first."""

    @abstractmethod
    def from_counts(self, counts: ClassCounts) -> Score:
        """Score the counts of all rows."""

    def score(self, batch: Batch) -> Score:
        """Score the rows of the batch, from counts that a panel computes once."""
        self.check(batch)
        return self.from_counts(batch.memo(("class_counts", self.num_classes), lambda: self._count(batch)))

    def _count(self, batch: Batch) -> ClassCounts:
        label = batch.tensor("label") if "label" in batch else hard_labels(batch.tensor("score"))
        return count_classes(label, batch.tensor("target"), self.num_classes)


class AveragedCountMetric(CountMetric):
    """A mean over classes, which may be those of the solution alone or of both sides.

    Args:
        num_classes: Size of the vocabulary.
        scores: What two-dimensional predictions are: ``"probability"`` or ``"logit"``.
        labels: Average over the classes of the solution (``"present"``), or over those of the solution and the
            predictions (``"union"``, scikit-learn's default).
        **kwargs: Passed on to ``torchmetrics.Metric``.

    Raises:
        InputError: If an argument is not one of these.
    """

    def __init__(
        self, num_classes: int, scores: Scores = "probability", labels: Labels = "present", **kwargs: Any
    ) -> None:
        super().__init__(num_classes, scores, **kwargs)
        self.labels: Labels = check_averaged_labels(labels)


class ScoreMetric(ClassificationMetric):
    """A metric that needs class scores; labels alone leave it undefined."""

    @abstractmethod
    def from_scores(self, batch: Batch) -> Score:
        """Score rows that are known to have sound class scores."""

    def probabilities(self, batch: Batch) -> ClassProbabilities:
        """The class probabilities of the batch, shared by all metrics of a panel."""
        return batch.memo(
            ("class_probabilities", self.scores), lambda: ClassProbabilities(batch.tensor("score"), self.scores)
        )

    def score(self, batch: Batch) -> Score:
        """Score the rows of the batch."""
        self.check(batch)
        return self.from_scores(batch) if "score" in batch else Score(None, NEEDS_SCORES)


def score_counts(
    formula: Callable[[ClassCounts], Score], preds: Tensor, target: Tensor, num_classes: int, scores: Scores
) -> Score:
    """Check labels or class scores, count them, and apply a formula over class counts."""
    preds = widened(preds, scores)
    field = _checked(preds, target, num_classes, scores)
    if not len(target):
        return Score(None, NO_ROWS)
    label = preds.long() if field == "label" else hard_labels(preds)
    return formula(count_classes(label, target.long(), num_classes))


def score_probabilities(
    formula: Callable[[ClassProbabilities, Tensor], Score],
    preds: Tensor,
    target: Tensor,
    num_classes: int,
    scores: Scores,
) -> Score:
    """Check class scores and apply a formula over them and the true classes, integer [n]."""
    preds = widened(preds, scores)
    field = _checked(preds, target, num_classes, scores)
    if not len(target):
        return Score(None, NO_ROWS)
    if field == "label":
        return Score(None, NEEDS_SCORES)
    return formula(ClassProbabilities(preds.detach(), scores), target.long())


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """``part / whole`` of counts in float64; 0 where both are 0.

    Example:
        >>> ratio(torch.tensor([1, 0]), torch.tensor([2, 0])).tolist()
        [0.5, 0.0]
    """
    return part.double() / whole.clamp(min=1).double()


def per_class(part: Tensor, whole: Tensor, counts: ClassCounts, labels: Labels = "present") -> Score:
    """A ratio of counts for each class, and its mean over the classes that are averaged.

    Args:
        part: Numerators, int64 [C].
        whole: Denominators, int64 [C].
        counts: Says which classes occur.
        labels: Average over the classes of the solution, or over those of the solution and the predictions.
    """
    occurs = counts.support > 0
    if labels == "union":
        occurs |= counts.called > 0
    return mean_over_classes(ratio(part, whole), occurs, ABSENT if labels == "present" else ABSENT_FROM_BOTH)


def mean_over_classes(units: Tensor, defined: Tensor, reason: str) -> Score:
    """The mean over some classes; the others have no value, for one reason.

    Args:
        units: A value for each class, float64 [C].
        defined: Which of them count, bool [C].
        reason: Why the others do not.
    """
    missing = (~defined).nonzero().flatten().tolist()
    return Score.from_units(units.masked_fill(~defined, torch.nan), dict.fromkeys(missing, reason))


def _checked(preds: Tensor, target: Tensor, num_classes: int, scores: Scores) -> str:
    field = prediction_field(preds)
    check_rows({"target": target, field: preds}, check_num_classes(num_classes), check_score_kind(scores))
    return field
