"""From a state to an evaluation that asks the same question: its arguments, and whether it came out the same."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from prima_bench.tasks.errors import IncomparableError, UsageError, first_few
from prima_bench.tasks.registry import resolve_metrics
from prima_bench.tasks.states.records import StateFile, StateRecord, refuse_other


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
    for what in ("task", "dataset", "metrics"):
        if getattr(here, what) != getattr(file.head, what):
            raise IncomparableError(
                f"{file.path} was saved with another {'solution' if what == 'dataset' and here.own else what}: "
                f"{getattr(file.head, what)}; here it is {getattr(here, what)}",
                hint="Give the same solution and options, with the release of prima-bench that saved the state.",
            )
