"""The parts of a result, each with what its fields owe each other. Reading and writing whole results is elsewhere."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
ParamValue = str | int | float | bool


class Record(BaseModel):
    """A part of a document: strict, frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, serialize_by_alias=True)


class TaskRecord(Record):
    """Which contract was evaluated."""

    name: str
    version: str
    digest: Digest


class DatasetRecord(Record):
    """What was scored against; a user's own data have the name ``local``."""

    name: str
    version: str
    digest: Digest
    solution_digest: Digest

    @property
    def key(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"


class ModelRecord(Record):
    """Whose predictions they are, as the user says."""

    name: str | None = None
    version: str | None = None
    params: dict[str, ParamValue | None] = Field(default_factory=dict)


class PredictionsRecord(Record):
    """What was handed in.

    Attributes:
        fingerprint: Digest of ids and values, free of row order and sharding.
        n_rows: Distinct rows that were scored.
        n_units: Units (perturbations, classes) that they cover.
        coverage: Share of what had to be predicted that was.
        duplicates_dropped: Equal repeats (padding of a sampler) that counted once.
    """

    fingerprint: Digest
    n_rows: Count
    n_units: Count
    coverage: Annotated[float, Field(ge=0, le=1)]
    duplicates_dropped: Count


class ScoreRecord(Record):
    """One metric's score.

    Attributes:
        value: The score; None when it is undefined, which is never 0 and never NaN.
        status: ``"ok"``, ``"partial"`` (some units undefined) or ``"undefined"`` (no value).
        reason: Why there is no value, or why units are missing.
        version: Version of the metric.
        params: The parameters that differ from the metric's defaults.
        alias: Another tool's name for this column, where a preset for parity with it was asked for.
        direction: Whether larger or smaller is better.
        ci: Interval over units; None for now.
        n_units: Units that the value is averaged over; None for a metric without units.
        n_undefined: Units left out because the metric does not exist there.
        skill: Share of the way from the best naive model to a replicate; None where the panel has no anchors, or the
            replicate is not ahead.
    """

    value: float | None
    status: Literal["ok", "partial", "undefined"]
    reason: str | None
    version: Annotated[int, Field(ge=1)]
    params: dict[str, ParamValue]
    alias: str | None
    direction: Literal["max", "min"]
    ci: tuple[float, float] | None
    n_units: Count | None
    n_undefined: Count
    skill: float | None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.value is None) != (self.status == "undefined"):
            raise ValueError(f"status {self.status!r} contradicts value {self.value!r}")
        if self.value is not None and (self.status == "partial") != (self.n_undefined > 0):
            raise ValueError(f"status {self.status!r} contradicts n_undefined {self.n_undefined}")
        if (self.reason is None) != (self.status == "ok"):
            raise ValueError(f"status {self.status!r} contradicts reason {self.reason!r}")
        return self


class UnitsRecord(Record):
    """Every metric's value for every unit (perturbation, class).

    Attributes:
        kind: What a unit is.
        ids: The units' names.
        n_obs: The solution's rows of each unit.
        values: Per metric, one value for each unit, None where undefined.
        undefined: Per metric, the reasons by unit id.
    """

    kind: str
    ids: list[str]
    n_obs: list[Count]
    values: dict[str, list[float | None]]
    undefined: dict[str, dict[str, str]]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        sizes = {"n_obs": len(self.n_obs), **{name: len(column) for name, column in self.values.items()}}
        for name, size in sizes.items():
            if size != len(self.ids):
                raise ValueError(f"{name} has {size} entries for {len(self.ids)} units")
        if len(set(self.ids)) != len(self.ids):
            raise ValueError("ids holds a unit twice")
        if self.undefined.keys() != self.values.keys():
            raise ValueError("undefined and values are not of the same metrics")
        for name, column in self.values.items():
            missing = {unit for unit, value in zip(self.ids, column, strict=True) if value is None}
            if missing != set(self.undefined[name]):
                raise ValueError(f"the reasons of {name} are not those of its undefined units")
        return self


class ProvenanceRecord(Record):
    """Where, when and with what; no part of the result's identity."""

    packages: dict[str, str]
    device: str
    world_size: Annotated[int, Field(ge=1)]
    created: str
    wall_seconds: Annotated[float, Field(ge=0)]
