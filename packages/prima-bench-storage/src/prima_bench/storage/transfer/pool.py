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
from prima_bench.storage.errors import IntegrityError, TransferError
from prima_bench.storage.transfer.ranges import Received, Source, read_range
from prima_bench.storage.transfer.retry import CancelledError, Failure, retried

Take = Callable[[Part, memoryview], None]

THREADS = min(6, 2 * (os.cpu_count() or 1))
"""Threads for one object; each holds one part in memory."""

LONGEST_HEAD = 300.0
"""Seconds for an answer to begin. It ends what no time-out of the socket ends: a head that drips."""

_INTEGRITY_TRIES = 2
_TICK = 0.2


class PartReader:
    """Reads parts of one object, each verified where its digest is known.

    Attributes:
        source: The object.
        etag: What the store calls it, once an answer has said so; every further range must come from the same one.
        replaced: Whether it is another one by now, where it may not be.
    """

    def __init__(self, source: Source, etag: str | None = None, *, strict: bool) -> None:
        """Bind to an object.

        Args:
            source: The object.
            etag: What it was called by an earlier download.
            strict: Whether it may not be replaced meanwhile. Where every part is verified it may, as long as the bytes
                are the same.
        """
        self.source = source
        self.etag = etag
        self.replaced = False
        self._strict = strict
        self._conditional = True
        self._lock = threading.Lock()

    def read(self, part: Part, into: memoryview) -> None:
        """Read one part, with retries.

        Raises:
            StorageError: If it cannot be had, or is not the pinned one.
            CancelledError: If the transfer was given up.
        """
        retried(lambda: self._attempt(part, into), self.source.cancelled)

    def _attempt(self, part: Part, into: memoryview) -> Failure | None:
        etag = self.etag
        condition = etag if etag and self._conditional and _can_hold(etag) else None
        answer = read_range(self.source, part, into, condition)
        if isinstance(answer, Received):
            return self._same_object(answer.etag) or self._verified(part, answer.sha256)
        if not answer.replaced:
            return answer
        if self._strict:
            self.replaced = True
            return Failure(answer.error)
        # Not again: replicas of a store may each call it something else, and every part is verified.
        self._conditional = False
        return answer

    def _same_object(self, etag: str) -> Failure | None:
        with self._lock:
            if not self.etag:
                self.etag = etag or None
            elif self._strict and etag != self.etag:
                self.replaced = True
                hint = "Somebody uploads it just now; try again when that has ended."
                return Failure(IntegrityError(f"{self.source.address}: was replaced while it was read", hint=hint))
        return None

    def _verified(self, part: Part, found: str | None) -> Failure | None:
        if found is None:
            return None
        try:
            part.check(found, uri=str(self.source.address))
        except IntegrityError as error:
            self.source.arrived(-part.length)
            # Once more: the network may have damaged it, and then only this part is paid for twice.
            return Failure(error.with_traceback(None), _INTEGRITY_TRIES)
        return None


def _can_hold(etag: str) -> bool:
    # As a condition a weak one never holds, and what is not printable cannot be sent.
    return not etag.startswith("W/") and etag.isascii() and etag.isprintable()


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
