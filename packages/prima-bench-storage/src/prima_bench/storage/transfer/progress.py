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

NOTED = 5.0
"""Seconds for which a note is shown, and for which nothing may come before that is told."""


@dataclass(frozen=True, slots=True)
class Report:
    """Where a transfer stands.

    Attributes:
        name: What is transferred.
        done: Bytes that are here.
        total: Bytes in all.
        rate: Bytes a second since it began.
        finished: Whether this is the last report.
        note: What happened just now, such as that a connection broke off; empty where all goes well.
    """

    name: str
    done: int
    total: int
    rate: float
    finished: bool
    note: str = ""

    @property
    def remaining(self) -> float | None:
        """Seconds that are left at that rate; None where nothing has come yet."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None

    def __str__(self) -> str:
        """For people.

        >>> str(Report("train.h5ad", 30_000_000, 120_000_000, 10e6, False))
        'train.h5ad: 30.0 of 120.0 MB, 10.0 MB/s, 9 s left'
        >>> str(Report("manifest.json", 0, 700, 0.0, False, "connection broke off, trying again (2 of 5)"))
        'manifest.json: 0 of 700 bytes; connection broke off, trying again (2 of 5)'
        """
        unit = next(unit for unit in _UNITS if self.total >= unit[0])
        told = [f"{_amount(self.done, unit)} of {_amount(self.total, unit)} {unit[1]}"]
        if self.remaining is not None:
            unit = next(unit for unit in _UNITS if self.rate >= unit[0] or not unit[2])
            told.append(f"{_amount(self.rate, unit)} {unit[1]}/s")
            if not self.note:  # else that is all too bold a guess
                told.append(f"{self.remaining:.0f} s left")
        return f"{self.name}: {', '.join(told)}{self.note and '; ' + self.note}"


_UNITS = ((10**6, "MB", 1), (10**3, "kB", 1), (0, "bytes", 0))


def _amount(count: float, unit: tuple[int, str, int]) -> str:
    length, _, digits = unit
    return f"{count / (length or 1):.{digits}f}"


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
        self._note = ""
        self._start = self._told = self._came = time.monotonic()
        self._noted = -NOTED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended = True
            self._listener(self._report(time.monotonic(), finished=True))

    def add(self, count: int) -> None:
        """Count bytes that were moved; a negative number takes back what must be moved again."""
        with self._lock:
            now = time.monotonic()
            self._moved += count
            self._done += count
            if count > 0:
                self._came = now
            self._tell(now)

    def note(self, text: str) -> None:
        """Say what happened, in a few words; of several things the last one is shown, for a moment."""
        with self._lock:
            now = time.monotonic()
            self._note, self._noted = text, now
            self._tell(now)

    def look(self) -> None:
        """Tell of a note or a silence also while nothing comes; to be called now and then."""
        with self._lock:
            now = time.monotonic()
            if self._news(now):
                self._tell(now)

    def skip(self, count: int) -> None:
        """Count bytes that need not be moved."""
        with self._lock:
            self._done += count

    def restart(self, done: int) -> None:
        """Begin anew with so many bytes that are there."""
        with self._lock:
            self._done, self._moved = done, 0
            self._came = time.monotonic()

    def _tell(self, now: float) -> None:
        if now - self._told >= EVERY and not self._ended:
            self._told = now
            self._listener(self._report(now, finished=False))

    def _news(self, now: float) -> str:
        if now - self._noted < NOTED:
            return self._note
        silent = now - self._came
        return f"nothing came for {silent:.0f} s" if silent >= NOTED else ""

    def _report(self, now: float, *, finished: bool) -> Report:
        seconds = now - self._start
        rate = self._moved / seconds if seconds > 0 else 0.0
        return Report(self._name, self._done, self._total, rate, finished, "" if finished else self._news(now))
