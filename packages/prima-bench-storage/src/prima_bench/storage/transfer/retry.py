"""The one retry layer: how often a request is tried, how long to wait, and when a connection counts as dead."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from prima_bench.storage.errors import StorageError


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often to try, and how long to wait in between.

    Attributes:
        attempts: Tries in all.
        first: Seconds before the second try; doubled for each further one, then shortened by up to a half at random.
        longest: Seconds that no wait exceeds.
    """

    attempts: int = 5
    first: float = 0.5
    longest: float = 8.0

    def wait(self, attempt: int) -> float:
        """Seconds to wait after the failed try number ``attempt`` (from 1)."""
        whole = min(self.longest, self.first * 2.0 ** (attempt - 1))
        return whole * random.SystemRandom().uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Patience:
    """The slowest that a connection may be before it is given up: a time-out of the socket alone never ends a drip.

    Attributes:
        seconds: How long to watch.
        least: Bytes that must come in that time.
    """

    seconds: float = 30.0
    least: int = 1 << 15


BACKOFF = Backoff()
PATIENCE = Patience()


class CancelledError(Exception):
    """The transfer was given up elsewhere; nobody needs to be told."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request came to nothing. It is handed back, not raised, so that it is raised outside botocore's frames.

    Attributes:
        error: What to raise.
        again: How often it is worth trying in all; None for as often as the back-off allows.
        replaced: Whether the object is no longer the one that was asked for.
        brought: Whether it got somewhere all the same, so that the tries before it count no more. Whoever says so sees
            to it that this comes to an end.
        event: What happened, in a few words for the line that shows progress.
    """

    error: StorageError
    again: int | None = 1
    replaced: bool = False
    brought: bool = False
    event: str = "that failed"


def retried[T](
    request: Callable[[], T | Failure],
    cancelled: threading.Event,
    told: Callable[[str], None] = lambda event: None,
) -> T:
    """The outcome of a request that is tried again while that is worth it.

    Args:
        request: Makes one try.
        cancelled: Set when nobody wants the outcome any more; it ends a wait.
        told: Told what happened, before it is tried again.

    Raises:
        StorageError: Why the last try failed.
        CancelledError: If it was cancelled.
    """
    failed = 0
    while True:
        outcome = request()
        if not isinstance(outcome, Failure):
            return outcome
        failed = 0 if outcome.brought else failed + 1
        most = min(BACKOFF.attempts, outcome.again or BACKOFF.attempts)
        if failed >= most:
            raise outcome.error
        told(f"{outcome.event}, trying again ({failed + 1} of {most})")
        if cancelled.wait(BACKOFF.wait(max(1, failed))):
            raise CancelledError
