"""A download in the making, as files in the cache.

Two kinds exist. :class:`VerifiedParts` knows the digest of every part: only verified parts are written, each at its own
place, so any number of processes may fill one file at once and any of them may finish it. :class:`PlainFile` knows
only the digest of the whole: its bytes are unverified until the last has come, so every process has a file of its own,
and what an interrupted one left is copied, never continued in place.
"""

import contextlib
import hashlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from prima_bench.storage.cache.layout import HINT, Layout, cache_errors, regular_file
from prima_bench.storage.cache.open_file import OpenFile
from prima_bench.storage.content import Content, Part
from prima_bench.storage.errors import CacheError
from prima_bench.storage.verify import CHUNK, check_sha256, check_size

_LONGEST_ETAG = 1024


class VerifiedParts:
    """The shared file of a content whose parts are pinned; verified parts and holes only.

    Used as a context: the file is closed at the end, and stays for the next try unless it was published or is empty.
    """

    def __init__(self, layout: Layout, content: Content, *, uri: str) -> None:
        self._layout = layout
        self._content = content
        self._uri = uri
        with cache_errors(uri):
            layout.create(layout.partial)
        self._file = OpenFile(layout.part_file(content), uri)
        try:
            self._file.resize(content.size)
        except CacheError:
            # Larger than this file system takes, or one without holes is full.
            self._file.close()
            with contextlib.suppress(OSError):
                self._file.path.unlink()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        empty = self._content.size == 0 or self._file.is_hole(0, self._content.size)
        empty = empty and self._file.is_called()
        self._file.close()
        if empty:
            with contextlib.suppress(OSError):
                self._file.path.unlink(missing_ok=True)

    def holds(self, part: Part) -> bool:
        """Whether the part is there already, by this or another process; what is there is hashed.

        Raises:
            CacheError: If the file cannot be read.
        """
        if part.length and self._file.is_hole(part.start, part.length):
            return False
        # Looking through much takes a while; whoever waits for the lock sees that it goes on.
        self._file.touch()
        digest = hashlib.sha256()
        for start in range(part.start, part.start + part.length, CHUNK):
            digest.update(self._file.get(start, min(CHUNK, part.start + part.length - start)))
        return digest.hexdigest() == part.sha256

    def write(self, part: Part, data: memoryview) -> None:
        """Keep a part that was verified.

        Raises:
            CacheError: If it cannot be written.
        """
        self._file.put(data, part.start)
        self._file.sync_some()

    def touch(self) -> None:
        """Show others that somebody is at work."""
        self._file.touch()

    def publish(self) -> Path | None:
        """Make the file durable and give it its name; every part must be there.

        Returns:
            The blob; None where others have removed the file.

        Raises:
            CacheError: If that fails.
        """
        path = self._layout.blob(self._content.name)
        with cache_errors(self._uri):
            self._layout.create(path.parent)
        return path if self._file.publish(path) else None


class PlainFile:
    """The own file of one process, for a content of which only the whole is pinned; written from front to back.

    Used as a context: the file is closed at the end, and is kept for the next try only while its bytes may be right.

    Attributes:
        written: Bytes that are there.
        etag: What the store called the object that they came from; None when that is not known.
    """

    def __init__(self, layout: Layout, content: Content, *, uri: str) -> None:
        self._layout = layout
        self._content = content
        self._uri = uri
        with cache_errors(uri):
            layout.create(layout.partial)
        self._file = OpenFile(layout.partial / f"{content.name}.{secrets.token_hex(8)}.plain", uri)
        self._hash = hashlib.sha256()
        self.written = 0
        self.etag: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        try:
            named = _etag_file(self._file.path).exists() and self._file.path.exists()
        except OSError:
            named = True  # whoever can look there again may continue it
        if not self.written or self.etag is None or not named:
            self._forget(self._file.path)

    def adopt(self, *, remove: bool) -> None:
        """Take over what an interrupted download left, if it says of which object, and a copy has room.

        Args:
            remove: Whether it may be deleted then; not while its owner may still be at work.

        Raises:
            CacheError: If one may not look for it.
        """
        with cache_errors(self._uri):
            found = [(path, regular_file(path)) for path in self._leftovers()]
        left = sorted((-status.st_size, path) for path, status in found if status is not None)
        for size, path in left:
            etag = _read_etag(path)
            if etag is not None and -size <= self._content.size and self._copied(path, -size):
                self.remember(etag)
                break
        for _, path in left if remove else ():
            self._forget(path)

    def _copied(self, path: Path, size: int) -> bool:
        try:
            check_room(self._layout, size, uri=self._uri)
            with path.open("rb") as stream:
                # No more than is wanted: its owner may still be writing.
                while chunk := stream.read(min(CHUNK, self._content.size - self.written)):
                    self.append(memoryview(chunk))
        except (OSError, CacheError):
            # Its owner has finished or given up, it is another user's, or both together do not fit on the disk: there
            # may be room for all of it once it is gone, so it must not stand in the way for ever.
            self.restart()
            return False
        return True

    def append(self, data: memoryview) -> None:
        """Write the next bytes.

        Raises:
            CacheError: If they cannot be written.
            IntegrityError: If there are now more than the pin allows.
        """
        if self.written + len(data) > self._content.size:
            check_size(self.written + len(data), uri=self._uri, size=self._content.size)
        for start in range(0, len(data), CHUNK):
            # In pieces that are hashed as long as they are in the processor's cache.
            piece = data[start : start + CHUNK]
            self._file.put(piece, self.written)
            self._hash.update(piece)
            self.written += len(piece)

    def sync_some(self) -> None:
        """Bring what was written to the disk, once it is much; other threads may write meanwhile.

        Raises:
            CacheError: If what was written is lost.
        """
        self._file.sync_some()

    def touch(self) -> None:
        """Show others that somebody is at work."""
        self._file.touch()

    def remember(self, etag: str | None) -> None:
        """Note which object the bytes come from, so that they can be continued.

        Raises:
            CacheError: If it cannot be written.
        """
        if etag is None or len(etag) > _LONGEST_ETAG or not etag.isascii() or not etag.isprintable():
            self.etag = None
            return
        if etag != self.etag:
            self.etag = etag
            with cache_errors(self._uri):
                _etag_file(self._file.path).write_text(etag, encoding="ascii")

    def restart(self) -> None:
        """Forget all bytes.

        Raises:
            CacheError: If the file cannot be truncated.
        """
        self._file.resize(0)
        self._hash = hashlib.sha256()
        self.written, self.etag = 0, None

    def publish(self) -> Path | None:
        """Check the whole, make it durable and give it its name.

        Returns:
            The blob; None where others have removed the file.

        Raises:
            IntegrityError: If size or digest differ; then the bytes are forgotten.
            CacheError: If it cannot be written.
        """
        path = self._layout.blob(self._content.name)
        check_size(self.written, uri=self._uri, size=self._content.size)
        try:
            check_sha256(self._hash.hexdigest(), uri=self._uri, sha256=self._content.sha256)
        except BaseException:
            self.restart()
            raise
        with cache_errors(self._uri):
            self._layout.create(path.parent)
            # First, so that a process that ends in between leaves nothing that looks like something to continue.
            _etag_file(self._file.path).unlink(missing_ok=True)
        return path if self._file.publish(path) else None

    def _leftovers(self) -> Iterator[Path]:
        for path in self._layout.partial.glob(f"{self._content.name}.*.plain"):
            if path != self._file.path and regular_file(path) is not None:
                yield path

    def _forget(self, path: Path) -> None:
        for each in (_etag_file(path), path):
            with contextlib.suppress(OSError):
                each.unlink(missing_ok=True)


def check_room(layout: Layout, needed: int, *, uri: str) -> None:
    """Refuse a download that the disk cannot hold, before it begins.

    Raises:
        CacheError: If there is less free space than ``needed`` bytes.
    """
    try:
        total, _, free = shutil.disk_usage(layout.partial)
    except OSError:
        return  # some file systems, such as those that show a store as a folder, cannot tell; then writing will
    # Those without a size of their own have 0 bytes in all.
    if total and free < needed:
        raise CacheError(f"{uri}: needs {needed} bytes in the cache at {layout.root}, where {free} are free", hint=HINT)


def _etag_file(path: Path) -> Path:
    return path.with_suffix(".etag")


def _read_etag(path: Path) -> str | None:
    try:
        with _etag_file(path).open("rb") as stream:
            text = stream.read(_LONGEST_ETAG + 1).decode("ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return text if 0 < len(text) <= _LONGEST_ETAG and text.isprintable() else None
