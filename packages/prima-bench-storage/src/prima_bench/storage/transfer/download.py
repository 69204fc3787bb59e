"""One object into the cache: which parts are missing, where they go, and when the blob gets its name."""

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prima_bench.storage.cache.partial import PlainFile, VerifiedParts, check_room
from prima_bench.storage.cache.store import Cache
from prima_bench.storage.content import Content, Part
from prima_bench.storage.errors import CacheError, IntegrityError, StorageError
from prima_bench.storage.transfer import retry
from prima_bench.storage.transfer.parts import PartReader
from prima_bench.storage.transfer.pool import read_all
from prima_bench.storage.transfer.progress import Progress
from prima_bench.storage.transfer.ranges import Source
from prima_bench.storage.transfer.retry import CancelledError
from prima_bench.storage.uri import ObjectUri

HEARTBEAT = 5.0
"""Seconds after which those who wait for a download are shown that it goes on, however long a part takes."""

_REMOVALS = 3


def download(client: Any, address: ObjectUri, content: Content, cache: Cache, *, alone: bool) -> Path:
    """Bring an object into the cache, verified.

    Args:
        client: The store's client.
        address: The object.
        content: What it must be.
        cache: Where it goes.
        alone: Whether this is known to be the only download of it.

    Raises:
        NotFoundError: If the object or its bucket does not exist.
        AccessError: If the store refuses the keypair or the read.
        IntegrityError: If the store announces or sends something else than the pinned bytes.
        TransferError: If the store could not be reached or broke off, several times in a row.
        CacheError: If the cache cannot be written.
    """
    with Progress(str(address), content.size) as progress:

        def source() -> Source:
            cancelled = threading.Event()

            def arrived(count: int) -> None:
                # Threads that are late count no more: by then somebody else may bring the same bytes.
                if not cancelled.is_set():
                    progress.add(count)

            return Source(client, address, content.size, cancelled, arrived, progress.note, progress.look)

        for _ in range(_REMOVALS):
            if content.by_part:
                path = _by_part(source(), content, cache, progress)
            else:
                path = _as_a_whole(source, content, cache, progress, alone=alone)
            if path is not None:
                return path
    raise CacheError(
        f"{address}: was removed from the cache at {cache.root} while it was fetched, {_REMOVALS} times",
        hint="Let nothing delete files there while a download runs.",
    )


def _noticed(source: Source, file: VerifiedParts | PlainFile) -> Source:
    beat = time.monotonic()

    def arrived(count: int) -> None:
        nonlocal beat
        source.arrived(count)
        if time.monotonic() - beat >= HEARTBEAT:
            beat = time.monotonic()
            file.touch()

    return dataclasses.replace(source, arrived=arrived)


def _by_part(source: Source, content: Content, cache: Cache, progress: Progress) -> Path | None:
    with VerifiedParts(cache.layout, content, uri=str(source.address)) as file:
        missing = [part for part in content.parts() if not file.holds(part)]
        total = sum(part.length for part in missing)
        check_room(cache.layout, total, uri=str(source.address))
        progress.restart(content.size - total)
        # Without a lock others may be at the same work; in an order of its own each finds much of it done.
        random.SystemRandom().shuffle(missing)
        # After a while of its own others may have written what was missing at first.
        read_all(PartReader(_noticed(source, file), strict=False), _still_missing(missing, file, progress), file.write)
        return file.publish()


def _still_missing(parts: list[Part], file: VerifiedParts, progress: Progress) -> Iterator[Part]:
    for index, part in enumerate(parts):
        if index and file.holds(part):
            progress.skip(part.length)
        else:
            yield part


def _as_a_whole(
    new_source: Callable[[], Source], content: Content, cache: Cache, progress: Progress, *, alone: bool
) -> Path | None:
    source = new_source()
    with PlainFile(cache.layout, content, uri=str(source.address)) as file:
        file.adopt(remove=alone)
        check_room(cache.layout, content.size - file.written, uri=str(source.address))
        joins = True
        for attempt in range(1, retry.BACKOFF.attempts + 1):
            resumed = file.written
            progress.restart(resumed)
            reader = PartReader(_noticed(source, file), file.etag, strict=True, joins=joins)
            order = _InOrder(file, reader)
            try:
                read_all(reader, _from(content, resumed), order)
                return file.publish()
            except StorageError as error:
                # What an earlier download left may be of another object, and so may the parts of one that changed, and
                # the pieces of a part.
                wrong = isinstance(error, IntegrityError) and not reader.replaced
                stale = reader.replaced or (wrong and (resumed or reader.joined))
                joins = joins and not (wrong and reader.joined)
                if not stale or attempt == retry.BACKOFF.attempts:
                    raise
            order.close()
            file.restart()
            source = new_source()
    raise AssertionError("the last attempt returns or raises")


def _from(content: Content, start: int) -> Iterator[Part]:
    for index, position in enumerate(range(start, content.size, content.part_size)):
        yield Part(index, position, min(content.part_size, content.size - position), None)


class _InOrder:
    """Passes parts on in their order, whichever thread has its own ready first."""

    def __init__(self, file: PlainFile, reader: PartReader) -> None:
        self._file = file
        self._reader = reader
        self._turn = threading.Condition()
        self._next = 0
        self._closed = False

    def __call__(self, part: Part, data: memoryview) -> None:
        with self._turn:
            while part.index != self._next and not self._reader.source.cancelled.is_set():
                self._turn.wait(0.2)
            if self._closed or part.index != self._next:
                raise CancelledError
            self._file.remember(self._reader.etag)
            self._file.append(data)
            self._next += 1
            self._turn.notify_all()
        self._file.sync_some()

    def close(self) -> None:
        """Take nothing more from threads that are late."""
        with self._turn:
            self._closed = True
