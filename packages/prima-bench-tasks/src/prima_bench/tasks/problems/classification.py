"""Classification: rows with one true label each; predictions are labels or class scores for exactly those rows."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import anndata
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, SparseRows
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.spec import MetricRef
from prima_bench.tasks.errors import DataError, PredictionError, UsageError, counted, first_few, nearest_names
from prima_bench.tasks.inputs.classes import ClassScores
from prima_bench.tasks.inputs.columns import as_column, one_column
from prima_bench.tasks.inputs.files import opened
from prima_bench.tasks.inputs.ids import RowIndex, repeated
from prima_bench.tasks.inputs.labels import LabelTable, read_labels
from prima_bench.tasks.inputs.ledger import Rows
from prima_bench.tasks.inputs.text import refuse_no_text
from prima_bench.tasks.inputs.vocabulary import Codes, Vocabulary, distinct, normalise
from prima_bench.tasks.problems.base import (
    Chunk,
    Coverage,
    Encoded,
    Source,
    as_text,
    build_metrics,
    fingerprint_of,
    take_options,
)
from prima_bench.tasks.problems.restored import impossible, named_codes
from prima_bench.tasks.specs import TaskSpec, digest_of

DEFAULT_COLUMN = "cell_type"
ABSTAINED = -1
_CODES = (
    "Numbers are not read as class codes: the order that they count in would be a guess. Give the names, "
    "numpy.asarray(classes)[codes], with classes in the order that the model was trained with."
)


class ClassificationProblem:
    """An opened solution of labels.

    Args:
        task: The task; says which labels abstain.
        source: The solution. Options: ``label_key``, ``classes`` (all classes in order; else those that occur,
            sorted), ``scores`` (``"probability"`` or ``"logit"``: what predicted scores are).
        device: Where rows are kept and scored.

    Raises:
        UsageError: If options are missing or wrong.
        DataError: If the solution cannot be used.
    """

    unit_kind = "class"
    ignored = ""
    identity_hint = "A row that comes twice, as samplers pad, must hold the same prediction both times."

    def __init__(self, task: TaskSpec, source: Source, device: torch.device) -> None:
        options = take_options(source.options, ("label_key",), ("classes", "scores"))
        self._label_key = as_text("label_key", options["label_key"])
        self._scores = "probability" if options["scores"] is None else options["scores"]
        self._device = device
        table, declared = _read_solution(source, self._label_key)
        raw, names = distinct(table.labels, table.ids, "class", error=DataError)
        self.classes = self.labels = _classes(options["classes"] if declared is None else declared, names)
        if twice := repeated(table.ids):
            raise DataError(
                f"the solution names {counted(len(twice), 'row')} more than once: {first_few(twice)}",
                hint="Predictions are matched to the solution's rows by name, so that every row needs its own.",
            )
        order = np.argsort(table.ids.astype(str), kind="stable")  # so that the order of a file decides nothing
        self._rows = RowIndex(table.ids[order])
        special = dict.fromkeys(task.abstain, ABSTAINED)
        self._vocabulary = Vocabulary(self.classes, "class", special=special, numbers=_CODES)
        self._target: Codes = np.array([self.classes.index(name) for name in names], dtype=np.int64)[raw[order]]
        self._class_scores = ClassScores(self.classes, self._scores)

        counts = np.bincount(self._target, minlength=len(self.classes))
        self.unit_codes = [int(c) for c in np.flatnonzero(counts)]
        self.unit_ids = [self.classes[c] for c in self.unit_codes]
        self.unit_n_obs = [int(counts[c]) for c in self.unit_codes]
        self.flags: list[str] = []
        self.solution_digest = self._digest(source)

    def panel(self, refs: Sequence[MetricRef]) -> Panel:
        """The metrics over the classes of this solution."""
        metrics = build_metrics(refs, {"num_classes": len(self.classes), "scores": self._scores})
        return Panel(metrics).to(self._device)

    @contextmanager
    def encode(self, predictions: Any, ids: Any, labels: Any, contexts: Any) -> Iterator[Encoded]:
        """Open predictions, to be parsed, checked and aligned some rows at a time.

        Args:
            predictions: Labels or scores in any form that ``inputs.labels`` reads, or a path.
            ids: Names of the rows, where the predictions carry none.
            labels: Must be None.
            contexts: Must be None.

        Raises:
            PredictionError: If they cannot be scored.
            UsageError: If ``labels`` is given.
        """
        for name, given in (("perturbation", labels), ("context", contexts)):
            if given is not None:
                raise UsageError(f"{name}= has no meaning for this task", hint="Leave it out.")
        columns = list(dict.fromkeys((self._label_key, DEFAULT_COLUMN)))
        with opened(predictions, error=PredictionError, text=columns) as x:
            table = read_labels(x, ids=ids, columns=columns, classes=self.classes)
            index = self._rows.find(table.ids)
            self._rows.refuse_unknown(table.ids, index)
            yield self._encode_labels(table, index) if table.scores is None else self._encode_scores(table, index)

    def check_complete(self, batch: Batch) -> Coverage:
        """Every row of the solution must be predicted.

        Raises:
            PredictionError: Naming the first few that are missing.
        """
        if batch.n < len(self._rows):
            given = np.zeros(len(self._rows), dtype=bool)
            given[batch.index.cpu().numpy()] = True
            missing = self._rows.ids[~given]
            raise PredictionError(
                f"{len(missing)} of {len(self._rows)} rows not predicted: {first_few(missing)}",
                hint="Every row of the solution must be predicted; hand in further shards with update().",
            )
        return Coverage(batch.n, len(self.unit_ids), 1.0)

    def flags_of(self, batch: Batch) -> list[str]:
        """Nothing: no prediction of classes is set apart."""
        return []

    def fingerprint(self, batch: Batch) -> str:
        """``sha256:...`` over ids and labels, or scores and what they are declared to be."""
        read_as = f"scores={self._scores}" if "score" in batch else ""
        return fingerprint_of(batch, ("label", "score"), read_as)

    def names_of(self, index: Sequence[int]) -> list[str] | None:
        """The names of rows by their position among the solution's sorted names."""
        return [str(self._rows.ids[i]) for i in index]

    def check_rows(self, index: Tensor, fields: Mapping[str, Tensor | SparseRows]) -> None:
        """Refuse rows out of a file that no update could have brought: other classes, other truth.

        Args:
            index: Their ids, int64 [n].
            fields: Their fields.

        Raises:
            DataError: Naming what is wrong.
        """
        rows = named_codes(index, len(index), 0, len(self._rows), "rows")
        target = named_codes(fields.get("target"), len(index), 0, len(self.classes), "classes")
        if (self._target[rows] != target).any():
            raise impossible("true labels other than the solution's")
        if (score := fields.get("score")) is not None:
            if len(score.shape) != 2 or score.shape[1] != len(self.classes):
                raise impossible(f"scores of other than {len(self.classes)} classes")
        else:
            named_codes(fields.get("label"), len(index), ABSTAINED, len(self.classes), "classes")

    def _encode_labels(self, table: LabelTable, index: Codes) -> Encoded:
        code = self._vocabulary.encode(table.labels, table.ids)
        fields: dict[str, Tensor | SparseRows] = {
            "target": self._tensor(self._target[index]),
            "label": self._tensor(code),
        }
        return Encoded("labels", [(self._tensor(index), fields)], lambda: Rows(table.ids, index, code, "labels"))

    def _encode_scores(self, table: LabelTable, index: Codes) -> Encoded:
        label = None if table.labels is None else self._vocabulary.encode(table.labels, table.ids)
        digests = np.empty(len(index), dtype=np.int64)

        def chunks() -> Iterator[Chunk]:
            for rows, block in self._class_scores.blocks(table, label):
                digests[rows] = self._class_scores.digest(block)
                fields: dict[str, Tensor | SparseRows] = {
                    "target": self._tensor(self._target[index[rows]]),
                    "score": torch.from_numpy(block).to(self._device),
                }
                yield self._tensor(index[rows]), fields

        return Encoded("scores", chunks(), lambda: Rows(table.ids, index, digests, "scores"))

    def _tensor(self, values: Codes) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def _digest(self, source: Source) -> str:
        if source.dataset is not None:
            return f"sha256:{source.dataset.artifact('solution').sha256}"
        rows = hashlib.sha256()
        for name, code in zip(self._rows.ids, self._target.tolist(), strict=True):
            rows.update(f"{name}\0{code}\0".encode())
        return digest_of({"problem": "classification", "classes": self.classes, "rows": rows.hexdigest()})


def _read_solution(source: Source, label_key: str) -> tuple[LabelTable, Any]:
    """The solution's labels, and the classes that a registered dataset declares."""
    with opened(source.data, error=DataError, text=(label_key,)) as x:
        if not isinstance(x, anndata.AnnData | pd.DataFrame):
            raise UsageError(
                f"solution= must be an AnnData, a DataFrame or the path of one, not a {type(x).__name__}",
                hint="The column that label_key= names holds the labels, the index the names of the rows.",
            )
        table: Any = x.obs if isinstance(x, anndata.AnnData) else x
        if label_key not in table:
            near = ", ".join(nearest_names(label_key, map(str, table.columns)))
            first = "It has none beside the names of its rows, which stand in the first column of a file."
            raise UsageError(f"the solution has no column {label_key!r}", hint=f"Nearest: {near}." if near else first)
        labels = read_labels(one_column(table, label_key, DataError), ids=table.index, columns=(), error=DataError)
        return labels, x.uns.get("classes") if source.dataset is not None and isinstance(x, anndata.AnnData) else None


def _classes(declared: Any, present: Sequence[str]) -> list[str]:
    if declared is None:
        return sorted(present)
    if isinstance(declared, str):
        raise UsageError(f"classes={declared!r} is one string", hint="Give the classes as a list.")
    listed = as_column(declared, "classes", UsageError).tolist()
    if strange := [c for c in listed if not isinstance(c, str)]:
        raise UsageError(f"classes= holds {first_few(strange)}, not only strings", hint="Name every class.")
    refuse_no_text(listed, "classes", UsageError)
    classes = [normalise(c) for c in listed]
    if not all(classes):
        raise UsageError("classes= holds an empty name", hint="Name every class.")
    if twice := sorted({c for c in classes if classes.count(c) > 1}):
        raise UsageError(f"classes= names a class more than once: {first_few(twice)}", hint="Name every class once.")
    if absent := [name for name in present if name not in classes]:
        raise UsageError(
            f"the solution has labels that classes= lacks: {first_few(absent)}",
            hint="Name every class of the solution; their order is that of unnamed columns of scores.",
        )
    return classes
