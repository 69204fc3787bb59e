"""What an evaluation asks of a family of tasks, and which families there are.

A problem is one opened solution. It turns predictions into rows for the kernel's panel and says what must be there; it
computes no score.
"""

import hashlib
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, RowMatrix, SparseRows
from prima_bench.metrics.catalog import load_metric
from prima_bench.metrics.errors import MetricError
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.spec import MetricRef
from prima_bench.tasks.errors import UsageError, nearest_names
from prima_bench.tasks.inputs.ledger import Rows
from prima_bench.tasks.inputs.text import is_text
from prima_bench.tasks.specs import DatasetSpec, TaskSpec

if TYPE_CHECKING:
    from prima_bench.metrics.base import BufferedMetric

Chunk = tuple[Tensor, dict[str, Tensor | SparseRows]]
"""Row ids, int64 [k], and the kernel's fields of those rows; owned by nobody else."""

_HOMES = {
    "classification": "prima_bench.tasks.problems.classification:ClassificationProblem",
    "perturbation": "prima_bench.tasks.problems.perturbation:PerturbationProblem",
}


@dataclass(frozen=True, slots=True)
class Encoded:
    """Predictions on their way to the panel, parsed, checked and aligned as they are taken.

    Attributes:
        form: What kind of prediction they are (``"labels"``, ``"scores"``, ``"cells"``).
        chunks: What the panel takes, to be gone through once, while the predictions are open.
        rows: Gives their names, row ids and content digests, once all chunks were taken.
        ignored: Whether some rows are left out, because rows of their kind are not scored.
    """

    form: str
    chunks: Iterable[Chunk]
    rows: Callable[[], Rows]
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much was predicted.

    Attributes:
        n_rows: Distinct rows that are scored.
        n_units: Units that they cover.
        coverage: Share of what had to be predicted that was.
    """

    n_rows: int
    n_units: int
    coverage: float


@dataclass(frozen=True, slots=True)
class Source:
    """Where a solution comes from.

    Attributes:
        data: A path, an AnnData, or a table.
        options: How to read it.
        dataset: The registered dataset it belongs to; None for a user's own data.
    """

    data: Any
    options: Mapping[str, Any]
    dataset: DatasetSpec | None

    @property
    def key(self) -> str | None:
        """``name@version`` of the registered dataset."""
        return None if self.dataset is None else self.dataset.key


class Problem(Protocol):
    """One opened solution.

    Attributes:
        labels: The names of the kernel's codes.
        unit_kind: What a unit is (``"perturbation"``, ``"class"``); two levels are parted by ``UNIT_LEVELS``.
        unit_ids: The units' names.
        unit_codes: Each unit's position in ``Score.units``.
        unit_n_obs: The solution's rows of each unit.
        solution_digest: ``sha256:...`` of what is scored against.
        flags: What a reader must know before trusting a score, whatever the predictions.
        ignored: What rows are that are not scored (``"control cells"``); empty where all rows are.
        identity_hint: How to mend one name with two contents.
    """

    labels: list[str]
    unit_kind: str
    unit_ids: list[str]
    unit_codes: list[int]
    unit_n_obs: list[int]
    solution_digest: str
    flags: list[str]
    ignored: str
    identity_hint: str

    def panel(self, refs: Sequence[MetricRef]) -> Panel:
        """The metrics of an evaluation over one buffer."""

    def encode(self, predictions: Any, ids: Any, labels: Any, contexts: Any) -> AbstractContextManager[Encoded]:
        """Open predictions; they are parsed, checked and aligned as their chunks are taken. Raises PredictionError."""

    def check_rows(self, index: Tensor, fields: Mapping[str, Tensor | SparseRows]) -> None:
        """Refuse rows out of a file that no update could have brought. Raises DataError."""

    def check_complete(self, batch: Batch) -> Coverage:
        """Raise PredictionError unless everything that had to be predicted was."""

    def flags_of(self, batch: Batch) -> list[str]:
        """What a reader must know of these predictions before trusting a score."""

    def fingerprint(self, batch: Batch) -> str:
        """``sha256:...`` over the rows of a batch."""

    def names_of(self, index: Sequence[int]) -> list[str] | None:
        """The names of rows by row id; None where only the ledger knows them."""


@runtime_checkable
class Detailed(Protocol):
    """A problem that offers tables about predictions, each a method of what ``detail`` returns."""

    def detail(self, batch: Batch) -> Any:
        """The tables about the rows of a batch."""


def open_problem(task: TaskSpec, source: Source, device: torch.device) -> Problem:
    """Open a solution for a task's family of problems.

    Raises:
        UsageError: If the family is unknown, or options are missing, unknown or wrong.
        DataError: If the solution cannot be read or used.
    """
    if task.problem not in _HOMES:
        raise UsageError(
            f"task {task.name} has an unknown problem {task.problem!r}", hint=f"Known: {', '.join(_HOMES)}."
        )
    module, _, name = _HOMES[task.problem].partition(":")
    problem: Problem = getattr(importlib.import_module(module), name)(task, source, device)
    return problem


def build_metrics(refs: Sequence[MetricRef], arguments: Mapping[str, Any]) -> "dict[str, BufferedMetric]":
    """The referenced metrics, by the text of their reference.

    Args:
        refs: The metrics, each with its parameters.
        arguments: What every metric of the family is built from, beside its own parameters.

    Raises:
        UsageError: If parameters contradict each other or the data.
    """
    built = {}
    for ref in refs:
        try:
            built[str(ref)] = load_metric(ref.name)(**arguments, **ref.params)
        except MetricError as error:
            # Whoever chose a preset has not seen its parameters.
            raise UsageError(f"metric {ref}: {error.args[0]}", hint=error.hint) from error
    return built


def take_options(options: Mapping[str, Any], required: Iterable[str], optional: Iterable[str]) -> dict[str, Any]:
    """The options by name, None where an optional one is left out.

    Raises:
        UsageError: If one is unknown, or a required one is missing.
    """
    known = [*required, *optional]
    for name in options:
        if name not in known:
            near = ", ".join(nearest_names(name, known))
            raise UsageError(f"unknown option {name!r}", hint=f"Nearest: {near}. All: {', '.join(known)}.")
    if missing := [name for name in required if options.get(name) is None]:
        raise UsageError(
            f"{' and '.join(f'{name}=' for name in missing)} must be given with your own data",
            hint="Nothing about a solution is guessed; say which column, label or scale it is.",
        )
    return {name: options.get(name) for name in known}


def as_text(name: str, value: object) -> str:
    """An option that names a column or a label.

    Raises:
        UsageError: If it is no string, or no text.
    """
    if not isinstance(value, str) or not is_text(value):
        raise UsageError(f"{name}={value!r} is no name", hint="Give a string, as it stands in the solution.")
    return value


def fingerprint_of(batch: Batch, fields: Sequence[str], read_as: str = "") -> str:
    """``sha256:...`` over the ids and the given fields of all rows, the same whatever their layout, dtype or order.

    Args:
        batch: The rows.
        fields: Which fields; those that were not given are skipped.
        read_as: How the fields are to be read, where that is declared and changes what they mean.
    """
    total = hashlib.sha256(_bytes(batch.index))
    for name in fields:
        if name not in batch:
            continue
        values = batch[name]
        total.update(f"|{name}|".encode())
        if isinstance(values, RowMatrix):
            for part in values.canonical_blocks():
                for piece in part:
                    total.update(_bytes(piece))
        else:
            total.update(_bytes(values.double() if values.is_floating_point() else values))
    if read_as:
        total.update(f"|{read_as}|".encode())
    return f"sha256:{total.hexdigest()}"


def _bytes(values: Tensor) -> Any:
    array = values.detach().cpu().contiguous().numpy()
    return memoryview(array.astype(array.dtype.newbyteorder("<"), copy=False)).cast("B") if array.size else b""
