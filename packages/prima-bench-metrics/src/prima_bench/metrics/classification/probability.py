"""Proper scores of class probabilities: the logarithmic and the quadratic one.

Both reward honest probabilities and see every class score. Whether probabilities are calibrated, right or not, is in
``calibration``; how classes rank rows is in ``ranking``.
"""

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, Score
from prima_bench.metrics.classification.base import ScoreMetric, score_probabilities
from prima_bench.metrics.classification.checks import Scores
from prima_bench.metrics.classification.probabilities import ClassProbabilities
from prima_bench.metrics.numerics import tree_mean, tree_sum
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="log_loss",
        version=1,
        inputs="classification",
        implementation="LogLoss",
        title="Logarithmic loss",
        summary="The mean surprise at the true class: how little probability it was given.",
        formula="log_loss = -mean over rows i of ln p_i(target_i), p clipped to [2^-52, 1 - 2^-52]",
        direction="min",
        range=(0.0, None),
        perfect=0.0,
        chance=None,
        level="global",
        unit=None,
        undefined="When only labels are predicted.",
        references=(
            "Good 1952, Rational decisions, doi:10.1111/j.2517-6161.1952.tb00104.x",
            "Gneiting and Raftery 2007, JASA 102:359-378, doi:10.1198/016214506000001437",
            "scikit-learn, log_loss",
        ),
        notes="Natural logarithm. Equals scikit-learn on float64 probabilities; given float32, scikit-learn clips at "
        "1.2e-7 and sums in float32, where we clip float64 values at 2.2e-16, so that no dtype is at an advantage. "
        "One row with probability 0 for its class costs 36.04 / n. Uniform probabilities score ln C.",
    ),
    MetricSpec(
        name="brier",
        version=1,
        inputs="classification",
        implementation="Brier",
        title="Brier score",
        summary="The squared distance between the class probabilities and the true class.",
        formula="brier = mean over rows i of Σ_c (p_i(c) - [target_i = c])²",
        direction="min",
        range=(0.0, 2.0),
        perfect=0.0,
        chance=None,
        level="global",
        unit=None,
        undefined="When only labels are predicted.",
        references=(
            "Brier 1950, Monthly Weather Review 78:1-3, doi:10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2",
            "scikit-learn, brier_score_loss",
        ),
        notes="Brier's own multiclass form, which runs from 0 to 2: the sum over all classes, for two classes as for "
        "many. scikit-learn gives the same for three classes or more and half of it for two (scale_by_half='auto'). "
        "Uniform probabilities score 1 - 1 / C.",
    ),
)


def log_loss(preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability") -> Score:
    """The mean negative logarithm of the probability of the true class.

    ``-mean ln p_i(target_i)`` with p clipped to ``[eps, 1 - eps]``, eps = 2^-52 (Good 1952).

    Args:
        preds: Class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What ``preds`` are: ``"probability"`` or ``"logit"``.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> round(log_loss(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 1]), num_classes=2).value, 6)
        0.490415
    """
    return score_probabilities(_log_loss, preds, target, num_classes, scores)


def brier(preds: Tensor, target: Tensor, *, num_classes: int, scores: Scores = "probability") -> Score:
    """The squared distance between class probabilities and the true class, summed over classes (0 to 2).

    ``mean Σ_c (p_i(c) - [target_i = c])²`` (Brier 1950).

    Args:
        preds: Class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What ``preds`` are: ``"probability"`` or ``"logit"``.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> brier(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 1]), num_classes=2).value
        0.3125
    """
    return score_probabilities(_brier, preds, target, num_classes, scores)


class LogLoss(ScoreMetric):
    """Streaming form of :func:`log_loss`.

    Example:
        >>> import torch
        >>> metric = LogLoss(num_classes=2, scores="logit")
        >>> metric.update(torch.tensor([[3.0, 3.0]]), torch.tensor([0]))
        >>> metric.compute()
        tensor(0.6931, dtype=torch.float64)
    """

    higher_is_better = False

    def from_scores(self, batch: Batch) -> Score:
        """Score the class scores of all rows."""
        return _log_loss(self.probabilities(batch), batch.tensor("target"))


class Brier(ScoreMetric):
    """Streaming form of :func:`brier`.

    Example:
        >>> import torch
        >>> metric = Brier(num_classes=2)
        >>> metric.update(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.3125, dtype=torch.float64)
    """

    higher_is_better = False

    def from_scores(self, batch: Batch) -> Score:
        """Score the class scores of all rows."""
        return _brier(self.probabilities(batch), batch.tensor("target"))


def _log_loss(probabilities: ClassProbabilities, target: Tensor) -> Score:
    eps = torch.finfo(torch.float64).eps
    surprise = -probabilities.of(target).clamp(eps, 1 - eps).log()
    return Score(float(tree_mean(surprise)))


def _brier(probabilities: ClassProbabilities, target: Tensor) -> Score:
    distances = []
    for rows, block in probabilities.rows():
        own = target[rows, None]
        block.scatter_add_(1, own, torch.full_like(own, -1, dtype=block.dtype))
        distances.append(tree_sum(block.square_(), dim=1))
    return Score(float(tree_mean(torch.cat(distances))))
