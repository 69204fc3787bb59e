"""The declared scale of expression values, checked and never guessed.

``counts``: non-negative integers. ``log1p_cp10k``: log1p of counts per 10,000, or means of such cells: non-negative,
and undoing the logarithm gives a row total of at most 10,000 (less when genes were left out). Each row is judged by
itself, so that what is refused does not depend on which rows come together.
"""

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from prima_bench.tasks.errors import PrimaBenchError, UsageError, counted, first_few
from prima_bench.tasks.inputs.ids import Ids

Scale = Literal["counts", "log1p_cp10k"]
SCALES: tuple[str, ...] = get_args(Scale)

TOTAL = 1e4
EXACT = 2.0**53
"""From here on float64 no longer holds every whole number."""
_DRAW = (
    "A model that predicts means draws counts around them, numpy.random.RandomState(0).poisson(mean); do not round, "
    "which turns small means into 0. A model on log1p takes expm1 and scales each row to the depth of its cell first."
)
_PIECE = 1 << 17
_TELLING = 5
"""A row with so many values other than 0, all whole, holds counts. Logarithms are whole by chance alone: of those that
were rounded to bfloat16 one in 64, of those rounded to two decimals one in 100, so that a row of few may be."""
SOLUTION_EXCESS = 1e-3
"""How far a solution's row total may lie above 10,000: rounding of float32."""
PREDICTION_EXCESS = 0.1
"""The same for predictions: a model that runs in bfloat16 rounds every value by up to 0.4 %, so its logarithms undo to
totals a few per cent off. Another target sum (1e5, 1e6) or counts lie far beyond."""


def as_scale(scale: object) -> Scale:
    """Return the scale if it is one.

    Raises:
        UsageError: If it is not.
    """
    if isinstance(scale, str) and scale == "counts":
        return "counts"
    if isinstance(scale, str) and scale == "log1p_cp10k":
        return "log1p_cp10k"
    raise UsageError(f"scale cannot be {scale!r}", hint=f"Declare scale= as one of {', '.join(SCALES)}.")


class ScaleCheck:
    """Refuses blocks of rows that are not on the declared scale.

    Args:
        scale: The declared scale.
        what: ``"predictions"`` or ``"the solution"``.
        error: What to raise.
        excess: Tolerance of a row's total on log scale, relative.
        dataset: The registered dataset that declares the scale; None where the user does.
    """

    def __init__(
        self, scale: Scale, what: str, error: type[PrimaBenchError], excess: float, dataset: str | None = None
    ) -> None:
        self._scale = scale
        self._what = what
        self._error = error
        self._limit = TOTAL * (1 + excess)
        self._declared = f"scale={scale!r} was declared" if dataset is None else f"{dataset} is on {scale}"
        self._free = dataset is None

    def check(self, block: Any, ids: Ids, genes: Ids) -> None:
        """Check a block of rows.

        Args:
            block: Dense [k, G] or CSR, float.
            ids: The rows' ids, [k].
            genes: The columns' names, [G].

        Raises:
            PrimaBenchError: Naming the first few rows, and what was seen.
        """
        values = block if isinstance(block, np.ndarray) else block.data
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            self._refuse_cells(
                block, ids, genes, ~np.isfinite(values), "NaN or infinite values", "Every value must be finite."
            )
        if low < 0:
            self._refuse_cells(
                block, ids, genes, values < 0, "negative values",
                f"{self._declared}, which has none; clip or transform the values if they are differences or residuals.",
            )  # fmt: skip
        if self._scale == "counts":
            if high >= EXACT:
                self._refuse_cells(
                    block, ids, genes, values >= EXACT, f"counts of 2^53 and more (up to {high:.4g})",
                    "No cell has so many; whole numbers that large cannot even be told from their neighbours.",
                )  # fmt: skip
            if not _all_whole(values):
                self._refuse_cells(
                    block, ids, genes, values != np.rint(values), f"fractions (values up to {high:.4g})",
                    f"{self._declared}: non-negative whole numbers. These look log-normalised or averaged. {_DRAW}"
                    + (" Or declare the scale that solution and predictions are on." if self._free else ""),
                )  # fmt: skip
        else:
            self._check_log(block, ids)

    def _check_log(self, block: Any, ids: Ids) -> None:
        whole = _whole_rows(block)
        if len(whole):
            seen = _rows(block, whole).max()
            raise self._error(
                f"{self._what}: only whole numbers (up to {seen:.4g}) in {counted(len(whole), 'row')}: "
                f"{first_few(ids[whole])}",
                hint=f"{self._declared}; these look like counts, or like rounded logarithms. Do not round; to counts "
                "apply log1p(1e4 * x / row total)" + (", or declare scale='counts'." if self._free else "."),
            )
        totals = _undone_totals(block)
        above = np.flatnonzero(~(totals <= self._limit))
        if len(above):
            raise self._error(
                f"{self._what}: more than 10,000 counts, up to {totals.max():.4g}, once the logarithm is undone, in "
                f"{counted(len(above), 'row')}: {first_few(ids[above])}",
                hint=f"{self._declared}: sum(expm1(row)) is at most 1e4. These look normalised to another total, or "
                "not logarithmic.",
            )

    def _refuse_cells(self, block: Any, ids: Ids, genes: Ids, bad: npt.NDArray[np.bool_], seen: str, hint: str) -> None:
        if isinstance(block, np.ndarray):
            rows, columns = np.nonzero(bad)
            first = block[rows[0], columns[0]]
        else:
            where = np.flatnonzero(bad)
            rows, columns = np.searchsorted(block.indptr, where, side="right") - 1, block.indices[where]
            first = block.data[where[0]]
        distinct = np.unique(rows)
        raise self._error(
            f"{self._what}: {seen} in {counted(len(distinct), 'row')}: {first_few(ids[distinct])} "
            f"(first: {first:.6g} for gene {str(genes[columns[0]])!r})",
            hint=hint,
        )


def _whole_rows(block: Any) -> npt.NDArray[np.int64]:
    """Rows that hold counts: many values other than 0, all of them whole."""
    dense = isinstance(block, np.ndarray)
    top = block.max(axis=1) if dense else _reduce_rows(np.maximum, block.indptr, block.data)
    rows: npt.NDArray[np.int64] = np.flatnonzero((top > 0) & (top == np.rint(top)))
    if not len(rows):
        return rows
    part = block[rows]
    if dense:
        whole, stored = (part == np.rint(part)).all(axis=1), np.count_nonzero(part, axis=1)
    else:
        whole = _reduce_rows(np.minimum, part.indptr, (part.data == np.rint(part.data)).astype(np.float64)) > 0
        stored = np.diff(part.indptr)
    counts: npt.NDArray[np.int64] = rows[whole & (stored >= _TELLING)]
    return counts


def _all_whole(values: npt.NDArray[Any]) -> bool:
    # In pieces that stay in the processor's cache: much faster, and next to no memory.
    flat = values.reshape(-1)
    pieces = (flat[i : i + _PIECE] for i in range(0, flat.size, _PIECE))
    return all(bool((piece == np.rint(piece)).all()) for piece in pieces)


def _rows(block: Any, rows: Any) -> npt.NDArray[Any]:
    part = block[rows]
    return np.asarray(part if isinstance(block, np.ndarray) else part.data)


def _undone_totals(block: Any) -> npt.NDArray[np.float64]:
    """Sum of expm1 over each row, [k]; exp and a count, which is much faster than expm1 and exact enough here."""
    with np.errstate(over="ignore"):
        if isinstance(block, np.ndarray):
            return np.asarray(np.exp(block).sum(axis=1, dtype=np.float64) - block.shape[1])
        return _reduce_rows(np.add, block.indptr, np.exp(block.data) - 1)


def _reduce_rows(reduce: np.ufunc, indptr: Any, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    out = np.zeros(len(indptr) - 1)
    filled = np.flatnonzero(np.diff(indptr))
    if len(filled):
        out[filled] = reduce.reduceat(values, indptr[filled])
    return out
