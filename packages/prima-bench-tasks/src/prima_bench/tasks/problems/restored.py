"""Rows that come out of a file, held against the solution: what no update could have brought is refused.

Codes and ids must name something of the solution, and what the solution knows of a row must be what it says there.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from prima_bench.metrics.base import SparseRows
from prima_bench.tasks.errors import DataError
from prima_bench.tasks.problems.classification import ABSTAINED, ClassificationProblem
from prima_bench.tasks.problems.perturbation import PerturbationProblem

Int64 = npt.NDArray[np.int64]


def check_restored(problem: Any, index: Tensor, fields: Mapping[str, Tensor | SparseRows]) -> None:
    """Refuse rows that do not belong to a problem.

    Args:
        problem: The opened solution.
        index: Their ids, int64 [n].
        fields: Their fields.

    Raises:
        DataError: Naming what is wrong.
    """
    if isinstance(problem, ClassificationProblem):
        _check_labels(problem, index, fields)
    elif isinstance(problem, PerturbationProblem):
        _check_cells(problem, index, fields)


def _check_labels(problem: ClassificationProblem, index: Tensor, fields: Mapping[str, Tensor | SparseRows]) -> None:
    rows = _codes(index, len(index), 0, len(problem._rows), "rows")
    target = _codes(fields.get("target"), len(index), 0, len(problem.classes), "classes")
    if (problem._target[rows] != target).any():
        raise _impossible("true labels other than the solution's")
    if (score := fields.get("score")) is not None:
        if len(score.shape) != 2 or score.shape[1] != len(problem.classes):
            raise _impossible(f"scores of other than {len(problem.classes)} classes")
    else:
        _codes(fields.get("label"), len(index), ABSTAINED, len(problem.classes), "classes")


def _check_cells(problem: PerturbationProblem, index: Tensor, fields: Mapping[str, Tensor | SparseRows]) -> None:
    solution = problem._solution
    x = fields.get("x")
    if x is None or len(x.shape) != 2 or x.shape[1] != len(solution.genes):
        raise _impossible(f"expression of other than {len(solution.genes)} genes")
    group = _codes(fields.get("group"), len(index), 0, len(problem.labels), "perturbations")
    context = np.zeros(len(group), dtype=np.int64)
    if solution.contexts:
        context = _codes(fields.get("context"), len(index), 0, len(solution.contexts), "contexts")
    if solution.rows is not None:
        rows = _codes(index, len(index), 0, len(solution.rows), "cells")
        if (solution.group[rows] != group).any() or (solution.context[rows] != context).any():
            raise _impossible("cells under another perturbation than in the solution")
        return
    there = np.zeros((max(1, len(solution.contexts)), len(problem.labels)), dtype=bool)
    there[:, 0] = True
    there[:, 1:].flat[problem.unit_codes] = True
    if not there[context, group].all():
        raise _impossible("perturbations that the solution does not have in their context")


def _codes(values: Any, n: int, low: int, high: int, what: str) -> Int64:
    """Integers of which each names something.

    Raises:
        DataError: If there are none, not ``n``, or some lie outside ``low`` to ``high - 1``.
    """
    if not isinstance(values, Tensor) or values.dim() != 1 or len(values) != n or values.is_floating_point():
        raise _impossible(f"no {what}")
    array: Int64 = values.numpy().astype(np.int64)
    if ((array < low) | (array >= high)).any():
        raise _impossible(f"{what} that the solution does not have")
    return array


def _impossible(what: str) -> DataError:
    """The error about rows that no update could have brought."""
    return DataError(f"its rows hold {what}", hint="The file is forged, or was written by another release.")
