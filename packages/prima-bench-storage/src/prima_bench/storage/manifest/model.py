"""The manifest of one version of a dataset: what its files are called, where they lie, and what they are to the byte.

A manifest is data that others may have written. It is read strictly: unknown and missing keys, duplicate keys, values
of another type, odd numbers and names that could lead anywhere are refused, and everything in it has a largest size.
"""

import functools
import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prima_bench.storage.content import PART_SIZE, Content
from prima_bench.storage.errors import AddressError, ManifestError
from prima_bench.storage.manifest.names import check_no_clash, check_plain_name, check_relative_path, shown
from prima_bench.storage.uri import is_sha256, parse_uri

SCHEMA = "prima-bench/dataset-manifest"
SCHEMA_VERSION = "1.0"
MANIFEST = "manifest.json"
"""What a manifest is called, beside the files that it names."""
MAX_BYTES = 1 << 24
"""A manifest has no more bytes than this; at 16 MiB a part that is enough for 3 TB."""

_MAX_SIZE = 1 << 50
_MAX_ARTIFACTS = 10_000
_LONGEST_REASON = 400
_FORMAT = re.compile(r"[a-z0-9][a-z0-9.+-]{0,31}")
_KEYS = ("schema", "schema_version", "name", "version", "part_size", "artifacts")
_ARTIFACT_KEYS = ("name", "uri", "sha256", "size", "parts", "format", "licence")


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file of a dataset.

    Attributes:
        name: What the file is called, as a relative path (``train.h5ad``).
        uri: Where it lies: a path relative to the manifest, or an absolute ``gs://`` or ``s3://`` URI.
        content: Its size and digests.
        format: For example ``"h5ad"``.
        licence: SPDX identifier or name.
    """

    name: str
    uri: str
    content: Content
    format: str
    licence: str

    def __post_init__(self) -> None:
        check_relative_path(self.name, "artifact")
        _check_uri(self.uri)
        if not _FORMAT.fullmatch(self.format):
            raise ManifestError(f"artifact {self.name!r}: format {self.format[:40]!r} is no short word")
        if not 0 < len(self.licence) <= 200 or not self.licence.isprintable():
            raise ManifestError(f"artifact {self.name!r}: the licence is empty, longer than 200 or does not print")

    @property
    def is_relative(self) -> bool:
        """Whether it lies beside the manifest, wherever that is."""
        return "://" not in self.uri


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a dataset.

    Attributes:
        name: Name of the dataset.
        version: Its version.
        artifacts: The files, by name.
    """

    name: str
    version: str
    artifacts: tuple[Artifact, ...]

    def __post_init__(self) -> None:
        check_plain_name(self.name, "dataset")
        check_plain_name(self.version, "version")
        if not 0 < len(self.artifacts) <= _MAX_ARTIFACTS:
            raise ManifestError(f"a manifest has 1 to {_MAX_ARTIFACTS} artifacts, not {len(self.artifacts)}")
        check_no_clash([MANIFEST, *(a.name for a in self.artifacts)], "artifact")
        object.__setattr__(self, "artifacts", tuple(sorted(self.artifacts, key=lambda a: a.name)))

    @classmethod
    def parse(cls, data: bytes) -> "Manifest":
        """Read a manifest.

        Raises:
            ManifestError: If it is none; it says what is wrong where.

        >>> Manifest.parse(b'{"schema": 1, "schema": 2}')
        Traceback (most recent call last):
        ...
        prima_bench.storage.errors.ManifestError: a manifest is strict JSON: the key 'schema' is there twice
        """
        fields = _object(_read_json(data), _KEYS, "the manifest")
        if (fields["schema"], fields["schema_version"]) != (SCHEMA, SCHEMA_VERSION):
            raise ManifestError(
                f"this is no {SCHEMA} of version {SCHEMA_VERSION}",
                hint="A newer prima-bench may read it.",
            )
        if fields["part_size"] is True or fields["part_size"] != PART_SIZE:
            raise ManifestError(f"part_size must be {PART_SIZE}")
        if not isinstance(fields["artifacts"], list):
            raise ManifestError("artifacts must be a list")
        if len(fields["artifacts"]) > _MAX_ARTIFACTS:
            raise ManifestError(f"a manifest has 1 to {_MAX_ARTIFACTS} artifacts, not {len(fields['artifacts'])}")
        artifacts = tuple(_artifact(value, f"artifact {i}") for i, value in enumerate(fields["artifacts"], start=1))
        return cls(fields["name"], fields["version"], artifacts)

    def to_bytes(self) -> bytes:
        """The manifest as it is stored; the same manifest is always the same bytes.

        Raises:
            ManifestError: If it is too large.
        """
        artifacts = [
            {
                "name": a.name,
                "uri": a.uri,
                "sha256": a.content.sha256,
                "size": a.content.size,
                "parts": list(a.content.digests),
                "format": a.format,
                "licence": a.licence,
            }
            for a in self.artifacts
        ]
        values = (SCHEMA, SCHEMA_VERSION, self.name, self.version, PART_SIZE, artifacts)
        data = (json.dumps(dict(zip(_KEYS, values, strict=True)), indent=1, ensure_ascii=False) + "\n").encode()
        if len(data) > MAX_BYTES:
            raise ManifestError(f"the manifest has {len(data)} bytes, more than {MAX_BYTES}")
        return data

    @property
    def sha256(self) -> str:
        """The digest of :meth:`to_bytes`, which a spec pins."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def artifact(self, name: str) -> Artifact:
        """The file of that name.

        Raises:
            ManifestError: If there is none.
        """
        found = next((a for a in self.artifacts if a.name == name), None)
        if found is None:
            raise ManifestError(
                f"{self.name}@{self.version} has no artifact {name!r}",
                hint=f"It has {', '.join(a.name for a in self.artifacts[:10])}.",
            )
        return found


def manifest_at(path: Path) -> Manifest | None:
    """The manifest that a file holds; None where it holds something else, or cannot be read.

    >>> manifest_at(Path("no/such/file")) is None
    True
    """
    try:
        with path.open("rb") as stream:
            # Most files are something else, and are not read for that.
            if stream.peek(1)[:1] != b"{" or path.stat().st_size > MAX_BYTES:
                return None
            return Manifest.parse(stream.read(MAX_BYTES))
    except (OSError, ManifestError):
        return None


@functools.lru_cache(maxsize=16)
def parsed(data: bytes) -> Manifest:
    """:meth:`Manifest.parse`, once for the same bytes."""
    return Manifest.parse(data)


def _artifact(value: Any, where: str) -> Artifact:
    fields = _object(value, _ARTIFACT_KEYS, where)
    for key in ("name", "uri", "sha256", "format", "licence"):
        if not isinstance(fields[key], str):
            raise ManifestError(f"{where}: {key} must be text")
    if not isinstance(fields["parts"], list):
        raise ManifestError(f"{where}: parts must be a list")
    size = fields["size"]
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_SIZE:
        raise ManifestError(f"{where}: size must be a number of bytes")
    if not fields["parts"]:
        raise ManifestError(f"{where}: parts must hold the digest of every part")
    if not is_sha256(fields["sha256"]):
        raise ManifestError(f"{where}: sha256 {shown(fields['sha256'])} is not 64 lower-case hexadecimal digits")
    try:
        content = Content.pinned(where, fields["sha256"], size, tuple(fields["parts"]))
    except AddressError as error:
        raise ManifestError(error.message) from None
    return Artifact(fields["name"], fields["uri"], content, fields["format"], fields["licence"])


def _check_uri(uri: str) -> None:
    if "://" not in uri:
        check_relative_path(uri, "uri")
        return
    if not uri.startswith(("gs://", "s3://")):
        raise ManifestError(f"uri {shown(uri)} is neither relative nor gs:// nor s3://")
    try:
        parse_uri(uri)
    except AddressError as error:
        # What is wrong comes last, after what may be very long.
        reason = error.message.removeprefix(f"{uri!r}: ")
        raise ManifestError(f"uri {shown(uri)}: {reason if len(reason) < _LONGEST_REASON else 'is too long'}") from None


def _object(value: Any, keys: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ManifestError(f"{where} must be an object")
    for key in keys:
        if key not in value:
            raise ManifestError(f"{where}: {key} is missing")
    for key in value:
        if key not in keys:
            raise ManifestError(f"{where}: {str(key)[:40]!r} is unknown")
    return value


def _read_json(data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise ManifestError(f"a manifest has at most {MAX_BYTES} bytes, not {len(data)}")
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_no_constant,
        )
    except RecursionError:
        raise ManifestError("a manifest is not nested that deep") from None
    except ValueError as error:
        raise ManifestError(f"a manifest is strict JSON: {error}"[:300]) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice[:40]!r} is there twice")
    return fields


def _no_constant(text: str) -> None:
    raise ValueError(f"{text[:40]} is no number that a manifest holds")
