"""Predicted or true labels, or class scores, in whatever form they come, as one plain table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anndata
import numpy as np
import pandas as pd
import torch

from prima_bench.tasks.errors import PredictionError, PrimaBenchError, counted, first_few
from prima_bench.tasks.inputs.files import Arrays
from prima_bench.tasks.inputs.ids import Ids, as_ids
from prima_bench.tasks.inputs.masks import refuse_masked
from prima_bench.tasks.inputs.matrix import Matrix, open_matrix


@dataclass(frozen=True, slots=True)
class LabelTable:
    """Rows of labels, of class codes, or of class scores.

    Attributes:
        ids: Names of the rows, [n].
        labels: Labels as strings; None when there are none. Beside scores they must agree with them.
        codes: Class codes, integer [n]; None when labels are given. Beside scores they must agree with them.
        scores: Class scores, [n, classes], not read yet; None when there are none.
        columns: The classes' names in the order of the scores; None when they have none.
    """

    ids: Ids
    labels: Any = None
    codes: Any = None
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
            column, with scores under class names, or with both; a Series or list of labels; strings [n], integer
            codes [n] or scores [n, classes] with ``ids``; or the arrays ``labels`` or ``scores`` (and ``classes``)
            with ``ids`` of an ``.npz`` file.
        ids: Names of the rows, in place of those that ``x`` carries.
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
    table = LabelTable(as_ids(names if ids is None else ids, error=error), **parts)
    for part in (table.labels, table.codes, table.scores):
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
    label = _one_of([c for c in columns if c in x.obs], x.obs, "obs[{!r}]", error)
    if label is not None:
        parts["labels"] = x.obs[label]
    score = _one_of([f"{c}_scores" for c in columns if f"{c}_scores" in x.obsm], x.obsm, "obsm[{!r}]", error)
    if score is not None:
        values = x.obsm[score]
        if isinstance(values, pd.DataFrame):
            named = values.columns
        elif "classes" in x.uns:
            named = as_ids(x.uns["classes"], error=error)
        else:
            raise error(
                f"the columns of obsm[{score!r}] have no names",
                hint='Make it a DataFrame whose columns are the classes, or name them in uns["classes"].',
            )
        parts |= {"scores": open_matrix(values, error=error), "columns": named}
    if not parts and x.X is not None and set(map(str, x.var_names)) & set(classes):
        parts = {"scores": open_matrix(x.X, error=error), "columns": x.var_names}
    if not parts:
        wanted = " or ".join([*(f"obs[{c!r}]" for c in columns), *(f"obsm[{c + '_scores'!r}]" for c in columns)])
        raise error("the AnnData has neither labels nor class scores", hint=f"Put them into {wanted}.")
    return parts


def _from_frame(
    x: pd.DataFrame, columns: Sequence[str], classes: Sequence[str], error: type[PrimaBenchError]
) -> dict[str, Any]:
    given = [c for c in columns if c in x.columns]
    label = _one_of(given, x, "the column {!r}", error)
    parts: dict[str, Any] = {} if label is None else _from_values(x[label], error)
    rest = x.drop(columns=given) if given else x
    if set(map(str, rest.columns)) & set(classes):
        parts |= {"scores": open_matrix(rest, error=error), "columns": rest.columns}
    if parts:
        return parts
    raise error(
        f"the table has neither a label column nor class scores; its columns are {first_few(x.columns)}",
        hint=f"Name the column of labels {columns[0]!r}, or give one column of scores for each class.",
    )


def _one_of(given: Sequence[str], table: Any, where: str, error: type[PrimaBenchError]) -> str | None:
    """The one name under which predictions stand; of two that hold the same, the first."""
    for name in given[1:]:
        first, other = (np.asarray(table[n], dtype=object) for n in (given[0], name))
        same = first.shape == other.shape and ((first == other) | (pd.isna(first) & pd.isna(other))).all()
        if not same:
            both = " and ".join(where.format(n) for n in (given[0], name))
            raise error(
                f"the predictions hold {both}, which disagree",
                hint=f"Drop the one that holds no predictions, or rename it: either {given[0]!r} or {name!r} is read.",
            )
    return given[0] if given else None


def _from_arrays(x: Arrays, error: type[PrimaBenchError]) -> dict[str, Any]:
    if ("labels" in x) == ("scores" in x) or set(x) - {"ids", "labels", "scores", "classes"}:
        raise error(
            f"the npz file holds {first_few(sorted(x))}",
            hint="It must hold ids, and either labels, or scores (with classes, the names of their columns).",
        )
    parts = _from_values(x["labels"] if "labels" in x else x["scores"], error)
    if ("scores" in x) != ("scores" in parts):
        raise error("the npz file's scores must be [n, classes], its labels [n]")
    return parts | ({"columns": as_ids(x["classes"], error=error)} if "classes" in x and "scores" in parts else {})


def _from_values(x: Any, error: type[PrimaBenchError]) -> dict[str, Any]:
    """Strings are labels, integers are class codes, a floating-point matrix is scores; nothing else is anything."""
    refuse_masked(x, "predictions", error)
    if isinstance(x, torch.Tensor):
        if x.is_floating_point() and x.ndim == 2:
            return {"scores": open_matrix(x, error=error)}
        x = x.detach().cpu().numpy() if x.dtype != torch.bfloat16 else x.detach().float().cpu().numpy()
    arrays = pd.Series | pd.Index | pd.api.extensions.ExtensionArray | np.ndarray
    values: Any = x if isinstance(x, arrays) else _as_array(x, error)
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(dtype) or dtype.kind in "OUT":
        if np.ndim(values) == 1:
            return {"labels": values if isinstance(values, pd.Series) else pd.Series(values)}
    elif pd.api.types.is_integer_dtype(dtype) and np.ndim(values) == 1:
        if pd.isna(values).any():
            raise error(f"class codes are missing at rows {first_few(np.flatnonzero(pd.isna(values)))}")
        codes = np.array(values, dtype=np.uint64 if np.dtype(dtype.name.lower()).kind == "u" else np.int64)
        return {"codes": codes}
    elif pd.api.types.is_float_dtype(dtype) and np.ndim(values) == 2:
        return {"scores": open_matrix(np.asarray(values), error=error)}
    raise error(
        f"values of dtype {dtype} and shape {np.shape(values)} are neither labels nor class scores",
        hint="Give strings [n], integer class codes [n], or floating-point class scores [n, classes].",
    )


def _as_array(x: Any, error: type[PrimaBenchError]) -> Any:
    if isinstance(x, list | tuple):
        return np.asarray(x, dtype=object) if any(isinstance(v, str) or v is None for v in x) else np.asarray(x)
    raise error(
        f"labels of type {type(x).__module__}.{type(x).__name__} cannot be read",
        hint="Give an AnnData, DataFrame, Series, tensor, array, list or path.",
    )
