"""Work spread over threads of Python's, one for each of torch's, while torch itself uses one thread in each.

Many short operations run faster so than one after the other on several threads, which wait for each other every time;
on a busy machine several times faster.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import torch


class Workers:
    """As many threads as ``torch.get_num_threads()`` says, for work on the CPU; elsewhere only the caller's own.

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
        self.threads = torch.get_num_threads() if device.type == "cpu" else 1
        self._pool = ThreadPoolExecutor(self.threads, initializer=_one_thread) if self.threads > 1 else None

    def __enter__(self) -> Self:
        if self._pool:
            _one_thread()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
            torch.set_num_threads(self.threads)

    def for_each[T](self, work: Callable[[T], None], items: Sequence[T]) -> None:
        """Do the work on each item; the first error, in the order of the items, is raised."""
        for _ in self._pool.map(work, items) if self._pool and len(items) > 1 else map(work, items):
            pass


def _one_thread() -> None:
    torch.set_num_threads(1)
