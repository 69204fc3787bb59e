"""An open file of a download: written at given places by several threads, brought to the disk, and given its name."""

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from prima_bench.storage.cache.layout import HINT, cache_errors, publish, regular_file
from prima_bench.storage.errors import CacheError

SYNC_EVERY = 1 << 26
"""Bytes after which what was written is brought to the disk while more is fetched."""

PIECE = 1 << 18
"""Bytes written at once. File systems answer larger writes with larger pages, which are slow to come by: on ext4 in a
virtual machine, writes of 1 MiB took two to six times as long as those of up to 512 KiB."""

_OPEN = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_place = threading.Lock()


def _write_at(handle: int, data: memoryview, start: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(handle, data, start)
    with _place:  # Windows
        os.lseek(handle, start, os.SEEK_SET)
        return os.write(handle, data)


def _read_at(handle: int, length: int, start: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(handle, length, start)
    with _place:  # Windows
        os.lseek(handle, start, os.SEEK_SET)
        return os.read(handle, length)


class OpenFile:
    """A file written at given places by several threads, until it is closed: then nothing is written any more."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self._what = what
        self._idle = threading.Condition()
        # File systems write to a file for one thread at a time, and those that wait for it spin, on cores that the
        # others need to receive and hash. On a machine with other work that was up to half of all processor time.
        self._turn = threading.Lock()
        self._users = 0
        self._unsynced = 0
        self._syncing = False
        with cache_errors(what):
            self._handle = os.open(path, _OPEN, 0o600)
            if not stat.S_ISREG(os.fstat(self._handle).st_mode):
                os.close(self._handle)
                raise OSError(f"{path} is not a regular file")

    def put(self, data: memoryview, start: int) -> None:
        """Write at a place.

        Raises:
            CacheError: If it cannot be written.
        """
        length = len(data)
        with self._open_handle() as handle, cache_errors(self._what), self._turn:
            while data:
                count = _write_at(handle, data[:PIECE], start)
                data, start = data[count:], start + count
        with self._idle:
            self._unsynced += length

    def sync_some(self) -> None:
        """Bring what was written to the disk, once it is much, so that little is left for the end.

        One thread at a time waits for the disk, the others go on; so a slow disk keeps nobody from showing life.

        Raises:
            CacheError: If what was written is lost.
        """
        with self._idle:
            if self._syncing or self._unsynced < SYNC_EVERY:
                return
            self._syncing, self._unsynced = True, 0
        try:
            with self._open_handle() as handle, cache_errors(self._what):
                self._sync(handle, os.fdatasync if hasattr(os, "fdatasync") else os.fsync)
        finally:
            with self._idle:
                self._syncing = False

    def _sync(self, handle: int, sync: Callable[[int], None]) -> None:
        try:
            sync(handle)
        except OSError:
            # The system tells of a lost write once and forgets it: whoever looked through the file again would find
            # bytes in memory that the disk does not have, and would publish them.
            with contextlib.suppress(OSError):
                if self._is_ours(handle):
                    self.path.unlink()
            raise

    def get(self, start: int, length: int) -> bytes:
        """What is at a place.

        Raises:
            CacheError: If it cannot be read.
        """
        with self._open_handle() as handle, cache_errors(self._what):
            return _read_at(handle, length, start)

    def is_hole(self, start: int, length: int) -> bool:
        """Whether nothing was ever written there, as far as the file system tells."""
        if not hasattr(os, "SEEK_DATA"):
            return False
        with self._open_handle() as handle:
            try:
                return os.lseek(handle, start, os.SEEK_DATA) >= start + length
            except OSError as error:
                return error.errno == errno.ENXIO  # no data from there to the end

    def resize(self, size: int) -> None:
        """Cut it off there, or have holes up to there.

        Raises:
            CacheError: If that cannot be done.
        """
        with self._open_handle() as handle, cache_errors(self._what):
            if os.fstat(handle).st_size != size:
                os.truncate(handle, size)

    def touch(self) -> None:
        """Show others that somebody is at work."""
        with self._open_handle() as handle, contextlib.suppress(OSError):
            os.utime(handle if os.utime in os.supports_fd else self.path)

    def publish(self, path: Path) -> bool:
        """Make it durable, then give it its name; see :func:`prima_bench.storage.cache.layout.publish`.

        Raises:
            CacheError: If that fails.
        """
        with self._open_handle() as handle, cache_errors(self._what):
            self._sync(handle, os.fsync)
            return publish(handle, self.path, path)

    def is_called(self) -> bool:
        """Whether its path still leads to it."""
        with self._open_handle() as handle:
            return self._is_ours(handle)

    def _is_ours(self, handle: int) -> bool:
        found = regular_file(self.path)
        return found is not None and os.path.samestat(os.fstat(handle), found)

    def close(self) -> None:
        """Write nothing any more."""
        with self._idle:
            handle, self._handle = self._handle, -1
            # A number that was closed may be given to another file at once, so nobody may still be using it.
            self._idle.wait_for(lambda: self._users == 0)
        if handle >= 0:
            os.close(handle)

    @contextlib.contextmanager
    def _open_handle(self) -> Iterator[int]:
        with self._idle:
            if self._handle < 0:
                raise CacheError(f"{self._what}: the download was given up", hint=HINT)
            self._users += 1
            handle = self._handle
        try:
            yield handle
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()
