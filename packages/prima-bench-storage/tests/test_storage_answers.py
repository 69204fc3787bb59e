"""Answers that are no object: however large, slow or odd, they cost little, and end in an error of ours."""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import SSLError

from prima_bench.storage import AccessError, Credentials, NotFoundError, StorageError, TransferError, answers
from prima_bench.storage.client import object_client
from prima_bench.storage.fetching import fetch_content
from prima_bench.storage.transfer import pool, upload
from prima_bench.storage.transfer.ranges import Source
from prima_bench.storage.transfer.refusals import broken_off
from prima_bench.storage.transfer.upload import SINGLE, put
from prima_bench.storage.uri import ObjectUri, parse_uri
from prima_bench.storage.verify import measure

URI = "gs://bucket/key"
MISSING = b"<?xml version='1.0'?>\n<Error><Code>NoSuchKey</Code><Message>none</Message></Error>\n"

BUSY = b"<Error><Code>SlowDown</Code></Error>"


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}])
def test_an_error_that_promises_more_than_it_sends_is_not_waited_for(
    faulty, fault, content: Any, headers: dict[str, str]
) -> None:
    faulty.script = lambda request: fault(status=404, body=MISSING, headers={"Content-Length": "9999"} | headers)
    start = time.monotonic()
    with pytest.raises(NotFoundError, match="NoSuchKey"):
        fetch_content(URI, content(b"data"))
    assert time.monotonic() - start < 30  # the time-out of the socket is twice that
    assert len(faulty.requests) == 1


@pytest.mark.parametrize("how", [{"drip": 0.01}, {"drip": 30.0}, {"end": 3}, {"cut": 3}, {"chunked": True, "end": 3}])
def test_an_error_whose_body_does_not_come_is_known_by_its_status(
    faulty, fault, content: Any, monkeypatch, how: dict[str, Any]
) -> None:
    monkeypatch.setattr(answers, "PATIENCE", 0.2)
    faulty.script = lambda request: fault(status=403, body=b"<Error>" + b" " * 5000, **how)
    with pytest.raises(AccessError, match="403"):
        fetch_content(URI, content(b"data"))
    assert len(faulty.requests) == 1


@pytest.mark.parametrize("part_size", [4, 2])
@pytest.mark.parametrize("by_part", [True, False])
def test_an_answer_that_never_comes_to_its_body(
    faulty, fault, content: Any, monkeypatch, part_size: int, by_part: bool
) -> None:
    monkeypatch.setattr(pool, "LONGEST_HEAD", 0.3)
    faulty.objects["/bucket/key"] = b"data"
    faulty.script = lambda request: fault(slow_head=0.05)
    with pytest.raises(TransferError, match="does not get to the object") as caught:
        fetch_content(URI, content(b"data", part_size=part_size, by_part=by_part))
    assert caught.value.hint


def test_a_process_that_was_stopped_has_not_waited(monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    source = Source(None, parse_uri(URI), 4, threading.Event(), lambda count: None)
    watch = pool.Watch(source)
    source.asking[1] = clock[0]

    def wait(*times: float) -> None:
        for seconds in times:
            clock[0] += seconds
            watch.look()

    looks = int(pool.LONGEST_HEAD / 0.2)
    wait(1e5, *[0.2] * (looks - 20), 1e5)
    del source.asking[1]
    source.asking[2] = clock[0]
    wait(*[0.2] * (looks - 20))
    with pytest.raises(TransferError):
        wait(*[0.2] * 30)


def test_an_error_without_end_is_not_read_to_its_end(faulty, fault, content: Any) -> None:
    faulty.script = lambda request: fault(status=403, body=bytes(100_000_000))
    with pytest.raises(AccessError, match="403"):
        fetch_content(URI, content(b"data"))
    assert faulty.sent == 0  # it counts what was sent whole


@pytest.mark.parametrize("chunked", [False, True])
def test_errors_leave_the_connection_for_the_next_request(faulty, fault, content: Any, chunked: bool) -> None:
    faulty.objects["/bucket/key"] = b"data"
    faulty.script = lambda request: fault(status=503, body=BUSY, chunked=chunked) if request.number < 3 else None
    assert fetch_content(URI, content(b"data")).read_bytes() == b"data"
    assert len({request.peer for request in faulty.requests}) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"<a>" * 2000 + b"</a>" * 2000,
        b"<X><Error>text</Error></X>",
        b"<X><Error/></X>",
        b"<Error><Code><Code/></Code></Error>",
        b"<Error><Code>" + b"A" * 100_000 + b"</Code></Error>",
        "<Error><Code>a\x9b2Jb</Code></Error>".encode(),
        b"<Error><Code></Code></Error>",
        b"<X><ResponseMetadata>text</ResponseMetadata></X>",
        b'<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;&b;">]><Error><Code>&c;</Code></Error>',
        b"<html><body>Forbidden<br></body>",
        b"\x00\xff",
    ],
)
@pytest.mark.parametrize(("status", "error", "tries"), [(403, AccessError, 1), (503, TransferError, 3)])
def test_an_error_is_what_its_status_says(
    faulty, fault, keypair, content: Any, caplog, body: bytes, status: int, error: type[StorageError], tries: int
) -> None:
    caplog.set_level(logging.DEBUG)
    faulty.script = lambda request: fault(status=status, body=body)
    with pytest.raises(error, match=f"the store answers {status}\nhint") as caught:
        fetch_content(URI, content(b"data"))
    assert caught.value.__context__ is None
    assert len(faulty.requests) == tries
    assert keypair.secret.reveal() not in caplog.text


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_that_names_no_region_costs_one_request(faulty, fault, elsewhere, content: Any, status: int) -> None:
    faulty.script = lambda request: fault(status=status, headers={"Location": f"{elsewhere.url}/bucket/key"})
    with pytest.raises(AccessError, match=str(status)) as caught:
        fetch_content(URI, content(b"data"))
    assert "PRIMA_BENCH_GCS_ENDPOINT_URL" in caught.value.hint
    assert [request.method for request in faulty.requests] == ["GET"]
    assert elsewhere.requests == []


@pytest.mark.parametrize("how", [{"headers": {"x-amz-bucket-region": "moon-1"}}, {}])
def test_a_region_that_the_store_names_is_used(faulty, fault, content: Any, how: dict[str, Any]) -> None:
    body = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>moon-1</Region></Error>"
    faulty.objects["/bucket/key"] = b"data"
    faulty.script = lambda request: fault(status=400, body=body, **how) if request.number == 1 else None
    assert fetch_content(URI, content(b"data")).read_bytes() == b"data"
    assert ["/moon-1/s3/" in request.headers["authorization"] for request in faulty.requests] == [False, True]


def test_a_certificate_that_nobody_trusts_says_where_to_name_those_to_trust() -> None:
    error = SSLError(endpoint_url="https://store.example.org", error="certificate verify failed")
    failure = broken_off(ObjectUri("gs", "bucket", "key"), error)
    assert failure.again == 1
    assert "REQUESTS_CA_BUNDLE" in failure.error.hint


@pytest.mark.parametrize("value", ["Thu, 01 Jan 99999999999 00:00:00 GMT", "9" * 5000])
def test_a_date_that_is_none(faulty, fault, content: Any, value: str) -> None:
    faulty.objects["/bucket/key"] = b"data"
    faulty.script = lambda request: fault(headers={"Last-Modified": value})
    with pytest.raises(TransferError, match="none that a store gives"):
        fetch_content(URI, content(b"data"))


@pytest.mark.parametrize("body", [b"", b"<html/>", b"<a>" * 5000, bytes(10_000_000), b"<Error><Code/></Error>"])
def test_an_upload_in_parts_to_what_is_no_store(
    faulty, fault, keypair: Credentials, tmp_path: Path, body: bytes
) -> None:
    path = tmp_path / "file"
    with path.open("wb") as stream:
        stream.truncate(SINGLE + 1)
    faulty.script = lambda request: fault(status=200, body=body)
    with pytest.raises(TransferError) as caught:
        put(object_client("gs", keypair), parse_uri(URI), path, measure(path))
    assert caught.value.hint
    assert caught.value.__context__ is None


@pytest.mark.parametrize("single", [2, SINGLE])
def test_a_file_that_is_gone_before_it_is_uploaded(
    faulty, fault, keypair: Credentials, tmp_path: Path, monkeypatch, single: int
) -> None:
    monkeypatch.setattr(upload, "SINGLE", single)
    path = tmp_path / "file"
    path.write_bytes(b"data")
    content = measure(path)
    path.unlink()
    faulty.script = lambda request: parts_taken(request, fault, None)
    with pytest.raises(AccessError, match="file: cannot be read: No such file") as caught:
        put(object_client("gs", keypair), parse_uri(URI), path, content)
    assert caught.value.hint
    assert "PUT" not in {request.method for request in faulty.requests}


def parts_taken(request: Any, fault: Any, completed: Any) -> Any:
    """What a store answers to an upload in parts."""
    if request.method == "PUT":
        return fault(status=200, headers={"ETag": '"part"'})
    if "uploads" in request.path:
        return fault(
            status=200, body=b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
        )
    return fault(status=204) if request.method == "DELETE" else completed


def test_an_upload_that_was_completed_and_whose_answer_was_lost(
    faulty, fault, keypair: Credentials, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(upload, "SINGLE", 2)
    path = tmp_path / "file"
    path.write_bytes(b"data")
    asked = []

    def script(request: Any) -> Any:
        if request.method == "POST" and "uploadId" in request.path:
            asked.append(request.number)
        gone = fault(status=404, body=b"<Error><Code>NoSuchUpload</Code></Error>")
        return parts_taken(request, fault, gone if len(asked) > 1 else fault(status=504))

    faulty.script = script
    put(object_client("gs", keypair), parse_uri(URI), path, measure(path))
    assert len(asked) == 2
    # That it is gone at the first question is another thing.
    asked.append(0)
    with pytest.raises(NotFoundError, match="NoSuchUpload"):
        put(object_client("gs", keypair), parse_uri(URI), path, measure(path))


def test_many_downloads_at_once_keep_their_connections(faulty, content: Any, caplog) -> None:
    data = bytes(range(256)) * 100
    wanted = [content(data[i:], part_size=1000) for i in range(6)]
    for i in range(6):
        faulty.objects[f"/bucket/{i}"] = data[i:]
    all_ask = threading.Barrier(6 * pool.THREADS)

    def script(request: Any) -> None:
        if request.number <= all_ask.parties:
            all_ask.wait(30)

    faulty.script = script
    with ThreadPoolExecutor(6) as at_once:
        paths = list(at_once.map(lambda i: fetch_content(f"gs://bucket/{i}", wanted[i]), range(6)))
    assert [path.read_bytes() for path in paths] == [data[i:] for i in range(6)]
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
