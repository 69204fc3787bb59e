"""One range of one object into memory. It trusts nothing that the transport says.

The answer must name exactly the range that was asked for and the pinned size of the whole; every encoding is refused;
bytes are counted; a connection that only drips is given up. What the bytes are is for the caller to verify.
"""

import contextlib
import hashlib
import http.client
import io
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from urllib3.exceptions import HTTPError, ReadTimeoutError

from prima_bench.storage.answers import socket_of
from prima_bench.storage.content import Part
from prima_bench.storage.errors import IntegrityError, StorageError, TransferError
from prima_bench.storage.transfer import retry
from prima_bench.storage.transfer.refusals import asked, nonsense
from prima_bench.storage.transfer.retry import CancelledError, Failure
from prima_bench.storage.uri import ObjectUri
from prima_bench.storage.verify import check_size

_CHUNK = 1 << 20
_NETWORK = "Check the network, then try again: the parts that are complete are kept."
_ODD_STORE = "The store, or a proxy before it, does not do as S3 does; ask whoever runs it."
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


def _nobody(*_: object) -> None:
    return


@dataclass(frozen=True, slots=True)
class Source:
    """An object to read, as it is pinned.

    Attributes:
        client: The boto3 client.
        address: Where it lies.
        size: Bytes of the whole.
        cancelled: Set when nobody wants it any more.
        arrived: Told the number of bytes that came; a negative one when they have to come again.
        told: Told what happens, in a few words.
        looked: Called now and then, as long as it is read.
        asking: Since when each thread waits for an answer to begin.
    """

    client: Any
    address: ObjectUri
    size: int
    cancelled: threading.Event
    arrived: Callable[[int], None]
    told: Callable[[str], None] = _nobody
    looked: Callable[[], None] = _nobody
    asking: dict[int, float] = field(default_factory=dict)


class Arriving:
    """A part on its way into memory, however many requests that takes.

    Attributes:
        part: What is wanted.
        into: As many bytes of memory.
        got: How many of them came, from the front.
        pieces: How many requests they came in.
        etag: What the store calls the object that they are of; empty where it does not say.
        ranged: Whether the last answer was a range, so that a rest can be asked for.
        digest: The hash over what came, where the part's is pinned.
    """

    def __init__(self, part: Part, into: memoryview) -> None:
        self.part = part
        self.into = into
        self.begin()

    def begin(self) -> None:
        """Begin, or begin again, with nothing."""
        self.got = self.pieces = 0
        self.etag = ""
        self.ranged = True
        self.digest = None if self.part.sha256 is None else hashlib.sha256()


def read_range(
    source: Source, arriving: Arriving, condition: str | None, accepted: Callable[[str], Failure | None]
) -> Failure | None:
    """Read the rest of a part in one request.

    Args:
        source: The object.
        arriving: The part. What comes is added to it, also where the request breaks off.
        condition: What the object must be called.
        accepted: Asked about what it is called, before a byte is read: why it is none that is wanted, or None.

    Returns:
        Why it failed; None when the part is complete.

    Raises:
        CancelledError: If the transfer was given up.
    """
    part, before = arriving.part, arriving.got
    wanted = {"Bucket": source.address.bucket, "Key": source.address.key}
    if part.length:
        wanted["Range"] = f"bytes={part.start + before}-{part.start + part.length - 1}"
    if condition:
        wanted["IfMatch"] = condition
    failure: Failure | None
    try:
        source.asking[threading.get_ident()] = time.monotonic()
        try:
            response = asked(source.address, lambda: source.client.get_object(**wanted))
        finally:
            source.asking.pop(threading.get_ident(), None)
        if isinstance(response, Failure):
            return response
        with contextlib.closing(response["Body"]) as body:
            arriving.ranged = response["ResponseMetadata"]["HTTPStatusCode"] == 206
            _check_announced(response, source, part.start + before, part.length - before)
            failure = accepted(str(response.get("ETag") or "")) or _fill(body._raw_stream, arriving, source)
    except (HTTPError, OSError) as error:
        failure = _broke_off(source, arriving, error)
    except StorageError as error:
        failure = Failure(error.with_traceback(None))
    except ValueError:  # a chunk of a length that is none
        failure = nonsense(source.address)
    finally:
        arriving.pieces += arriving.got > before
    return failure


def _check_announced(response: dict[str, Any], source: Source, start: int, count: int) -> None:
    address = source.address
    encoding = response.get("ContentEncoding") or "identity"
    if encoding != "identity":
        raise IntegrityError(
            f"{address}: is served with Content-Encoding {encoding[:80]!r}, so its bytes are not the stored ones",
            hint="Whoever publishes it must upload it without a Content-Encoding.",
        )
    length = response.get("ContentLength")
    if response["ResponseMetadata"]["HTTPStatusCode"] != 206:
        # The whole is as good where the range is the whole.
        if length is not None:
            check_size(int(length), uri=str(address), size=source.size)
        if count != source.size:
            raise TransferError(
                f"{address}: the store sends the whole object where a range was asked for",
                hint="The store, or a proxy before it, ignores ranges; it cannot serve large artifacts.",
            )
        return
    said = str(response.get("ContentRange") or "")
    found = _RANGE.fullmatch(said)
    if found is None:
        raise TransferError(f"{address}: the store answers a range with Content-Range {said[:80]!r}", hint=_ODD_STORE)
    first, last, whole = map(int, found.groups())
    check_size(whole, uri=str(address), size=source.size)
    if (first, last - first + 1) != (start, count) or length not in (None, count):
        raise TransferError(f"{address}: the store sends another range than was asked for: {said}", hint=_ODD_STORE)


def _fill(stream: Any, arriving: Arriving, source: Source) -> Failure | None:
    socket = socket_of(stream)
    if socket is not None:
        # Silence is given up as a drip is; the client's own time-out also covers a store that thinks before it answers.
        socket.settimeout(retry.PATIENCE.seconds)
    read = _reader(stream)
    into, digest = arriving.into, arriving.digest
    got = counted = arriving.got
    since = time.monotonic()
    # What arrives is taken at once and never waited for in large pieces, so that a drip is seen as one; and it is
    # hashed at once, as long as it is in the processor's cache: that takes two thirds of the time.
    while got < len(into) and (count := read(into[got : got + _CHUNK])):
        if digest is not None:
            digest.update(into[got : got + count])
        got += count
        arriving.got = got
        source.arrived(count)
        if source.cancelled.is_set():
            raise CancelledError
        now = time.monotonic()
        if got < len(into) and now - since > retry.PATIENCE.seconds:
            if got - counted < retry.PATIENCE.least:
                return _stalled(source, arriving)
            since, counted = now, got
    if got < len(into):
        return _broke_off(source, arriving)
    if read(memoryview(bytearray(1))):
        raise IntegrityError(
            f"{source.address}: more than the {len(into)} bytes came that were asked for", hint=_ODD_STORE
        )
    # So that the next range uses the same connection.
    stream.release_conn()
    return None


def _reader(stream: Any) -> Callable[[memoryview], int]:
    """Reads what has come of a body, at most as much as there is room for."""
    answer = getattr(stream, "_fp", None)
    if isinstance(answer, http.client.HTTPResponse) and not answer.chunked and isinstance(answer.fp, io.BufferedReader):
        # Straight from the socket into place. urllib3 has no way without two copies.
        answer.fp = _AtOnce(answer.fp)  # type: ignore[assignment]
        return answer.readinto

    def copied(into: memoryview) -> int:
        data = stream.read1(len(into))
        into[: len(data)] = data
        return len(data)

    return copied


class _AtOnce(io.BufferedIOBase):
    """A stream that is asked for much and gives what it has: of a slow one, little at a time."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._begun = False

    def readinto(self, into: Any) -> int:
        if not self._begun:
            # What came along with the head. Asked for more, it would wait for that too, and lose this in a silence.
            into, self._begun = into[: io.DEFAULT_BUFFER_SIZE], True
        return self._stream.readinto1(into)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _broke_off(source: Source, arriving: Arriving, error: Exception | None = None) -> Failure:
    progress = f"after {arriving.got} of {len(arriving.into)} bytes"
    if isinstance(error, (TimeoutError, ReadTimeoutError)):
        reason = f"{source.address}: nothing came for {retry.PATIENCE.seconds:g} s, {progress}"
        event = "connection fell silent"
    else:
        kind = "" if error is None else f" ({type(error).__name__})"
        reason, event = f"{source.address}: broke off {progress}{kind}", "connection broke off"
    return Failure(TransferError(reason, hint=_NETWORK), None, event=event)


def _stalled(source: Source, arriving: Arriving) -> Failure:
    reason = (
        f"{source.address}: fewer than {retry.PATIENCE.least} bytes came in {retry.PATIENCE.seconds:g} s, "
        f"after {arriving.got} of {len(arriving.into)}"
    )
    hint = "The connection is too slow, or the store is; try again later."
    return Failure(TransferError(reason, hint=hint), None, event="connection is too slow")
