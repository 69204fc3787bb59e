"""What stands behind the names users type: the order of versions, and a selection of metrics as checked references.

Texts such as ``"default"`` or ``"mae,pds_cosine(exclude_targets=own)"``, or lists of those, are parsed here and
nowhere else. Which names exist is ``registry``'s business and the metric catalog's.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from prima_bench.metrics.catalog import get_spec, list_specs, parse_ref
from prima_bench.metrics.errors import MetricNameError
from prima_bench.metrics.spec import MetricRef, split_ref
from prima_bench.tasks.errors import PrimaBenchError, UnknownNameError, UsageError
from prima_bench.tasks.specs import TaskSpec

MetricSelection = str | MetricRef | Sequence[str | MetricRef]

_BETWEEN_REFERENCES = re.compile(r",(?![^(]*\))")


class MetricReferenceError(UnknownNameError):
    """A metric reference that cannot be parsed, or whose parameter or value does not exist."""

    def __init__(self, cause: MetricNameError) -> None:
        self.nearest = tuple(cause.nearest)
        PrimaBenchError.__init__(self, cause.message, hint=cause.hint)


def select_metrics(task: TaskSpec, selection: MetricSelection) -> list[MetricRef]:
    """The checked references of a selection, in its order, each once.

    Args:
        task: The task they must score.
        selection: A preset's name, references separated by commas, or a list of presets and references.

    Raises:
        UnknownNameError: If a metric, a preset or a parameter does not exist, or a value is not allowed.
        UsageError: If nothing is selected, or a metric does not score this task's predictions.
    """
    items = [selection] if isinstance(selection, str | MetricRef) else list(selection)
    refs = list(dict.fromkeys(ref for item in items for ref in _expand(task, item)))
    if not refs:
        raise UsageError("no metric is selected", hint=f"Presets of {task.name}: {', '.join(task.presets)}.")
    return refs


def version_order(version: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key under which 1.10.0 comes after 1.9.0, and a release after what precedes it.

    >>> sorted(["1.10.0", "1.9.0", "1.10.0-rc1"], key=version_order)
    ['1.9.0', '1.10.0-rc1', '1.10.0']
    """
    release, _, pre = version.partition("-")
    key = [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in release.split(".")]
    return (*key, (0, 0, pre) if pre else (0, 1, ""))


def _expand(task: TaskSpec, item: str | MetricRef) -> Iterator[MetricRef]:
    if isinstance(item, MetricRef):
        yield replace(_checked(task, str(item)), alias=item.alias)
        return
    for text in filter(str.strip, _BETWEEN_REFERENCES.split(item)):
        if text.strip() in task.presets:
            yield from (replace(_checked(task, ref), alias=alias) for ref, alias in task.members(text.strip()))
        else:
            yield _checked(task, text)


def _checked(task: TaskSpec, text: str) -> MetricRef:
    try:
        name = split_ref(text)[0]
        known = {spec.name: spec.inputs for spec in list_specs()}
        offered = [metric for metric, inputs in known.items() if inputs == task.problem]
        if name not in known:
            raise UnknownNameError("metric or preset", name, (*offered, *task.presets))
        if get_spec(name).inputs != task.problem:
            raise UsageError(
                f"metric {name} does not score predictions of {task.name}",
                hint=f"Metrics of {task.name}: {', '.join(offered)}.",
            )
        return parse_ref(text)
    except MetricNameError as error:
        raise MetricReferenceError(error) from error
