"""One value for each row: names, perturbations or labels, in whatever list they come, as one column in the rows' order.

What the values must be is not looked at here; that is the business of ``ids`` and ``vocabulary``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from pandas.api.extensions import ExtensionArray

from prima_bench.tasks.errors import PrimaBenchError, counted, first_few
from prima_bench.tasks.inputs.masks import refuse_masked

_COLUMNS = (pd.Series, pd.Index, ExtensionArray, np.ndarray)
_UNREADABLE = (TypeError, ValueError, RuntimeError, AttributeError, OverflowError)
_HINT = "Give a list, an array or a Series with one value for each row, in the order of the rows."


def as_column(values: Any, what: str, error: type[PrimaBenchError]) -> Any:
    """A list of values as a one-dimensional column, in the order of the list.

    Args:
        values: A list, tuple or range, a numpy array, a tensor, or a pandas Series, Index or array, [n].
        what: What the values are, in the plural (``"ids"``).
        error: What to raise.

    Returns:
        A numpy array, or the pandas object itself, [n].

    Raises:
        PrimaBenchError: If it is nothing of that kind, hides values under a mask, or is not one-dimensional.

    Example:
        >>> as_column(["a", ["b"]], "ids", PrimaBenchError)
        array(['a', list(['b'])], dtype=object)
    """
    refuse_masked(values, what, error)
    column: Any = values
    try:
        if isinstance(values, torch.Tensor):
            x = values.detach().cpu()
            column = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
        elif isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray | memoryview):
            column = np.fromiter(values, dtype=object, count=len(values))
        elif not isinstance(values, (*_COLUMNS, pd.DataFrame)) and hasattr(values, "__array__"):
            column = np.asarray(values)
    except _UNREADABLE as cause:
        raise error(f"{what} of type {kind_of(values)} cannot be read: {cause}", hint=_HINT) from cause
    if not isinstance(column, _COLUMNS):
        raise error(f"{what} cannot be of type {kind_of(values)}", hint=_HINT)
    plain = not isinstance(column, pd.MultiIndex) and getattr(column.dtype, "kind", "O") != "V"
    if column.ndim != 1 or not plain:
        raise error(f"{what} must be one-dimensional, not a {kind_of(values)} of shape {column.shape}", hint=_HINT)
    return column


def one_column(table: Any, name: str, error: type[PrimaBenchError]) -> Any:
    """The column of a data frame with that name.

    Raises:
        PrimaBenchError: If there are several, or columns have names of several levels.
    """
    column = table[name]
    if not isinstance(column, pd.DataFrame):
        return column
    if table.columns.nlevels > 1:
        raise error("the columns have names of several levels", hint="Give every column one name.")
    raise error(f"{column.shape[1]} columns have the name {name!r}", hint="Drop or rename all of them but one.")


def in_row_order(values: Any, rows: Sequence[Any], what: str, error: type[PrimaBenchError]) -> Any:
    """Values for rows that have names: a Series is put into the rows' order by its index, anything else is in order.

    A Series with pandas' default index (0, 1, 2, ...) goes by position.

    Args:
        values: The values; None when there are none.
        rows: Names of the rows, each [n], in the rows' order; None among them is skipped. Without any, the values can
            but go by position.
        what: What the values are, in the plural (``"ids"``).
        error: What to raise.

    Returns:
        ``values``, or its values in the rows' order.

    Raises:
        PrimaBenchError: If a Series' index is neither made of the rows' names nor the default one, names a row more
            than once, or fits in two ways that differ.

    Example:
        >>> in_row_order(pd.Series(["x", "y"], index=["b", "a"]), [["a", "b"]], "ids", PrimaBenchError).tolist()
        ['y', 'x']
    """
    named = [names for names in rows if names is not None]
    if not isinstance(values, pd.Series) or not named:
        return values
    if any(values.index.equals(names) for names in named if isinstance(names, pd.Index)):
        return values
    known = [names for names in map(_as_index, named) if names is not None]
    ways: list[npt.NDArray[np.int64]] = []
    held = _as_index(values.index)
    if held is not None:
        ways += [_positions(held, names, what, error) for names in known if names.isin(held).all()]
    if isinstance(values.index, pd.RangeIndex) and len(values) == len(named[0]):
        ways.append(np.arange(len(values)))
    if not ways:
        raise error(
            f"{what} are a Series whose index is not that of the rows{_first_missing(held, known)}",
            hint="A Series is matched by its index, so that rows and values cannot be mixed up. Give it the names of "
            "the rows as index; or pass its to_numpy() if it already is in the order of the rows.",
        )
    if any(not np.array_equal(way, ways[0]) for way in ways):
        raise error(
            f"{what} are a Series that fits the rows in more than one way, by name and by position",
            hint="Say which is meant: pass series.loc[names].to_numpy(), or its to_numpy() to go by position.",
        )
    return values.iloc[ways[0]]


def _positions(held: pd.Index, names: pd.Index, what: str, error: type[PrimaBenchError]) -> npt.NDArray[np.int64]:
    if held.equals(names):
        return np.arange(len(names))
    if twice := list(held[held.duplicated() & held.isin(names)].unique()):
        raise error(
            f"{what} are a Series whose index names {counted(len(twice), 'row')} more than once: {first_few(twice)}",
            hint="Give one value for each row; or pass its to_numpy() if it already is in the order of the rows.",
        )
    return np.asarray(held.get_indexer(names), dtype=np.int64)


def _first_missing(held: pd.Index | None, known: Sequence[pd.Index]) -> str:
    if held is None or not known:
        return ""
    missing = known[0][~known[0].isin(held)]
    return f": it lacks {first_few(missing, 3)}" if len(missing) else ""


def _as_index(names: Any) -> pd.Index | None:
    """Names as strings, integers written out; None where they are nothing of that kind."""
    if isinstance(names, pd.MultiIndex) or np.ndim(names) != 1:
        return None
    array = np.asarray(names, dtype=object)
    kind = pd.api.types.infer_dtype(array, skipna=False)
    if kind == "integer":
        return pd.Index([str(name) for name in array], dtype=object)
    return pd.Index(array, dtype=object) if kind == "string" or not len(array) else None


def kind_of(values: Any) -> str:
    """The type of a value as users know it.

    >>> kind_of(3), kind_of(np.zeros(2)), kind_of(pd.DataFrame())
    ('int', 'numpy.ndarray', 'pandas.DataFrame')
    """
    kind = type(values)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
