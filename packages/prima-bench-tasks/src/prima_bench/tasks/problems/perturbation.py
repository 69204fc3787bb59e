"""Perturbation prediction: predicted cells against real ones, by perturbation.

Of a registered dataset the cells to predict are named, and a prediction holds exactly those. On a user's own data any
number of cells per perturbation may be predicted; a cell is known by its perturbation and its name.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, Score, SparseRows
from prima_bench.metrics.numerics import BLOCK_ROWS
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.anchors import other_perturbations, pasted_control, split_half
from prima_bench.metrics.spec import MetricRef
from prima_bench.tasks.errors import PredictionError, UsageError, counted, first_few
from prima_bench.tasks.inputs import expression
from prima_bench.tasks.inputs.cells import CellTable, read_cells
from prima_bench.tasks.inputs.files import opened
from prima_bench.tasks.inputs.ids import Ids, RowIndex
from prima_bench.tasks.inputs.ledger import Int64, RowDigest, Rows
from prima_bench.tasks.inputs.scale import PREDICTION_EXCESS, ScaleCheck
from prima_bench.tasks.inputs.vocabulary import Codes, Vocabulary
from prima_bench.tasks.problems.base import Chunk, Coverage, Encoded, Source, build_metrics, fingerprint_of
from prima_bench.tasks.problems.perturbation_detail import PerturbationDetail
from prima_bench.tasks.problems.perturbation_solution import open_solution
from prima_bench.tasks.problems.restored import impossible, named_codes
from prima_bench.tasks.specs import UNIT_LEVELS, TaskSpec

NO_TARGETS = "targets_not_excluded"
"""Flag: a metric leaves out target genes, but none are known."""

UNMEASURED = "targets_not_measured"
"""Flag: a metric leaves out target genes, but some perturbations have no measured one."""

ALL_ZERO = "all_predictions_zero"
"""Flag: no predicted cell holds any expression, as in a test split that is handed in as it is."""

_STAND_INS = {"replicate": split_half, "paste_control": pasted_control, "other_perturbations": other_perturbations}

Identified = tuple[Int64, Codes, Codes, npt.NDArray[np.bool_]]
"""Of each row: its row id, its code, its context, and whether it is kept."""


class PerturbationProblem:
    """An opened solution of perturbed cells.

    Args:
        task: The task.
        source: The solution; its options are those of ``read_solution``.
        device: Where rows are kept and scored.

    Raises:
        UsageError: If options are missing or wrong.
        DataError: If the solution cannot be used.
    """

    def __init__(self, task: TaskSpec, source: Source, device: torch.device) -> None:
        self._device = device
        self._solution = open_solution(source, device)
        solution = self._solution
        self._vocabulary = Vocabulary([solution.control, *solution.perturbations], "perturbation")
        self._check = ScaleCheck(solution.scale, "predictions", PredictionError, PREDICTION_EXCESS, source.key)
        self._digest = RowDigest(len(solution.genes))
        self._needs_control: list[str] = []
        self.labels = self._vocabulary.labels
        self._contexts = Vocabulary(solution.contexts, "context")
        self.unit_kind = UNIT_LEVELS.join(["context", "perturbation"] if solution.contexts else ["perturbation"])
        cells = self._cells_of(solution.group, solution.context)
        self.unit_codes = np.flatnonzero(cells[:, 1:]).tolist()
        self.unit_n_obs = cells[:, 1:].ravel()[self.unit_codes].tolist()
        self.unit_ids = self._unit_names(self.unit_codes)
        self.solution_digest = solution.digest
        self.flags: list[str] = []
        self.ignored = "control cells"
        self.identity_hint = (
            "Give the cells of each shard distinct names, or pass ids=; a cell is known by its perturbation and name."
            if solution.rows is None
            else "A cell that comes twice, as samplers pad, must hold the same values both times."
        )

    def panel(self, refs: Sequence[MetricRef]) -> Panel:
        """The metrics against this solution. Predicted control cells are kept when one of them uses those."""
        metrics = build_metrics(refs, {"reference": self._solution.reference})
        self._needs_control = [name for name, m in metrics.items() if getattr(m, "uses_predicted_control", False)]
        excludes = any(getattr(m, "exclude_targets", "none") != "none" for m in metrics.values())
        self.flags = [NO_TARGETS] if excludes and self._solution.reference.targets is None else []
        if excludes and self._solution.unmeasured:
            self.flags.append(f"{UNMEASURED}: {self._solution.unmeasured} of {len(self._solution.perturbations)}")
        return Panel(metrics).to(self._device)

    @contextmanager
    def encode(self, predictions: Any, ids: Any, labels: Any, contexts: Any) -> Iterator[Encoded]:
        """Open predictions, to be parsed, checked and aligned a few cells at a time.

        Args:
            predictions: Cells in any form that ``inputs.cells`` reads, or a path.
            ids: Names of the cells, where the predictions carry none.
            labels: Perturbation of each cell, in place of a column of the predictions.
            contexts: Context of each cell, in place of a column of the predictions.

        Raises:
            PredictionError: If they cannot be scored.
        """
        solution = self._solution
        if contexts is not None and not solution.contexts:
            raise UsageError("context= was given, but the solution has no contexts", hint="Add context_key=.")
        keys = solution.label_key, solution.context_key
        with opened(predictions, error=PredictionError, text=[*filter(None, keys)]) as x:
            table = read_cells(x, ids=ids, labels=labels, contexts=contexts, label_key=keys[0], context_key=keys[1])
            rows = solution.rows
            index, group, context, keep = self._own(table) if rows is None else self._registered(table, rows)
            digests = np.zeros(len(index), dtype=np.int64)

            def chunks() -> Iterator[Chunk]:
                for taken, block in expression.blocks(table, solution.genes, self._check, keep):
                    digests[taken] = self._digest(block)
                    fields: dict[str, Tensor | SparseRows] = {
                        "x": expression.to_kernel(block, self._device),
                        "group": self._tensor(group[taken]),
                    }
                    if solution.contexts:
                        fields["context"] = self._tensor(context[taken])
                    yield self._tensor(index[taken]), fields

            def known() -> Rows:
                return Rows(table.ids[keep], index[keep], digests[keep], "cells")

            yield Encoded("cells", chunks(), known, ignored=not keep.all())

    def check_complete(self, batch: Batch) -> Coverage:
        """Every named cell, or on own data every perturbation, must be predicted.

        Raises:
            PredictionError: Naming the first few that are missing.
        """
        solution = self._solution
        group = batch.tensor("group").cpu().numpy()
        context = batch.tensor("context").cpu().numpy() if "context" in batch else np.zeros_like(group)
        predicted = self._cells_of(group, context)
        if solution.rows is not None:
            wanted = solution.to_predict.copy()
            wanted[batch.index.cpu().numpy()] = False
            if wanted.any():
                raise PredictionError(
                    f"{wanted.sum()} of {solution.to_predict.sum()} cells not predicted: "
                    f"{first_few(solution.rows.ids[wanted])}",
                    hint="Predict every cell of the test split whose obs['to_predict'] is true.",
                )
        found = predicted[:, 1:].ravel()
        if missing := [name for name, c in zip(self.unit_ids, self.unit_codes, strict=True) if not found[c]]:
            where = " in every context where the solution has it" if solution.contexts else " of the solution"
            raise PredictionError(
                f"{len(missing)} of {len(self.unit_ids)} perturbations without predicted cells: {first_few(missing)}",
                hint=f"Predict at least one cell of every perturbation{where}.",
            )
        if self._needs_control and not predicted[:, 0].all():
            raise PredictionError(
                f"there are no predicted control cells, and {counted(len(self._needs_control), 'metric')} of the panel "
                f"must have them: {first_few(self._needs_control, 3)}",
                hint=f"Predict cells labelled {solution.control!r} too, or take control_source=solution.",
            )
        return Coverage(int(found.sum()), len(self.unit_ids), 1.0)

    def flags_of(self, batch: Batch) -> list[str]:
        """``all_predictions_zero`` where no cell of a perturbation holds any expression."""
        perturbed = (batch.tensor("group") > 0).nonzero().flatten()
        blocks = (batch.rows("x").take(rows) for rows in torch.split(perturbed, BLOCK_ROWS))
        return [] if any(bool((block != 0).any()) for block in blocks) else [ALL_ZERO]

    def fingerprint(self, batch: Batch) -> str:
        """``sha256:...`` over ids, contexts, perturbations and expression."""
        return fingerprint_of(batch, ("context", "group", "x"))

    def names_of(self, index: Sequence[int]) -> list[str] | None:
        """The names of rows by their position in a registered solution; own data have no such list."""
        rows = self._solution.rows
        return None if rows is None else [str(rows.ids[i]) for i in index]

    def detail(self, batch: Batch) -> PerturbationDetail:
        """What lies behind the scores of a batch."""
        return PerturbationDetail(self._solution, batch)

    def without_predicted_control(self, refs: Sequence[MetricRef]) -> list[MetricRef]:
        """The metrics that ask for no predicted control cells."""
        metrics = build_metrics(refs, {"reference": self._solution.reference})
        return [ref for ref in refs if not getattr(metrics[str(ref)], "uses_predicted_control", False)]

    def stand_in_scores(self, kind: str, refs: Sequence[MetricRef], seed: int) -> dict[str, Score]:
        """What the solution's own cells score in the place of predictions.

        Args:
            kind: ``"replicate"``, ``"paste_control"`` or ``"other_perturbations"``.
            refs: The metrics.
            seed: Decides which cells.
        """
        stand_in = _STAND_INS[kind](self._solution.reference, seed)
        return Panel(build_metrics(refs, {"reference": stand_in.reference})).to(self._device).score_all(stand_in.batch)

    def check_rows(self, index: Tensor, fields: Mapping[str, Tensor | SparseRows]) -> None:
        """Refuse rows out of a file that no update could have brought: other genes, perturbations, contexts.

        Args:
            index: Their ids, int64 [n].
            fields: Their fields.

        Raises:
            DataError: Naming what is wrong.
        """
        solution = self._solution
        x = fields.get("x")
        if x is None or len(x.shape) != 2 or x.shape[1] != len(solution.genes):
            raise impossible(f"expression of other than {len(solution.genes)} genes")
        group = named_codes(fields.get("group"), len(index), 0, len(self.labels), "perturbations")
        context = np.zeros(len(group), dtype=np.int64)
        if solution.contexts:
            context = named_codes(fields.get("context"), len(index), 0, len(solution.contexts), "contexts")
        if solution.rows is not None:
            rows = named_codes(index, len(index), 0, len(solution.rows), "cells")
            if (solution.group[rows] != group).any() or (solution.context[rows] != context).any():
                raise impossible("cells under another perturbation than in the solution")
            return
        there = np.zeros((max(1, len(solution.contexts)), len(self.labels)), dtype=bool)
        there[:, 0] = True
        there[:, 1:].flat[self.unit_codes] = True
        if not there[context, group].all():
            raise impossible("perturbations that the solution does not have in their context")

    def _registered(self, table: CellTable, rows: RowIndex) -> Identified:
        index = rows.find(table.ids)
        rows.refuse_unknown(table.ids, index)
        group = self._solution.group[index]
        if table.labels is not None:
            given = self._vocabulary.encode(table.labels, table.ids)
            self._refuse_other_labels(self._vocabulary, given, group, table.ids)
        context = self._solution.context[index]
        if table.contexts is not None:
            given = self._contexts.encode(table.contexts, table.ids)
            self._refuse_other_labels(self._contexts, given, context, table.ids)
        return index, group, context, self._kept(group)

    def _own(self, table: CellTable) -> Identified:
        key = self._solution.label_key
        if table.labels is None:
            raise PredictionError(
                f"predictions do not say which perturbation each cell is under: there is no column {key!r}",
                hint=f"Add obs[{key!r}], or pass perturbation=, one label for each cell.",
            )
        group = self._vocabulary.encode(table.labels, table.ids)
        keep = self._kept(group)
        context = self._own_contexts(table)
        self._refuse_new_pairs(context, group, table.ids)
        index = _name_hashes(self._pairs(), context * len(self._vocabulary.labels) + group, table.ids)
        return index, group, context, keep

    def _own_contexts(self, table: CellTable) -> Codes:
        key = self._solution.context_key
        if key is None:
            return np.zeros(len(table.ids), dtype=np.int64)
        if table.contexts is None:
            raise PredictionError(
                f"predictions do not say in which context each cell is: there is no column {key!r}",
                hint=f"Add obs[{key!r}], or pass context=, one label for each cell.",
            )
        return self._contexts.encode(table.contexts, table.ids)

    def _refuse_new_pairs(self, context: Codes, group: Codes, ids: Ids) -> None:
        there = np.zeros((max(1, len(self._contexts.labels)), len(self._vocabulary.labels)), dtype=bool)
        there[:, 0] = True
        there[:, 1:].flat[self.unit_codes] = True
        if (new := ~there[context, group]).any():
            codes = np.unique(context[new] * len(self._vocabulary.labels) + group[new])
            raise PredictionError(
                f"{counted(int(new.sum()), 'cell')} of perturbations that the solution does not have in their context: "
                f"{first_few([self._pairs()[c] for c in codes])} (first cells: {first_few(ids[new])})",
                hint="Predict the perturbations of the solution, each in the contexts where the solution has it.",
            )

    def _pairs(self) -> list[str]:
        """Contexts joined with labels, as unit names are; labels alone where there are no contexts."""
        labels = self._vocabulary.labels
        return [f"{c}{UNIT_LEVELS}{label}" for c in self._contexts.labels for label in labels] or labels

    def _unit_names(self, codes: Sequence[int]) -> list[str]:
        width = len(self._solution.perturbations)
        return [self._pairs()[c // width * (1 + width) + c % width + 1] for c in codes]

    def _cells_of(self, group: Codes, context: Codes) -> Int64:
        """How many cells there are by context and label, int64 [contexts, 1 + perturbations]."""
        shape = max(1, len(self._contexts.labels)), len(self._vocabulary.labels)
        return np.bincount(context * shape[1] + group, minlength=shape[0] * shape[1]).reshape(shape)

    def _kept(self, group: Codes) -> npt.NDArray[np.bool_]:
        return np.ones(len(group), dtype=bool) if self._needs_control else group > 0

    def _refuse_other_labels(self, vocabulary: Vocabulary, given: Codes, true: Codes, ids: Ids) -> None:
        other = np.flatnonzero(given != true)
        if len(other):
            labels, first = vocabulary.labels, other[0]
            raise PredictionError(
                f"{counted(len(other), 'cell')} under another {vocabulary.what} than in the solution: "
                f"{first_few(ids[other])} "
                f"(first: {labels[given[first]]!r}, where the solution has {labels[true[first]]!r})",
                hint="Keep the test split's obs beside its obs_names; do not reorder one without the other.",
            )

    def _tensor(self, values: Int64) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _name_hashes(labels: Sequence[str], group: Codes, ids: Ids) -> Int64:
    """Row ids of own data, int64 [n]: 64-bit BLAKE2b of perturbation and name, so that every rank has the same."""
    begun = [hashlib.blake2b(f"{label}\0".encode(), digest_size=8) for label in labels]
    hashes = []
    for code, name in zip(group.tolist(), ids, strict=True):
        h = begun[code].copy()
        h.update(str(name).encode())
        hashes.append(h.digest())
    return np.frombuffer(b"".join(hashes), dtype="<i8").astype(np.int64)
