"""Where hosted datasets lie: one root, and mirrors of it that are asked in order when it cannot give what is wanted.

Below every root the layout is the same::

    <root>/NAME/VERSION/manifest.json
    <root>/NAME/VERSION/<artifact>
"""

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prima_bench.storage.errors import (
    AccessError,
    AddressError,
    CredentialsError,
    IntegrityError,
    NotFoundError,
    OfflineError,
    SettingsError,
    StorageError,
    TransferError,
)
from prima_bench.storage.manifest.model import MANIFEST
from prima_bench.storage.settings import setting
from prima_bench.storage.uri import parse_uri

ROOT = "PRIMA_BENCH_DATA_ROOT"
MIRRORS = "PRIMA_BENCH_DATA_MIRRORS"
CANONICAL = "gs://prima-mente-benchmark"

_HINT = "Write gs://bucket/prefix, s3://bucket/prefix or file:///folder."

LEFT_ALONE = 60.0
"""Seconds for which a root that could not be reached is asked last: finding that out takes many tries."""

_unreached: dict[str, float] = {}

_ELSEWHERE = (AccessError, CredentialsError, IntegrityError, NotFoundError, OfflineError, TransferError)
"""What another root may do better."""

_log = logging.getLogger("prima_bench.storage")


@dataclass(frozen=True, slots=True)
class Root:
    """A place that holds datasets.

    Attributes:
        uri: ``gs://bucket/prefix``, ``s3://bucket/prefix`` or ``file:///folder``, without a slash at the end.
    """

    uri: str

    @classmethod
    def parse(cls, text: str) -> "Root":
        """Read a root.

        Raises:
            AddressError: If nothing can lie below it.

        >>> Root.parse("gs://bucket/prefix/").of("sim", "1.0.0", "train.h5ad")
        'gs://bucket/prefix/sim/1.0.0/train.h5ad'
        >>> Root.parse("lab/sets")
        Traceback (most recent call last):
        ...
        prima_bench.storage.errors.AddressError: 'lab/sets' is no data root: not a URI that prima-bench reads
        hint: Write gs://bucket/prefix, s3://bucket/prefix or file:///folder.
        """
        root = cls(text.strip().rstrip("/"))
        if root.uri.startswith("package://"):
            raise AddressError(f"{text!r}: nothing is hosted inside a package", hint=_HINT)
        below = root.of("name", "version", MANIFEST)
        try:
            parse_uri(below)
        except AddressError as error:
            # What was given is named, not what would lie below it.
            why = error.message.removeprefix(f"{below!r}: ")
            raise AddressError(f"{text!r} is no data root: {why}", hint=_HINT) from None
        return root

    def of(self, name: str, version: str, path: str) -> str:
        """The URI of a file of a dataset version."""
        return f"{self.uri}/{name}/{version}/{path}"


def data_roots() -> tuple[Root, ...]:
    """The root at ``PRIMA_BENCH_DATA_ROOT``, else the canonical bucket; then ``PRIMA_BENCH_DATA_MIRRORS`` in order.

    Raises:
        SettingsError: If one of them is none.
    """
    roots = []
    for name, value in ((ROOT, setting(ROOT) or CANONICAL), (MIRRORS, setting(MIRRORS) or "")):
        for text in re.split(r"[\s,]+", value) if name == MIRRORS else [value]:
            if not text:
                continue
            try:
                roots.append(Root.parse(text))
            except AddressError as error:
                hint = f"{_HINT} Several are written with blanks in between." if name == MIRRORS else _HINT
                raise SettingsError(f"{name}: {error.message}", hint=hint) from None
    return tuple(roots)


def from_first[T](roots: Sequence[Root], get: Callable[[Root], T]) -> T:
    """What the first root gives that can; one that could not be reached a moment ago is asked last.

    Raises:
        StorageError: What the first root said, where none can.
    """
    said: dict[Root, StorageError] = {}
    order = sorted(roots, key=_is_unreached)
    for number, root in enumerate(order, start=1):
        try:
            return get(root)
        except _ELSEWHERE as error:
            said[root] = error
            if isinstance(error, TransferError):
                _unreached[root.uri] = time.monotonic()
            if number < len(order):
                _log.warning("%s; asking %s instead", error.message, order[number].uri)
    if not said:
        raise SettingsError(f"there is no root for datasets; {ROOT} is empty")
    raise said[roots[0]]


def _is_unreached(root: Root) -> bool:
    return time.monotonic() - _unreached.get(root.uri, -LEFT_ALONE) < LEFT_ALONE
