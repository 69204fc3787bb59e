"""Counts a row's true and predicted class once, for all hard-label metrics.

Every hard-label metric of this package is a function of three numbers per class (how many rows are of it, how many were
called so, how many rightly) and of how many rows abstained. They are integers, so they are exact and free of order. No
C × C matrix is made, so vocabularies of any size are fine.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prima_bench.metrics.spill import row_blocks

_BLOCK_ROWS = 1 << 15  # in cache, and too few for torch to wake a second thread


@dataclass(frozen=True, slots=True, eq=False)
class ClassCounts:
    """The sufficient statistics of hard labels, on the CPU.

    Attributes:
        correct: Rows of each class that were called so, int64 [C].
        support: Rows of each class in the solution, int64 [C].
        called: Rows that were called each class, rightly or not, int64 [C].
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
    correct, support, called = torch.zeros((3, num_classes + 1), dtype=torch.int64, device=target.device)
    # Codes move up by one, so that place 0 collects the rows that do not count.
    for true, named in zip(torch.split(target, _BLOCK_ROWS), torch.split(label, _BLOCK_ROWS), strict=True):
        true, named = true + 1, named + 1
        support += torch.bincount(true, minlength=num_classes + 1)
        called += torch.bincount(named, minlength=num_classes + 1)
        correct += torch.bincount(true * (true == named), minlength=num_classes + 1)
    abstained = int(called[0])
    return ClassCounts(correct[1:].cpu(), support[1:].cpu(), called[1:].cpu(), abstained)


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
    return torch.cat([block.argmax(dim=1) for _, block in row_blocks(score)] or [score.argmax(dim=1)])
