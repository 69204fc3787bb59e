"""Predicted or true labels, or class scores, in whatever form they come, as one plain table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anndata
import numpy as np
import pandas as pd
import torch

from prima_bench.tasks.errors import PredictionError, PrimaBenchError, counted, first_few
from prima_bench.tasks.inputs.columns import as_column, in_row_order, kind_of, one_column
from prima_bench.tasks.inputs.files import Arrays
from prima_bench.tasks.inputs.ids import Ids, as_ids
from prima_bench.tasks.inputs.masks import refuse_masked
from prima_bench.tasks.inputs.matrix import Matrix, expression_of, open_matrix

_LISTS = (list, tuple, pd.Series, pd.Index, pd.api.extensions.ExtensionArray, np.ndarray, torch.Tensor)
_HINT = "Give an AnnData, a DataFrame, a Series or list of labels, an array or tensor of class scores, or a path."


@dataclass(frozen=True, slots=True)
class LabelTable:
    """Rows of labels, or of class scores.

    Attributes:
        ids: Names of the rows, [n].
        labels: Labels, meant to be strings; None when there are none. Beside scores they must agree with them.
        scores: Class scores, [n, classes], not read yet; None when there are none.
        columns: The classes' names in the order of the scores; None when they have none.
    """

    ids: Ids
    labels: Any = None
    scores: Matrix | None = None
    columns: Any = None


def read_labels(
    x: Any,
    *,
    ids: Any = None,
    columns: Sequence[str],
    classes: Sequence[str] = (),
    error: type[PrimaBenchError] = PredictionError,
) -> LabelTable:
    """Take labels or class scores from any accepted form.

    Args:
        x: An AnnData with ``obs[column]``, or ``obsm[column + "_scores"]`` (a DataFrame, or an array whose columns
            ``uns["classes"]`` names), or scores as ``X`` with classes as ``var_names``; a DataFrame with such a
            column, with scores under class names, or with both; a Series or list of labels; strings [n] or
            floating-point scores [n, classes] with ``ids``; or the arrays ``labels`` or ``scores`` (and ``classes``)
            with ``ids`` of an ``.npz`` file.
        ids: Names of the rows, in place of those that ``x`` carries. A Series is matched by its index.
        columns: Names under which labels may stand, the first preferred.
        classes: The known classes; tells scores from other numbers.
        error: What to raise.

    Raises:
        PrimaBenchError: If it is nothing of that kind, has no rows, or its parts differ in length.
    """
    names: Any = None
    if isinstance(x, anndata.AnnData):
        names, parts = x.obs_names, _from_anndata(x, columns, classes, error)
    elif isinstance(x, pd.DataFrame):
        names, parts = x.index, _from_frame(x, columns, classes, error)
    elif isinstance(x, Arrays):
        names, parts = x.get("ids"), _from_arrays(x, error)
    else:
        names, parts = getattr(x, "index", None) if isinstance(x, pd.Series) else None, _from_values(x, error)
    if ids is None and names is None:
        raise error("rows without names cannot be aligned", hint="Pass ids=, one name for each row.")
    given = names if ids is None else in_row_order(ids, [names], "ids", error)
    table = LabelTable(as_ids(given, error=error), **parts)
    for part in (table.labels, table.scores):
        n = None if part is None else part.shape[0] if isinstance(part, Matrix) else len(part)
        if n is not None and n != len(table.ids):
            raise error(f"{counted(len(table.ids), 'id')} for {counted(n, 'row')}", hint="Give one id for each row.")
    if not len(table.ids):
        raise error("there are no rows", hint="Leave out empty shards.")
    return table


def _from_anndata(
    x: anndata.AnnData, columns: Sequence[str], classes: Sequence[str], error: type[PrimaBenchError]
) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    named: Any
    label = _one_of([c for c in columns if c in x.obs], lambda c: one_column(x.obs, c, error), "obs[{!r}]", error)
    if label is not None:
        parts["labels"] = label[1]
    tables = [f"{c}_scores" for c in columns if f"{c}_scores" in x.obsm]
    score = _one_of(tables, lambda c: x.obsm[c], "obsm[{!r}]", error)
    if score is not None:
        name, values = score
        if isinstance(values, pd.DataFrame):
            named = values.columns
        elif "classes" in x.uns:
            named = as_ids(x.uns["classes"], what='uns["classes"]', error=error)
        else:
            raise error(
                f"the columns of obsm[{name!r}] have no names",
                hint='Make it a DataFrame whose columns are the classes, or name them in uns["classes"].',
            )
        parts |= {"scores": open_matrix(values, error=error), "columns": named}
    if not parts and set(map(str, x.var_names)) & set(classes):
        values = expression_of(x, error)
        parts = {} if values is None else {"scores": open_matrix(values, error=error), "columns": x.var_names}
    if not parts:
        wanted = " or ".join([*(f"obs[{c!r}]" for c in columns), *(f"obsm[{c + '_scores'!r}]" for c in columns)])
        raise error("the AnnData has neither labels nor class scores", hint=f"Put them into {wanted}.")
    return parts


def _from_frame(
    x: pd.DataFrame, columns: Sequence[str], classes: Sequence[str], error: type[PrimaBenchError]
) -> dict[str, Any]:
    given = [c for c in columns if c in x.columns]
    label = _one_of(given, lambda c: one_column(x, c, error), "the column {!r}", error)
    parts: dict[str, Any] = {} if label is None else {"labels": label[1]}
    rest = x.drop(columns=given) if given else x
    if set(map(str, rest.columns)) & set(classes):
        parts |= {"scores": open_matrix(rest, error=error), "columns": rest.columns}
    if parts:
        return parts
    hint = f"Name the column of labels {columns[0]!r}, or give one column of scores for each class"
    if not len(x.columns):
        raise error(
            "the table has no columns beside the names of its rows", hint=f"{hint}, after the column of row names."
        )
    raise error(
        f"the table has neither a label column nor class scores; its columns are {first_few(x.columns)}",
        hint=f"{hint}, named {first_few(classes, 3)}." if classes else f"{hint}.",
    )


def _one_of(
    given: Sequence[str], column: Callable[[str], Any], where: str, error: type[PrimaBenchError]
) -> tuple[str, Any] | None:
    """The one name under which predictions stand, with what stands there; of two that hold the same, the first."""
    held = [column(name) for name in given]
    for name, values in zip(given[1:], held[1:], strict=True):
        if not _same(held[0], values):
            both = " and ".join(where.format(n) for n in (given[0], name))
            raise error(
                f"the predictions hold {both}, which disagree",
                hint=f"Drop the one that holds no predictions, or rename it: either {given[0]!r} or {name!r} is read.",
            )
    return (given[0], held[0]) if given else None


def _same(a: Any, b: Any) -> bool:
    first, other = np.asarray(a, dtype=object), np.asarray(b, dtype=object)
    if first.shape != other.shape:
        return False
    try:
        return bool(((first == other) | (pd.isna(first) & pd.isna(other))).all())
    except ValueError:  # values that are themselves arrays, and so no labels
        return False


def _from_arrays(x: Arrays, error: type[PrimaBenchError]) -> dict[str, Any]:
    if ("labels" in x) == ("scores" in x) or set(x) - {"ids", "labels", "scores", "classes"}:
        raise error(
            f"the npz file holds {first_few(sorted(x))}",
            hint="It must hold ids, and either labels, or scores (with classes, the names of their columns).",
        )
    parts = _from_values(x["labels"] if "labels" in x else x["scores"], error)
    if ("scores" in x) != ("scores" in parts):
        raise error(
            "the npz file's scores must be numbers of shape [n, classes], its labels strings of shape [n]",
            hint="Save them with numpy.savez(path, ids=..., labels=...) or (path, ids=..., scores=..., classes=...).",
        )
    named = as_ids(x["classes"], what="classes", error=error) if "classes" in x and "scores" in parts else None
    return parts if named is None else parts | {"columns": named}


def _from_values(x: Any, error: type[PrimaBenchError]) -> dict[str, Any]:
    """A floating-point matrix is scores, a list is labels, which must turn out to be strings; the rest is nothing."""
    refuse_masked(x, "predictions", error)
    if isinstance(x, list | tuple) and any(isinstance(row, list | tuple | np.ndarray | torch.Tensor) for row in x):
        try:
            x = np.asarray(x)
        except (ValueError, TypeError, RuntimeError) as cause:
            raise error("the rows of predictions make no matrix: they differ in length or kind", hint=_HINT) from cause
    if not isinstance(x, _LISTS):
        raise error(f"predictions of type {kind_of(x)} cannot be read", hint=_HINT)
    if not isinstance(x, torch.Tensor | np.ndarray) or x.ndim == 1:
        return {"labels": as_column(x, "predictions", error)}
    if x.ndim == 2 and (x.is_floating_point() if isinstance(x, torch.Tensor) else x.dtype.kind == "f"):
        return {"scores": open_matrix(x, error=error)}
    raise error(
        f"predictions of dtype {x.dtype} and shape {tuple(x.shape)} are neither labels nor class scores",
        hint="Give labels as strings [n], or floating-point class scores [n, classes].",
    )
