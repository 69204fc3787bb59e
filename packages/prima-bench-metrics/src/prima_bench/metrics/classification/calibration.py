"""Expected calibration error: whether a model is right as often as it says.

It looks at the highest probability of each row alone, and says nothing about accuracy: a model that always states the
base rate is calibrated. Read it beside a proper score (``probability``).
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, Score
from prima_bench.metrics.classification.base import ScoreMetric, score_probabilities
from prima_bench.metrics.classification.checks import Scores
from prima_bench.metrics.classification.probabilities import ClassProbabilities
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.numerics import group_sums
from prima_bench.metrics.spec import MetricSpec, Param

Binning = Literal["equal_mass", "equal_width"]

SPECS = (
    MetricSpec(
        name="ece",
        version=1,
        inputs="classification",
        implementation="ExpectedCalibrationError",
        title="Expected calibration error",
        summary="The gap between how sure a model is and how often it is right, averaged over bins of confidence.",
        formula="ece = Σ_b |#right in bin b - Σ of the highest probabilities in bin b| / n; equal_mass: row i is in "
        "bin floor(bins (rows below + rows at most as sure) / 2n); equal_width: bin floor(bins p_i), p_i = 1 in the "
        "last",
        direction="min",
        range=(0.0, 1.0),
        perfect=0.0,
        chance=None,
        level="global",
        unit=None,
        undefined="When only labels are predicted.",
        references=(
            "Naeini et al. 2015, Obtaining well calibrated probabilities using Bayesian binning, AAAI 29",
            "Guo et al. 2017, On calibration of modern neural networks, arXiv:1706.04599",
            "Nixon et al. 2019, Measuring calibration in deep learning, arXiv:1904.01685 (bins of equal mass)",
        ),
        params=(
            Param(name="bins", default=15, range=(1, 10_000), summary="Number of bins, at most 10,000."),
            Param(
                name="binning",
                default="equal_mass",
                choices=("equal_mass", "equal_width"),
                summary="Bins with about equally many rows, or bins of equal width in confidence.",
            ),
        ),
        notes="Top-label calibration. Rows of the same confidence share a bin, so it does not depend on their order. "
        "equal_width equals torchmetrics' calibration_error(norm='l1') but for values on the edge of a bin; "
        "equal_mass is the less biased estimate. scikit-learn has no such score.",
    ),
)

MOST_BINS = 10_000


def ece(
    preds: Tensor,
    target: Tensor,
    *,
    num_classes: int,
    scores: Scores = "probability",
    bins: int = 15,
    binning: Binning = "equal_mass",
) -> Score:
    """The gap between confidence and accuracy, averaged over bins of confidence.

    ``Σ_b |#right - Σ confidence| / n`` (Naeini et al. 2015); confidence is the highest probability of a row.

    Args:
        preds: Class scores, real [n, num_classes].
        target: True class codes, integer [n].
        num_classes: Size of the vocabulary.
        scores: What ``preds`` are: ``"probability"`` or ``"logit"``.
        bins: Number of bins, from 1 to 10,000.
        binning: ``"equal_mass"``: about equally many rows a bin, equals together; ``"equal_width"``: [b / bins,
            (b + 1) / bins), 1 in the last.

    Raises:
        InputError: If shapes, dtypes or values do not fit.

    Example:
        >>> import torch
        >>> preds = torch.tensor([[0.75, 0.25], [0.75, 0.25], [0.0, 1.0]])
        >>> ece(preds, torch.tensor([0, 1, 1]), num_classes=2, binning="equal_width").value
        0.16666666666666666
    """
    check_bins(bins)
    check_binning(binning)
    return score_probabilities(lambda p, t: _ece(p, t, bins, binning), preds, target, num_classes, scores)


class ExpectedCalibrationError(ScoreMetric):
    """Streaming form of :func:`ece`.

    Args:
        num_classes: Size of the vocabulary.
        scores: What predictions are: ``"probability"`` or ``"logit"``.
        bins: Number of bins, from 1 to 10,000.
        binning: ``"equal_mass"`` or ``"equal_width"``.
        **kwargs: Passed on to ``torchmetrics.Metric``.

    Raises:
        InputError: If an argument is not one of these.

    Example:
        >>> import torch
        >>> metric = ExpectedCalibrationError(num_classes=2, bins=10)
        >>> metric.update(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
        >>> metric.result().value
        0.25
    """

    higher_is_better = False

    def __init__(
        self,
        num_classes: int,
        scores: Scores = "probability",
        bins: int = 15,
        binning: Binning = "equal_mass",
        **kwargs: Any,
    ) -> None:
        self.bins = check_bins(bins)
        self.binning = check_binning(binning)
        super().__init__(num_classes, scores, **kwargs)

    def from_scores(self, batch: Batch) -> Score:
        """Score the class scores of all rows."""
        return _ece(self.probabilities(batch), batch.tensor("target"), self.bins, self.binning)


def check_bins(bins: int) -> int:
    """Return the number of bins if it is an integer from 1 to 10,000.

    Raises:
        InputError: If it is not.
    """
    if isinstance(bins, bool) or not isinstance(bins, int) or not 1 <= bins <= MOST_BINS:
        raise InputError(f"bins must be an integer from 1 to {MOST_BINS:,}, not {bins!r}", hint="15 is usual.")
    return bins


def check_binning(binning: str) -> Binning:
    """Return the way of binning if it is known.

    Raises:
        InputError: If it is not.
    """
    if binning == "equal_mass":
        return "equal_mass"
    if binning == "equal_width":
        return "equal_width"
    raise InputError(f"binning cannot be {binning!r}", hint="Choose equal_mass or equal_width.")


def _ece(probabilities: ClassProbabilities, target: Tensor, bins: int, binning: Binning) -> Score:
    sure, order = probabilities.highest().sort(stable=True)
    right = (probabilities.labels() == target)[order]
    bin_of = _equal_mass(sure, bins) if binning == "equal_mass" else _equal_width(sure, bins)
    stated = group_sums(sure[:, None], bin_of, bins).squeeze(1)
    seen = torch.bincount(bin_of[right], minlength=bins)
    return Score(math.fsum((seen - stated).abs().tolist()) / len(sure))


def _equal_mass(sure: Tensor, bins: int) -> Tensor:
    """The bin of the middle rank of each value, of ascending values; equals share it."""
    below, at_most = torch.searchsorted(sure, sure), torch.searchsorted(sure, sure, right=True)
    return bins * (below + at_most) // (2 * len(sure))


def _equal_width(sure: Tensor, bins: int) -> Tensor:
    return (sure * bins).long().clamp(max=bins - 1)
