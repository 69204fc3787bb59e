"""What pins an artifact's bytes: size, sha256 of the whole, and sha256 of each part where they are known.

A part is 16 MiB; the last one is shorter. With part digests a download checks every part before a byte of it is kept,
in any order and on any thread. A file of one part needs none: its sha256 is that of its only part.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from prima_bench.storage.errors import AddressError, IntegrityError
from prima_bench.storage.uri import check_pin, is_sha256

PART_SIZE = 1 << 24


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an artifact.

    Attributes:
        index: Its place, from 0.
        start: Position of its first byte.
        length: Its number of bytes.
        sha256: Digest, where it is known.
    """

    index: int
    start: int
    length: int
    sha256: str | None

    def check(self, found: str, *, uri: str) -> None:
        """Compare the digest of what came with the pinned one; nothing where none is known.

        Raises:
            IntegrityError: If they differ.
        """
        if self.sha256 is not None and found != self.sha256:
            raise IntegrityError(
                f"{uri}: bytes {self.start} to {self.start + self.length - 1} have sha256 {found} "
                f"where {self.sha256} is pinned",
                hint="The object was changed or damaged since it was registered, or something between here and the "
                "store alters it. Nothing of these bytes was kept.",
            )


@dataclass(frozen=True, slots=True)
class Content:
    """The pinned bytes of one artifact.

    Attributes:
        sha256: Digest of the whole, 64 lower-case hexadecimal digits.
        size: Number of bytes.
        digests: Digest of every part in order; empty where only the whole is pinned.
        part_size: Bytes in a part.
    """

    sha256: str
    size: int
    digests: tuple[str, ...] = ()
    part_size: int = PART_SIZE

    @classmethod
    def pinned(
        cls, uri: str, sha256: str, size: int, digests: tuple[str, ...] = (), part_size: int = PART_SIZE
    ) -> "Content":
        """A checked pin for ``uri``.

        Raises:
            AddressError: If a digest or the size has the wrong form, there are more or fewer part digests than parts,
                or the digest of an only part is not that of the whole.
        """
        check_pin(uri, sha256, size)
        count = part_count(size, part_size)
        if digests and len(digests) != count:
            raise AddressError(f"{uri!r}: {size} bytes are {count} parts, but {len(digests)} part digests are given")
        if not all(map(is_sha256, digests)):
            raise AddressError(f"{uri!r}: a part digest must be 64 lower-case hexadecimal digits")
        if count == 1 and digests not in ((), (sha256,)):
            raise AddressError(f"{uri!r}: the digest of its only part must be that of the whole")
        return cls(sha256, size, (sha256,) if count == 1 else digests, part_size)

    @property
    def name(self) -> str:
        """What the content is kept under: it commits to everything that a download verifies, and to nothing else.

        >>> Content.pinned("gs://bucket/key", "0" * 64, 5).name == "0" * 64
        True
        """
        return tree_name(self.size, self.digests, self.part_size) if len(self.digests) > 1 else self.sha256

    @property
    def by_part(self) -> bool:
        """Whether every part can be verified by itself."""
        return bool(self.digests)

    def parts(self) -> Iterator[Part]:
        """All parts, in order; one empty part where there are no bytes.

        >>> [part.length for part in Content("0" * 64, 5, part_size=2).parts()]
        [2, 2, 1]
        """
        for index in range(part_count(self.size, self.part_size)):
            start = index * self.part_size
            length = min(self.part_size, self.size - start)
            yield Part(index, start, length, self.digests[index] if self.digests else None)


def part_count(size: int, part_size: int = PART_SIZE) -> int:
    """The number of parts of so many bytes, at least one.

    >>> part_count(0), part_count(PART_SIZE), part_count(PART_SIZE + 1)
    (1, 1, 2)
    """
    return max(1, -(-size // part_size))


def tree_name(size: int, digests: tuple[str, ...], part_size: int = PART_SIZE) -> str:
    """One digest over size, part size and all part digests."""
    text = "\n".join(["prima-bench parts 1", str(size), str(part_size), *digests])
    return hashlib.sha256(text.encode()).hexdigest()
