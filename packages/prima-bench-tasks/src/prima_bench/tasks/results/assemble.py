"""Turns the kernel's scores into the records of a result. Nothing is computed but counts of units."""

import importlib.metadata
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch.distributed as dist

from prima_bench.metrics.catalog import get_spec
from prima_bench.metrics.spec import MetricRef
from prima_bench.tasks.anchors import skill
from prima_bench.tasks.errors import PredictionError
from prima_bench.tasks.results.records import ProvenanceRecord, ScoreRecord, UnitsRecord
from prima_bench.tasks.results.text import plural

if TYPE_CHECKING:
    from prima_bench.metrics.base import Score
    from prima_bench.tasks.anchors import Anchors
    from prima_bench.tasks.problems.base import Problem

_PACKAGES = (
    "prima-bench",
    "prima-bench-metrics",
    "prima-bench-tasks",
    "anndata",
    "numpy",
    "scipy",
    "torch",
    "torchmetrics",
)


def metric_identities(refs: Sequence[MetricRef]) -> list[dict[str, Any]]:
    """What makes two metrics the same: name, version and parameters."""
    return [{"name": r.name, "version": get_spec(r.name).version, "params": dict(r.params)} for r in refs]


def score_records(
    scores: Mapping[str, "Score"],
    refs: Sequence[MetricRef],
    codes: Sequence[int],
    unit_kind: str,
    anchors: "Anchors | None" = None,
) -> dict[str, ScoreRecord]:
    """The record of every metric.

    ``n_units`` counts what a value is the mean of. With ``labels=union`` these are also classes that only predictions
    name, which are no units of the problem and have no row in its table; ``n_undefined`` counts rows of that table.

    Args:
        scores: Scores by metric reference.
        refs: The references.
        codes: Positions of the problem's units in ``Score.units``.
        unit_kind: What a unit is.
        anchors: What naive models and a replicate score on the same panel.
    """
    records = {}
    for ref in refs:
        score, spec = scores[str(ref)], get_spec(ref.name)
        reasons = [score.undefined[c] for c in codes if c in score.undefined]
        status: Literal["ok", "partial", "undefined"] = "partial" if reasons else "ok"
        records[str(ref)] = ScoreRecord(
            value=score.value,
            status="undefined" if score.value is None else status,
            reason=score.reason if score.value is None else _reason(reasons, len(codes), unit_kind),
            version=spec.version,
            params=dict(ref.params),
            alias=ref.alias,
            direction=spec.direction,
            ci=None,
            n_units=None if score.units is None else len(score.units) - len(score.undefined),
            n_undefined=len(reasons),
            skill=skill(score.value, None if anchors is None else anchors.of(ref), spec.direction),
        )
    return records


def units_record(scores: Mapping[str, "Score"], problem: "Problem") -> UnitsRecord:
    """The value of every metric for every unit of the problem."""
    values: dict[str, list[float | None]] = {}
    undefined: dict[str, dict[str, str]] = {}
    for name, score in scores.items():
        if score.units is None:
            continue
        column = score.units.tolist()
        values[name] = [None if math.isnan(column[c]) else float(column[c]) for c in problem.unit_codes]
        undefined[name] = {
            unit: score.undefined[code]
            for unit, code in zip(problem.unit_ids, problem.unit_codes, strict=True)
            if code in score.undefined
        }
    return UnitsRecord(
        kind=problem.unit_kind, ids=problem.unit_ids, n_obs=problem.unit_n_obs, values=values, undefined=undefined
    )


def provenance(device: str, seconds: float) -> ProvenanceRecord:
    """Versions of the installed distributions, device, ranks and time."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # metrics and tasks run without the other packages of the workspace
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return ProvenanceRecord(
        packages=packages, device=device, world_size=ranks, created=created, wall_seconds=round(seconds, 3)
    )


def _reason(reasons: Sequence[str], n_units: int, unit_kind: str) -> str | None:
    if not reasons:
        return None
    counted = "; ".join(f"{text} ({n})" for text, n in sorted(Counter(reasons).items()))
    return f"{len(reasons)} of {n_units} {plural(unit_kind)} undefined: {counted}"


def refuse_infinite(scores: "Mapping[str, Score]") -> None:
    """Refuse predictions that leave a metric without a finite value.

    Raises:
        PredictionError: Naming the metric.
    """
    for name, score in scores.items():
        infinite = score.units is not None and bool(score.units.isinf().any())
        if infinite or not math.isfinite(score.value or 0.0):
            raise PredictionError(
                f"{name} has no finite value for these predictions",
                hint="They hold values too large to be scored. Predict values on the scale of the solution.",
            )
