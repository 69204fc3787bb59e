"""What a store answers besides an object's bytes, read with a bound on its size and on the time that it takes.

botocore reads such an answer to its end, however much comes and however long the end takes: an error whose
Content-Length promises more than is sent would cost the time-out of the socket, at each try, and then be no answer at
all; and it stumbles over XML that no store sends. Here an error is what has come of it in a while, and botocore is told
no more of it than the status, the code and the region.
"""

import functools
import io
import logging
import re
import time
from collections.abc import Iterator
from typing import Any

from botocore.awsrequest import AWSResponse
from urllib3.exceptions import HTTPError

LARGEST = 1 << 16
"""Bytes of an error that are looked at; those of a store are a few hundred."""

LARGEST_REPLY = 1 << 22
"""Bytes of the answer to a request that was granted, where it is no object."""

PATIENCE = 5.0
"""Seconds to wait for an error's body, once its status is there."""

_ALL_SAID = 0.5
"""Seconds to wait for the end of a body that has said all."""

_TOLD = re.compile(rb"<(Code|Region)>\s*([A-Za-z0-9.-]{1,80})\s*</\1>")

_log = logging.getLogger("prima_bench.storage")


def bound(client: Any) -> None:
    """Let a boto3 S3 client read answers this way, and send no request but those that it is asked for."""
    session = client._endpoint.http_session
    client.meta.events.register("before-send.s3", functools.partial(_send, session))


def _send(session: Any, request: Any, event_name: str, **_: Any) -> AWSResponse:
    if event_name.endswith(".HeadBucket"):
        # botocore's own question for a bucket's region, after a redirect that names none; where that is answered by
        # a redirect too, it would ask for ever.
        return AWSResponse(request.url, 400, {}, _Said())
    of_object = request.stream_output
    request.stream_output = True  # else it would be read in there
    answer = session.send(request)
    if answer.status_code >= 300:
        said = _error(answer.raw)
        _log.debug("%s answers %s %r", answer.url, answer.status_code, said)
        body = _essence(said)
    elif of_object:
        return answer
    else:
        body = _reply(answer.raw)
    return AWSResponse(answer.url, answer.status_code, answer.headers, _Said(body))


class _Said(io.BytesIO):
    """A body that is in memory, in the form in which botocore reads one."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


def _error(raw: Any) -> bytes:
    socket = socket_of(raw)
    body = b""
    end = time.monotonic() + PATIENCE
    try:
        while len(body) < LARGEST and (left := end - time.monotonic()) > 0:
            if socket is not None:
                # The next request sets its own.
                socket.settimeout(min(left, _ALL_SAID) if body.rstrip().endswith(b"</Error>") else left)
            piece = raw.read1(LARGEST - len(body))
            if not piece:
                return body  # urllib3 keeps the connection for the next request
            body += piece
    except (HTTPError, OSError):
        pass  # what has come must do: the status says most, and that is known
    raw.close()
    return body


def _essence(said: bytes) -> bytes:
    fields = b"".join(b"<%b>%b</%b>" % (name, value, name) for name, value in _TOLD.findall(said)[:2])
    return b"<Error>%b</Error>" % fields if fields else b""


def _reply(raw: Any) -> bytes:
    body = bytearray()
    while len(body) < LARGEST_REPLY and (piece := raw.read1(LARGEST_REPLY - len(body))):
        body += piece
    if len(body) >= LARGEST_REPLY:
        raw.close()
    return bytes(body)


def socket_of(raw: Any) -> Any:
    """The socket that an answer's body comes through; None where it cannot be found."""
    # urllib3 does not show it, least of all once the connection is to be closed after the answer.
    stream = getattr(getattr(raw, "_fp", None), "fp", None)
    return getattr(getattr(stream, "raw", None), "_sock", None)
