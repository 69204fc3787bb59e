"""What an evaluation is asked for: which solution, whose predictions. Nothing is opened here."""

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from prima_bench.tasks.artifacts import solution_path
from prima_bench.tasks.errors import UsageError, first_few
from prima_bench.tasks.problems.base import Source
from prima_bench.tasks.registry import get_dataset
from prima_bench.tasks.results.records import DatasetRecord, ModelRecord
from prima_bench.tasks.specs import digest_of

ARGUMENTS = ("task", "dataset", "metrics", "device", "model", "solution", "anchors", "sync_to", "buffer")
"""What ``Evaluation`` takes by name, beside options."""

PREDICTION_OPTIONS = ("scores",)
"""Options that describe predictions, so that they may be given beside a registered dataset."""


def source_of(task: str, dataset: str | None, solution: Any, options: Mapping[str, Any]) -> Source:
    """Where the solution comes from.

    Args:
        task: Name of the task.
        dataset: ``name`` or ``name@version``; the task's default when None.
        solution: A solution of the user's own in its place.
        options: How it is read.

    Raises:
        UnknownNameError: If there is no such dataset.
        UsageError: If they contradict each other.
        DataError: If the dataset cannot be had.
    """
    if solution is not None:
        if dataset is not None:
            raise UsageError("give dataset= or solution=, not both", hint="A dataset brings its own solution.")
        return Source(solution, options, None)
    own = [name for name in options if name not in PREDICTION_OPTIONS]
    if own:
        for name in own:
            if meant := difflib.get_close_matches(name, ARGUMENTS, n=1, cutoff=0.75):
                raise UsageError(f"unknown argument {name!r}", hint=f"Did you mean {meant[0]}=?")
        raise UsageError(
            f"only a solution of your own takes {first_few(own)}",
            hint="A registered dataset knows how it is read. Add solution= to score against your own data.",
        )
    spec = get_dataset(dataset, task=task).spec
    return Source(solution_path(spec), {**spec.options, **options}, spec)


def dataset_record(source: Source, solution_digest: str) -> DatasetRecord:
    """What is scored against, for a result: a registered dataset, or ``local`` with a version from its content."""
    spec = source.dataset
    if spec is None:
        short = solution_digest.partition(":")[2][:12]
        return DatasetRecord(name="local", version=short, digest=solution_digest, solution_digest=solution_digest)
    return DatasetRecord(name=spec.name, version=spec.version, digest=spec.digest, solution_digest=solution_digest)


def model_record(model: str | Mapping[str, Any] | None) -> ModelRecord:
    """Whose predictions they are.

    Raises:
        UsageError: If it is no description of a model.
    """
    if model is None:
        return ModelRecord()
    described = {"name": model} if isinstance(model, str) else model
    why = f"it is of type {type(model).__name__}"
    if isinstance(described, Mapping):
        try:
            record = ModelRecord.model_validate(dict(described))
            digest_of(record.model_dump())
            return record
        except ValidationError as error:
            where = error.errors(include_url=False)[0]["loc"][:2]
            why = f"{'.'.join(map(str, where))!r} is unknown or of the wrong type"
        except ValueError:  # a lone surrogate, or an integer of thousands of digits
            why = "it cannot be written to a file"
    raise UsageError(
        f"model= is no description of a model: {why}",
        hint="Give a name, or a dict of name, version and params; params may be strings, finite numbers and booleans.",
    )
