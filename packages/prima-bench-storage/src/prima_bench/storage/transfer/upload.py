"""One object into a store, and back: what is there already is compared, never overwritten."""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from prima_bench.storage.content import Content
from prima_bench.storage.errors import AccessError, ConflictError, IntegrityError, NotFoundError, StorageError
from prima_bench.storage.transfer.parts import PartReader
from prima_bench.storage.transfer.pool import read_all
from prima_bench.storage.transfer.progress import Progress
from prima_bench.storage.transfer.ranges import Source
from prima_bench.storage.transfer.refusals import asked
from prima_bench.storage.transfer.retry import Failure, retried
from prima_bench.storage.uri import ObjectUri

SINGLE = 1 << 26
"""Up to so many bytes go in one request."""

_MAX_PARTS = 10_000
_TYPE = "application/octet-stream"


def lies_there(client: Any, address: ObjectUri, content: Content) -> bool:
    """Whether the object is there, read back whole and compared.

    Raises:
        ConflictError: If something else lies there.
        AccessError: If it may not be read.
        TransferError: If the store could not be reached.
    """
    with Progress(f"checking {address}", content.size) as progress:
        source = Source(client, address, content.size, threading.Event(), progress.add, progress.note, progress.look)
        try:
            read_all(PartReader(source, strict=True), content.parts(), lambda part, data: None)
        except NotFoundError:
            return False
        except IntegrityError as error:
            reason = error.message
        else:
            return True
    raise ConflictError(
        f"other bytes lie there already: {reason}",
        hint="A version never changes: publish the new bytes under a new version. Nothing was overwritten.",
    )


def put(client: Any, address: ObjectUri, path: Path, content: Content) -> None:
    """Upload a file that is still what it was measured to be, unless something lies there by now.

    Raises:
        IntegrityError: If the file has changed.
        AccessError: If the file cannot be read, or the store refuses.
        NotFoundError: If there is no such bucket.
        TransferError: If the store could not be reached.
    """
    with Progress(f"uploading {address}", content.size) as progress:
        if content.size <= SINGLE:
            _put_single(client, address, b"".join(_pieces(path, content, address)), progress)
        else:
            _put_multipart(client, address, _pieces(path, content, address), content, progress)


def _pieces(path: Path, content: Content, address: ObjectUri) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            for part in content.parts():
                data = stream.read(part.length)
                part.check(hashlib.sha256(data).hexdigest(), uri=f"the file for {address}")
                yield data
    except OSError as error:
        hint = "It was moved or removed since it was looked at; publish again."
        raise AccessError(f"{path}: cannot be read: {error.strerror}", hint=hint) from error


def _put_single(client: Any, address: ObjectUri, data: bytes, progress: Progress) -> None:
    arguments = {"Bucket": address.bucket, "Key": address.key, "Body": data, "ContentType": _TYPE}
    with contextlib.suppress(_TakenError):  # reading back tells what lies there now
        _ask_once(address, client.put_object, arguments, progress)
    progress.add(len(data))


def _put_multipart(
    client: Any, address: ObjectUri, pieces: Iterator[bytes], content: Content, progress: Progress
) -> None:
    where = {"Bucket": address.bucket, "Key": address.key}
    # What is missing in an answer counts as one that no store gives.
    upload = _ask(address, lambda: client.create_multipart_upload(**where, ContentType=_TYPE)["UploadId"], progress)
    try:
        done = []
        together = -(-len(content.digests) // _MAX_PARTS)
        for number, data in enumerate(_joined(pieces, together), start=1):
            part = {**where, "UploadId": upload, "PartNumber": number, "Body": data}
            done.append({"PartNumber": number, "ETag": _ask(address, partial(_etag_of, client, part), progress)})
            progress.add(len(data))
        whole = {**where, "UploadId": upload, "MultipartUpload": {"Parts": done}}
        _ask_once(address, client.complete_multipart_upload, whole, progress)
    except _TakenError:
        _abandon(client, address, {**where, "UploadId": upload})  # reading back tells what lies there now
    except BaseException:
        _abandon(client, address, {**where, "UploadId": upload})
        raise


def _etag_of(client: Any, part: dict[str, Any]) -> str:
    return str(client.upload_part(**part)["ETag"])


def _joined(pieces: Iterator[bytes], together: int) -> Iterator[bytes]:
    while data := b"".join(islice(pieces, together)):
        yield data


def _abandon(client: Any, address: ObjectUri, upload: dict[str, Any]) -> None:
    # Whatever it comes to: the store forgets it after a while, and what went wrong first is what counts.
    asked(address, lambda: client.abort_multipart_upload(**upload))


class _TakenError(StorageError):
    """Something lies there already, perhaps by an earlier try of ours."""


def _ask_once(address: ObjectUri, request: Callable[..., Any], arguments: dict[str, Any], progress: Progress) -> None:
    try:
        # Two publishers at once: the store itself lets only the first one in, where it knows how.
        _ask(address, lambda: request(**arguments, IfNoneMatch="*"), progress, last=True)
    except AccessError as error:
        if "NotImplemented" not in error.message:
            raise
        _ask(address, lambda: request(**arguments), progress, last=True)


def _ask(address: ObjectUri, request: Callable[[], Any], progress: Progress, *, last: bool = False) -> Any:
    tries = 0

    def attempt() -> Any:
        nonlocal tries
        tries += 1
        answer = asked(address, request)
        if not isinstance(answer, Failure):
            return answer
        # Its parts are gone at a further try: the store has joined them, and its answer was lost.
        joined = last and tries > 1 and "NoSuchUpload" in answer.error.message
        return Failure(_TakenError(answer.error.message)) if answer.replaced or joined else answer

    return retried(attempt, threading.Event(), progress.note)
