"""Parts over several threads. A thread reads a part into memory of its own, verifies it and hands it on.

The first failure ends all; an interrupt too. Threads that still wait for the network then are left to themselves: what
they hand on is refused, because the file that it would go to is closed.
"""

import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from prima_bench.storage.content import Part
from prima_bench.storage.errors import TransferError
from prima_bench.storage.transfer.parts import PartReader
from prima_bench.storage.transfer.ranges import Source
from prima_bench.storage.transfer.retry import CancelledError

Take = Callable[[Part, memoryview], None]

THREADS = min(6, 2 * (os.cpu_count() or 1))
"""Threads for one object; each holds one part in memory."""

LONGEST_HEAD = 300.0
"""Seconds for an answer to begin. It ends what no time-out of the socket ends: a head that drips."""

_TICK = 0.2


def read_all(reader: PartReader, parts: Iterable[Part], take: Take, *, threads: int = THREADS) -> None:
    """Read parts and hand each on.

    Args:
        reader: Reads one part.
        parts: What to read, in the order to begin with; asked for the next when a thread is free.
        take: Called by the threads with each part's bytes, which are theirs only until it returns.
        threads: How many at most.

    Raises:
        StorageError: The first failure.
    """
    waiting = iter(parts)
    first = next(waiting, None)
    if first is None:
        return
    second = next(waiting, None)
    if second is None:
        # In a thread too: this one watches it.
        _in_threads(reader, iter([first]), take, 1)
    else:
        _in_threads(reader, _Shared([first, second], waiting), take, threads)


class _Shared:
    """An iterator that several threads may share."""

    def __init__(self, first: list[Part], rest: Iterator[Part]) -> None:
        self._first = first
        self._rest = rest
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Part]:
        return self

    def __next__(self) -> Part:
        with self._lock:
            return self._first.pop(0) if self._first else next(self._rest)


def _work(reader: PartReader, parts: Iterator[Part], take: Take) -> None:
    memory: mmap.mmap | bytearray = bytearray()
    for part in parts:
        if reader.source.cancelled.is_set():
            raise CancelledError
        if len(memory) < part.length:
            # Nothing that zeroes it first, while every other thread waits for the interpreter.
            memory = mmap.mmap(-1, part.length)
        view = memoryview(memory)[: part.length]
        reader.read(part, view)
        take(part, view)


def _in_threads(reader: PartReader, parts: Iterator[Part], take: Take, threads: int) -> None:
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            _work(reader, parts, take)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            reader.source.cancelled.set()
            ended.put(error)
        else:
            ended.put(None)

    # Daemons, so that a thread which waits for a dead network does not keep the program from ending.
    running = [threading.Thread(target=run, name=f"prima-bench-{i}", daemon=True) for i in range(threads)]
    try:
        left = _started(running)
        if not left:
            _work(reader, parts, take)
        watch = Watch(reader.source)
        while left:
            watch.look()
            reader.source.looked()
            try:
                # With an end, so that an interrupt is heard on every system.
                error = ended.get(timeout=_TICK)
            except queue.Empty:
                continue
            left -= 1
            if error is not None and not isinstance(error, CancelledError):
                raise error
    finally:
        reader.source.cancelled.set()
    for thread in running:
        if thread.ident is not None:
            thread.join()


class Watch:
    """Sees to it that every answer begins at some time."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._seen = time.monotonic()
        self._waited: dict[tuple[int, float], float] = {}

    def look(self) -> None:
        """Look; to be called again and again.

        Raises:
            TransferError: If an answer has not begun for too long.
        """
        now = time.monotonic()
        # A process that was stopped meanwhile, as by Ctrl-Z, has not waited.
        step = min(now - self._seen, 5 * _TICK)
        self._seen = now
        asking = self._source.asking.copy().items()
        self._waited = {each: self._waited.get(each, 0.0) + step for each in asking}
        if max(self._waited.values(), default=0.0) > LONGEST_HEAD:
            raise TransferError(
                f"{self._source.address}: the answer does not get to the object in {LONGEST_HEAD:g} s",
                hint="The connection is too slow, or the store is; try again later.",
            )


def _started(threads: list[threading.Thread]) -> int:
    for count, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError:  # the machine allows this user no more of them
            return count
    return len(threads)
