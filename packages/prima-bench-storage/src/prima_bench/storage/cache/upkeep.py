"""Looking after a cache: what is in it, whether it is whole, and what may go.

Cleaning rather leaves a file than takes one that somebody works on: what is younger than an hour stays, and so does
what is locked.
"""

import contextlib
import errno
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from prima_bench.storage.cache.layout import NOTED_EVERY, cache_errors, last_use, noted_use, regular_file, verified
from prima_bench.storage.cache.lock import unless_held
from prima_bench.storage.cache.store import Cache
from prima_bench.storage.content import Content
from prima_bench.storage.errors import CacheError
from prima_bench.storage.verify import names_of

GRACE = 3600.0 + NOTED_EVERY
"""Seconds for which a file may still be somebody's work."""

# Nothing else is touched, wherever a symbolic link in the cache may lead.
_NAMES = {
    "blob": re.compile(r"[0-9a-f]{64}"),
    "partial": re.compile(r"[0-9a-f]{64}(\.[0-9a-f]+)*\.(part|plain|etag)"),
    "quarantine": re.compile(r"[0-9a-f]{64}-[0-9a-f]{8}"),
    "lock": re.compile(r"[0-9a-f]{64}\.lock"),
}
_SHARD = re.compile(r"[0-9a-f]{2}")
_VIEW = re.compile(r"\w[\w.+-]*@\w[\w.+-]*-[0-9a-f]{12}/.+", re.ASCII)

_log = logging.getLogger("prima_bench.storage")

Kind = Literal["blob", "partial", "quarantine", "lock", "view"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache.

    Attributes:
        path: Where it is.
        kind: ``"blob"``, ``"partial"`` (an interrupted download), ``"quarantine"`` (damaged), ``"lock"``, or ``"view"``
            (a copy of a blob under its view's name, as tools leave it that know no hard links).
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
    with cache_errors(str(cache.root), "cannot be read"):
        if cache.root.exists() and not cache.root.is_dir():
            raise NotADirectoryError(f"{cache.root} is not a folder")
        # First, since a view is made of a blob: so none is taken for a copy that was just being made.
        named = list(_files_below(layout.views))
        views: dict[tuple[int, int], list[str]] = {}
        for name, status in named:
            views.setdefault((status.st_dev, status.st_ino), []).append(name)
        shards = [folder for folder in _listed(layout.blobs) if _SHARD.fullmatch(folder.name)]
        found = [
            *(
                replace(entry, used=max(entry.used, noted_use(layout, entry.path.name)))
                for entry in _entries((path for shard in shards for path in _listed(shard)), "blob", views)
            ),
            *_entries(_listed(layout.partial), "partial", views),
            *_entries(_listed(layout.quarantine), "quarantine", views),
            *_entries(_listed(layout.locks), "lock", views),
        ]
        known = {name for entry in found for name in entry.views}
        for name, status in named:
            if name not in known and _VIEW.fullmatch(name):
                found.append(Entry(layout.views / name, "view", _room(status), last_use(status), (name,)))
    kinds: tuple[Kind, ...] = ("blob", "partial", "quarantine", "lock", "view")
    return sorted(found, key=lambda e: (kinds.index(e.kind), e.used, e.path.name))


def damaged(
    cache: Cache, step: Callable[[str], None] = lambda text: None, *, blobs: Iterable[Entry] | None = None
) -> list[Path]:
    """Read every blob, and move those aside whose bytes are not what their name says.

    Args:
        cache: The cache.
        step: Told what is read now.
        blobs: Those to read; all that are there when None.

    Returns:
        The blobs that were damaged; where they cannot be moved they are still there, and are not used. Also those that
        may not be read, which stay.

    Raises:
        CacheError: If a folder of the cache cannot be read.
    """
    bad = []
    for entry in entries(cache) if blobs is None else blobs:
        if entry.kind != "blob":
            continue
        step(f"reading {entry.path.name[:12]} {' '.join(entry.views)}".rstrip())
        status = None
        try:
            status = regular_file(entry.path)
            right = status is None or verified(entry.path, partial(_is_name_of, entry.path.name))
        except FileNotFoundError:
            continue  # deleted or put aside by another process
        except OSError as error:
            _log.warning("%s: cannot be read: %s", entry.path, error.strerror)
            if error.errno != errno.EIO or status is None:
                bad.append(entry.path)  # perhaps good for whoever may read it
                continue
            right = False  # the disk cannot give it any more
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


def remove(cache: Cache, going: Iterable[Entry], done: Callable[[Entry], None] = lambda entry: None) -> list[Entry]:
    """Delete files of the cache, with their views; what is locked stays, and what was used after it was listed.

    Args:
        cache: The cache.
        going: What :func:`removable` returned.
        done: Told what is gone.

    Returns:
        What is gone.

    Raises:
        CacheError: If something cannot be deleted; all that can be is gone then.
    """
    gone: list[Entry] = []
    failed: list[OSError] = []
    for entry in going:
        try:
            if not _removed(cache, entry):
                continue
        except OSError as error:
            failed.append(error)
            continue
        gone.append(entry)
        done(entry)
    _remove_empty_folders(cache)
    if failed:
        raise CacheError(
            f"{cache.root}: {len(failed)} of its files cannot be deleted, such as {failed[0].filename}: "
            f"{failed[0].strerror}",
            hint="Whoever owns the files, or the folders that they are in, must delete them.",
        )
    return gone


def _removed(cache: Cache, entry: Entry) -> bool:
    if entry.kind == "view":
        entry.path.unlink(missing_ok=True)
        return True
    with unless_held(cache.layout.lock_file(entry.path.name.partition(".")[0])) as free:
        if free:
            if entry.kind != "lock" and _is_used_since(cache, entry):
                return False
            for view in entry.views:
                (cache.layout.views / view).unlink(missing_ok=True)
            # A lock goes when it is let go of; by then another may hold one of the same name.
            if entry.kind != "lock":
                entry.path.unlink(missing_ok=True)
            if entry.kind == "blob":
                cache.layout.use_file(entry.path.name).unlink(missing_ok=True)
        return free


def _is_used_since(cache: Cache, entry: Entry) -> bool:
    # Between the listing and its turn a file may have been handed to somebody, or fetched anew.
    status = regular_file(entry.path)
    noted = noted_use(cache.layout, entry.path.name) if entry.kind == "blob" else 0.0
    return status is not None and max(last_use(status), noted) > entry.used


def check_is_cache(cache: Cache) -> None:
    """Refuse to clean a folder that no cache was ever made in.

    Raises:
        CacheError: If it holds files but not the tag of a cache.
    """
    with cache_errors(str(cache.root), "cannot be read"):
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
        named = tuple(sorted(views.get((status.st_dev, status.st_ino), ())))
        yield Entry(path, kind, status.st_size if kind == "blob" else _room(status), last_use(status), named)


def _room(status: os.stat_result) -> int:
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else blocks * 512


def _listed(folder: Path) -> list[Path]:
    # Path.glob takes a folder that may not be read for an empty one.
    try:
        return [folder / name for name in os.listdir(folder)]  # noqa: PTH208 - Path.iterdir differs between versions
    except (FileNotFoundError, NotADirectoryError):
        return []


def _files_below(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for where, _, names in os.walk(folder, onerror=_unless_gone):
        for path in (Path(where, name) for name in names):
            status = regular_file(path)
            if status is not None:
                yield path.relative_to(folder).as_posix(), status


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


def _is_name_of(name: str, found: Content) -> bool:
    return name in names_of(found)


def _remove_empty_folders(cache: Cache) -> None:
    # Those of the blobs stay: another process may be about to put one there.
    for where, _, _ in os.walk(cache.layout.views, topdown=False):
        if _VIEW.fullmatch(f"{Path(where).relative_to(cache.layout.views).as_posix()}/name"):
            with contextlib.suppress(OSError):
                os.rmdir(where)  # noqa: PTH106 - beside os.walk
