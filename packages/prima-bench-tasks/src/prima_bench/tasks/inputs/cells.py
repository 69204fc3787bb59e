"""Predicted or real cells with their expression, in whatever form they come, as one plain table."""

from dataclasses import dataclass
from typing import Any

import anndata
import numpy as np
import pandas as pd

from prima_bench.tasks.errors import PredictionError, PrimaBenchError, counted, first_few
from prima_bench.tasks.inputs.columns import in_row_order, one_column
from prima_bench.tasks.inputs.files import Arrays
from prima_bench.tasks.inputs.ids import Ids, as_ids
from prima_bench.tasks.inputs.matrix import Matrix, expression_of, open_matrix


@dataclass(frozen=True, slots=True)
class CellTable:
    """Rows of expression.

    Attributes:
        ids: Names of the cells, [n].
        genes: Names of the columns; None when they have none.
        labels: The perturbation of each cell; None when it is not given.
        matrix: Expression, [n, genes], not read yet.
        contexts: The context (cell type, donor) of each cell; None when it is not given.
    """

    ids: Ids
    genes: Any
    labels: Any
    matrix: Matrix
    contexts: Any = None


def read_cells(
    x: Any,
    *,
    ids: Any = None,
    labels: Any = None,
    contexts: Any = None,
    label_key: str,
    context_key: str | None = None,
    error: type[PrimaBenchError] = PredictionError,
) -> CellTable:
    """Take cells from any accepted form.

    Args:
        x: An AnnData (``X``, ``obs_names``, ``var_names``, ``obs[label_key]``); a DataFrame (index, columns, and the
            label column if it has one); a tensor, array or sparse matrix with ``ids``; or the arrays ``x``, ``ids``,
            ``genes``, ``perturbation``, ``context`` of an ``.npz`` file.
        ids: Names of the cells, in place of those that ``x`` carries. A Series is matched by its index.
        labels: Perturbation of each cell, in place of the column. A Series is matched by its index.
        contexts: Context of each cell, in place of the column. A Series is matched by its index.
        label_key: Name of the column that holds labels.
        context_key: Name of the column that holds contexts; None where none is wanted.
        error: What to raise.

    Raises:
        PrimaBenchError: If it is nothing of that kind, has no rows, or its parts differ in length.
    """
    names: Any = None
    genes: Any = None
    own_labels: Any = None
    own_contexts: Any = None
    if isinstance(x, anndata.AnnData):
        names, genes = x.obs_names, x.var_names
        own_labels = one_column(x.obs, label_key, error) if label_key in x.obs else None
        own_contexts = one_column(x.obs, context_key, error) if context_key and context_key in x.obs else None
        cells, x = x, expression_of(x, error)
        if x is None:
            raise error("the AnnData has no X", hint=_no_expression(cells))
    elif isinstance(x, pd.DataFrame):
        own_labels = one_column(x, label_key, error) if label_key in x else None
        own_contexts = one_column(x, context_key, error) if context_key and context_key in x else None
        x = x.drop(columns=[key for key in (label_key, context_key) if key in x])
        names, genes = x.index, x.columns
    elif isinstance(x, Arrays):
        _check_keys(x, ("x", "ids", "genes", "perturbation", "context"), error)
        own_labels, own_contexts = x.get("perturbation"), x.get("context") if context_key else None
        names, genes, x = x.get("ids"), x.get("genes"), x["x"]
    if x is None or isinstance(x, pd.Series | list | dict):
        hint = "Give an AnnData, DataFrame, tensor, array with ids, or path."
        if isinstance(x, list):
            hint += " Several pieces are handed in one after another."
        raise error(f"a {type(x).__name__} holds no cells", hint=hint)
    matrix = open_matrix(x, error=error)
    if ids is None and names is None:
        raise error("rows without names cannot be aligned", hint="Pass ids=, one name for each row, as in obs_names.")
    given = as_ids(names if ids is None else in_row_order(ids, [names], "ids", error), error=error)
    n = matrix.shape[0]
    if len(given) != n:
        raise error(f"{counted(len(given), 'id')} for {counted(n, 'row')}", hint=_fit(matrix.shape, len(given)))
    if genes is not None and np.shape(genes)[:1] != (matrix.shape[1],):
        raise error(
            f"{counted(int(np.size(genes)), 'gene name')} for {counted(matrix.shape[1], 'column')}",
            hint="Give one gene name for each column of the matrix.",
        )
    if n == 0:
        raise error("there are no rows", hint="Leave out empty shards.")
    own_labels = own_labels if labels is None else in_row_order(labels, [names, given], "perturbation labels", error)
    own_contexts = own_contexts if contexts is None else in_row_order(contexts, [names, given], "contexts", error)
    return CellTable(given, genes, own_labels, matrix, own_contexts)


def _no_expression(cells: anndata.AnnData) -> str:
    layers = list(cells.layers)
    return f"Put the expression of the cells into X{f', such as layers[{layers[0]!r}]' if layers else ''}."


def _fit(shape: tuple[int, int], ids: int) -> str:
    turned = " As many columns as ids: the matrix may lie on its side; transpose it." if shape[1] == ids else ""
    return f"Give one id for each row.{turned}"


def _check_keys(arrays: Arrays, allowed: tuple[str, ...], error: type[PrimaBenchError]) -> None:
    if strange := sorted(set(arrays) - set(allowed)):
        raise error(f"the npz file holds {first_few(strange)}", hint=f"It may hold {', '.join(allowed)}.")
    if allowed[0] not in arrays:
        raise error(f"the npz file has no array {allowed[0]!r}", hint=f"It may hold {', '.join(allowed)}.")
