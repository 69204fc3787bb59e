"""The kernel's errors as a user reads them: with names in the place of row ids and codes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from prima_bench.metrics.errors import (
    ConflictingRowsError,
    LostRankError,
    MetricError,
    ProfileError,
    ReferenceDataError,
    SyncError,
)
from prima_bench.tasks.errors import DataError, PredictionError, UsageError, first_few, raised_as

if TYPE_CHECKING:
    from prima_bench.tasks.inputs.ledger import Ledger
    from prima_bench.tasks.problems.base import Problem


@contextmanager
def named_errors(problem: "Problem", ledger: "Ledger") -> Iterator[None]:
    """Turn the kernel's errors into the tree of errors of the tasks.

    Args:
        problem: Knows the names of codes, and of rows where the solution names them.
        ledger: Knows the names of rows where predictions do.

    Raises:
        DataError: If the solution cannot be scored against.
        PredictionError: If the predictions cannot be scored.
        UsageError: If the device runs out of memory.
    """
    try:
        with raised_as(DataError, ReferenceDataError):
            yield
    except LostRankError as error:
        raise PredictionError(error.message, hint=error.hint) from error
    except SyncError as error:
        raise PredictionError(
            error.message,
            hint="Every rank must build its Evaluation from the same task, data and metrics, and all must hand in "
            "predictions of one form.",
        ) from error
    except ConflictingRowsError as error:
        names = problem.names_of(error.rows) or ledger.names_of(error.rows)
        raise PredictionError(
            f"rows came more than once with different content: {first_few(names)}", hint=problem.identity_hint
        ) from error
    except ProfileError as error:
        labels = [problem.labels[code] for code in error.groups]
        raise PredictionError(
            f"predicted expression is too large to be scored: perturbation {first_few(labels)}",
            hint="Predict values on the scale of the solution.",
        ) from error
    except MetricError as error:
        raise PredictionError(error.message, hint=error.hint) from error
    except torch.OutOfMemoryError as error:
        raise UsageError(
            "the GPU has too little free memory to score these predictions",
            hint="Free some of it, or pass device='cpu'. Nothing that was handed in is lost.",
        ) from error
