"""A store that gives no answer: the error says which host and port was asked and why there is none, and no more."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, HTTPClientError, ReadTimeoutError

from prima_bench.storage import Credentials, TransferError
from prima_bench.storage.fetching import fetch_content
from prima_bench.storage.transfer.unreachable import reason

URI = "gs://bucket/key"


@pytest.fixture
def told(keypair: Credentials, content: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What a fetch from an endpoint that gives no answer says."""

    def fetch_from(endpoint: str) -> str:
        monkeypatch.setenv("PRIMA_BENCH_GCS_ENDPOINT_URL", endpoint)
        with pytest.raises(TransferError) as caught:
            fetch_content(URI, content(b"data"))
        assert caught.value.__context__ is None
        assert keypair.secret.reveal() not in str(caught.value)
        assert "Amz" not in str(caught.value)
        assert "PRIMA_BENCH_GCS_ENDPOINT_URL" in caught.value.hint
        return caught.value.message

    return fetch_from


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that gives the same answer to whatever is said, and hangs up."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.1)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(1)
                    connection.recv(65536)
                    connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        ended.set()
        thread.join()
        server.close()


def test_a_port_where_nobody_listens(told: Callable[[str], str], closed_port: int) -> None:
    place = f"127.0.0.1:{closed_port}"
    assert told(f"http://{place}/some/path") == f"{URI}: no connection to {place}: it was refused"


def test_a_name_that_does_not_exist(told: Callable[[str], str]) -> None:
    message = told("https://store.invalid")
    assert message == f"{URI}: no connection to store.invalid:443: its name was not found"


def test_a_server_that_hangs_up(told: Callable[[str], str]) -> None:
    with answering(b"") as port:
        assert told(f"http://127.0.0.1:{port}") == f"{URI}: 127.0.0.1:{port} closed the connection without an answer"


def test_a_server_that_knows_no_tls(told: Callable[[str], str]) -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        message = told(f"https://127.0.0.1:{port}")
    assert message.startswith(f"{URI}: no secure connection to 127.0.0.1:{port}: ")
    assert "SSLError" not in message


def test_a_proxy_that_is_not_there(told: Callable[[str], str], closed_port: int, monkeypatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, f"http://somebody:password@127.0.0.1:{closed_port}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    message = told("http://store.invalid")
    assert message == f"{URI}: the proxy 127.0.0.1:{closed_port} cannot be reached: it was refused"


def test_proxy_variables_that_were_changed_are_looked_at_again(
    told: Callable[[str], str], closed_port: int, monkeypatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    address = "http://another-store.invalid"
    assert told(address) == f"{URI}: no connection to another-store.invalid:80: its name was not found"
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port}")
    assert told(address) == f"{URI}: the proxy 127.0.0.1:{closed_port} cannot be reached: it was refused"
    monkeypatch.setenv("no_proxy", "another-store.invalid")
    assert told(address) == f"{URI}: no connection to another-store.invalid:80: its name was not found"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            EndpointConnectionError(endpoint_url="https://me:pw@a.org/b?c", error=OSError(101, "Network unreachable")),
            "no connection to a.org:443: network unreachable",
        ),
        (ConnectTimeoutError(endpoint_url="http://a.org/b?c", error="e"), "no connection to a.org:80: it timed out"),
        (ReadTimeoutError(endpoint_url="http://[::1]:8080/b", error="e"), "[::1]:8080 does not answer"),
        (
            EndpointConnectionError(endpoint_url="http://a:b:c", error="e"),
            "EndpointConnectionError while talking to the store",
        ),
        (HTTPClientError(error="secret"), "HTTPClientError while talking to the store"),
    ],
)
def test_other_reasons(error: Exception, words: str) -> None:
    assert reason(error) == words
