"""Bytes against their pin: the size first, since it is free, then the digests. It reads and compares, nothing else."""

import hashlib
from pathlib import Path
from typing import BinaryIO

from prima_bench.storage.content import PART_SIZE, Content, tree_name
from prima_bench.storage.errors import IntegrityError

CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in lower-case hexadecimal digits.

    Raises:
        OSError: If the file cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def measure(path: Path, part_size: int = PART_SIZE) -> Content:
    """The pin of a file as it is now, part digests included.

    Raises:
        OSError: If the file cannot be read.
    """
    with path.open("rb") as stream:
        return measure_stream(stream, part_size)


def measure_stream(stream: BinaryIO, part_size: int = PART_SIZE) -> Content:
    """The pin of what an open file holds, from where it stands to its end.

    Raises:
        OSError: If it cannot be read.
    """
    whole, size = hashlib.sha256(), 0
    digests: list[str] = []
    while not digests or size == len(digests) * part_size:
        part, left = hashlib.sha256(), part_size
        while left and (chunk := stream.read(min(CHUNK, left))):
            whole.update(chunk)
            part.update(chunk)
            left -= len(chunk)
        if left == part_size and digests:
            break
        size += part_size - left
        digests.append(part.hexdigest())
    return Content(whole.hexdigest(), size, tuple(digests), part_size)


def matches(found: Content, content: Content) -> bool:
    """Whether what was measured, with parts of the same size, is exactly the pinned bytes."""
    return found.size == content.size and (
        found.digests == content.digests if content.by_part else found.sha256 == content.sha256
    )


def names_of(found: Content) -> tuple[str, str]:
    """The names that a blob with these bytes may have: with part digests, and without."""
    return tree_name(found.size, found.digests, found.part_size), found.sha256


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
