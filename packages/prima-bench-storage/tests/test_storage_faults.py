"""What a store or a network can do to a download, on a server that does it: right bytes or an error, no wrong byte."""

import contextlib
import gc
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from prima_bench.storage import AccessError, IntegrityError, NotFoundError, TransferError
from prima_bench.storage.cache.store import Cache
from prima_bench.storage.content import Content
from prima_bench.storage.fetching import fetch_content
from prima_bench.storage.transfer import retry
from prima_bench.storage.transfer.pool import THREADS

# urllib3 leaves a connection open where a server breaks the protocol; nothing else is let through.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")

URI = "gs://bucket/key"
PART = 1 << 16
DATA = Random(4).randbytes(10 * PART - 1000)  # noqa: S311 - seeded data
OTHER = Random(5).randbytes(len(DATA))  # noqa: S311 - seeded data
BOTH = pytest.mark.parametrize("by_part", [True, False], ids=["by part", "as a whole"])


@pytest.fixture
def wanted(content: Any, by_part: bool) -> Content:
    pinned: Content = content(DATA, part_size=PART, by_part=by_part)
    return pinned


def leftovers(cache: Path) -> list[str]:
    return sorted(path.suffix for path in (cache / "v1" / "partial").iterdir())


def left_bytes(cache: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in (cache / "v1" / "partial").iterdir())


@BOTH
def test_parts_are_fetched_at_once_by_exact_ranges_of_one_object(faulty, wanted: Content, isolated: Path) -> None:
    faulty.objects["/bucket/key"] = DATA
    path = fetch_content(URI, wanted)
    assert path.read_bytes() == DATA
    assert faulty.sent == len(DATA)
    assert {r.method for r in faulty.requests} == {"GET"}
    assert sorted(r.span for r in faulty.requests) == [
        (start, min(start + PART, len(DATA)) - 1) for start in range(0, len(DATA), PART)
    ]
    # Those that began before the first answer cannot name the object yet: one for each thread.
    assert sum("if-match" not in r.headers for r in faulty.requests) <= THREADS
    assert leftovers(isolated) == []
    assert fetch_content(URI, wanted) == path
    assert len(faulty.requests) == 10


@BOTH
@pytest.mark.parametrize("tenth", range(10))
def test_a_connection_that_is_cut(faulty, fault, wanted: Content, tenth: int) -> None:
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(cut=PART * tenth // 10) if request.number == 4 else None
    assert fetch_content(URI, wanted).read_bytes() == DATA
    assert len(faulty.requests) == 11


@BOTH
@pytest.mark.parametrize("how", ["cut", "end"])
def test_a_connection_that_is_always_cut_there(faulty, fault, wanted: Content, how: str, isolated: Path) -> None:
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(**{how: 100}) if request.span[0] // PART == 5 else None
    with pytest.raises(TransferError, match=URI) as caught:
        fetch_content(URI, wanted)
    assert caught.value.hint
    assert Cache.from_environment().find(wanted) is None
    # What came is not lost: the next run asks for the rest alone.
    kept, asked = left_bytes(isolated), len(faulty.requests)
    assert kept >= PART
    faulty.script = lambda request: None
    assert fetch_content(URI, wanted).read_bytes() == DATA
    assert (len(faulty.requests) - asked) * PART <= len(DATA) - kept + 2 * PART
    assert leftovers(isolated) == []


@pytest.mark.parametrize("by_part", [True])
def test_one_damaged_part_costs_one_part(faulty, fault, wanted: Content) -> None:
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(flip=77) if request.number == 3 else None
    assert fetch_content(URI, wanted).read_bytes() == DATA
    assert len(faulty.requests) == 11


@BOTH
def test_a_wrong_body_of_the_right_length(faulty, fault, wanted: Content, isolated: Path) -> None:
    faulty.objects["/bucket/key"] = DATA
    bad = 3 * PART
    faulty.script = lambda request: fault(flip=77) if request.span[0] == bad else None
    with pytest.raises(IntegrityError, match="sha256") as caught:
        fetch_content(URI, wanted)
    assert caught.value.hint
    assert Cache.from_environment().find(wanted) is None
    if wanted.by_part:
        assert f"bytes {bad} to {bad + PART - 1}" in str(caught.value)
    else:
        assert leftovers(isolated) == []
    faulty.script = lambda request: None
    assert fetch_content(URI, wanted).read_bytes() == DATA


@BOTH
def test_an_object_that_is_replaced_between_two_ranges(faulty, wanted: Content) -> None:
    faulty.objects["/bucket/key"] = OTHER

    def script(request: Any) -> None:
        if request.number == 4:
            faulty.objects["/bucket/key"] = DATA

    faulty.script = script
    # The parts of the other object never pass, and may be asked for again in time or not.
    with contextlib.suppress(IntegrityError):
        fetch_content(URI, wanted)
    assert fetch_content(URI, wanted).read_bytes() == DATA


@BOTH
def test_an_object_that_is_replaced_by_another(faulty, wanted: Content) -> None:
    faulty.objects["/bucket/key"] = DATA

    def script(request: Any) -> None:
        if request.number == 4:
            faulty.objects["/bucket/key"] = OTHER

    faulty.script = script
    with pytest.raises(IntegrityError):
        fetch_content(URI, wanted)
    assert Cache.from_environment().find(wanted) is None


def test_an_object_that_never_stays_the_same(faulty, content) -> None:
    wanted = content(DATA, part_size=PART, by_part=False)
    faulty.objects["/bucket/key"] = DATA

    def script(request: Any) -> None:
        faulty.objects["/bucket/key"] = DATA if request.number % 2 else OTHER

    faulty.script = script
    with pytest.raises((TransferError, IntegrityError), match=r"412|replaced"):
        fetch_content(URI, wanted)


@BOTH
def test_what_was_left_of_another_object_is_not_continued(faulty, fault, wanted: Content, isolated: Path) -> None:
    faulty.objects["/bucket/key"] = OTHER
    if wanted.by_part:
        with pytest.raises(IntegrityError):
            fetch_content(URI, wanted)
    else:
        faulty.script = lambda request: fault(cut=10) if request.span[0] // PART == 5 else None
        with pytest.raises(TransferError):
            fetch_content(URI, wanted)
        assert leftovers(isolated) == [".etag", ".plain"]
        faulty.script = lambda request: None
    faulty.objects["/bucket/key"] = DATA
    assert fetch_content(URI, wanted).read_bytes() == DATA
    assert leftovers(isolated) == []


@BOTH
def test_a_storm_of_refusals(faulty, fault, wanted: Content, monkeypatch) -> None:
    monkeypatch.setattr(retry, "BACKOFF", retry.Backoff(attempts=8, first=0.001))
    faulty.objects["/bucket/key"] = DATA
    chance = Random(1)  # noqa: S311 - seeded data
    storm = [chance.random() < 0.5 for _ in range(1000)]
    faulty.script = lambda request: fault(status=(429, 500, 503)[request.number % 3]) if storm[request.number] else None
    assert fetch_content(URI, wanted).read_bytes() == DATA
    assert len(faulty.requests) > 15


@BOTH
def test_a_store_that_is_down_is_left_alone_soon(faulty, fault, wanted: Content) -> None:
    faulty.script = lambda request: fault(status=503)
    with pytest.raises(TransferError, match="503"):
        fetch_content(URI, wanted)
    assert len(faulty.requests) <= retry.BACKOFF.attempts * 6


@BOTH
def test_a_drip_is_given_up(faulty, fault, wanted: Content, monkeypatch) -> None:
    monkeypatch.setattr(retry, "PATIENCE", retry.Patience(seconds=0.2, least=1000))
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(drip=0.05) if request.span[0] // PART == 2 else None
    with pytest.raises(TransferError, match=r"fewer than 1000 bytes came in 0\.2 s"):
        fetch_content(URI, wanted)
    # One slow connection among good ones is only tried again.
    first = len(faulty.requests)
    faulty.script = lambda request: fault(drip=0.05) if request.number == first + 1 else None
    assert fetch_content(URI, wanted).read_bytes() == DATA


@BOTH
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(faulty, fault, elsewhere, wanted: Content, status: int) -> None:
    elsewhere.objects["/bucket/key"] = DATA
    told = {"Location": f"{elsewhere.url}/bucket/key", "x-amz-bucket-region": "moon-1"}
    faulty.script = lambda request: fault(status=status, headers=told)
    with pytest.raises(AccessError, match=str(status)):
        fetch_content(URI, wanted)
    assert elsewhere.requests == []
    assert {r.method for r in faulty.requests} == {"GET"}


@BOTH
def test_see_other_is_not_followed_either(faulty, fault, elsewhere, wanted: Content) -> None:
    # urllib3 stumbles over it before it would follow, and leaves the connection open.
    faulty.script = lambda request: fault(status=303, headers={"Location": f"{elsewhere.url}/bucket/key"})
    with pytest.raises((AccessError, TransferError)):
        fetch_content(URI, wanted)
    assert elsewhere.requests == []
    for thread in threading.enumerate():
        if thread.name.startswith("prima-bench-"):
            thread.join()
    gc.collect()


@BOTH
@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ({"headers": {"Content-Encoding": "gzip"}}, IntegrityError, "Content-Encoding 'gzip'"),
        ({"whole": True}, TransferError, "the whole object where a range was asked for"),
        ({"whole": True, "unsized": True}, TransferError, "the whole object where a range was asked for"),
        ({"headers": {"Content-Range": "bytes 0-9/10"}}, IntegrityError, "has 10 bytes"),
        ({"headers": {"Content-Range": f"bytes 1-2/{len(DATA)}"}}, TransferError, "another range"),
        ({"headers": {"Content-Range": "bytes */*"}}, TransferError, "Content-Range"),
        ({"body": DATA[:PART] + b"x", "unsized": True}, IntegrityError, "sha256|more than"),
        ({"status": 416}, IntegrityError, "416"),
        ({"status": 403}, AccessError, "403"),
        ({"status": 404}, NotFoundError, "404"),
        ({"status": 501}, AccessError, "501"),
    ],
)
def test_an_answer_that_is_none(faulty, fault, wanted: Content, isolated: Path, how, error, told: str) -> None:
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(**how)
    with pytest.raises(error, match=told):
        fetch_content(URI, wanted)
    assert Cache.from_environment().find(wanted) is None
    assert leftovers(isolated) == []


@pytest.mark.parametrize("by_part", [True, False])
@pytest.mark.parametrize("found", [DATA[:-1], DATA + b"x", DATA[: 3 * PART], b"", DATA[:PART]])
def test_a_shorter_or_longer_object(faulty, wanted: Content, found: bytes) -> None:
    faulty.objects["/bucket/key"] = found
    with pytest.raises(IntegrityError):
        fetch_content(URI, wanted)


def test_the_etag_of_a_multipart_object_is_no_digest(faulty, content) -> None:
    # It looks like one with a number behind; nothing may compare it with the bytes.
    wanted = content(DATA, part_size=PART)
    faulty.objects["/bucket/key"] = DATA
    fetch_content(URI, wanted)
    assert all("-" in r.headers["if-match"] for r in faulty.requests if "if-match" in r.headers)


@BOTH
def test_a_store_without_etags(faulty, fault, wanted: Content, isolated: Path) -> None:
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(headers={"ETag": ""})
    assert fetch_content(URI, wanted).read_bytes() == DATA
    assert not any("if-match" in r.headers for r in faulty.requests)


@BOTH
@pytest.mark.parametrize("etag", ['W/"a"', '"\u00e9"'], ids=["weak", "cannot be sent back"])
def test_an_etag_that_is_no_condition(faulty, fault, wanted: Content, etag: str) -> None:
    # Something on the way may have weakened it; as a condition it never holds.
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(headers={"ETag": etag})
    assert fetch_content(URI, wanted).read_bytes() == DATA
    assert not any("if-match" in r.headers for r in faulty.requests)


def test_replicas_that_name_the_object_each_in_its_own_way(faulty, fault, content, monkeypatch) -> None:
    monkeypatch.setattr(retry, "BACKOFF", retry.Backoff(attempts=2, first=0.05))
    wanted = content(DATA, part_size=PART)
    faulty.objects["/bucket/key"] = DATA

    def script(request: Any) -> Any:
        name = f'"{request.number}"'
        return fault(status=412) if request.headers.get("if-match", name) != name else fault(headers={"ETag": name})

    faulty.script = script
    assert fetch_content(URI, wanted).read_bytes() == DATA


@BOTH
def test_what_is_complete_was_not_too_slow(faulty, fault, content, by_part: bool, monkeypatch) -> None:
    monkeypatch.setattr(retry, "PATIENCE", retry.Patience(seconds=0.2, least=1000))
    faulty.objects["/bucket/key"] = b"ab"
    faulty.script = lambda request: fault(drip=0.3)
    assert fetch_content(URI, content(b"ab", by_part=by_part)).read_bytes() == b"ab"


@BOTH
@pytest.mark.parametrize(
    ("status", "code", "tries"),
    [
        (408, "", 3),
        (425, "", 3),
        (409, "OperationAborted", 3),
        (409, "ConditionalRequestConflict", 3),
        (409, "", 1),
        (522, "", 3),
        (530, "", 3),
        (501, "", 1),
        (505, "", 1),
        (407, "", 1),
        (405, "MethodNotAllowed", 1),
    ],
)
def test_what_is_tried_again(faulty, fault, content, by_part: bool, status: int, code: str, tries: int) -> None:
    faulty.script = lambda request: fault(status=status, body=f"<Error><Code>{code}</Code></Error>".encode())
    with pytest.raises(AccessError if tries == 1 and status != 407 else TransferError, match=str(status)) as caught:
        fetch_content(URI, content(b"data", by_part=by_part))
    assert len(faulty.requests) == tries
    assert ("proxy" in caught.value.hint) == (status == 407)


@BOTH
@pytest.mark.parametrize("possible", [0, 1])
def test_a_machine_that_allows_no_more_threads(faulty, wanted: Content, monkeypatch, possible: int) -> None:
    start, left = threading.Thread.start, [None] * possible

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith("prima-bench-"):
            if not left:
                raise RuntimeError("can't start new thread")
            left.pop()
        start(thread)

    faulty.objects["/bucket/key"] = DATA
    monkeypatch.setattr(threading.Thread, "start", limited)
    assert fetch_content(URI, wanted).read_bytes() == DATA
    assert left == []
