"""What the parts of a result owe each other, and what a result owes the metrics it names.

The fields alone are the schema's business. Nothing here computes a score: a value that is possible is not thereby true.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prima_bench.metrics.catalog import get_spec
from prima_bench.metrics.errors import MetricNameError
from prima_bench.metrics.spec import MetricRef, MetricSpec, split_ref
from prima_bench.tasks.results.digest import comparability_key

if TYPE_CHECKING:
    from prima_bench.tasks.results.records import ScoreRecord, UnitsRecord
    from prima_bench.tasks.results.schema import EvalResult

ROUNDING = 1e-9
"""How far a value may lie outside its metric's range: rounding."""


def contradictions(scores: Mapping[str, "ScoreRecord"], units: "UnitsRecord") -> Iterator[str]:
    """What scores and units say against each other."""
    if not scores:
        yield "scores holds no metric"
    for name, score in scores.items():
        if (score.n_units is None) != (name not in units.values):
            yield f"{name} has n_units={score.n_units}, but its units are {'not ' * (name not in units.values)}listed"
    for name, column in units.values.items():
        if name not in scores:
            yield f"units.values has {name!r}, which is not among the scores"
        elif scores[name].n_undefined != column.count(None):
            yield f"{name}: n_undefined is {scores[name].n_undefined}, but {column.count(None)} units are undefined"


def score_key(result: "EvalResult") -> str:
    """The comparability key that follows from a result's task, dataset and scores.

    Raises:
        MetricNameError: If a score's name is no metric reference.
    """
    metrics = [
        {"name": split_ref(name)[0], "version": score.version, "params": dict(score.params)}
        for name, score in result.scores.items()
    ]
    return comparability_key(result.task.model_dump(), result.dataset.model_dump(), metrics)


def falsehoods(result: "EvalResult") -> Iterator[str]:
    """What a result says that cannot be: names, comparability key, and values that its metrics never take.

    Metrics that are not installed here, or in another version, are taken at their word.
    """
    for name, score in result.scores.items():
        try:
            written = str(MetricRef(split_ref(name)[0], score.params))
        except MetricNameError as error:
            yield f"scores: {error.message}"
            return
        if written != name:
            yield f"score {name!r} has the params of {written!r}"
    if score_key(result) != result.comparability_key:
        yield "its comparability_key is not that of its task, dataset and scores"
    for name, score in result.scores.items():
        yield from _impossible(name, score, result.units.values.get(name, ()))


def _impossible(name: str, score: "ScoreRecord", units: Iterable[float | None]) -> Iterator[str]:
    spec = _installed(split_ref(name)[0], score.version)
    if spec is None:
        return
    if score.direction != spec.direction:
        yield f"{name} has direction {score.direction!r}, but the metric's is {spec.direction!r}"
    low, high = spec.range
    for value in (score.value, *units):
        if value is not None and not _within(value, low, high):
            yield f"{name} is {value!r}, outside the metric's range {list(spec.range)}"
            return


def _within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low - ROUNDING) and (high is None or value <= high + ROUNDING)


def _installed(name: str, version: int) -> MetricSpec | None:
    try:
        spec = get_spec(name)
    except MetricNameError:
        return None
    return spec if spec.version == version else None
