"""Reads class scores as probabilities, in blocks of rows or of classes.

Logits become probabilities by a softmax in float64, block by block, so that no second matrix of the size of the scores
is ever held. No metric's formula is here.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from prima_bench.metrics.classification.checks import Scores
from prima_bench.metrics.classification.counts import hard_labels
from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.spill import is_kept, relieve, row_blocks

_ROW_BLOCK_BYTES = 4 * 2**20  # a few of these stay in cache
_CLASS_BLOCK_BYTES = 32 * 2**20  # wide enough to read the scores, which lie row by row, in whole cache lines


class ClassProbabilities:
    """Class probabilities over checked scores.

    Args:
        score: Class scores, real [n, C].
        scores: ``"probability"``: used as they are; ``"logit"``: ``exp(x_c - max x) / Σ exp(x - max x)`` of each row.

    Example:
        >>> import torch
        >>> two = ClassProbabilities(torch.tensor([[0.0, 0.0], [9.0, 9.0]]), "logit")
        >>> two.of(torch.tensor([0, 1])).tolist()
        [0.5, 0.5]
    """

    def __init__(self, score: Tensor, scores: Scores) -> None:
        self._score = score
        self._logits = scores == "logit"
        self._kept = is_kept(score)
        if self._logits:
            self._peak = self._highest()
            self._total = torch.cat([tree_sum(self._raised(x.double(), rows), dim=1) for rows, x in self.stored_rows()])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of classes."""
        n, num_classes = self._score.shape
        return n, num_classes

    def stored_rows(self) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of rows in order: where they lie, and the scores as given, [rows, C]; not to be written to."""
        n, num_classes = self.shape
        height = max(1, _ROW_BLOCK_BYTES // (8 * num_classes))
        for start in range(0, n, height):
            rows = slice(start, min(start + height, n))
            yield rows, self._score[rows]
            if self._kept:
                relieve(self._score[rows].nbytes)

    def rows(self) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of rows in order: where they lie, and their probabilities, float64 [rows, C]; fresh tensors."""
        for rows, stored in self.stored_rows():
            if self._logits:
                yield rows, self._raised(stored.double(), rows).div_(self._total[rows, None])
            else:
                yield rows, stored.to(torch.float64, copy=True)

    def of(self, codes: Tensor) -> Tensor:
        """The probability of one named class in each row, float64 [n].

        Args:
            codes: Class codes, int64 [n].
        """
        picked = self._by_row(lambda rows, x: x.gather(1, codes[rows, None]).squeeze(1)).double()
        return (picked - self._peak).exp_().div_(self._total) if self._logits else picked

    def highest(self) -> Tensor:
        """The highest probability of each row, float64 [n]."""
        return self._total.reciprocal() if self._logits else self._highest()

    def classes(self) -> Iterator[tuple[range, Tensor]]:
        """Blocks of classes in order: their codes, and a fresh contiguous tensor [classes, n].

        Probabilities keep their own dtype here (half precision becomes float32): comparing them needs no more.
        """
        n, num_classes = self.shape
        dtype = torch.promote_types(self._score.dtype, torch.float32)
        width = max(1, _CLASS_BLOCK_BYTES // (8 * max(n, 1)))
        for start in range(0, num_classes, width):
            codes = range(start, min(start + width, num_classes))
            block = self._columns(codes).T
            if self._logits:
                yield codes, (block.double().contiguous() - self._peak).exp_().div_(self._total)
            else:
                yield codes, block.to(dtype).clone(memory_format=torch.contiguous_format)

    def labels(self) -> Tensor:
        """The class of the highest score of each row, int64 [n]; the lowest code among equals."""
        return hard_labels(self._score)

    def _columns(self, codes: range) -> Tensor:
        if not self._kept:
            return self._score[:, codes.start : codes.stop]
        taken = self._score.new_empty((len(self._score), len(codes)))
        for rows, block in row_blocks(self._score):
            taken[rows] = block[:, codes.start : codes.stop]
        return taken

    def _highest(self) -> Tensor:
        return self._by_row(lambda _, x: x.amax(dim=1)).double()

    def _by_row(self, of: Callable[[slice, Tensor], Tensor]) -> Tensor:
        parts = [of(rows, block) for rows, block in row_blocks(self._score)]
        return torch.cat(parts) if parts else self._score.new_zeros(0)

    def _raised(self, x: Tensor, rows: slice) -> Tensor:
        """The exponentials of rows of logits, at most 1 each."""
        return (x - self._peak[rows, None]).exp_()
