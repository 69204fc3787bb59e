"""How far a download or an upload has come, told to whoever listens.

By default a line on stderr moves along, where stderr is a terminal and the transfer takes longer than a moment; a
program that shows progress in its own way listens with :func:`listening`.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self

EVERY = 0.5
"""Seconds between two reports, and before the first."""


@dataclass(frozen=True, slots=True)
class Report:
    """Where a transfer stands.

    Attributes:
        name: What is transferred.
        done: Bytes that are here.
        total: Bytes in all.
        rate: Bytes a second since it began.
        finished: Whether this is the last report.
    """

    name: str
    done: int
    total: int
    rate: float
    finished: bool

    @property
    def remaining(self) -> float | None:
        """Seconds that are left at that rate; None where nothing has come yet."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None

    def __str__(self) -> str:
        """For people.

        >>> str(Report("train.h5ad", 30_000_000, 120_000_000, 10e6, False))
        'train.h5ad: 30.0 of 120.0 MB, 10.0 MB/s, 9 s left'
        """
        left = "" if self.remaining is None else f", {self.remaining:.0f} s left"
        return f"{self.name}: {self.done / 1e6:.1f} of {self.total / 1e6:.1f} MB, {self.rate / 1e6:.1f} MB/s{left}"


Listener = Callable[[Report], None]


def on_terminal(report: Report) -> None:
    """Show a report on stderr, in one line that is written over; nothing where stderr is no terminal."""
    text = "" if report.finished else "".join(filter(str.isprintable, str(report)))
    # ValueError: it was closed, or cannot show a character. AttributeError: a program put an object of its own there.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if not sys.stderr or not sys.stderr.isatty():
            return
        # Its end, as far as the terminal is wide: a line that wraps cannot be written over.
        room = (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
        sys.stderr.write("\r\x1b[K" + text[max(0, len(text) - room) :])
        sys.stderr.flush()


_listener: ContextVar[Listener] = ContextVar("listener", default=on_terminal)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let ``listener`` hear of the transfers in this block, instead of the terminal; it is called by several threads.

    >>> heard = []
    >>> with listening(heard.append), Progress("a", 10) as progress:
    ...     progress.add(10)
    >>> heard[-1].done, heard[-1].finished
    (10, True)
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Progress:
    """Counts the bytes of one transfer, and reports now and then; used as a context."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._listener = _listener.get()
        self._lock = threading.Lock()
        self._done = self._moved = 0
        self._ended = False
        self._start = self._told = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended = True
            self._listener(self._report(finished=True))

    def add(self, count: int) -> None:
        """Count bytes that were moved; a negative number takes back what must be moved again."""
        with self._lock:
            self._moved += count
            self._done += count
            if time.monotonic() - self._told >= EVERY and not self._ended:
                self._told = time.monotonic()
                self._listener(self._report(finished=False))

    def skip(self, count: int) -> None:
        """Count bytes that need not be moved."""
        with self._lock:
            self._done += count

    def restart(self, done: int) -> None:
        """Begin anew with so many bytes that are there."""
        with self._lock:
            self._done, self._moved = done, 0

    def _report(self, *, finished: bool) -> Report:
        seconds = time.monotonic() - self._start
        return Report(self._name, self._done, self._total, self._moved / seconds if seconds > 0 else 0.0, finished)
