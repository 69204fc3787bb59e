"""One download of a blob at a time, where the file system can lock; where it cannot, work is done twice, never wrongly.

Waiting has an end: when whoever holds the lock gets nowhere for a while, the caller goes on without.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

PATIENCE = 60.0
"""Seconds without any progress of the one who holds the lock, after which nobody waits for it."""

_SHORTEST, _LONGEST = 0.02, 0.5


@contextlib.contextmanager
def one_at_a_time(
    path: Path, *, finished: Callable[[], bool], progress: Callable[[], object], patience: float = PATIENCE
) -> Iterator[bool]:
    """Hold the lock at ``path`` while the block runs, if it can be had.

    Args:
        path: The lock file, in an existing folder; it is removed at the end.
        finished: Whether waiting has become pointless.
        progress: Anything that changes as long as whoever holds the lock gets somewhere.
        patience: Seconds to wait without a change.

    Yields:
        Whether the lock is held.
    """
    handle = _acquire(path, finished, progress, patience)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            _release(path, handle)


@contextlib.contextmanager
def unless_held(path: Path) -> Iterator[bool]:
    """Keep others from taking the lock at ``path`` while the block runs, where there are locks.

    Args:
        path: The lock file; nothing is made where its folder is missing.

    Yields:
        False where another holds it.
    """
    handle = None
    try:
        handle = _try(path)
        free = handle is not None
    except OSError:
        free = True
    try:
        yield free
    finally:
        if handle is not None:
            _release(path, handle)


def _release(path: Path, handle: int) -> None:
    # Whoever waits for this very file gets its lock, sees that the name has gone, and begins anew.
    with contextlib.suppress(OSError):
        path.unlink()
    os.close(handle)


def _acquire(path: Path, finished: Callable[[], bool], progress: Callable[[], object], patience: float) -> int | None:
    seen, since, pause = progress(), time.monotonic(), _SHORTEST
    while True:
        try:
            handle = _try(path)
        except OSError:
            return None  # the file cannot be made, or this file system has no locks
        if handle is not None:
            return handle
        if finished():
            return None
        now = progress()
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > patience:
            return None
        time.sleep(pause)
        pause = min(_LONGEST, pause * 1.5)


def _try(path: Path) -> int | None:
    """The open, locked file; None where another holds it."""
    if fcntl is None:
        raise OSError("this system has no flock")
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except PermissionError:
        # Another user's, whose process was killed; most file systems lock what is only read too.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), path.lstat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return None
