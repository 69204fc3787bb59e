"""The result of an evaluation as one typed object, the same in memory and on disk (schema 1.0).

Other programs read these names: they keep their meaning and order for as long as the schema is 1.x. This module only
describes, builds, saves and loads; scores are computed in ``evaluation`` and shown by ``text`` and ``html``.
"""

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from prima_bench.tasks.errors import DataError, UsageError
from prima_bench.tasks.results import html, text
from prima_bench.tasks.results.checks import contradictions, falsehoods
from prima_bench.tasks.results.detail import Detail, gone
from prima_bench.tasks.results.digest import comparability_key, result_digest
from prima_bench.tasks.results.files import read_json_object, write_atomically
from prima_bench.tasks.results.records import (
    DatasetRecord,
    Digest,
    ModelRecord,
    PredictionsRecord,
    ProvenanceRecord,
    Record,
    ScoreRecord,
    TaskRecord,
    UnitsRecord,
)
from prima_bench.tasks.specs import UNIT_LEVELS

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "prima-bench/eval-result"
SCHEMA_VERSION = "1.0"


class EvalResult(Record):
    """The result of one evaluation.

    ``result.scores["accuracy"].value`` is a score, ``result.per_unit`` a table with a row per unit,
    ``result.save(path)`` and ``EvalResult.load(path)`` keep it. Two runs of the same predictions have the same
    ``result_digest``; results may be compared when their ``comparability_key`` is the same.
    """

    schema_name: Literal["prima-bench/eval-result"] = Field(alias="schema")
    schema_version: Literal["1.0"]
    task: TaskRecord
    dataset: DatasetRecord
    comparability_key: Digest
    model: ModelRecord
    predictions: PredictionsRecord
    scores: dict[str, ScoreRecord]
    units: UnitsRecord
    provenance: ProvenanceRecord
    flags: list[str]
    result_digest: Digest
    _detail: Detail | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        for problem in contradictions(self.scores, self.units):
            raise ValueError(problem)
        return self

    @classmethod
    def build(
        cls,
        *,
        task: TaskRecord,
        dataset: DatasetRecord,
        metrics: list[dict[str, Any]],
        model: ModelRecord,
        predictions: PredictionsRecord,
        scores: dict[str, ScoreRecord],
        units: UnitsRecord,
        provenance: ProvenanceRecord,
        flags: list[str],
    ) -> Self:
        """Put the parts together and add both digests.

        Args:
            task: The task.
            dataset: The dataset.
            metrics: ``name``, ``version`` and ``params`` of each metric, for the comparability key.
            model: The model.
            predictions: The predictions.
            scores: The scores by metric reference.
            units: The units.
            provenance: The provenance.
            flags: What a reader must know before trusting a score.
        """
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "task": task.model_dump(),
            "dataset": dataset.model_dump(),
            "comparability_key": comparability_key(task.model_dump(), dataset.model_dump(), metrics),
            "model": model.model_dump(),
            "predictions": predictions.model_dump(),
            "scores": {name: score.model_dump() for name, score in scores.items()},
            "units": units.model_dump(),
            "provenance": provenance.model_dump(),
            "flags": sorted(flags),
        }
        return cls.model_validate(document | {"result_digest": result_digest(document)})

    @property
    def per_unit(self) -> "pd.DataFrame":
        """A row per unit: ``n_obs`` (the solution's rows), then a column per metric that has units.

        Units of two levels (``"context | perturbation"``) are rows of a MultiIndex.

        Undefined values are NaN here (a table has no other word for them); ``units.undefined`` has the reasons.
        """
        import pandas as pd

        index: pd.Index[Any] = pd.Index(self.units.ids, name=self.units.kind, dtype="str")
        if levels := self.units.kind.split(UNIT_LEVELS)[1:]:
            names = [self.units.kind.split(UNIT_LEVELS)[0], *levels]
            split = [tuple(unit.split(UNIT_LEVELS, maxsplit=len(levels))) for unit in self.units.ids]
            index = pd.MultiIndex.from_tuples(split, names=names)
        columns = {name: pd.Series(v, index=index, dtype="float64") for name, v in self.units.values.items()}
        return pd.DataFrame({"n_obs": pd.Series(self.units.n_obs, index=index, dtype="int64"), **columns})

    def __eq__(self, other: object) -> bool:
        """Whether two results say the same, whatever lies behind them."""
        return isinstance(other, EvalResult) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        """Of the digest."""
        return hash(self.result_digest)

    def attach(self, detail: Detail) -> Self:
        """Remember the predictions behind this result, as long as the evaluation holds them; returns the result."""
        self._detail = detail
        return self

    def retrieval(self, distance: str = "cosine", exclude_targets: str = "panel") -> "pd.DataFrame":
        """Perturbations: whose true effects lie closer to a predicted effect than its own does.

        Made on request from the predictions that the evaluation still holds.

        Args:
            distance: ``"cosine"``, ``"l1"`` or ``"l2"``.
            exclude_targets: Target genes that are left out: ``"none"``, ``"own"`` or those of the whole ``"panel"``;
                ``"own_single"`` and ``"panel_single"`` only those of perturbations with one target.

        Returns:
            A row per unit: ``score``, ``distance`` to its own true effect, ``nearest`` and ``nearest_distance``, and
            ``closer``: all that are nearer than its own, the nearest first.

        Raises:
            UsageError: If the predictions are gone, or the task has no such table.
        """
        return self._table("retrieval", distance=distance, exclude_targets=exclude_targets)

    def de_table(self, perturbation: str, context: str | None = None, table: str = "default") -> "pd.DataFrame":
        """Perturbations: true and predicted differential expression of one of them, gene by gene.

        Made on request from the predictions that the evaluation still holds.

        Args:
            perturbation: Its label.
            context: Its context, where the solution has several.
            table: How it is made: ``"default"``, ``"vcc2026"`` or ``"cell_eval"``.

        Returns:
            A row per gene: ``tested``, ``target``, and ``true_`` and ``pred_`` columns of ``log_fold_change``,
            ``p_value``, ``fdr`` and ``statistic``.

        Raises:
            UnknownNameError: If there is no such perturbation or context.
            UsageError: If the predictions are gone, or the task has no such table.
        """
        return self._table("de_table", perturbation=perturbation, context=context, table=table)

    def effects(self, table: str = "default") -> "pd.DataFrame":
        """Perturbations: cells, size of the effect and number of differentially expressed genes, true and predicted.

        Made on request from the predictions that the evaluation still holds.

        Args:
            table: As in :meth:`de_table`.

        Raises:
            UsageError: If the predictions are gone, or the task has no such table.
        """
        return self._table("effects", table=table)

    def _table(self, name: str, **arguments: Any) -> "pd.DataFrame":
        if self._detail is None:
            raise gone()
        return self._detail.table(name, **arguments)

    def to_json(self) -> str:
        """The document as strict JSON, keys in the schema's order, with a final newline."""
        return json.dumps(self.model_dump(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the result to a file, whole or not at all.

        Raises:
            DataError: If the file cannot be written.
            UsageError: If the path names no file.
        """
        if not isinstance(path, str | PathLike) or not Path(path).name:
            raise UsageError(f"{path!r} names no file to save to", hint="Name one, such as result.json.")
        target = Path(path)
        write_atomically(target, self.to_json())
        return target

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a result that :meth:`save` wrote.

        Raises:
            DataError: If the file is missing, too large, no strict JSON, not of this schema, was changed since, or
                says what cannot be: another comparability key than its own, a value outside its metric's range.
        """
        document = read_json_object(Path(path))
        _check_schema(document, Path(path))
        try:
            # JSON has no tuples: validating as JSON lets an array fill one, and is strict otherwise.
            result = cls.model_validate_json(json.dumps(document))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the document"
            raise DataError(
                f"{path} is not a result of schema {SCHEMA_VERSION}: {where}: "
                f"{first['msg'].removeprefix('Value error, ')}",
                hint=f"{error.error_count()} such problem(s). It may be edited by hand; evaluate again.",
            ) from error
        if result_digest(document) != result.result_digest:
            raise DataError(
                f"{path} was changed after it was written: its contents no longer match its result_digest",
                hint="Evaluate the predictions again; results are not to be edited.",
            )
        for problem in falsehoods(result):
            raise DataError(
                f"{path} cannot be true: {problem}",
                hint="Evaluate the predictions again; results are not to be edited.",
            )
        return result

    def to_text(self) -> str:
        """The scores as a plain-text table."""
        return text.result_text(self)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        scores = ", ".join(f"{name}={text.number(score.value)}" for name, score in self.scores.items())
        model = "" if self.model.name is None else f"{self.model.name!r} on "
        return f"<EvalResult {model}{self.task.name} / {self.dataset.key}: {scores}>"

    def _repr_html_(self) -> str:
        return html.result_html(self)


def _check_schema(document: dict[str, Any], path: Path) -> None:
    if document.get("schema") != SCHEMA:
        raise DataError(f"{path} is no evaluation result", hint=f'A result begins with "schema": "{SCHEMA}".')
    version = document.get("schema_version")
    if not isinstance(version, str):
        raise DataError(
            f"{path} has schema version {version!r}, which is no text",
            hint=f'It is written in quotes: "schema_version": "{SCHEMA_VERSION}".',
        )
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path} has schema version {version!r}; this release reads {SCHEMA_VERSION}",
            hint="It was written by another release of prima-bench: upgrade to read it.",
        )
