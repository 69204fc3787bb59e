"""Labels: cell types and perturbations, compared as exact strings after Unicode NFC and stripping.

Labels that differ only in case, spaces or punctuation are different labels; the error names the near miss and never
merges it.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from prima_bench.tasks.errors import PredictionError, PrimaBenchError, counted, first_few, nearest_names
from prima_bench.tasks.inputs.columns import as_column
from prima_bench.tasks.inputs.ids import Ids
from prima_bench.tasks.inputs.text import refuse_no_text

Codes = npt.NDArray[np.int64]

_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_AS_STRINGS = "Labels are names: write them as strings, alike in solution and predictions, as with column.astype(str)."


def normalise(label: str) -> str:
    """A label as it is compared: NFC, without surrounding white space.

    >>> normalise(" B cell ")
    'B cell'
    """
    return unicodedata.normalize("NFC", label).strip()


def distinct(
    values: Any, ids: Ids, what: str, *, error: type[PrimaBenchError], numbers: str = _AS_STRINGS
) -> tuple[Codes, list[str]]:
    """Factorise a column of labels by its normalised strings.

    Args:
        values: One label per row: a categorical or string column, an array or a list, [n].
        ids: The rows' ids, for messages, [n].
        what: What a label is called in messages (``"cell type"``).
        error: What to raise.
        numbers: How to mend labels that are all numbers.

    Returns:
        For each row the position in the list of distinct labels, and that list in order of appearance.

    Raises:
        PrimaBenchError: If a label is missing, no string, or no text.
    """
    column = as_column(values, f"{what} labels", error)
    if len(column) != len(ids):
        raise error(
            f"{counted(len(column), f'{what} label')} for {counted(len(ids), 'row')}",
            hint="Give one label for each row.",
        )
    raw, uniques = _factorised(column)
    names = [u if isinstance(u, str) else None for u in uniques]
    usable = np.array([n is not None and bool(normalise(n)) for n in names] + [False])
    if not usable[raw].all():
        seen = ", ".join(sorted({(u if isinstance(u, type) else type(u)).__name__ for u in uniques} - {"str"}))
        if uniques and all(isinstance(u, int | float | complex | np.generic) for u in uniques):
            raise error(f"{what} labels are of type {seen}, not names", hint=numbers)
        rows = np.flatnonzero(~usable[raw])
        raise error(
            f"{counted(len(rows), 'row')} without a {what} label{f' (seen: {seen})' if seen else ''}: "
            f"{first_few(ids[rows])}",
            hint=f"Every row needs a {what} as a string; NaN, None and empty strings are no labels.",
        )
    merged: dict[str, int] = {}
    lookup = np.array([merged.setdefault(normalise(str(n)), len(merged)) for n in names], dtype=np.int64)
    refuse_no_text(merged, f"{what} labels", error)
    return (lookup[raw] if len(lookup) else raw.astype(np.int64)), list(merged)


def _factorised(column: Any) -> tuple[npt.NDArray[np.intp], list[Any]]:
    """For each row the position of its value, -1 where there is none; and the distinct values."""
    values = column if isinstance(column, pd.Series | pd.Index) else pd.Series(column, dtype=object)
    try:
        raw, uniques = pd.factorize(values)
    except TypeError:  # some values, such as lists, cannot be hashed: their types stand for those that are no strings
        raw, uniques = pd.factorize(pd.Series([v if isinstance(v, str) else type(v) for v in values], dtype=object))
    return raw, uniques.tolist()


class Vocabulary:
    """The labels that a prediction may use, each with its code.

    Args:
        labels: Normalised, distinct labels; the code of each is its position.
        what: What a label is called in messages (``"cell type"``, ``"perturbation"``).
        special: Codes of further labels, such as one that abstains.
        numbers: How to mend predictions that are numbers.

    Example:
        >>> import numpy as np
        >>> v = Vocabulary(["B cell", "T cell"], "cell type", special={"unknown": -1})
        >>> v.encode(["T cell ", "unknown"], np.array(["c1", "c2"], dtype=object))
        array([ 1, -1])
    """

    def __init__(
        self, labels: Sequence[str], what: str, special: dict[str, int] | None = None, *, numbers: str = _AS_STRINGS
    ) -> None:
        self.labels = list(labels)
        self.what = what
        self._numbers = numbers
        self._codes = {**(special or {}), **{label: code for code, label in enumerate(labels)}}

    def encode(self, values: Any, ids: Ids) -> Codes:
        """The code of every label, int64 [n].

        Raises:
            PredictionError: If a label is missing, or unknown: naming the nearest labels and the first few rows.
        """
        raw, names = distinct(values, ids, self.what, error=PredictionError, numbers=self._numbers)
        unknown = [position for position, name in enumerate(names) if name not in self._codes]
        if unknown:
            raise self._unknown(raw, names, unknown, ids)
        return np.array([self._codes[name] for name in names], dtype=np.int64)[raw]

    def near_miss(self, label: str) -> str | None:
        """The one known label that differs only in case, spaces or punctuation; None when there is none."""
        folded = _fold(label)
        hits = [known for known in self._codes if _fold(known) == folded]
        return hits[0] if len(hits) == 1 else None

    def _unknown(self, raw: Codes, names: list[str], unknown: list[int], ids: Ids) -> PredictionError:
        lines, close = [], []
        for position in unknown[:3]:
            rows = ids[raw == position]
            lines.append(f"{names[position]!r} ({counted(len(rows), 'row')}: {first_few(rows, 3)})")
            near = self.near_miss(names[position])
            if near is not None:
                close.append(f"{names[position]!r} differs from {near!r} only in case, spaces or punctuation")
            else:
                nearest = ", ".join(map(repr, nearest_names(names[position], self._codes)))
                close.append(f"nearest to {names[position]!r}: {nearest}")
        numbers = f" {self._numbers}" if all(_NUMBER.fullmatch(names[p]) for p in unknown) else ""
        more = f" and {counted(len(unknown) - 3, 'more label')}" if len(unknown) > 3 else ""
        return PredictionError(
            f"unknown {self.what} {', '.join(lines)}{more}",
            hint=f"Labels must be spelled as in the solution; {'; '.join(close)}.{numbers}",
        )


def _fold(label: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKC", label).casefold() if c.isalnum())
