"""Ranks every class against the rest, exactly, with one sort per class.

For one class, sort its probabilities over all rows. Two binary searches tell for every row of the class how many rows
score lower and how many score at most as high: from these counts follow the area under the ROC curve and the average
precision, without bins and with ties averaged. Counts are integers, so the order of rows plays no part.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prima_bench.metrics.classification.probabilities import ClassProbabilities
from prima_bench.metrics.numerics import tree_sum


@dataclass(frozen=True, slots=True, eq=False)
class OneVsRest:
    """Ranking quality of each class against all others, on the CPU.

    Attributes:
        support: Rows of each class in the solution, int64 [C].
        auroc: Area under the ROC curve, float64 [C]; NaN where the class or all others are absent.
        average_precision: Area under the precision-recall steps, float64 [C]; NaN where the class is absent.
    """

    support: Tensor
    auroc: Tensor
    average_precision: Tensor


def rank_one_vs_rest(probabilities: ClassProbabilities, target: Tensor) -> OneVsRest:
    """Rank the rows of each class against all other rows by the probability of that class.

    Args:
        probabilities: Class probabilities, [n, C].
        target: True class codes, int64 [n].

    Example:
        >>> import torch
        >>> p = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.6, 0.4], [0.2, 0.8]])
        >>> ranks = rank_one_vs_rest(ClassProbabilities(p, "probability"), torch.tensor([0, 0, 1, 1]))
        >>> ranks.auroc.tolist()
        [0.875, 0.875]
    """
    _, num_classes = probabilities.shape
    support = torch.bincount(target, minlength=num_classes).cpu()
    members = torch.split(torch.argsort(target, stable=True), support.tolist())
    auroc = torch.full((num_classes,), torch.nan, dtype=torch.float64)
    average_precision = auroc.clone()
    for codes, block in probabilities.classes():
        positives = [_sorted(block[code - codes.start, members[code]]) for code in codes]
        everyone = _sorted(block)
        for code, own, column in zip(codes, positives, everyone, strict=True):
            if len(own):
                below = torch.searchsorted(column, own)
                auroc[code] = _auroc(column, own, below)
                average_precision[code] = _average_precision(column, own, below)
    return OneVsRest(support, auroc, average_precision)


def _auroc(column: Tensor, own: Tensor, below: Tensor) -> float:
    """Twice the Mann-Whitney U is Σ (rows below + rows at most equal) - m², all integers."""
    m, rest = len(own), len(column) - len(own)
    at_most = torch.searchsorted(column, own, right=True)
    twice_u = int((below + at_most).sum()) - m * m
    return twice_u / (2 * m * rest) if rest else float("nan")


def _average_precision(column: Tensor, own: Tensor, below: Tensor) -> float:
    """The mean over the class's rows of the precision at their own score, equal scores included."""
    found = len(own) - torch.searchsorted(own, own)
    precision = found.double() / (len(column) - below).double()
    return float(tree_sum(precision)) / len(own)


def _sorted(x: Tensor) -> Tensor:
    """Values in ascending order along the last dimension; overwrites ``x`` on the CPU.

    numpy sorts values alone and in vector registers; torch's sort carries positions along and takes much longer.
    """
    if x.device.type == "cpu":
        x.numpy().sort(axis=-1)
        return x
    return x.sort(dim=-1).values
