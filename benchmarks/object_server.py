"""One file, served on loopback by a process of its own: what the ways of fetching are compared on."""

import http.server
import os
import re
import socket
from pathlib import Path
from typing import Any


class Server(http.server.ThreadingHTTPServer):
    """Serves one file under every path."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.path = path
        # A process of its own, so that it does not share the interpreter with anybody.
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.serve_forever()
            finally:
                os._exit(0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        return


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "list-type" in self.path:  # s3fs asks whether the object is a folder
            body = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        with self.server.path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            start, stop = (int(span[1]), min(int(span[2] or size - 1) + 1, size)) if span else (0, size)
            self.send_response(206 if span else 200)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", '"benchmark"')
            self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            if span:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.end_headers()
            self.wfile.flush()
            if self.command == "GET":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
                while start < stop:
                    start += os.sendfile(self.connection.fileno(), stream.fileno(), start, stop - start)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        return
