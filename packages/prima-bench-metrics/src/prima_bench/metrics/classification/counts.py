"""Counts a row's true and predicted class once, for all hard-label metrics.

Every hard-label metric of this package is a function of four numbers per class: how many rows are of the class, how
many were called so, how many of them rightly, and how many rows abstained. They are integers, so they are exact and
free of order. No C × C matrix is made, so vocabularies of any size are fine.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prima_bench.metrics.classification.checks import ABSTAINED


@dataclass(frozen=True, slots=True, eq=False)
class ClassCounts:
    """The sufficient statistics of hard labels, on the CPU.

    Attributes:
        correct: Rows of each class that were called by it, int64 [C].
        support: Rows of each class in the solution, int64 [C].
        called: Rows that were called by each class, int64 [C].
        abstained: Rows for which no class was named; they are in ``support`` and not in ``called``.
    """

    correct: Tensor
    support: Tensor
    called: Tensor
    abstained: int

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.support.sum())


def count_classes(label: Tensor, target: Tensor, num_classes: int) -> ClassCounts:
    """Count checked labels.

    Args:
        label: Predicted class codes, int64 [n]; -1 abstains.
        target: True class codes, int64 [n].
        num_classes: Size of the vocabulary.

    Example:
        >>> import torch
        >>> counts = count_classes(torch.tensor([0, 1, -1]), torch.tensor([0, 0, 1]), num_classes=3)
        >>> counts.correct.tolist(), counts.support.tolist(), counts.called.tolist(), counts.abstained
        ([1, 0, 0], [2, 1, 0], [1, 1, 0], 1)
    """

    def bincount(codes: Tensor) -> Tensor:
        return torch.bincount(codes, minlength=num_classes).cpu()

    answered = label != ABSTAINED
    return ClassCounts(
        correct=bincount(target[label == target]),
        support=bincount(target),
        called=bincount(label[answered]),
        abstained=len(label) - int(answered.sum()),
    )


def hard_labels(score: Tensor) -> Tensor:
    """The class with the highest score in every row; the lowest code among equals.

    Args:
        score: Class scores, real [n, C].

    Returns:
        int64 [n].

    Example:
        >>> import torch
        >>> hard_labels(torch.tensor([[0.2, 0.4, 0.4], [0.5, 0.1, 0.4]])).tolist()
        [1, 0]
    """
    return score.argmax(dim=1)
