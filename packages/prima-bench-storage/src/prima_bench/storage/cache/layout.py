"""Where things lie inside a cache directory, and what a finished blob looks like.

::

    <root>/CACHEDIR.TAG
    <root>/v1/blobs/ab/abcd...            one immutable file per verified content; existence means complete and verified
    <root>/v1/partial/abcd....<n>.part    verified parts, and holes where parts are missing; n bytes in all
    <root>/v1/partial/abcd....<id>.plain  the beginning of a download whose parts cannot be verified one by one
    <root>/v1/locks/abcd....lock          saves duplicate work; nothing depends on it
    <root>/v1/views/NAME@VERSION-abcd/    hard links to blobs, under the artifacts' own names
    <root>/v1/quarantine/                 blobs that turned out damaged
    <root>/v1/uses/abcd...                empty; tells by its time when the blob was last used

A blob is read-only and its modification time is :data:`STAMP`. Whatever writes to the file moves that time, so one look
at the file's status tells whether its digest still stands. Only who has verified every byte of that very file sets it:
what else may get to a blob's place is read whole before it is used.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prima_bench.storage import verify
from prima_bench.storage.content import PART_SIZE, Content
from prima_bench.storage.errors import CacheError

DIRECTORY = "PRIMA_BENCH_CACHE_DIR"
HINT = f"Free some space, or point {DIRECTORY} at a folder that can be written."
STAMP = 946_684_800
"""The modification time of an untouched blob: the first second of the year 2000."""
NOTED_EVERY = 60.0
"""Seconds in which the use of a blob is noted once."""

_READINGS = 3
_BY_HANDLE = os.utime in os.supports_fd and os.chmod in os.supports_fd
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Downloads of prima-bench; safe to delete.\n"


class Layout:
    """The folders and files of one cache directory; it computes paths and makes folders, nothing else.

    Attributes:
        root: The cache directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = root / "v1" / "blobs"
        self.partial = root / "v1" / "partial"
        self.locks = root / "v1" / "locks"
        self.views = root / "v1" / "views"
        self.quarantine = root / "v1" / "quarantine"
        self.uses = root / "v1" / "uses"

    def blob(self, name: str) -> Path:
        """Where the blob of that name is or would be."""
        return self.blobs / name[:2] / name

    def part_file(self, content: Content) -> Path:
        """Where verified parts are gathered, by each user for himself: others could not write to the file."""
        user = f".{os.getuid()}" if hasattr(os, "getuid") else ""
        return self.partial / f"{content.name}.{content.size}{user}.part"

    def growth(self, name: str) -> object:
        """Something that changes while anybody downloads that blob; None where one may not look."""
        try:
            found = [(path.name, regular_file(path)) for path in self.partial.glob(f"{name}.*")]
        except OSError:
            return None
        return sorted((file, status.st_mtime_ns, status.st_size) for file, status in found if status is not None)

    def use_file(self, name: str) -> Path:
        """What tells by its time when that blob was last used."""
        return self.uses / name

    def lock_file(self, name: str) -> Path:
        """What a download of that blob locks."""
        return self.locks / f"{name}.lock"

    def create(self, folder: Path) -> None:
        """Make a folder of the cache, and the tag that keeps backups away.

        Raises:
            OSError: If it cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), (self.root / "CACHEDIR.TAG").open("x", encoding="utf-8") as tag:
            tag.write(_TAG)


def is_stamped(status: os.stat_result) -> bool:
    """Whether a file was not written to since it was verified."""
    return int(status.st_mtime) == STAMP


def stamp(file: Path | int) -> None:
    """Mark a verified file and make it read-only, where that is allowed; where not, it is verified at every use."""
    with contextlib.suppress(OSError):
        os.chmod(file, 0o444)  # noqa: PTH101 - of an open file too
        os.utime(file, (os.stat(file).st_atime, STAMP))  # noqa: PTH116


def last_use(status: os.stat_result) -> float:
    """When a file was last read or made, in seconds since 1970, as far as its status tells."""
    return max(status.st_atime, status.st_ctime)


def note_use(layout: Layout, path: Path, status: os.stat_result) -> None:
    """Note that a blob is used now, where that is allowed and was not noted in the last minute.

    Most file systems are mounted so that reading moves no time, or does once a day. The note is a file of its own: to
    move a time of the blob would copy all of it where it lies in a layer below, as in an image of a container.
    """
    now = time.time()
    if abs(now - last_use(status)) <= NOTED_EVERY:
        return
    note = layout.use_file(path.name)
    with contextlib.suppress(OSError):
        if abs(now - noted_use(layout, path.name)) > NOTED_EVERY:
            layout.create(note.parent)
            handle = os.open(note, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            try:
                os.utime(handle if os.utime in os.supports_fd else note)
            finally:
                os.close(handle)


def noted_use(layout: Layout, name: str) -> float:
    """When a blob's use was last noted, in seconds since 1970; 0 where it was not.

    Raises:
        OSError: If the folder cannot be looked into.
    """
    status = regular_file(layout.use_file(name))
    return 0.0 if status is None else status.st_mtime


def verified(path: Path, is_right: Callable[[Content], bool], part_size: int = PART_SIZE) -> bool:
    """Whether a blob holds what it must; it is read whole, and then marked.

    All by one handle: a file that comes to its place meanwhile is not marked, and neither is one that is written to. It
    is read again then.

    Args:
        path: The blob.
        is_right: Judges what was read.
        part_size: Bytes in a part.

    Raises:
        OSError: If it cannot be read, or is gone.
    """
    for _ in range(_READINGS):
        with open(path, "rb", opener=_unnoticed) as stream:
            before = os.fstat(stream.fileno())
            right = is_right(verify.measure_stream(stream, part_size))
            after = os.fstat(stream.fileno())
            marked = right and is_stamped(after)  # by another who has read it too
            if right and not marked and after.st_mtime_ns == before.st_mtime_ns:
                stamp(stream.fileno() if _BY_HANDLE else path)
                marked = True
        found = regular_file(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if os.path.samestat(found, before) and (marked or not right):
            return marked
    return False


def _unnoticed(path: str, flags: int) -> int:
    # Else a cache that is verified every week would seem to be in use. Linux lets only the owner read like that.
    with contextlib.suppress(PermissionError):
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    return os.open(path, flags)


def regular_file(path: Path) -> os.stat_result | None:
    """The status of a regular file; None when there is none. Symbolic links are not followed.

    Raises:
        OSError: If the folder cannot be looked into.
    """
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def publish(handle: int, temporary: Path, path: Path) -> bool:
    """Give a complete and verified file its name.

    Args:
        handle: The open file.
        temporary: What it is called, unless others have removed or replaced it.
        path: What it is to be called.

    Returns:
        Whether the right bytes have that name now.

    Raises:
        OSError: If it cannot be renamed.
    """
    ours = os.fstat(handle)
    try:
        if os.path.samestat(ours, temporary.lstat()):
            if _BY_HANDLE:
                # A process that is killed before it marks the file must not leave one that other users cannot read.
                with contextlib.suppress(OSError):
                    os.fchmod(handle, 0o644)
            temporary.replace(path)
    except FileNotFoundError:
        pass  # another process was quicker: it renamed the file that both were filling
    except PermissionError:
        # On Windows somebody may have the blob open; elsewhere it is another user's, which only he may replace.
        there = regular_file(path)
        if there is None or (os.name != "nt" and not is_stamped(there)):
            raise
    found = regular_file(path)
    if found is None or found.st_size != ours.st_size:
        return False
    if os.path.samestat(ours, found):
        # By its handle: whatever is renamed in this moment, only the file that was verified is marked. And not before
        # it has its name: a process that is killed in between must not leave a file that cannot be continued.
        stamp(handle if _BY_HANDLE else path)
    elif not is_stamped(found):
        return False
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems refuse this for folders; then the name is durable when the server says so.
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def cache_errors(what: str, failed: str = "cannot be written to the cache") -> Iterator[None]:
    """Turn errors of the file system into one that names the cache.

    Args:
        what: What was to be done something with.
        failed: What cannot be done.

    Raises:
        CacheError: In the place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise CacheError(f"{what}: {failed}: {error}", hint=HINT) from error
