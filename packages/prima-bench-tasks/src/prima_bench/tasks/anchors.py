"""Anchors: what naive models and a replicate score on a panel, and a score's skill between the two.

A raw score does not say whether it is good: on one panel the mean of all perturbations reaches what a repeated
experiment does not. So every metric is measured on the same panel with models that know nothing of a perturbation (the
floor) and with a replicate, one half of the real cells as a prediction of the other (the ceiling). Of a registered
dataset these are measured once and stored with it; on a user's own solution, when asked for.

Skill is ``(score - floor) / (ceiling - floor)``, unclipped: 0 is the best naive model, 1 the replicate. It exists only
where the replicate beats the naive models; where it does not beat the null model, the metric is *uncalibrated* on that
panel. How far a replicate gets towards a perfect score (dynamic range), and in how many units it beats the null model
(discrimination), say how much a metric can tell there at all.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prima_bench.metrics.catalog import get_spec
from prima_bench.metrics.spec import MetricRef
from prima_bench.tasks.errors import DataError
from prima_bench.tasks.results.digest import round_significant
from prima_bench.tasks.results.files import read_json_object

if TYPE_CHECKING:
    from prima_bench.metrics.base import Score

SPLITS = 5
"""How many random halves the replicate's scores are averaged over."""

SCHEMA: Literal["prima-bench/anchors"] = "prima-bench/anchors"
UNCALIBRATED = "uncalibrated_on_this_panel"
"""Flag: a replicate scores no better than the null model."""

OWN_NULL = "other_perturbations"
_OWN_KINDS = ("paste_control", OWN_NULL)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, serialize_by_alias=True)


class Anchor(_Record):
    """What one metric gives on a panel.

    Attributes:
        version: Version of the metric.
        baselines: Scores of the naive models by name, to 12 significant digits as all values here; None where
            undefined.
        replicate: Mean score of the split halves; None where undefined.
        dynamic_range: ``(replicate - null) / (perfect - null)``: the share of the way from the null model to a perfect
            score that a replicate gets.
        discrimination: Share of units in which the replicate beats the null model, ties counting half; None for
            metrics without units.
    """

    version: Annotated[int, Field(ge=1)]
    baselines: dict[str, float | None]
    replicate: float | None
    dynamic_range: float | None
    discrimination: float | None


class Anchors(_Record):
    """The anchors of a panel.

    Attributes:
        solution_digest: What they were measured on.
        null: The naive model that a replicate must beat.
        splits: How many random halves were averaged.
        metrics: By metric reference.
    """

    schema_name: Literal["prima-bench/anchors"] = Field(alias="schema")
    schema_version: Literal["1.0"]
    solution_digest: str
    null: str
    splits: Annotated[int, Field(ge=1)]
    metrics: dict[str, Anchor]

    def of(self, ref: MetricRef) -> Anchor | None:
        """The anchor of a metric in the version that is installed; None when there is none."""
        anchor = self.metrics.get(str(ref))
        return anchor if anchor is not None and anchor.version == get_spec(ref.name).version else None

    def to_json(self) -> str:
        """Strict JSON, with a final newline."""
        return json.dumps(self.model_dump(), indent=1, allow_nan=False) + "\n"

    @classmethod
    def load(cls, path: Path) -> "Anchors":
        """Read a file of anchors.

        Raises:
            DataError: If it is missing, or no such file.
        """
        try:
            return cls.model_validate(read_json_object(path))
        except ValidationError as error:
            raise DataError(f"{path} holds no anchors: {error.errors(include_url=False)[0]['msg']}") from error


@runtime_checkable
class Anchored(Protocol):
    """A problem whose solution can stand in for predictions."""

    unit_codes: list[int]
    solution_digest: str

    def without_predicted_control(self, refs: Sequence[MetricRef]) -> list[MetricRef]:
        """The metrics that naive models can be scored by, which predict no control cells."""

    def stand_in_scores(self, kind: str, refs: Sequence[MetricRef], seed: int) -> "dict[str, Score]":
        """Scores of ``"replicate"``, ``"paste_control"`` or ``"other_perturbations"`` by metric reference."""


def skill(value: float | None, anchor: Anchor | None, direction: str) -> float | None:
    """Share of the way from the best naive model to the replicate; None where that way does not exist.

    Args:
        value: A score.
        anchor: What its metric gives on the same panel.
        direction: ``"max"`` or ``"min"``.

    Example:
        >>> anchor = Anchor(
        ...     version=1, baselines={"a": 0.5, "b": 0.4}, replicate=0.9, dynamic_range=None, discrimination=None
        ... )
        >>> round(skill(0.7, anchor, "max"), 12)
        0.5
    """
    if value is None or anchor is None or anchor.replicate is None:
        return None
    known = [v for v in anchor.baselines.values() if v is not None]
    if not known:
        return None
    floor = max(known) if direction == "max" else min(known)
    if not _better(anchor.replicate, floor, direction):
        return None
    return (value - floor) / (anchor.replicate - floor)


def uncalibrated(anchors: Anchors, refs: Iterable[MetricRef]) -> list[str]:
    """The references whose replicate scores no better than the null model."""
    found = []
    for ref in refs:
        anchor = anchors.of(ref)
        null = None if anchor is None else anchor.baselines.get(anchors.null)
        if anchor is None or anchor.replicate is None or null is None:
            continue
        if not _better(anchor.replicate, null, get_spec(ref.name).direction):
            found.append(str(ref))
    return found


def measure(
    problem: Anchored,
    refs: Sequence[MetricRef],
    baselines: "Mapping[str, Mapping[str, Score]] | None" = None,
    null: str = OWN_NULL,
    splits: int = SPLITS,
) -> Anchors:
    """Measure the anchors of a panel.

    Args:
        problem: An opened solution.
        refs: The metrics.
        baselines: Scores of naive models by name and metric reference. When None they are made of the solution itself:
            its control cells, and cells of the other perturbations.
        null: Name of the naive model that a replicate must beat.
        splits: How many random halves the replicate is averaged over.
    """
    if baselines is None:
        baselines = {kind: problem.stand_in_scores(kind, refs, 0) for kind in _OWN_KINDS}
    halves = [problem.stand_in_scores("replicate", refs, seed) for seed in range(splits)]
    metrics = {}
    for name, ref in ((str(r), r) for r in refs):
        spec = get_spec(ref.name)
        values = [half[name].value for half in halves]
        replicate = None if None in values else sum(v for v in values if v is not None) / splits
        floor = baselines[null][name].value
        metrics[name] = Anchor(
            version=spec.version,
            baselines={kind: _rounded(scores[name].value) for kind, scores in baselines.items()},
            replicate=_rounded(replicate),
            dynamic_range=_rounded(_dynamic_range(replicate, floor, spec.perfect)),
            discrimination=_rounded(
                _discrimination(
                    [half[name] for half in halves], baselines[null][name], problem.unit_codes, spec.direction
                )
            ),
        )
    return Anchors(
        schema=SCHEMA,
        schema_version="1.0",
        solution_digest=problem.solution_digest,
        null=null,
        splits=splits,
        metrics=metrics,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round_significant(value)


def _better(a: float, b: float, direction: str) -> bool:
    return a > b if direction == "max" else a < b


def _dynamic_range(replicate: float | None, null: float | None, perfect: float) -> float | None:
    if replicate is None or null is None or perfect == null:
        return None
    return (replicate - null) / (perfect - null)


def _discrimination(halves: "Sequence[Score]", null: "Score", codes: Sequence[int], direction: str) -> float | None:
    if null.units is None or any(half.units is None for half in halves):
        return None
    wins = []
    for half in halves:
        for code in codes:
            a, b = float(half.units[code]), float(null.units[code])  # type: ignore[index]  # checked above
            if not math.isnan(a) and not math.isnan(b):
                wins.append(0.5 if a == b else float(_better(a, b, direction)))
    return sum(wins) / len(wins) if wins else None
