"""Where things lie inside a cache directory, and what a finished blob looks like.

::

    <root>/CACHEDIR.TAG
    <root>/v1/blobs/ab/abcd...            one immutable file per verified content; existence means complete and verified
    <root>/v1/partial/abcd....part        verified parts, and holes where parts are missing
    <root>/v1/partial/abcd....<id>.plain  the beginning of a download whose parts cannot be verified one by one
    <root>/v1/locks/abcd....lock          saves duplicate work; nothing depends on it
    <root>/v1/views/NAME@VERSION-abcd/    hard links to blobs, under the artifacts' own names
    <root>/v1/quarantine/                 blobs that turned out damaged

A blob is read-only and its modification time is :data:`STAMP`. Whatever writes to the file moves that time, so one look
at the file's status tells whether its digest still stands.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from prima_bench.storage.errors import CacheError

DIRECTORY = "PRIMA_BENCH_CACHE_DIR"
HINT = f"Free some space, or point {DIRECTORY} at a folder that can be written."
STAMP = 946_684_800
"""The modification time of an untouched blob: the first second of the year 2000."""

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

    def blob(self, name: str) -> Path:
        """Where the blob of that name is or would be."""
        return self.blobs / name[:2] / name

    def part_file(self, name: str) -> Path:
        """Where verified parts are gathered."""
        return self.partial / f"{name}.part"

    def growth(self, name: str) -> object:
        """Something that changes while anybody downloads that blob."""
        found = [(path.name, regular_file(path)) for path in self.partial.glob(f"{name}.*")]
        return sorted((file, status.st_mtime_ns, status.st_size) for file, status in found if status is not None)

    def lock_file(self, name: str) -> Path:
        """What a download of that blob locks."""
        return self.locks / f"{name}.lock"

    def create(self, folder: Path) -> None:
        """Make a folder of the cache, and the tag that keeps backups away.

        Raises:
            OSError: If it cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tag = self.root / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(_TAG, encoding="utf-8")


def is_stamped(status: os.stat_result) -> bool:
    """Whether a file was not written to since it was verified."""
    return int(status.st_mtime) == STAMP


def stamp(path: Path) -> None:
    """Mark a file as verified, where that is allowed; where not, it is verified again at every use."""
    with contextlib.suppress(OSError):
        os.utime(path, (path.stat().st_atime, STAMP))


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


def publish(temporary: Path, path: Path, size: int) -> None:
    """Give a complete and verified file its name.

    Raises:
        OSError: If it cannot be renamed and nothing right lies there already.
    """
    try:
        temporary.chmod(0o444)
        stamp(temporary)
        temporary.replace(path)
    except (PermissionError, FileNotFoundError):
        # Another process was quicker: it renamed the file that both were filling, or has the blob open on Windows.
        found = regular_file(path)
        if found is None or found.st_size != size:
            raise
    sync_folder(path.parent)


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
def cache_errors(what: str) -> Iterator[None]:
    """Turn errors of the file system into one that names the cache.

    Raises:
        CacheError: In the place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise CacheError(f"{what}: cannot be written to the cache: {error}", hint=HINT) from error
