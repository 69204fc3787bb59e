"""``Evaluation``: predictions in, :class:`EvalResult` out.

The way of the data: a problem (``problems/``) turns predictions into checked rows; the kernel's panel buffers them,
exchanges them between ranks and scores them; ``EvalResult`` records what came out. Nothing is parsed or computed here.
"""

import difflib
import math
import time
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError

from prima_bench.metrics.device import resolve_device
from prima_bench.metrics.errors import ConflictingRowsError, MetricError, ProfileError, ReferenceDataError, SyncError
from prima_bench.metrics.threads import one_thread
from prima_bench.tasks.anchors import UNCALIBRATED, Anchored, Anchors, measure, uncalibrated
from prima_bench.tasks.artifacts import solution_path, stored_anchors
from prima_bench.tasks.errors import DataError, PredictionError, UsageError, first_few, raised_as
from prima_bench.tasks.inputs.arguments import check_arguments
from prima_bench.tasks.inputs.ledger import Ledger
from prima_bench.tasks.names import MetricSelection
from prima_bench.tasks.problems.base import Detailed, Source, open_problem
from prima_bench.tasks.registry import get_dataset, get_task, resolve_metrics
from prima_bench.tasks.results.assemble import metric_identities, provenance, score_records, units_record
from prima_bench.tasks.results.detail import Detail
from prima_bench.tasks.results.digest import comparability_key
from prima_bench.tasks.results.records import DatasetRecord, ModelRecord, PredictionsRecord, TaskRecord
from prima_bench.tasks.results.schema import EvalResult
from prima_bench.tasks.specs import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from prima_bench.metrics.base import Batch, Score

ARGUMENTS = ("task", "dataset", "metrics", "device", "model", "solution", "anchors")
"""What ``Evaluation`` takes by name, beside options."""

PREDICTION_OPTIONS = ("scores",)
"""Options that describe predictions, so that they may be given beside a registered dataset."""


class Evaluation:
    """Evaluates predictions on a task's dataset, or on a solution of your own.

    Predictions come in one update or in any shards, in any order, on one process or on every rank of a
    ``torch.distributed`` group: the scores are the same to the last bit. An update that is refused changes nothing.

    Args:
        task: Name of the task.
        dataset: ``name`` or ``name@version``; the task's default when None.
        metrics: A preset, a reference such as ``"pds_cosine(exclude_targets=own)"``, or a list; the task's default
            panel when None.
        device: Where to compute; ``PRIMA_BENCH_DEVICE``, else CUDA when there is one, else the CPU.
        model: The model's name, or a mapping with ``name``, ``version`` and ``params``.
        solution: A solution of your own in the place of a dataset. Perturbation: an AnnData of real cells, in memory
            or backed, or the path of an ``.h5ad`` file. Classification: an AnnData or a DataFrame with a column of
            true labels, named by row, or the path of an ``.h5ad``, ``.csv``, ``.tsv`` or ``.parquet`` file.
        anchors: Measure what naive models and a replicate score on your own solution, so that scores get a ``skill``;
            that takes about as long as seven evaluations, once. A registered dataset brings its anchors.
        **options: How your solution is read. Perturbation: ``perturbation_key``, ``control``, ``scale``;
            ``target_map`` and ``target_separator`` say which genes each perturbation acts on; ``context_key`` names
            the context (cell type, donor) in which perturbations are scored, each against control cells of its own.
            Classification: ``label_key``, ``classes``; and ``scores="logit"`` where predicted scores are no
            probabilities, which may stand beside a dataset too.

    Raises:
        UnknownNameError: If the task, the dataset or a metric does not exist.
        UsageError: If arguments are missing or contradict each other.
        DataError: If the solution cannot be had or used.

    Example:
        >>> import pandas as pd
        >>> truth = pd.DataFrame({"type": ["B", "T", "T"]}, index=["c1", "c2", "c3"])
        >>> run = Evaluation("cell_type_annotation", solution=truth, label_key="type", metrics="accuracy")
        >>> run.update(pd.Series(["B", "T"], index=["c1", "c2"]))
        >>> run.update(pd.Series(["B"], index=["c3"]))
        >>> run.compute().scores["accuracy"].value
        0.6666666666666666
    """

    def __init__(
        self,
        task: str,
        dataset: str | None = None,
        metrics: MetricSelection | None = None,
        device: str | torch.device | None = None,
        model: str | Mapping[str, Any] | None = None,
        *,
        solution: Any = None,
        anchors: bool = False,
        **options: Any,
    ) -> None:
        check_arguments(task, dataset, metrics, device, anchors)
        spec = get_task(task).spec
        self._refs = resolve_metrics(task, metrics)
        self._model = _model_record(model)
        source = _source(task, dataset, solution, options)
        with raised_as(UsageError, MetricError):
            self._device = resolve_device(device)
        with one_thread():
            self._problem = open_problem(spec, source, self._device)
        self._panel = self._problem.panel(self._refs)
        self._ledger = Ledger(self._problem.identity_hint)
        self._ignored = False
        self._task = TaskRecord(name=spec.name, version=spec.version, digest=spec.digest)
        self._dataset = _dataset_record(source, self._problem.solution_digest)
        # Ranks that score against different things must not exchange rows.
        self._panel.schema_tag = comparability_key(
            self._task.model_dump(), self._dataset.model_dump(), metric_identities(self._refs)
        )
        self._state = object()
        self._anchors = None if source.dataset is None else stored_anchors(source.dataset)
        self._measure_anchors = anchors and self._anchors is None
        if self._measure_anchors and not isinstance(self._problem, Anchored):
            raise UsageError(f"anchors cannot be measured for {spec.name}", hint="Leave anchors out.")
        self._seconds = 0.0

    def update(self, predictions: Any, ids: Any = None, *, perturbation: Any = None, context: Any = None) -> None:
        """Take in predictions: all of these rows, or none when one is refused.

        Args:
            predictions: What the task's card names: an AnnData (in memory or backed), a DataFrame or Series, a
                tensor or array with ``ids``, or the path of an ``.h5ad``, ``.csv``, ``.tsv``, ``.parquet`` or
                ``.npz`` file. Classes are named, never numbered; only floating-point class scores [rows, classes]
                without names stand in the order of the task's classes. Nothing is modified; rows are copied.
            ids: Names of the rows, where ``predictions`` carry none or others.
            perturbation: On your own data, the perturbation of each cell, where ``predictions`` do not say it. Like
                ``ids`` a list in the rows' order, or a Series, which is matched to the rows by its index.
            context: The same for each cell's context, where the solution was given a ``context_key``.

        Raises:
            PredictionError: If the predictions cannot be scored, naming the first few rows. Earlier updates stand.
        """
        with one_thread(), self._timed(), _kernel_errors():
            encoded = self._problem.encode(predictions, ids, perturbation, context)
            self._ledger.check(encoded.rows)
            self._panel.extend(encoded.chunks)
            self._state = object()
            self._ledger.add(encoded.rows)
            self._ignored = self._ignored or encoded.ignored

    def compute(self) -> EvalResult:
        """Score everything that was handed in, on all ranks alike. More updates may follow.

        Raises:
            PredictionError: If rows or perturbations are missing, two ranks gave one row two contents, or values are
                too large to be scored.
        """
        with one_thread(), self._timed(), _kernel_errors(), self._named(), self._panel.synced() as batch:
            self._refuse_nothing(batch)
            coverage = self._problem.check_complete(batch)
            scores = self._panel.score_all(batch)
            _refuse_infinite(scores)
            fingerprint = self._problem.fingerprint(batch)
            flags = [*self._problem.flags, *self._problem.flags_of(batch)]
            anchors = self._measured_anchors()
        result = EvalResult.build(
            task=self._task,
            dataset=self._dataset,
            metrics=metric_identities(self._refs),
            model=self._model,
            predictions=PredictionsRecord(
                fingerprint=fingerprint,
                n_rows=coverage.n_rows,
                n_units=coverage.n_units,
                coverage=coverage.coverage,
                duplicates_dropped=batch.duplicates_dropped,
            ),
            scores=score_records(scores, self._refs, self._problem.unit_codes, self._problem.unit_kind, anchors),
            units=units_record(scores, self._problem),
            provenance=provenance(str(self._device), self._seconds),
            flags=[*flags, *self._uncalibrated(anchors)],
        )
        return result.attach(Detail(self, self._state))

    def detail(self, state: object, table: str, arguments: dict[str, Any]) -> "pd.DataFrame | None":
        """A table about the predictions, for ``EvalResult``; on several ranks, to be asked for on all of them.

        Args:
            state: What the predictions were when the result was made.
            table: Name of the table.
            arguments: Its arguments.

        Returns:
            None when predictions came or went since.

        Raises:
            UsageError: If the task has no such table.
        """
        if state is not self._state:
            return None
        if not isinstance(self._problem, Detailed):
            raise UsageError(f"{self._task.name} has no {table}", hint="It is a table of perturbation tasks.")
        with one_thread(), _kernel_errors(), self._named(), self._panel.synced() as batch:
            found: pd.DataFrame = getattr(self._problem.detail(batch), table)(**arguments)
            return found

    def _measured_anchors(self) -> Anchors | None:
        if self._measure_anchors and isinstance(self._problem, Anchored):
            self._anchors, self._measure_anchors = measure(self._problem, self._refs), False
        return self._anchors

    def _uncalibrated(self, anchors: Anchors | None) -> list[str]:
        return [] if anchors is None else [f"{UNCALIBRATED}: {ref}" for ref in uncalibrated(anchors, self._refs)]

    def reset(self) -> None:
        """Forget all predictions; the solution and the metrics stay."""
        self._panel.reset()
        self._state = object()
        self._ledger.clear()
        self._ignored = False
        self._seconds = 0.0

    def __repr__(self) -> str:
        metrics = ", ".join(map(str, self._refs))
        return f"<Evaluation {self._task.name} / {self._dataset.key}: {self._panel.n_rows} rows; {metrics}>"

    def _refuse_nothing(self, batch: "Batch") -> None:
        if batch.n:
            return
        if self._ignored:
            raise PredictionError(
                f"no predictions were handed in, only {self._problem.ignored}, which are taken from the solution",
                hint=f"Predict every {self._problem.unit_kind} of the solution.",
            )
        raise PredictionError("no predictions were handed in", hint="Call update(predictions=...) before compute().")

    @contextmanager
    def _timed(self) -> "Iterator[None]":
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - start

    @contextmanager
    def _named(self) -> "Iterator[None]":
        """Put names in the place of the kernel's row ids and codes."""
        try:
            yield
        except SyncError as error:
            raise PredictionError(
                error.message,
                hint="Every rank must build its Evaluation from the same task, data and metrics, and all must hand in "
                "predictions of one form.",
            ) from error
        except ConflictingRowsError as error:
            names = self._problem.names_of(error.rows) or self._ledger.names_of(error.rows)
            raise PredictionError(
                f"rows came more than once with different content: {first_few(names)}",
                hint=self._problem.identity_hint,
            ) from error
        except ProfileError as error:
            labels = [self._problem.labels[code] for code in error.groups]
            raise PredictionError(
                f"predicted expression is too large to be scored: perturbation {first_few(labels)}",
                hint="Predict values on the scale of the solution.",
            ) from error


@contextmanager
def _kernel_errors() -> "Iterator[None]":
    with raised_as(PredictionError, MetricError), raised_as(DataError, ReferenceDataError):
        yield


def _source(task: str, dataset: str | None, solution: Any, options: Mapping[str, Any]) -> Source:
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


def _dataset_record(source: Source, solution_digest: str) -> DatasetRecord:
    spec = source.dataset
    if spec is None:
        short = solution_digest.partition(":")[2][:12]
        return DatasetRecord(name="local", version=short, digest=solution_digest, solution_digest=solution_digest)
    return DatasetRecord(name=spec.name, version=spec.version, digest=spec.digest, solution_digest=solution_digest)


def _model_record(model: str | Mapping[str, Any] | None) -> ModelRecord:
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


def _refuse_infinite(scores: "Mapping[str, Score]") -> None:
    for name, score in scores.items():
        infinite = score.units is not None and bool(score.units.isinf().any())
        if infinite or not math.isfinite(score.value or 0.0):
            raise PredictionError(
                f"{name} has no finite value for these predictions",
                hint="They hold values too large to be scored. Predict values on the scale of the solution.",
            )
