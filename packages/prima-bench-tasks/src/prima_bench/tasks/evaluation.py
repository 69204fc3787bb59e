"""``Evaluation``: predictions in, :class:`EvalResult` out.

The way of the data: a problem (``problems/``) turns predictions into checked rows; the kernel's panel buffers them,
exchanges them between ranks and scores them; ``EvalResult`` records what came out. Nothing is parsed or computed here.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from prima_bench.metrics.device import resolve_device
from prima_bench.metrics.errors import MetricError
from prima_bench.metrics.threads import one_thread
from prima_bench.tasks.anchors import UNCALIBRATED, Anchored, Anchors, measure, uncalibrated
from prima_bench.tasks.artifacts import stored_anchors
from prima_bench.tasks.errors import PredictionError, UsageError, raised_as
from prima_bench.tasks.inputs.arguments import check_arguments
from prima_bench.tasks.memory import rows_in_memory
from prima_bench.tasks.named_errors import named_errors
from prima_bench.tasks.names import MetricSelection
from prima_bench.tasks.problems.base import Detailed, open_problem
from prima_bench.tasks.ranks import attended, scored_for_all
from prima_bench.tasks.registry import get_task, resolve_metrics
from prima_bench.tasks.request import dataset_record, model_record, source_of
from prima_bench.tasks.results.assemble import (
    metric_identities,
    provenance,
    refuse_infinite,
    score_records,
    units_record,
)
from prima_bench.tasks.results.detail import Detail
from prima_bench.tasks.results.records import PredictionsRecord, TaskRecord
from prima_bench.tasks.results.schema import EvalResult
from prima_bench.tasks.states.holdings import Holdings
from prima_bench.tasks.states.records import SUFFIX, MetricRecord, StateRecord, kept_options, write_state
from prima_bench.tasks.states.reopening import arguments_of, open_states, refuse_changed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import pandas as pd

    from prima_bench.metrics.base import Batch


class Evaluation:
    """Evaluates predictions on a task's dataset, or on a solution of your own.

    Predictions come in one update or in any shards, in any order, on one process or on every rank of a
    ``torch.distributed`` group: the scores are the same to the last bit. An update that is refused changes nothing, and
    a rank that goes on after it is one as any other; when it ends instead, the others raise the reason.

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
        sync_to: On several ranks, who holds the rows of all while they are scored: ``"all"``, so that each scores, or
            ``"rank0"``, which scores for all. Every rank gets the result.
        buffer: Where predictions are kept until they are scored: ``"memory"``, ``"disk"`` (a file in ``TMPDIR`` that
            vanishes with the process), or ``"auto"``: in memory up to a quarter of what is free. Scores are the same.
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
        sync_to: str = "all",
        buffer: str = "auto",
        **options: Any,
    ) -> None:
        with attended():
            check_arguments(task, dataset, metrics, device, anchors, sync_to, buffer)
            self._open(task, dataset, metrics, device, model, solution, anchors, sync_to, options)
            self._panel.spill_above = rows_in_memory(buffer)

    def _open(
        self,
        task: str,
        dataset: str | None,
        metrics: MetricSelection | None,
        device: str | torch.device | None,
        model: str | Mapping[str, Any] | None,
        solution: Any,
        anchors: bool,
        sync_to: str,
        options: dict[str, Any],
    ) -> None:
        spec = get_task(task).spec
        self._refs = resolve_metrics(task, metrics)
        self._model = model_record(model)
        source = source_of(task, dataset, solution, options)
        with raised_as(UsageError, MetricError):
            self._device = resolve_device(device)
        with one_thread():
            self._problem = open_problem(spec, source, self._device)
        self._panel = self._problem.panel(self._refs)
        self._held = Holdings(self._problem, self._panel)
        self._task = TaskRecord(name=spec.name, version=spec.version, digest=spec.digest)
        self._dataset = dataset_record(source, self._problem.solution_digest)
        # Ranks that score against different things must not exchange rows.
        self._panel.schema_tag = {
            "task": f"{spec.name} {spec.version} ({spec.digest[:19]})",
            "dataset": f"{self._dataset.key} ({self._dataset.digest[:19]})",
            "solution": self._dataset.solution_digest,
            "panel": ", ".join(f"{m['name']} {m['version']} {m['params']}" for m in metric_identities(self._refs)),
        }
        self._sync_to = sync_to
        self._own = source.dataset is None
        self._options = dict(options)
        self._anchors = None if source.dataset is None else stored_anchors(source.dataset)
        self._measure_anchors = anchors and self._anchors is None
        if self._measure_anchors and not isinstance(self._problem, Anchored):
            raise UsageError(f"anchors cannot be measured for {spec.name}", hint="Leave anchors out.")
        self._seconds = self._began = 0.0

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
            PredictionError: If the predictions cannot be scored, naming the first few rows; or if another rank gave up.
                Earlier updates stand.
        """
        encode = self._problem.encode
        with (
            attended(),
            one_thread(),
            self._timed(),
            self._named(),
            encode(predictions, ids, perturbation, context) as x,
        ):
            self._held.add(x)

    def compute(self) -> EvalResult:
        """Score everything that was handed in, on all ranks alike. More updates may follow.

        Raises:
            PredictionError: If rows or perturbations are missing, two ranks gave one row two contents, values are too
                large to be scored, ranks score against different things, or one of them gave up or ended.
        """
        with attended(), one_thread(), self._timed(), self._named():
            if self._sync_to == "all":
                with self._panel.synced() as batch:
                    result = self._scored(batch)
            else:
                with self._panel.gathered(0) as batch:
                    result = scored_for_all(None if batch is None else partial(self._scored, batch))
        return result.attach(Detail(self, self._held.mark))

    def _scored(self, batch: "Batch") -> EvalResult:
        with self._named():
            self._refuse_nothing(batch)
            coverage = self._problem.check_complete(batch)
            scores = self._panel.score_all(batch)
            refuse_infinite(scores)
            fingerprint = self._problem.fingerprint(batch)
            flags = [*self._problem.flags, *self._problem.flags_of(batch)]
            anchors = self._measured_anchors()
        return EvalResult.build(
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
            provenance=provenance(str(self._device), self._seconds + time.perf_counter() - self._began),
            flags=[*flags, *self._uncalibrated(anchors)],
        )

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
        if state is not self._held.mark:
            return None
        if not isinstance(self._problem, Detailed):
            raise UsageError(f"{self._task.name} has no {table}", hint="It is a table of perturbation tasks.")
        with one_thread(), self._named(), self._panel.synced() as batch:
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
        self._held.clear()
        self._seconds = 0.0

    def save(self, path: str | PathLike[str]) -> Path:
        """Write what was handed in so far, whole or not at all: to go on later, or to merge with other parts.

        On several ranks each writes what it holds itself. Nothing in the file can run code; a solution of your own is
        not in it.

        Args:
            path: A file whose name ends in ``.pbstate``.

        Raises:
            DataError: If the file cannot be written.
            UsageError: If the path names no such file.
        """
        if not isinstance(path, str | PathLike) or Path(path).suffix != SUFFIX:
            raise UsageError(f"{path!r} names no state", hint=f"Name a file that ends in {SUFFIX}, as run{SUFFIX}.")
        with attended():
            runs, arrays = self._held.stored()
            write_state(Path(path), self._head(runs), arrays)
        return Path(path)

    @classmethod
    def resume(
        cls,
        path: str | PathLike[str],
        *,
        solution: Any = None,
        device: str | torch.device | None = None,
        sync_to: str = "all",
        buffer: str = "auto",
        **options: Any,
    ) -> Self:
        """Go on from a state that :meth:`save` wrote: its rows are handed in, and more may follow.

        Rows that are handed in again count once, so that a run may start over with its first shard.

        Args:
            path: The state.
            solution: The solution, where the state is of a run on data of your own; its content must be the same.
            device: As in the constructor.
            sync_to: As in the constructor.
            buffer: As in the constructor.
            **options: How the solution is read, where that cannot be kept in a file: a ``target_map`` from a table.

        Raises:
            DataError: If the state is missing, damaged, newer than this release, or holds what no update could bring.
            IncomparableError: If task, dataset, solution or metrics are not what they were.
            UsageError: If the solution or an option is missing, or given for nothing.

        Example:
            >>> import pandas as pd, tempfile
            >>> truth = pd.DataFrame({"type": ["B", "T", "T"]}, index=["c1", "c2", "c3"])
            >>> run = Evaluation("cell_type_annotation", solution=truth, label_key="type", metrics="accuracy")
            >>> run.update(pd.Series(["B", "T"], index=["c1", "c2"]))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     state = run.save(f"{folder}/run.pbstate")
            ...     again = Evaluation.resume(state, solution=truth)
            >>> again.update(pd.Series(["B"], index=["c3"]))
            >>> again.compute().scores["accuracy"].value
            0.6666666666666666
        """
        return cls.merge([path], solution=solution, device=device, sync_to=sync_to, buffer=buffer, **options)

    @classmethod
    def merge(
        cls,
        paths: Sequence[str | PathLike[str]],
        *,
        solution: Any = None,
        device: str | torch.device | None = None,
        sync_to: str = "all",
        buffer: str = "auto",
        **options: Any,
    ) -> Self:
        """One evaluation of the rows of several states, such as those of an array job.

        The result is that of one run that was handed all rows, whatever their split. Arguments and errors are those of
        :meth:`resume`; besides

        Raises:
            PredictionError: If two states give one row two contents.
            IncomparableError: If the states are not of one task, dataset, panel and model.
        """
        with attended():
            files = open_states(paths)
            asked = arguments_of(files[0], solution, options)
            run = cls(device=device, sync_to=sync_to, buffer=buffer, **asked)
            refuse_changed(files[0], run._head([]))
            for file in files:
                run._held.restore(file)
                run._seconds += file.head.seconds
            return run

    def _head(self, runs: list[dict[str, int]]) -> StateRecord:
        options, again = kept_options(self._options)
        return StateRecord(
            task=self._task,
            dataset=self._dataset,
            own=self._own,
            metrics=[
                MetricRecord(ref=str(ref), version=identity["version"], alias=ref.alias)
                for ref, identity in zip(self._refs, metric_identities(self._refs), strict=True)
            ],
            model=self._model,
            options=options,
            again=again,
            anchors=self._own and (self._measure_anchors or self._anchors is not None),
            ignored=self._held.ignored,
            seconds=self._seconds,
            form=self._held.ledger.form,
            n_rows=self._panel.n_rows,
            runs=runs,
        )

    def __repr__(self) -> str:
        metrics = ", ".join(map(str, self._refs))
        return f"<Evaluation {self._task.name} / {self._dataset.key}: {self._panel.n_rows} rows; {metrics}>"

    def _refuse_nothing(self, batch: "Batch") -> None:
        if batch.n:
            return
        if self._held.ignored:
            raise PredictionError(
                f"no predictions were handed in, only {self._problem.ignored}, which are taken from the solution",
                hint=f"Predict every {self._problem.unit_kind} of the solution.",
            )
        raise PredictionError("no predictions were handed in", hint="Call update(predictions=...) before compute().")

    @contextmanager
    def _timed(self) -> "Iterator[None]":
        self._began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - self._began

    def _named(self) -> "AbstractContextManager[None]":
        return named_errors(self._problem, self._held.ledger)
