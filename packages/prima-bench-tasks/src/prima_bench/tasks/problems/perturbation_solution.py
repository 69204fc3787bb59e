"""The solution of a perturbation dataset, opened: real cells, control, genes, targets. Predictions are elsewhere."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any
from weakref import WeakValueDictionary

import anndata
import numpy as np
import numpy.typing as npt
import torch

from prima_bench.metrics.errors import MetricError
from prima_bench.metrics.perturbation.contexts import StratifiedReference
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.tasks.errors import DataError, UsageError, counted, first_few, nearest_names, raised_as
from prima_bench.tasks.inputs import expression
from prima_bench.tasks.inputs.cells import CellTable, read_cells
from prima_bench.tasks.inputs.files import opened
from prima_bench.tasks.inputs.genes import GeneSpace
from prima_bench.tasks.inputs.ids import RowIndex, repeated
from prima_bench.tasks.inputs.scale import SOLUTION_EXCESS, Scale, ScaleCheck, as_scale
from prima_bench.tasks.inputs.targets import SEPARATOR, columns_of, named_targets
from prima_bench.tasks.inputs.vocabulary import Codes, distinct, normalise
from prima_bench.tasks.problems.base import Source, as_text, take_options
from prima_bench.tasks.specs import UNIT_LEVELS, digest_of

TARGETS_KEY = "perturbation_targets"
TO_PREDICT = "to_predict"
_REBUILD = "The dataset's recipe must mend it; scoring against your own file, with solution=, asks for none of this."


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class PerturbationSolution:
    """What predictions are held against.

    Attributes:
        label_key: Column that names the perturbation.
        control: Label of control cells.
        perturbations: The other labels, sorted; code p is ``perturbations[p - 1]``.
        scale: The declared scale.
        genes: The gene space; on a user's own data in the order of their names, so that the solution's digest and
            every score are those of its cells and genes, whatever their order.
        reference: The real cells, for the kernel; by context where there are contexts.
        rows: Of a registered dataset, the names of all cells; None for a user's own data.
        group: Code of each cell, int64 [cells], in the order of the file.
        context_key: Column that names the context; None where perturbations are scored over all cells.
        contexts: The contexts, sorted; code c is ``contexts[c]``.
        context: Context of each cell, int64 [cells]; zero where there are no contexts.
        to_predict: Of a registered dataset, which cells predictions must hold, bool [cells].
        unmeasured: How many perturbations have no measured target although they were said to have one.
        digest: ``sha256:...``.
    """

    label_key: str
    control: str
    perturbations: list[str]
    scale: Scale
    genes: GeneSpace
    reference: PerturbationReference | StratifiedReference
    rows: RowIndex | None
    group: Codes
    context_key: str | None
    contexts: list[str]
    context: Codes
    to_predict: npt.NDArray[np.bool_]
    unmeasured: int
    digest: str


_OPENED: WeakValueDictionary[tuple[str, str], PerturbationSolution] = WeakValueDictionary()


def open_solution(source: Source, device: torch.device) -> PerturbationSolution:
    """Open a solution; that of a registered dataset never changes and is read once for all evaluations that hold it.

    Arguments and errors are those of :func:`read_solution`.
    """
    if source.dataset is None:
        return read_solution(source, device)
    if dict(source.options) != dict(source.dataset.options):
        return read_solution(source, device)  # which says what is wrong with the others
    key = source.dataset.digest, str(device)
    solution = _OPENED.get(key)
    if solution is None:
        solution = _OPENED[key] = read_solution(source, device)
    return solution


def read_solution(source: Source, device: torch.device) -> PerturbationSolution:
    """Read a solution.

    Args:
        source: The solution. Options: ``perturbation_key``, ``control``, ``scale``, ``target_map``,
            ``target_separator``, ``context_key``.
        device: Where its cells are kept.

    Raises:
        UsageError: If options are missing, or name what is not there.
        DataError: If the solution cannot be read, or its values are not on the declared scale.
    """
    options = take_options(
        source.options, ("perturbation_key", "control", "scale"), ("target_map", "target_separator", "context_key")
    )
    scale = as_scale(options["scale"])
    label_key = as_text("perturbation_key", options["perturbation_key"])
    context_key = None if options["context_key"] is None else as_text("context_key", options["context_key"])
    with opened(source.data, error=DataError) as cells:
        if not isinstance(cells, anndata.AnnData):
            raise UsageError(
                f"solution= must be an AnnData or the path of an .h5ad file, not {_shown(source.data)}",
                hint="X holds the expression of the real cells, var_names the genes, obs the perturbation of each.",
            )
        for key in filter(None, (label_key, context_key)):
            if key not in cells.obs:
                near = ", ".join(nearest_names(key, map(str, cells.obs.columns)))
                raise UsageError(f"the solution has no column obs[{key!r}]", hint=f"Nearest: {near or 'none'}.")
        table = read_cells(cells, label_key=label_key, context_key=context_key, error=DataError)
        group, control, perturbations = _groups(table, as_text("control", options["control"]))
        genes = GeneSpace(cells.var_names, ordered=source.dataset is not None)
        targets, unmeasured = _targets(source, options, cells, perturbations, genes)
        context, contexts = _contexts(table)
        labels = None
        if source.dataset is None:
            labels = np.array([control, *perturbations], dtype=object)[group]
            labels = labels if not contexts else np.array(contexts, dtype=object)[context] + UNIT_LEVELS + labels
        check = ScaleCheck(scale, "the solution", DataError, SOLUTION_EXCESS, source.key)
        x, hashes = _read_cells(table, genes, check, labels, device)
        registered = None if source.dataset is None else _registered_rows(cells, table, group)
    _refuse_gaps(group, context, contexts, control)
    index = torch.from_numpy(expression.ranks(hashes)).to(device) if hashes else None
    about: dict[str, Any] = {
        "num_perturbations": len(perturbations),
        "scale": scale,
        "targets": targets,
        "index": index,
    }
    codes = torch.from_numpy(group).to(device)
    reference: PerturbationReference | StratifiedReference
    with raised_as(DataError, MetricError):
        if contexts:
            within = torch.from_numpy(context).to(device)
            reference = StratifiedReference.from_cells(x, codes, within, num_contexts=len(contexts), **about)
        else:
            reference = PerturbationReference.from_cells(x, codes, **about)
    return PerturbationSolution(
        label_key=label_key,
        control=control,
        perturbations=perturbations,
        scale=scale,
        genes=genes,
        reference=reference,
        rows=registered,
        group=group,
        context_key=context_key,
        contexts=contexts,
        context=context,
        to_predict=group > 0,
        unmeasured=unmeasured,
        digest=_digest(source, control, scale, genes, targets, hashes, contexts),
    )


def _digest(
    source: Source,
    control: str,
    scale: Scale,
    genes: GeneSpace,
    targets: list[list[int]] | None,
    hashes: list[bytes],
    contexts: list[str],
) -> str:
    if source.dataset is not None:
        return f"sha256:{source.dataset.artifact('solution').sha256}"
    content = {
        "problem": "perturbation",
        "control": control,
        "scale": scale,
        "genes": [str(g) for g in genes.genes],
        "targets": targets,
        "cells": hashlib.sha256(b"".join(sorted(hashes))).hexdigest(),
        **({"contexts": contexts} if contexts else {}),
    }
    return digest_of(content)


def _groups(table: CellTable, control: str) -> tuple[Codes, str, list[str]]:
    raw, names = distinct(table.labels, table.ids, "perturbation", error=DataError)
    control = normalise(control)
    if control not in names:
        near = ", ".join(map(repr, nearest_names(control, names)))
        raise UsageError(f"the solution has no cells labelled {control!r}", hint=f"Name the control; nearest: {near}.")
    perturbations = sorted(set(names) - {control})
    if not perturbations:
        raise DataError(f"all cells of the solution are labelled {control!r}", hint="There is nothing to predict.")
    code = {control: 0, **{name: 1 + i for i, name in enumerate(perturbations)}}
    return np.array([code[name] for name in names], dtype=np.int64)[raw], control, perturbations


def _contexts(table: CellTable) -> tuple[Codes, list[str]]:
    if table.contexts is None:
        return np.zeros(len(table.ids), dtype=np.int64), []
    raw, names = distinct(table.contexts, table.ids, "context", error=DataError)
    if joined := [name for name in names if UNIT_LEVELS in name]:
        raise DataError(
            f"contexts cannot hold {UNIT_LEVELS!r}: {first_few(joined)}", hint="Rename them in the solution."
        )
    contexts = sorted(names)
    code = {name: position for position, name in enumerate(contexts)}
    return np.array([code[name] for name in names], dtype=np.int64)[raw], contexts


def _refuse_gaps(group: Codes, context: Codes, contexts: list[str], control: str) -> None:
    for what, there in ((f"cells labelled {control!r}", group == 0), ("perturbed cells", group > 0)):
        counted_in = np.bincount(context[there], minlength=len(contexts))
        if lacking := [name for name, n in zip(contexts, counted_in, strict=False) if not n]:
            raise DataError(
                f"the solution has no {what} in context {first_few(lacking)}",
                hint="Effects are measured within a context; leave such contexts out of the solution.",
            )


def _targets(
    source: Source, options: Mapping[str, Any], cells: anndata.AnnData, perturbations: list[str], genes: GeneSpace
) -> tuple[list[list[int]] | None, int]:
    """The columns of the targets, and how many perturbations have targets none of which was measured."""
    target_map, separator = options["target_map"], options["target_separator"]
    if source.dataset is not None and target_map is None and TARGETS_KEY in cells.uns:
        try:
            target_map = json.loads(str(cells.uns[TARGETS_KEY]))
        except ValueError as error:
            raise DataError(f"uns[{TARGETS_KEY!r}] of the solution is no JSON: {error}", hint=_REBUILD) from error
    separator = SEPARATOR if separator is None else as_text("target_separator", separator)
    if target_map is None:
        return None, 0
    named = named_targets(target_map, perturbations, genes, separator)
    columns = columns_of(named, genes)
    return columns, sum(bool(names) and not found for names, found in zip(named, columns, strict=True))


def _shown(solution: Any) -> str:
    return repr(str(solution)) if isinstance(solution, str | PathLike) else f"a {type(solution).__name__}"


def _read_cells(
    table: CellTable, genes: GeneSpace, check: ScaleCheck, labels: Any, device: torch.device
) -> tuple[Any, list[bytes]]:
    parts, hashes = [], []
    for rows, block in expression.blocks(table, genes, check):
        if labels is not None:
            hashes += expression.row_hashes(block, labels[rows].tolist())
        parts.append(block)
    return expression.joined(parts, device), hashes


def _registered_rows(cells: anndata.AnnData, table: CellTable, group: Codes) -> RowIndex:
    if twice := repeated(table.ids):
        raise DataError(
            f"the solution names {counted(len(twice), 'cell')} more than once: {first_few(twice)}", hint=_REBUILD
        )
    marked = cells.obs[TO_PREDICT].to_numpy(dtype=bool) if TO_PREDICT in cells.obs else None
    if marked is None or not np.array_equal(marked, group > 0):
        raise DataError(f"obs[{TO_PREDICT!r}] of the solution must mark exactly its perturbed cells", hint=_REBUILD)
    return RowIndex(table.ids)
