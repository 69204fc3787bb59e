"""What a task and a dataset say about themselves: inert, frozen, free of heavy imports.

A task file holds ``SPEC = TaskSpec(...)`` beside its functions, a dataset file ``SPEC = DatasetSpec(...)`` beside its
recipe. Listing, cards and digests are made from these and from nothing else.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

UNIT_LEVELS = " | "
"""Between the levels of a unit's name, and of what a unit is: ``"context | perturbation"``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSpec:
    """A naive model that a task ships.

    Attributes:
        name: What users type (``mean_response``).
        function: Name of the function in the task's module: ``function(train, test, **options) -> predictions``, where
            the options are the dataset's (``perturbation_key``, ``label_key``, ...).
        summary: One sentence.
        trivial: Whether it knows nothing that tells one unit from another; skill is measured from the best of these.
    """

    name: str
    function: str
    summary: str
    trivial: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """The contract of one task.

    Attributes:
        name: What users type (``perturbation_prediction``).
        version: Version of the contract; raised when old predictions would no longer mean the same.
        title: A few words, as a heading.
        summary: One sentence.
        question: The scientific question, a short paragraph.
        problem: The family of inputs (``"perturbation"``, ``"classification"``): which metrics apply and how
            predictions are read.
        artifact: What ``pb.load`` returns (``"anndata"``, ``"tensors"``).
        prediction: Expected predictions, in Markdown.
        example: A runnable example that leaves predictions in ``preds``; ``train`` and ``test`` are loaded.
        default_dataset: ``name@version``.
        presets: Named lists of metric references; ``"default"`` is the panel of ``pb.Evaluation``. A preset for
            parity with another tool maps that tool's own names to references.
        primary: The metrics that order a leaderboard, the most important first.
        unit: What a score is averaged over.
        baselines: The naive models shipped with the task.
        abstain: Labels that mean "no answer"; empty where a task has none.
        null: The baseline that knows nothing of a unit, which a replicate must beat; None where a task has none.
    """

    name: str
    version: str
    title: str
    summary: str
    question: str
    problem: str
    artifact: Literal["anndata", "tensors"]
    prediction: str
    example: str
    default_dataset: str
    presets: Mapping[str, tuple[str, ...] | Mapping[str, str]]
    primary: tuple[str, ...]
    unit: str
    baselines: tuple[BaselineSpec, ...]
    abstain: tuple[str, ...] = ()
    null: str | None = None

    def __post_init__(self) -> None:
        presets = {k: MappingProxyType(dict(v)) if isinstance(v, Mapping) else v for k, v in self.presets.items()}
        object.__setattr__(self, "presets", MappingProxyType(presets))

    def members(self, preset: str) -> list[tuple[str, str | None]]:
        """The references of a preset, each with the name that another tool has for it.

        Raises:
            KeyError: If there is no such preset.
        """
        named = self.presets[preset]
        if isinstance(named, Mapping):
            return [(ref, alias) for alias, ref in named.items()]
        return [(ref, None) for ref in named]

    @property
    def digest(self) -> str:
        """``sha256:...`` over what a score depends on (prose does not count)."""
        contract = {k: getattr(self, k) for k in ("name", "version", "problem", "artifact", "unit", "abstain")}
        return digest_of(contract)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSpec:
    """One stored file of a dataset.

    Attributes:
        role: ``"train"``, ``"test"`` (censored), ``"solution"``, or ``"anchors"``: what naive models and a replicate
            score.
        uri: ``package://``, ``file://``, ``s3://`` or ``gs://``; of a hosted dataset the file's name in its manifest.
        sha256: Digest of the file, lower-case hexadecimal.
        size: Bytes.
        contents: One sentence on what is inside.
    """

    role: Literal["train", "test", "solution", "anchors"]
    uri: str
    sha256: str
    size: int
    contents: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSpec:
    """The manifest of a hosted dataset version: it lies below the data root, as ``NAME/VERSION/manifest.json``.

    Attributes:
        sha256: Digest of the manifest, lower-case hexadecimal.
        size: Its bytes.
    """

    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """One version of a dataset.

    Attributes:
        name: What users type before the ``@``.
        version: What stands behind it; other bytes are another version.
        task: Name of the task it belongs to.
        title: A few words, as a heading.
        summary: One or two sentences.
        artifacts: Exactly one each of train, test and solution; and anchors, where they were measured.
        options: How the task reads it (``perturbation_key``, ``control``, ``scale``, ``label_key``, ...).
        source: Where the raw data come from, or how they are simulated.
        licence: SPDX identifier or name.
        licence_url: Where the licence text is.
        citation: What to cite.
        organism: For example ``"Homo sapiens"``, or ``"simulated"``.
        modality: For example ``"scRNA-seq"``.
        split: How train and test were divided.
        counts: Sizes for the card (cells, genes, classes, ...).
        notes: Caveats, in Markdown.
        manifest: What pins the files of a hosted dataset, part by part; None where each artifact has a full URI.
    """

    name: str
    version: str
    task: str
    title: str
    summary: str
    artifacts: tuple[ArtifactSpec, ...]
    options: Mapping[str, Any]
    source: str
    licence: str
    licence_url: str
    citation: str
    organism: str
    modality: str
    split: str
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: str = ""
    manifest: ManifestSpec | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        object.__setattr__(self, "counts", MappingProxyType(dict(self.counts)))
        roles = sorted(a.role for a in self.artifacts)
        if [r for r in roles if r != "anchors"] != ["solution", "test", "train"] or roles.count("anchors") > 1:
            raise ValueError(f"dataset {self.key}: needs train, test and solution once each, has {roles}")
        for artifact in self.artifacts:
            if ("://" in artifact.uri) is (self.manifest is not None):
                wanted = "the file's name in the manifest" if self.manifest else "a full URI, as there is no manifest"
                raise ValueError(f"dataset {self.key}: {artifact.role} has uri {artifact.uri!r}; it must be {wanted}")

    @property
    def key(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"

    def artifact(self, role: str) -> ArtifactSpec:
        """The artifact of that role.

        Raises:
            KeyError: If there is none.
        """
        return {a.role: a for a in self.artifacts}[role]  # type: ignore[index]

    @property
    def digest(self) -> str:
        """``sha256:...`` over what a score depends on: the data's digests and the options (prose does not count)."""
        return digest_of(
            {
                "name": self.name,
                "version": self.version,
                "artifacts": {a.role: a.sha256 for a in self.artifacts if a.role != "anchors"},
                "options": dict(self.options),
            }
        )


def digest_of(value: Any) -> str:
    """``sha256:...`` of a value's canonical JSON.

    >>> digest_of({"b": 1, "a": 2}) == digest_of({"a": 2, "b": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
