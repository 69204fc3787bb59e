"""From a state to an evaluation that asks the same question: its arguments, and whether it came out the same."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from prima_bench.tasks.errors import DataError, IncomparableError, UsageError, first_few
from prima_bench.tasks.registry import resolve_metrics
from prima_bench.tasks.results.records import DatasetRecord, TaskRecord
from prima_bench.tasks.states.records import MetricRecord, StateFile, StateRecord, refuse_other


def open_states(paths: Sequence[str | PathLike[str]]) -> list[StateFile]:
    """States of one question, with their heads read.

    Raises:
        UsageError: If there are none.
        DataError: If one is missing, damaged, newer than this release, or no state.
        IncomparableError: If they are not of one task, dataset, panel and model.
    """
    if isinstance(paths, str | PathLike) or not paths:
        raise UsageError("merge takes a list of states", hint='merge(["part-0.pbstate", "part-1.pbstate"])')
    files = [StateFile(path) for path in paths]
    for other in files[1:]:
        refuse_other(files[0], other)
    return files


def arguments_of(file: StateFile, solution: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What ``Evaluation`` is to be called with.

    Args:
        file: The state.
        solution: The solution that was given.
        options: The options that were given.

    Raises:
        DataError: If the state names a metric twice.
        UnknownNameError: If there is no such task or metric here.
        UsageError: If the solution or an option is missing, or given for nothing.
    """
    head = file.head
    if head.own != (solution is not None):
        what = "a solution of your own" if head.own else f"{head.dataset.key}, which brings its solution"
        raise UsageError(
            f"{file.path} was scored against {what}", hint=f"{'Add' if head.own else 'Leave out'} solution=."
        )
    if missing := [name for name in head.again if options.get(name) is None]:
        raise UsageError(
            f"{' and '.join(f'{name}=' for name in missing)} must be given again: {file.path} cannot hold it",
            hint="Give it as it was given to the run that was saved.",
        )
    if strange := [name for name in options if name not in head.again]:
        raise UsageError(f"{first_few(strange)} cannot be given: {file.path} knows it", hint="Leave it out.")
    refs = resolve_metrics(head.task.name, [m.ref for m in head.metrics])
    if len(refs) != len(head.metrics):
        raise DataError(f"{file.path} names a metric twice", hint="The file is forged; write it anew.")
    return {
        "task": head.task.name,
        "dataset": None if head.own else head.dataset.key,
        "metrics": [replace(ref, alias=m.alias) for ref, m in zip(refs, head.metrics, strict=True)],
        "model": head.model.model_dump(),
        "solution": solution,
        "anchors": head.anchors,
        **head.options,
        **options,
    }


def refuse_changed(file: StateFile, here: StateRecord) -> None:
    """Refuse an evaluation that asks something else than the state.

    Raises:
        IncomparableError: Naming what differs.
    """
    head = file.head
    if head.metrics != here.metrics:
        what, then, now = "panel", {_metric(m) for m in head.metrics}, {_metric(m) for m in here.metrics}
    elif head.dataset != here.dataset:
        what = "solution" if here.own else "dataset"
        then, now = {_named(head.dataset)}, {_named(here.dataset)}
    elif head.task != here.task:
        what, then, now = "task", {_named(head.task)}, {_named(here.task)}
    else:
        return
    raise IncomparableError(
        f"{file.path} was saved with another {what}: {first_few(sorted(then - now))}; "
        f"here it is {first_few(sorted(now - then))}",
        hint="Give the same solution and options, with the release of prima-bench that saved the state.",
    )


def _named(record: TaskRecord | DatasetRecord) -> str:
    digests = [record.digest] if isinstance(record, TaskRecord) else [record.digest, record.solution_digest]
    return f"{record.name} {record.version} ({', '.join(dict.fromkeys(digests))})"


def _metric(record: MetricRecord) -> str:
    return f"{record.ref}, version {record.version}" + (f", as {record.alias}" if record.alias else "")
