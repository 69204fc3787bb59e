"""What lies behind the scores of a perturbation task, as tables: neighbours, differential expression, effects.

Made on request from the predictions that an evaluation still holds; nothing here enters a result.
"""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import pandas as pd
from torch import Tensor

from prima_bench.metrics.base import Batch
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.perturbation.contexts import StratifiedReference
from prima_bench.metrics.perturbation.de.convention import CONVENTIONS, DEConvention
from prima_bench.metrics.perturbation.de.table import DETable, predicted_table, true_table
from prima_bench.metrics.perturbation.profiles.distances import Distance
from prima_bench.metrics.perturbation.profiles.predicted import predicted_profiles
from prima_bench.metrics.perturbation.profiles.retrieval import retrieve
from prima_bench.metrics.perturbation.reference import ExcludeTargets, PerturbationReference
from prima_bench.tasks.errors import UnknownNameError, UsageError, raised_as
from prima_bench.tasks.problems.perturbation_solution import PerturbationSolution

Part = tuple[str | None, Batch, PerturbationReference]
"""A context, where there are any, with its predicted and its true cells."""

_DE_COLUMNS = ("log_fold_change", "p_value", "fdr", "statistic")


class PerturbationDetail:
    """Tables about one set of predictions.

    Args:
        solution: The opened solution.
        batch: All predicted cells.
    """

    def __init__(self, solution: PerturbationSolution, batch: Batch) -> None:
        self._solution = solution
        self._batch = batch

    def retrieval(self, distance: str = "cosine", exclude_targets: str = "panel") -> pd.DataFrame:
        """For each perturbation, whose true effects lie closer to the predicted one than its own does.

        Args:
            distance: ``"cosine"``, ``"l1"`` or ``"l2"``.
            exclude_targets: Target genes that are left out: ``"none"``, ``"own"`` or those of the whole ``"panel"``;
                ``"own_single"`` and ``"panel_single"`` only those of perturbations with one target.

        Returns:
            A row per perturbation: ``score`` (the discrimination score), ``distance`` to its own true effect, the
            ``nearest`` true effect and its ``nearest_distance``, and ``closer``, the names of all that are nearer than
            its own, the nearest first.

        Raises:
            UsageError: If a choice does not exist.
        """
        _check("distance", distance, get_args(Distance))
        _check("exclude_targets", exclude_targets, get_args(ExcludeTargets))

        def rows(batch: Batch, reference: PerturbationReference) -> pd.DataFrame:
            found = retrieve(batch, reference, distance=distance, exclude_targets=exclude_targets)  # type: ignore[arg-type]  # checked
            names = [self._solution.perturbations[p] for p in found.perturbations.tolist()]
            table = []
            for i, distances in enumerate(found.distance.tolist()):
                order = sorted(range(len(names)), key=lambda j: (distances[j], names[j]))
                table.append(
                    {
                        "score": float(found.score[i]),
                        "distance": distances[i],
                        "nearest": names[order[0]],
                        "nearest_distance": distances[order[0]],
                        "closer": [names[j] for j in order if distances[j] < distances[i]],
                    }
                )
            return pd.DataFrame(table, index=pd.Index(names, name="perturbation", dtype="str"))

        return self._stacked(rows)

    def de_table(self, perturbation: str, context: str | None = None, table: str = "default") -> pd.DataFrame:
        """The true and the predicted differential expression of one perturbation.

        Args:
            perturbation: Its label.
            context: Its context, where the solution has several.
            table: How tables are made: ``"default"``, ``"vcc2026"`` or ``"cell_eval"``.

        Returns:
            A row per gene: ``tested`` (whether the solution's control expresses it enough), ``target`` (whether it is a
            target of the perturbation), and ``true_`` and ``pred_`` columns of ``log_fold_change`` (log2), ``p_value``
            (two-sided rank-sum), ``fdr`` (Benjamini-Hochberg) and ``statistic`` (z).

        Raises:
            UnknownNameError: If the solution has no such perturbation or context.
            UsageError: If the context is missing or superfluous, or the convention does not exist.
        """
        convention = _convention(table)
        if perturbation not in self._solution.perturbations:
            raise UnknownNameError("perturbation", perturbation, self._solution.perturbations)
        _, batch, reference = self._part(context)
        code = self._solution.perturbations.index(perturbation)
        if not int(reference.cells_per_group[1 + code]):
            raise UsageError(f"the solution has no cells of {perturbation!r} in context {context!r}")
        with raised_as(UsageError, InputError):
            tables = {"true": true_table(reference, convention), "pred": predicted_table(batch, reference, convention)}
        genes = [str(g) for g in self._solution.genes.genes]
        targets = set(reference.targets[code]) if reference.targets is not None else set()
        columns: dict[str, Any] = {
            "tested": _row(tables["true"].tested, code),
            "target": [column in targets for column in range(len(genes))],
        }
        for side, of in tables.items():
            columns |= {f"{side}_{name}": _row(getattr(of, name), code) for name in _DE_COLUMNS}
        return pd.DataFrame(columns, index=pd.Index(genes, name="gene", dtype="str"))

    def effects(self, table: str = "default") -> pd.DataFrame:
        """How strong each perturbation is, in truth and as predicted.

        Args:
            table: As in :meth:`de_table`.

        Returns:
            A row per perturbation: ``true_cells`` and ``pred_cells``, ``true_effect`` and ``pred_effect`` (Euclidean
            norm of pseudobulk minus the solution's control), ``true_de_genes`` and ``pred_de_genes`` (tested genes with
            a false discovery rate below 0.05).

        Raises:
            UsageError: If the convention does not exist.
        """
        convention = _convention(table)

        def rows(batch: Batch, reference: PerturbationReference) -> pd.DataFrame:
            pred, cells = predicted_profiles(batch, reference, 0.0)
            true = reference.profiles().to(pred.device)
            with raised_as(UsageError, InputError):
                found: dict[str, DETable] = {
                    "true": true_table(reference, convention), "pred": predicted_table(batch, reference, convention),
                }  # fmt: skip
            columns: dict[str, Any] = {
                "true_cells": reference.cells_per_group[1:].tolist(),
                "pred_cells": cells[1:].tolist(),
                "true_effect": (true[1:] - true[0]).norm(dim=1).tolist(),
                "pred_effect": (pred[1:] - true[0]).norm(dim=1).tolist(),
            }
            for side, of in found.items():
                columns[f"{side}_de_genes"] = of.called(convention.alpha).sum(dim=1).tolist()
            index = pd.Index(self._solution.perturbations, name="perturbation", dtype="str")
            frame = pd.DataFrame(columns, index=index)
            return frame[frame["true_cells"] > 0]

        return self._stacked(rows)

    def _stacked(self, rows: Callable[[Batch, PerturbationReference], pd.DataFrame]) -> pd.DataFrame:
        parts = {context: rows(batch, reference) for context, batch, reference in self._parts()}
        return parts[None] if None in parts else pd.concat(parts, names=["context"])

    def _parts(self) -> Iterator[Part]:
        reference = self._solution.reference
        if isinstance(reference, StratifiedReference):
            for code, (name, part) in enumerate(zip(self._solution.contexts, reference.parts, strict=True)):
                yield name, self._batch.part("context", code), part
        else:
            yield None, self._batch, reference

    def _part(self, context: str | None) -> Part:
        contexts = self._solution.contexts
        if context is None and contexts:
            raise UsageError(
                "the solution has several contexts", hint=f"Name one with context=: {', '.join(contexts)}."
            )
        if context is not None and not contexts:
            raise UsageError("the solution has no contexts", hint="Leave context out.")
        if context is not None and context not in contexts:
            raise UnknownNameError("context", context, contexts)
        return next(part for part in self._parts() if part[0] == context)


def _row(values: Tensor, code: int) -> Any:
    return values[code].cpu().numpy()


def _convention(name: str) -> DEConvention:
    _check("table", name, CONVENTIONS)
    return CONVENTIONS[name]


def _check(name: str, value: Any, choices: Any) -> None:
    if value not in choices:
        raise UsageError(f"{name} cannot be {value!r}", hint=f"Choose one of {', '.join(choices)}.")
