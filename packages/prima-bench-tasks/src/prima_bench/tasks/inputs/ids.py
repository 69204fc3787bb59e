"""Row ids: what names a cell, as strings, matched exactly against the solution's."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from prima_bench.tasks.errors import PredictionError, PrimaBenchError, counted, first_few
from prima_bench.tasks.inputs.columns import as_column
from prima_bench.tasks.inputs.text import refuse_no_text

Ids = npt.NDArray[np.object_]
Positions = npt.NDArray[np.int64]


def as_ids(values: Any, *, what: str = "ids", error: type[PrimaBenchError] = PredictionError) -> Ids:
    """Ids as an array of strings, [n]. Integers are written out; nothing is stripped or folded.

    Args:
        values: A pandas index or series, an array, a tensor or a list of strings or integers.
        what: What they are called in messages, in the plural.
        error: What to raise.

    Raises:
        PrimaBenchError: If an id is missing, is neither a string nor an integer, or is no text.

    Example:
        >>> as_ids([7, 8])
        array(['7', '8'], dtype=object)
    """
    array = np.asarray(as_column(values, what, error), dtype=object)
    missing = np.flatnonzero(pd.isna(array))
    if len(missing):
        raise error(
            f"{what} are missing at {counted(len(missing), 'position')}: {first_few(missing)}",
            hint="None and NaN are no names; give every one.",
        )
    kind = pd.api.types.infer_dtype(array, skipna=False)
    if kind == "integer":
        return np.array([str(int(v)) for v in array], dtype=object)
    if kind == "bytes":
        array = np.array([v.decode("utf-8", errors="replace") for v in array], dtype=object)
    elif kind != "string" and len(array):
        kinds = sorted({type(v).__name__ for v in array} - {"str"})
        raise error(f"{what} must be strings, not of type {', '.join(kinds)}", hint="Spell them as the solution does.")
    refuse_no_text(array, what, error)
    return array


def repeated(ids: Ids) -> list[str]:
    """The ids that occur more than once, in order of appearance."""
    index = pd.Index(ids, dtype=object)
    return [str(v) for v in index[index.duplicated()].unique()]


class RowIndex:
    """The solution's ids, and where each lies.

    Args:
        ids: Distinct ids, [n].
        what: What the rows are called in messages (``"cells"``).
    """

    def __init__(self, ids: Ids, what: str = "cells") -> None:
        self.ids = ids
        self._index = pd.Index(ids, dtype=object)
        self._what = what

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, ids: Ids) -> Positions:
        """The position of every id, int64 [n]; -1 where it is unknown."""
        return np.asarray(self._index.get_indexer(pd.Index(ids, dtype=object)), dtype=np.int64)

    def refuse_unknown(self, ids: Ids, positions: Positions) -> None:
        """Raise when a position is -1.

        Raises:
            PredictionError: Naming the first few unknown ids, and how a known one looks.
        """
        unknown = ids[positions < 0]
        if len(unknown):
            raise PredictionError(
                f"{len(unknown)} of {len(ids)} {self._what} not found in the solution: {first_few(unknown)}",
                hint=f"Use the solution's own names, which look like {str(self.ids[0])!r}; for anything but "
                "AnnData, set the index or pass ids=.",
            )
