"""One part into memory, verified: what of it is kept when a request breaks off, and when it begins again.

A try goes on where the one before it broke off, as long as both are of the same object. Where the digest of the part
is pinned, it judges the joined pieces; a wrong one is no proof of damage then, so the part comes once more, in one
piece. Where only the whole is pinned, pieces are joined only if the store says that they are of the same object.
"""

import dataclasses
import functools
import threading

from prima_bench.storage.content import Part
from prima_bench.storage.errors import IntegrityError, StorageError, TransferError
from prima_bench.storage.transfer import retry
from prima_bench.storage.transfer.ranges import Arriving, Source, read_range
from prima_bench.storage.transfer.retry import Failure, retried

_INTEGRITY_TRIES = 2


class PartReader:
    """Reads parts of one object, each verified where its digest is known.

    Attributes:
        source: The object.
        etag: What the store calls it, once an answer has said so; every further range must come from the same one.
        replaced: Whether it is another one by now, where it may not be.
        joined: Whether a part was joined of pieces and nothing has verified it yet.
    """

    def __init__(self, source: Source, etag: str | None = None, *, strict: bool, joins: bool = True) -> None:
        """Bind to an object.

        Args:
            source: The object.
            etag: What it was called by an earlier download.
            strict: Whether it may not be replaced meanwhile. Where every part is verified it may, as long as the bytes
                are the same.
            joins: Whether a part may be joined of pieces.
        """
        self.source = source
        self.etag = etag
        self.replaced = False
        self.joined = False
        self._strict = strict
        self._joins = joins
        self._conditional = True
        self._lock = threading.Lock()

    def read(self, part: Part, into: memoryview) -> None:
        """Read one part, with retries.

        Raises:
            StorageError: If it cannot be had, or is not the pinned one.
            CancelledError: If the transfer was given up.
        """
        reading = _Reading(part, into, joins=self._joins)
        try:
            retried(lambda: self._attempt(reading), self.source.cancelled, self.source.told)
        except StorageError:
            self.source.arrived(-reading.got)
            raise

    def _attempt(self, reading: "_Reading") -> Failure | None:
        continued = reading.got > 0
        etag = reading.etag if continued else self.etag
        condition = etag if etag and self._conditional and _can_hold(etag) else None
        failure = read_range(self.source, reading, condition, functools.partial(self._same_object, reading))
        if failure is None:
            failure = self._verified(reading)
            if failure is None:
                if reading.pieces > 1 and reading.digest is None:
                    self.joined = True
                return None
        elif failure.replaced:
            if self._strict:
                self.replaced = True
                return Failure(failure.error)
            # Not again: replicas of a store may each call it something else, and every part is verified.
            self._conditional = False
        elif failure.again is None and self._keeps(reading):
            return dataclasses.replace(failure, brought=reading.got_further())
        elif continued and failure.again is not None and not self.replaced:
            # What answers does not know how to go on. That is no reason to fail: it may still give the part at once.
            reading.joins = False
            failure = dataclasses.replace(failure, again=None, brought=True, event="store cannot go on there")
        self.source.arrived(-reading.got)
        reading.begin_again()
        return failure

    def _keeps(self, reading: "_Reading") -> bool:
        # Complete and yet broken off is left alone: there is no rest to ask for.
        named = bool(reading.etag) or not self._strict
        return reading.joins and reading.ranged and named and reading.got < reading.part.length

    def _same_object(self, reading: "_Reading", etag: str) -> Failure | None:
        hint = "Somebody uploads it just now; try again when that has ended."
        reason = f"{self.source.address}: was replaced while it was read"
        with self._lock:
            if not self.etag:
                self.etag = etag or None
            elif self._strict and etag != self.etag:
                self.replaced = True
                return Failure(IntegrityError(reason, hint=hint))
        if not reading.got:
            reading.etag = ""
        if etag and reading.etag and etag != reading.etag:
            return Failure(TransferError(reason, hint=hint), None, replaced=True, event="object was replaced")
        reading.etag = reading.etag or etag
        return None

    def _verified(self, reading: "_Reading") -> Failure | None:
        if reading.digest is None:
            return None
        try:
            reading.part.check(reading.digest.hexdigest(), uri=str(self.source.address))
        except IntegrityError as error:
            failure = Failure(error.with_traceback(None), None, event="bytes were damaged")
            if reading.pieces > 1:
                # The pieces may be of two objects, or one that broke off may have ended in something else.
                reading.joins = False
                return dataclasses.replace(failure, brought=True)
            reading.damaged += 1
            # Once more: the network may have damaged it, and then only this part is paid for twice.
            return dataclasses.replace(failure, again=1) if reading.damaged >= _INTEGRITY_TRIES else failure
        return None


class _Reading(Arriving):
    """A part on its way, with what its tries came to."""

    def __init__(self, part: Part, into: memoryview, *, joins: bool) -> None:
        super().__init__(part, into)
        self.joins = joins
        self.damaged = 0
        self._farthest = 0
        self._begun_again = 0

    def got_further(self) -> bool:
        """Whether this try brought much that was not there before, as can happen only so often."""
        further = self.got - self._farthest >= retry.PATIENCE.least
        self._farthest = max(self._farthest, self.got)
        return further

    def begin_again(self) -> None:
        """Throw away what came. The way up to there counts again, but not for ever."""
        if self.joins and self.got and self._begun_again < retry.BACKOFF.attempts:
            self._begun_again += 1
            self._farthest = 0
        self.begin()


def _can_hold(etag: str) -> bool:
    # As a condition a weak one never holds, and what is not printable cannot be sent.
    return not etag.startswith("W/") and etag.isascii() and etag.isprintable()
