"""Agreement beyond chance: Cohen's kappa and the multiclass Matthews correlation.

Both are computed in exact integers up to the last division, so neither overflows nor depends on the order of classes.
A row for which no class is named belongs to a category of its own, which is never the true one.
"""

import math

from torch import Tensor

from prima_bench.metrics.base import Score
from prima_bench.metrics.classification.base import CountMetric, score_counts
from prima_bench.metrics.classification.checks import Scores
from prima_bench.metrics.classification.counts import ClassCounts
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="cohen_kappa",
        version=1,
        inputs="classification",
        implementation="CohenKappa",
        title="Cohen's kappa",
        summary="Agreement beyond what the class frequencies of both sides would give by chance.",
        formula="kappa = (p_o - p_e) / (1 - p_e), p_o = #(label = target) / n, p_e = Σ_c #(label = c) #(target = c) / "
        "n²",
        direction="max",
        range=(-1.0, 1.0),
        perfect=1.0,
        chance=0.0,
        level="global",
        unit=None,
        undefined="When the solution holds one class only.",
        references=(
            "Cohen 1960, A coefficient of agreement for nominal scales, doi:10.1177/001316446002000104",
            "scikit-learn, cohen_kappa_score",
        ),
        notes="Unweighted. Equals scikit-learn and torchmetrics where both sides hold two classes or more. With one "
        "class in the solution the formula gives 0 or 0/0 whatever is predicted, so there is no value here; "
        "scikit-learn gives 0 or NaN.",
    ),
    MetricSpec(
        name="mcc",
        version=1,
        inputs="classification",
        implementation="MatthewsCorrelation",
        title="Matthews correlation coefficient",
        summary="The correlation between the true and the predicted class, for any number of classes.",
        formula="mcc = (n Σ_c t_cc - Σ_c l_c t_c) / sqrt((n² - Σ_c l_c²) (n² - Σ_c t_c²)), "
        "l_c = #(label = c), t_c = #(target = c), t_cc = #(label = target = c)",
        direction="max",
        range=(-1.0, 1.0),
        perfect=1.0,
        chance=0.0,
        level="global",
        unit=None,
        undefined="When the solution holds one class only.",
        references=(
            "Gorodkin 2004, Computational Biology and Chemistry 28:367-374, doi:10.1016/j.compbiolchem.2004.09.006",
            "scikit-learn, matthews_corrcoef",
        ),
        notes="A constant prediction scores 0, as in scikit-learn; with two classes torchmetrics 1.9 gives it 0.577 "
        "where they are 3 : 1 and 0.985 where they are 99 : 1. With one class in the solution scikit-learn gives 0; "
        "there is no value here.",
    ),
)

ONE_CLASS = "one class only in the solution"


def cohen_kappa(preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability") -> Score:
    """Agreement beyond what the class frequencies would give by chance.

    ``(p_o - p_e) / (1 - p_e)`` (Cohen 1960), unweighted.

    Args:
        preds: Class codes, integer [n], -1 where the model abstains; or class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What two-dimensional ``preds`` are: ``"probability"`` or ``"logit"``.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> cohen_kappa(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]), num_classes=2).value
        0.5
        >>> cohen_kappa(torch.tensor([0, 1]), torch.tensor([1, 1]), num_classes=2).reason
        'one class only in the solution'
    """
    return score_counts(_cohen_kappa, preds, target, num_classes, scores)


def mcc(preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability") -> Score:
    """The multiclass Matthews correlation between true and predicted classes.

    ``(n Σ t_cc - Σ l_c t_c) / sqrt((n² - Σ l_c²) (n² - Σ t_c²))`` (Gorodkin 2004).

    Args:
        preds: Class codes, integer [n], -1 where the model abstains; or class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What two-dimensional ``preds`` are: ``"probability"`` or ``"logit"``.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> mcc(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]), num_classes=2).value
        0.5773502691896258
        >>> mcc(torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 1, 1]), num_classes=2).value
        0.0
    """
    return score_counts(_mcc, preds, target, num_classes, scores)


class CohenKappa(CountMetric):
    """Streaming form of :func:`cohen_kappa`.

    Example:
        >>> import torch
        >>> metric = CohenKappa(num_classes=2)
        >>> metric.update(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    def from_counts(self, counts: ClassCounts) -> Score:
        """Score the counts of all rows."""
        return _cohen_kappa(counts)


class MatthewsCorrelation(CountMetric):
    """Streaming form of :func:`mcc`.

    Example:
        >>> import torch
        >>> metric = MatthewsCorrelation(num_classes=2)
        >>> metric.update(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]))
        >>> metric.compute()
        tensor(0.5774, dtype=torch.float64)
    """

    def from_counts(self, counts: ClassCounts) -> Score:
        """Score the counts of all rows."""
        return _mcc(counts)


def _cohen_kappa(counts: ClassCounts) -> Score:
    n, correct, support, called = _integers(counts)
    if n in support:
        return Score(None, ONE_CLASS)
    expected = _dot(support, called)
    return Score((n * correct - expected) / (n * n - expected))


def _mcc(counts: ClassCounts) -> Score:
    n, correct, support, called = _integers(counts)
    if n in support:
        return Score(None, ONE_CLASS)
    spread = (n * n - _dot(called, called)) * (n * n - _dot(support, support))
    return Score((n * correct - _dot(support, called)) / math.sqrt(spread) if spread else 0.0)


def _integers(counts: ClassCounts) -> tuple[int, int, list[int], list[int]]:
    """n, rows called rightly, and both sides' counts of each class; the last category holds the abstained rows."""
    return (
        counts.n,
        int(counts.correct.sum()),
        [*counts.support.tolist(), 0],
        [*counts.called.tolist(), counts.abstained],
    )


def _dot(a: list[int], b: list[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))
