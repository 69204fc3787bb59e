"""What a state says of itself: which question its rows answer, how they lie in the file, and how to open it again."""

from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, ValidationError

from prima_bench.tasks.errors import DataError, IncomparableError
from prima_bench.tasks.inputs.targets import WORDS
from prima_bench.tasks.results.records import Count, DatasetRecord, ModelRecord, Record, TaskRecord
from prima_bench.tasks.states.container import Array, Stack, read_arrays_of, read_head, write_container

FORM = "prima-bench state"
VERSION = 1
SUFFIX = ".pbstate"

OptionValue = str | list[str] | dict[str, str | list[str]]


class MetricRecord(Record):
    """A metric of the panel."""

    ref: str
    version: int
    alias: str | None


class StateRecord(Record):
    """The head of a state.

    Attributes:
        task: The task.
        dataset: What is scored against.
        own: Whether that is data of the user's own, which must be given again to go on.
        metrics: The panel, in its order.
        model: Whose predictions they are.
        options: How the solution and the predictions are read.
        again: Options that cannot be kept in a file, and must be given again.
        anchors: Whether anchors are to be measured.
        ignored: Whether rows of a kind that is not scored were handed in.
        seconds: How long it took so far.
        form: What kind of prediction the rows are; None where there are none.
        n_rows: How many rows there are, repeated ones included.
        runs: Of each run of rows of one layout, the number of columns of each field (0 for scalars).
    """

    task: TaskRecord
    dataset: DatasetRecord
    own: bool
    metrics: list[MetricRecord]
    model: ModelRecord
    options: dict[str, OptionValue]
    again: list[str]
    anchors: bool
    ignored: bool
    seconds: Annotated[float, Field(ge=0)]
    form: str | None
    n_rows: Count
    runs: list[dict[str, Count]]


class StateFile:
    """A state on disk, with its head read.

    Args:
        path: The file.

    Attributes:
        path: The file.
        head: What it says of itself.

    Raises:
        DataError: If it is missing, damaged, newer than this release, or no state.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        document, self._digests = read_head(self.path, FORM, VERSION)
        try:
            self.head = StateRecord.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise DataError(f"{self.path} is no {FORM}: {where}: {first['msg']}", hint="Write it anew.") from error
        target_map = self.head.options.get("target_map")
        if isinstance(target_map, str) and target_map not in WORDS:
            raise DataError(
                f"{self.path} names a file to read, {target_map!r}", hint="A state never does; it is forged."
            )

    def arrays(self) -> dict[str, Array]:
        """Its rows as arrays by name.

        Raises:
            DataError: If they are damaged.
        """
        return read_arrays_of(self.path, FORM, self._digests)


def write_state(path: Path, head: StateRecord, arrays: Mapping[str, Stack]) -> None:
    """Write a state, whole or not at all.

    Raises:
        DataError: If it cannot be written.
    """
    write_container(path, FORM, VERSION, head.model_dump(), arrays)


def kept_options(options: Mapping[str, Any]) -> tuple[dict[str, OptionValue], list[str]]:
    """The options that a file can hold, and the names of the others.

    >>> kept_options({"control": "ctrl", "classes": ["B", "T"], "target_map": "map.csv"})
    ({'control': 'ctrl', 'classes': ['B', 'T']}, ['target_map'])
    """
    kept: dict[str, OptionValue] = {}
    again: list[str] = []
    for name, value in options.items():
        plain = _plain(value)
        if plain is None or (name == "target_map" and isinstance(plain, str) and plain not in WORDS):
            again += [name] if value is not None else []
        else:
            kept[name] = plain
    return kept, again


def refuse_other(first: StateFile, other: StateFile) -> None:
    """Refuse two states whose rows do not answer one question.

    Raises:
        IncomparableError: Naming what differs.
    """
    for what, a, b in _differences(first.head, other.head):
        raise IncomparableError(
            f"{other.path} cannot be merged with {first.path}: its {what} is {b}, not {a}",
            hint="Merge states of one task, dataset, panel and model, saved by runs that were made alike.",
        )


def _differences(a: StateRecord, b: StateRecord) -> Iterator[tuple[str, object, object]]:
    pairs = (
        ("task", f"{a.task.name} {a.task.version}", f"{b.task.name} {b.task.version}"),
        ("task's digest", a.task.digest, b.task.digest),
        ("dataset", a.dataset.key, b.dataset.key),
        ("dataset's digest", a.dataset.digest, b.dataset.digest),
        ("solution's digest", a.dataset.solution_digest, b.dataset.solution_digest),
        ("panel", [f"{m.ref} {m.version}" for m in a.metrics], [f"{m.ref} {m.version}" for m in b.metrics]),
        ("panel's aliases", [m.alias for m in a.metrics], [m.alias for m in b.metrics]),
        ("model", a.model.model_dump(), b.model.model_dump()),
        ("options", (a.own, a.options, a.again, a.anchors), (b.own, b.options, b.again, b.anchors)),
    )
    yield from ((what, x, y) for what, x, y in pairs if x != y)


def _plain(value: Any) -> OptionValue | None:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        entries = {str(name): _plain(entry) for name, entry in value.items()}
        plain = {name: entry for name, entry in entries.items() if isinstance(entry, str | list)}
        return plain if len(plain) == len(value) else None
    listed = sorted(value) if isinstance(value, set | frozenset) else value
    if isinstance(listed, list | tuple | np.ndarray | pd.Index | pd.Series):
        items = list(listed)
        return [str(v) for v in items] if all(isinstance(v, str) for v in items) else None
    return None
