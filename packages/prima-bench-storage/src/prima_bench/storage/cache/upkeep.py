"""Looking after a cache: what is in it, whether it is whole, and what may go.

Cleaning rather leaves a file than takes one that somebody works on: what is younger than an hour stays, and so does
what is locked.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prima_bench.storage.cache.layout import cache_errors, regular_file, verified
from prima_bench.storage.cache.lock import unless_held
from prima_bench.storage.cache.store import Cache
from prima_bench.storage.errors import CacheError
from prima_bench.storage.verify import names_of

GRACE = 3600.0
"""Seconds for which a file may still be somebody's work."""

# Nothing else is touched, wherever a symbolic link in the cache may lead.
_NAMES = {
    "blob": re.compile(r"[0-9a-f]{64}"),
    "partial": re.compile(r"[0-9a-f]{64}(\.[0-9a-f]+)*\.(part|plain|etag)"),
    "quarantine": re.compile(r"[0-9a-f]{64}-[0-9a-f]{8}"),
    "lock": re.compile(r"[0-9a-f]{64}\.lock"),
}

Kind = Literal["blob", "partial", "quarantine", "lock"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache.

    Attributes:
        path: Where it is.
        kind: ``"blob"``, ``"partial"`` (an interrupted download), ``"quarantine"`` (damaged) or ``"lock"``.
        size: Bytes that it takes on the disk; of a blob its own size.
        used: When it was last read or made, in seconds since 1970, as far as the file system tells.
        views: What it is called by datasets, such as ``sim@1.0.0-0123456789ab/train.h5ad``.
    """

    path: Path
    kind: Kind
    size: int
    used: float
    views: tuple[str, ...] = ()


def entries(cache: Cache) -> list[Entry]:
    """All files of a cache, blobs first, the longest unused first.

    Raises:
        CacheError: If it cannot be read.
    """
    layout = cache.layout
    with cache_errors(str(cache.root)):
        views = _views(cache)
        found = [
            *_entries(layout.blobs.glob("??/*"), "blob", views),
            *_entries(layout.partial.glob("*"), "partial", views),
            *_entries(layout.quarantine.glob("*"), "quarantine", views),
            *_entries(layout.locks.glob("*"), "lock", views),
        ]
    kinds: tuple[Kind, ...] = ("blob", "partial", "quarantine", "lock")
    return sorted(found, key=lambda e: (kinds.index(e.kind), e.used, e.path.name))


def damaged(cache: Cache, step: Callable[[str], None] = lambda text: None) -> list[Path]:
    """Read every blob, and move those aside whose bytes are not what their name says.

    Args:
        cache: The cache.
        step: Told what is read now.

    Returns:
        The blobs that were damaged; where they cannot be moved they are still there, and are not used.

    Raises:
        CacheError: If one cannot be read.
    """
    bad = []
    for entry in entries(cache):
        if entry.kind != "blob":
            continue
        step(f"reading {entry.path.name[:12]} {' '.join(entry.views)}".rstrip())
        status = regular_file(entry.path)
        with cache_errors(str(entry.path)):
            try:
                right = verified(entry.path, lambda found, name=entry.path.name: name in names_of(found))
            except FileNotFoundError:
                continue  # deleted or put aside by another process
        if status is None:
            continue
        if right:
            continue
        bad.append(entry.path)
        if cache.quarantine(entry.path, status) is None:
            # Its time says that it must be looked at before it is used.
            with contextlib.suppress(OSError):
                os.utime(entry.path)
    return bad


def removable(
    cache: Cache,
    *,
    older_than: float | None = None,
    max_size: int | None = None,
    everything: bool = False,
    now: float | None = None,
) -> list[Entry]:
    """What may be deleted: leftovers that nobody works on, and the blobs that the limits ask for, unused longest first.

    Args:
        cache: The cache.
        older_than: Blobs go that were not used for so many seconds.
        max_size: Blobs go until the others have no more bytes than this.
        everything: All blobs go.
        now: The time, in seconds since 1970.

    Raises:
        CacheError: If the cache cannot be read.
    """
    now = time.time() if now is None else now
    found = entries(cache)
    going = [e for e in found if e.kind != "blob" and (everything or e.kind == "quarantine" or now - e.used > GRACE)]
    blobs = [e for e in found if e.kind == "blob"]
    total = sum(e.size for e in blobs)
    for entry in blobs:
        unused = now - entry.used
        too_old = older_than is not None and unused > older_than
        too_much = max_size is not None and total > max_size
        if everything or ((too_old or too_much) and unused > GRACE):
            going.append(entry)
            total -= entry.size
    return going


def remove(cache: Cache, going: Iterable[Entry]) -> list[Entry]:
    """Delete files of the cache, with their views; what is locked stays.

    Args:
        cache: The cache.
        going: What :func:`removable` returned.

    Returns:
        What is gone.

    Raises:
        CacheError: If something cannot be deleted.
    """
    gone = []
    for entry in going:
        lock = cache.layout.lock_file(entry.path.name.partition(".")[0])
        with cache_errors(str(entry.path)), unless_held(lock) as free:
            if not free:
                continue
            for view in entry.views:
                (cache.layout.views / view).unlink(missing_ok=True)
            # A lock goes when it is let go of; by then another may hold one of the same name.
            if entry.kind != "lock":
                entry.path.unlink(missing_ok=True)
            gone.append(entry)
    _remove_empty_folders(cache)
    return gone


def check_is_cache(cache: Cache) -> None:
    """Refuse to clean a folder that no cache was ever made in.

    Raises:
        CacheError: If it holds files but not the tag of a cache.
    """
    with cache_errors(str(cache.root)):
        if cache.root.is_dir() and any(cache.root.iterdir()) and not (cache.root / "CACHEDIR.TAG").is_file():
            raise CacheError(
                f"{cache.root} is no cache of prima-bench: it has no CACHEDIR.TAG",
                hint="Check PRIMA_BENCH_CACHE_DIR; nothing was deleted.",
            )


def _entries(paths: Iterable[Path], kind: Kind, views: dict[tuple[int, int], list[str]]) -> Iterator[Entry]:
    for path in paths:
        status = regular_file(path)
        if status is None or not _NAMES[kind].fullmatch(path.name):
            continue
        blocks = getattr(status, "st_blocks", None)
        size = status.st_size if kind == "blob" or blocks is None else blocks * 512
        named = tuple(sorted(views.get((status.st_dev, status.st_ino), ())))
        yield Entry(path, kind, size, max(status.st_atime, status.st_ctime), named)


def _views(cache: Cache) -> dict[tuple[int, int], list[str]]:
    found: dict[tuple[int, int], list[str]] = {}
    for path in cache.layout.views.rglob("*"):
        status = regular_file(path)
        if status is not None:
            name = path.relative_to(cache.layout.views).as_posix()
            found.setdefault((status.st_dev, status.st_ino), []).append(name)
    return found


def _remove_empty_folders(cache: Cache) -> None:
    # Those of the blobs stay: another process may be about to put one there.
    folders = [path for path in cache.layout.views.rglob("*") if path.is_dir() and not path.is_symlink()]
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()
