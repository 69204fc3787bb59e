"""How much memory there is for predictions, and from which size on they go to disk."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

BUFFERS = ("auto", "memory", "disk")
"""Where predictions are kept until they are scored."""

SHARE = 0.25
"""``auto``: predictions stay in memory up to this share of what is free when an evaluation begins; the processes that
torchrun started on one machine have it together."""

_CGROUP = Path("/sys/fs/cgroup")
_MINE = Path("/proc/self/cgroup")
_UNIFIED = ("memory.max", "memory.current", "inactive_file")
_LEGACY = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def rows_in_memory(buffer: str) -> int | None:
    """How many bytes of predictions stay in memory, for a choice of ``BUFFERS``; None for all of them.

    Example:
        >>> rows_in_memory("memory"), rows_in_memory("disk")
        (None, 0)
    """
    if buffer == "auto":
        processes = os.environ.get("LOCAL_WORLD_SIZE", "")
        return int(SHARE * free_memory()) // max(1, int(processes) if processes.isdecimal() else 1)
    return None if buffer == "memory" else 0


def free_memory() -> int:
    """Bytes this process can still take: what the system has left, or less under the limit of a job or container."""
    import psutil

    return max(0, min([int(psutil.virtual_memory().available), *_left_by_limits()]))


def _left_by_limits() -> Iterator[int]:
    """What is left of the limit of each control group that this process is in; batch systems set them on outer ones."""
    for group, (limit, used, cached) in _groups():
        most, taken = _number(group / limit), _number(group / used)
        if most is not None and taken is not None:
            yield most - taken + _cached(group / "memory.stat", cached)


def _groups() -> Iterator[tuple[Path, tuple[str, str, str]]]:
    yield _CGROUP, _UNIFIED
    with suppress(OSError, ValueError):
        for line in _MINE.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if not controllers or "memory" in controllers.split(","):
                root, names = (_CGROUP / "memory", _LEGACY) if controllers else (_CGROUP, _UNIFIED)
                inner = root / name.lstrip("/")
                yield from ((group, names) for group in (inner, *inner.parents) if group.is_relative_to(root))


def _cached(path: Path, name: str) -> int:
    """Bytes of files that the system would give back at once."""
    with suppress(OSError, ValueError):
        return int(dict(line.split(maxsplit=1) for line in path.read_text().splitlines()).get(name, 0))
    return 0


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):  # no such limit, or "max"
        return int(path.read_text())
    return None
