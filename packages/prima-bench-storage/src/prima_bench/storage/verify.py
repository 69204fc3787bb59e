"""Bytes against their pin: the size first, since it is free, then the sha256. It reads and compares, nothing else."""

import hashlib
from pathlib import Path

from prima_bench.storage.errors import IntegrityError

CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in lower-case hexadecimal digits.

    Raises:
        OSError: If the file cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def verify_file(path: Path, *, uri: str, sha256: str, size: int) -> None:
    """Check that ``path`` holds exactly the pinned bytes.

    Raises:
        IntegrityError: If the size or the digest differs; it names both values.
        OSError: If the file cannot be read.
    """
    check_size(path.stat().st_size, uri=uri, size=size)
    check_sha256(sha256_of(path), uri=uri, sha256=sha256)


def check_size(found: int, *, uri: str, size: int) -> None:
    """Compare a number of bytes with the pinned one.

    Raises:
        IntegrityError: If they differ.
    """
    if found != size:
        raise IntegrityError(f"{uri}: has {found} bytes where {size} are pinned", hint=_HINT)


def check_sha256(found: str, *, uri: str, sha256: str) -> None:
    """Compare a digest with the pinned one.

    Raises:
        IntegrityError: If they differ.
    """
    if found != sha256:
        raise IntegrityError(f"{uri}: has sha256 {found} where {sha256} is pinned", hint=_HINT)


_HINT = (
    "The data were changed or damaged since they were registered. Nothing of them was used; "
    "reinstall the package, or ask whoever publishes the dataset."
)
