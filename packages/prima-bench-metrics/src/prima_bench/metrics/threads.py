"""Threads: torch uses one, and work is spread over Python's own where it is worth it.

Scores are made of many short operations. On several of torch's threads these wait for each other every time, which on a
busy machine takes several times as long as one thread does; and the last bits of a library's matrix products depend on
how many there are. So scoring sets torch to one thread, and long work is cut into pieces for ``Workers``.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

import torch

_ALLOWED: ContextVar[int | None] = ContextVar("_ALLOWED", default=None)


def allowed_threads() -> int:
    """How many threads the caller allowed torch, whatever :func:`one_thread` makes of it."""
    return _ALLOWED.get() or torch.get_num_threads()


@contextmanager
def one_thread() -> Iterator[None]:
    """One intra-op thread while this lasts, and as many as before afterwards.

    Example:
        >>> before = torch.get_num_threads()
        >>> with one_thread():
        ...     inside, allowed = torch.get_num_threads(), allowed_threads()
        >>> inside, allowed == torch.get_num_threads() == before
        (1, True)
    """
    before = torch.get_num_threads()
    token = _ALLOWED.set(allowed_threads())
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _ALLOWED.reset(token)


class Workers:
    """As many threads as the caller allowed torch, for work on the CPU; elsewhere only the caller's own.

    Attributes:
        threads: How many they are.

    Example:
        >>> done = []
        >>> with Workers(torch.device("cpu")) as workers:
        ...     workers.for_each(done.append, range(3))
        >>> sorted(done)
        [0, 1, 2]
    """

    def __init__(self, device: torch.device) -> None:
        self.threads = allowed_threads() if device.type == "cpu" else 1
        self._before = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self.threads, initializer=_set_one) if self.threads > 1 else None

    def __enter__(self) -> Self:
        if self._pool:
            _set_one()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
            torch.set_num_threads(self._before)

    def for_each[T](self, work: Callable[[T], None], items: Sequence[T]) -> None:
        """Do the work on each item; the first error, in the order of the items, is raised."""
        for _ in self._pool.map(work, items) if self._pool and len(items) > 1 else map(work, items):
            pass


def _set_one() -> None:
    torch.set_num_threads(1)
