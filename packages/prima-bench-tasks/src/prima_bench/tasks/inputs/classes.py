"""Class scores: predictions that name classes by column, as probabilities or as logits."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from prima_bench.metrics.classification.checks import SUM_TOLERANCE
from prima_bench.metrics.numerics import tree_sum
from prima_bench.tasks.errors import PredictionError, UsageError, counted, first_few
from prima_bench.tasks.inputs.ids import Ids, as_ids
from prima_bench.tasks.inputs.labels import LabelTable
from prima_bench.tasks.inputs.ledger import Int64, RowDigest
from prima_bench.tasks.inputs.vocabulary import Codes, normalise

Block = npt.NDArray[Any]

_TOLERANCE = 0.99 * SUM_TOLERANCE
"""A little less than the kernel's, which adds in float32: what passes here passes there."""


_HALF = (
    " If they were computed in half precision, hand in the tensor as it is, whose type says what rounding may take; or "
    "divide each row by its sum."
)


class ClassScores:
    """Reads and checks class scores.

    Probabilities must sum to 1 in each row to within 0.001. Those that were rounded to bfloat16 may be off by 2^-7,
    about 0.008: rounding moves each by up to 2^-8 of itself, and with them the sum; as much again is left to a softmax
    that itself ran in bfloat16. Rows that are off by more than 0.001 for this reason are divided by their sum.

    Args:
        classes: All classes in order.
        kind: ``"probability"``: in [0, 1], with a sum of 1 in each row; ``"logit"``: any finite number.

    Raises:
        UsageError: If ``kind`` is neither.
    """

    def __init__(self, classes: Sequence[str], kind: str) -> None:
        if not isinstance(kind, str) or kind not in ("probability", "logit"):
            raise UsageError(f"scores cannot be {kind!r}", hint="Declare scores='probability' or scores='logit'.")
        self._classes = list(classes)
        self._kind = kind
        self.digest = RowDigest(len(classes))

    def blocks(self, table: LabelTable, label: Codes | None) -> Iterator[tuple[Int64, Block]]:
        """The scores in blocks of rows, columns in the order of the classes.

        Args:
            table: Rows with scores.
            label: Codes of labels given beside the scores, [n], which must agree with them; None when there are none.

        Yields:
            Row numbers, int64 [k], and scores, float [k, classes].

        Raises:
            PredictionError: If columns, values or labels are wrong, naming the first few rows.
        """
        if table.scores is None:
            raise TypeError("the table has no scores")
        for rows, read in table.scores.blocks(self._order(table)):
            block: Block = read if isinstance(read, np.ndarray) else read.toarray()
            self._check(block, table.ids[rows], table.scores.epsilon)
            if label is not None:
                self._check_agreement(block, label[rows], table.ids[rows])
            yield rows, block

    def _order(self, table: LabelTable) -> npt.NDArray[np.int64] | None:
        width = 0 if table.scores is None else table.scores.shape[1]
        if table.columns is None:
            if width != len(self._classes):
                raise PredictionError(
                    f"scores have {width} columns for {len(self._classes)} classes",
                    hint="Without class names the columns must be exactly the classes, in their order.",
                )
            return None
        named = [normalise(str(c)) for c in as_ids(table.columns, what="class names")]
        if len(named) != width:
            raise PredictionError(
                f"{counted(len(named), 'class name')} for {counted(width, 'column')} of scores",
                hint="Give one class name for each column of scores.",
            )
        parts = []
        for what, names in (
            ("name more than once", sorted({c for c in named if named.count(c) > 1})),
            ("lack", [c for c in self._classes if c not in named]),
            ("hold besides the classes", [c for c in named if c not in self._classes]),
        ):
            if names:
                parts.append(f"{what} {first_few(names)}")
        if parts:
            raise PredictionError(
                f"the columns of class scores {'; they '.join(parts)}",
                hint=f"Give one column for each class, in any order: {first_few(self._classes, 12)}.",
            )
        return None if named == self._classes else np.array([named.index(c) for c in self._classes], dtype=np.int64)

    def _check(self, block: Block, ids: Ids, epsilon: float) -> None:
        wild = ~np.isfinite(block).all(axis=1)
        if wild.any():
            raise PredictionError(
                f"NaN or infinite scores in {counted(int(wild.sum()), 'row')}: {first_few(ids[wild])}",
                hint="Every score must be finite.",
            )
        if self._kind == "logit":
            return
        hint = "Probabilities were declared. Apply a softmax, or declare scores='logit'."
        outside = ((block < 0) | (block > 1)).any(axis=1)
        if outside.any():
            raise PredictionError(
                f"scores outside [0, 1] in {counted(int(outside.sum()), 'row')} "
                f"(seen {block.min():.4g} to {block.max():.4g}): {first_few(ids[outside])}",
                hint=hint,
            )
        inexact = np.flatnonzero(np.abs(block.sum(axis=1, dtype=np.float64) - 1) > _TOLERANCE / 2)
        if not len(inexact):
            return
        rows = block[inexact].astype(np.float64)
        total = tree_sum(torch.from_numpy(rows), dim=1).numpy()
        tolerance = max(_TOLERANCE, epsilon)
        off = np.abs(total - 1) > tolerance
        if off.any():
            raise PredictionError(
                f"scores that do not sum to 1 within {tolerance:.1g} in {counted(int(off.sum()), 'row')} "
                f"(first: {total[off][0]:.6g}): {first_few(ids[inexact[off]])}",
                hint=hint + (_HALF if (np.abs(total - 1) <= torch.finfo(torch.bfloat16).eps).all() else ""),
            )
        rounded = np.abs(total - 1) > _TOLERANCE
        block[inexact[rounded]] = rows[rounded] / total[rounded, None]

    def _check_agreement(self, block: Block, label: Codes, ids: Ids) -> None:
        own = np.where(label >= 0, block[np.arange(len(block)), np.maximum(label, 0)], -np.inf)
        disagree = own < block.max(axis=1)
        if disagree.any():
            raise PredictionError(
                f"labels other than the best-scoring class in {counted(int(disagree.sum()), 'row')}: "
                f"{first_few(ids[disagree])}",
                hint="Where there are scores they decide. Give labels or scores, or let them agree.",
            )
