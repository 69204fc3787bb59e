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

from urllib3.exceptions import HTTPError

from prima_bench.storage.content import Part
from prima_bench.storage.errors import IntegrityError, StorageError, TransferError
from prima_bench.storage.transfer import retry
from prima_bench.storage.transfer.refusals import asked, nonsense
from prima_bench.storage.transfer.retry import CancelledError, Failure
from prima_bench.storage.uri import ObjectUri
from prima_bench.storage.verify import check_size

_CHUNK = 1 << 20
_NETWORK = "Check the network, then try again: what has come is kept."
_ODD_STORE = "The store, or a proxy before it, does not do as S3 does; ask whoever runs it."
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


@dataclass(frozen=True, slots=True)
class Source:
    """An object to read, as it is pinned.

    Attributes:
        client: The boto3 client.
        address: Where it lies.
        size: Bytes of the whole.
        cancelled: Set when nobody wants it any more.
        arrived: Told the number of bytes that came; a negative one when they have to come again.
        asking: Since when each thread waits for an answer to begin.
    """

    client: Any
    address: ObjectUri
    size: int
    cancelled: threading.Event
    arrived: Callable[[int], None]
    asking: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Received:
    """What a range turned out to be.

    Attributes:
        etag: What the store calls the object; empty where it does not say.
        sha256: Digest of the bytes, where the part's is pinned.
    """

    etag: str
    sha256: str | None


def read_range(source: Source, part: Part, into: memoryview, etag: str | None) -> Received | Failure:
    """Read one range in one request.

    Args:
        source: The object.
        part: What to read of it.
        into: As many bytes of memory.
        etag: What the object was called before; another object is refused.

    Returns:
        What came, or why it failed.

    Raises:
        CancelledError: If the transfer was given up.
    """
    wanted = {"Bucket": source.address.bucket, "Key": source.address.key}
    if part.length:
        wanted["Range"] = f"bytes={part.start}-{part.start + part.length - 1}"
    if etag:
        wanted["IfMatch"] = etag
    got = 0

    def arrived(count: int) -> None:
        nonlocal got
        got += count
        source.arrived(count)

    etag = ""
    digest = None if part.sha256 is None else hashlib.sha256()
    try:
        source.asking[threading.get_ident()] = time.monotonic()
        try:
            response = asked(source.address, lambda: source.client.get_object(**wanted))
        finally:
            source.asking.pop(threading.get_ident(), None)
        if isinstance(response, Failure):
            return response
        etag = str(response.get("ETag") or "")
        with contextlib.closing(response["Body"]) as body:
            _check_announced(response, source, part)
            failure = _fill(body._raw_stream, into, source, arrived, digest)
    except (HTTPError, OSError) as error:
        reason = f"{source.address}: {type(error).__name__} after {got} of {part.length} bytes"
        failure = Failure(TransferError(reason, hint=_NETWORK), None)
    except StorageError as error:
        failure = Failure(error.with_traceback(None))
    except ValueError:  # a chunk of a length that is none
        failure = nonsense(source.address)
    if failure is not None:
        source.arrived(-got)
        return failure
    return Received(etag, None if digest is None else digest.hexdigest())


def _check_announced(response: dict[str, Any], source: Source, part: Part) -> None:
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
        if part.length != source.size:
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
    if (first, last - first + 1) != (part.start, part.length) or length not in (None, part.length):
        raise TransferError(f"{address}: the store sends another range than was asked for: {said}", hint=_ODD_STORE)


def _fill(stream: Any, into: memoryview, source: Source, arrived: Callable[[int], None], digest: Any) -> Failure | None:
    read = _reader(stream)
    got = counted = 0
    since = time.monotonic()
    # What arrives is taken at once and never waited for in large pieces, so that a drip is seen as one; and it is
    # hashed at once, as long as it is in the processor's cache: that takes two thirds of the time.
    while got < len(into) and (count := read(into[got : got + _CHUNK])):
        if digest is not None:
            digest.update(into[got : got + count])
        got += count
        arrived(count)
        if source.cancelled.is_set():
            raise CancelledError
        now = time.monotonic()
        if got < len(into) and now - since > retry.PATIENCE.seconds:
            if got - counted < retry.PATIENCE.least:
                return _stalled(source, got, len(into))
            since, counted = now, got
    if got < len(into):
        reason = f"{source.address}: broke off after {got} of {len(into)} bytes"
        return Failure(TransferError(reason, hint=_NETWORK), None)
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

    def readinto(self, into: Any) -> int:
        return self._stream.readinto1(into)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _stalled(source: Source, got: int, length: int) -> Failure:
    reason = (
        f"{source.address}: fewer than {retry.PATIENCE.least} bytes came in {retry.PATIENCE.seconds:g} s, "
        f"after {got} of {length}"
    )
    return Failure(TransferError(reason, hint="The connection is too slow, or the store is; try again later."), None)
