"""How much memory there is for predictions, and from which size on they go to disk."""

from contextlib import suppress
from pathlib import Path

BUFFERS = ("auto", "memory", "disk")
"""Where predictions are kept until they are scored."""

SHARE = 0.25
"""``auto``: predictions stay in memory up to this share of what is free when an evaluation begins."""

_CGROUP = Path("/sys/fs/cgroup")


def rows_in_memory(buffer: str) -> int | None:
    """How many bytes of predictions stay in memory, for a choice of ``BUFFERS``; None for all of them.

    Example:
        >>> rows_in_memory("memory"), rows_in_memory("disk")
        (None, 0)
    """
    if buffer == "auto":
        return int(SHARE * free_memory())
    return None if buffer == "memory" else 0


def free_memory() -> int:
    """Bytes that this process can still take: what the system has left, or less where a container sets a limit."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used = (_number(_CGROUP / name) for name in ("memory.max", "memory.current"))
    return free if limit is None or used is None else max(0, min(free, limit - used))


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):  # no such limit, or "max"
        return int(path.read_text())
    return None
