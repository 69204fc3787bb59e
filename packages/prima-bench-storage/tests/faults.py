"""A store on loopback that serves objects by range and misbehaves as it is told; it counts what it sends.

It speaks real HTTP over real sockets. A script looks at each request and may return a :class:`Fault`.
"""

import hashlib
import http.server
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """What was asked, and as the how-manieth."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    peer: int  # the port that it came from

    @property
    def span(self) -> tuple[int, int] | None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return None if found is None else (int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Fault:
    """How an answer differs from the right one."""

    status: int | None = None
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None  # bytes of the body after which the connection is reset
    end: int | None = None  # bytes of the body after which the connection is closed in good order
    stall: int | None = None  # bytes of the body after which nothing comes any more
    blind: bool = False  # If-Match is ignored
    flip: int | None = None  # position in the body of a byte that is changed
    drip: float | None = None  # seconds between two bytes
    slow_head: float | None = None  # seconds between two bytes of what comes before the body
    whole: bool = False  # the range is ignored
    chunked: bool = False  # sent in chunks, without a length
    unsized: bool = False  # no Content-Length, as where something decodes on the way


Script = Callable[[Request], Fault | None]


class FaultServer(http.server.ThreadingHTTPServer):
    """Serves ``objects`` by path."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.script: Script = lambda request: None
        self.requests: list[Request] = []
        self.sent = 0
        self.lock = threading.Lock()
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # the client may leave when it likes

    def stop(self) -> None:
        self.stopping.set()
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FaultServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        with self.server.lock:
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(len(self.server.requests) + 1, self.command, self.path, headers, self.client_address[1])
            self.server.requests.append(request)
        fault = self.server.script(request) or Fault()
        data = self.server.objects.get(self.path)
        if fault.status is not None:
            self._answer(fault.status, fault.body or b"", fault)
        elif data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", fault)
        elif not fault.blind and headers.get("if-match", etag(data)) != etag(data):
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>", fault)
        elif request.span is None or fault.whole:
            self._answer(200, memoryview(fault.body or data), fault, {"ETag": etag(data)})
        else:
            first, last = request.span[0], min(request.span[1], len(data) - 1)
            if first > last:
                self._answer(416, b"<Error><Code>InvalidRange</Code></Error>", fault)
                return
            body = memoryview(data)[first : last + 1] if fault.body is None else memoryview(fault.body)
            said = {"ETag": etag(data), "Content-Range": f"bytes {first}-{last}/{len(data)}"}
            self._answer(206, body, fault, said)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _answer(self, status: int, body: Any, fault: Fault, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        said = {"Content-Length": str(len(body))} | (headers or {}) | fault.headers
        if fault.unsized:
            del said["Content-Length"]
            said["Connection"] = "close"
            self.close_connection = True
        if fault.chunked:
            del said["Content-Length"]
            said["Transfer-Encoding"] = "chunked"
        for name, value in said.items():
            self.send_header(name, value)
        if fault.slow_head is not None:
            head, self._headers_buffer = b"".join(self._headers_buffer), []
            for byte in head:
                self.wfile.write(bytes([byte]))
                if self.server.stopping.wait(fault.slow_head):
                    self.close_connection = True
                    return
        self.end_headers()
        if fault.flip is not None and len(body) > fault.flip:
            body = bytearray(body)
            body[fault.flip] ^= 1
        for end in (fault.cut, fault.end, fault.stall):
            body = body if end is None else body[:end]
        if fault.chunked:
            for start in range(0, len(body), 700):
                piece = bytes(body[start : start + 700])
                self._send(b"%x\r\n%b\r\n" % (len(piece), piece))
            if fault.stall is None:
                self._send(b"0\r\n\r\n")
        elif fault.drip is None:
            self._send(body)
        else:
            for i in range(len(body)):
                self._send(body[i : i + 1])
                if self.server.stopping.wait(fault.drip):
                    self.close_connection = True
                    return
        if fault.stall is not None:
            self.server.stopping.wait(60)
            self.close_connection = True
        if fault.cut is not None:
            # With no time to linger, closing resets the connection.
            self.wfile.flush()
            time.sleep(0.01)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if fault.cut is not None or fault.end is not None:
            self.close_connection = True

    def _send(self, body: Any) -> None:
        self.wfile.write(body)
        with self.server.lock:
            self.server.sent += len(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


def etag(data: bytes) -> str:
    """What the server calls an object: like the ETag of a multipart upload, it is no digest of the bytes."""
    return f'"{hashlib.md5(data[:1000] + data[-1000:], usedforsecurity=False).hexdigest()}-{len(data) % 97 + 2}"'
