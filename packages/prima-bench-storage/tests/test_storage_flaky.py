"""Connections that break off again and again: a part goes on where it broke off, and nothing wrong is ever joined."""

import contextlib
import threading
import time
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from prima_bench.storage import Credentials, IntegrityError, StorageError, TransferError
from prima_bench.storage.client import object_client
from prima_bench.storage.content import Content, Part
from prima_bench.storage.fetching import fetch_content
from prima_bench.storage.transfer import progress, retry
from prima_bench.storage.transfer.parts import PartReader
from prima_bench.storage.transfer.pool import read_all
from prima_bench.storage.transfer.progress import Report, listening
from prima_bench.storage.transfer.ranges import Source
from prima_bench.storage.uri import parse_uri

# urllib3 leaves a connection open where a server breaks the protocol; nothing else is let through.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")

URI = "gs://bucket/key"
PART = 1 << 16
DATA = Random(14).randbytes(3 * PART - 1000)  # noqa: S311 - seeded data
OTHER = Random(15).randbytes(len(DATA))  # noqa: S311 - seeded data
BOTH = pytest.mark.parametrize("by_part", [True, False], ids=["by part", "as a whole"])
MIB = 1 << 20


@pytest.fixture
def wanted(content: Any, by_part: bool) -> Content:
    pinned: Content = content(DATA, part_size=PART, by_part=by_part)
    return pinned


@pytest.fixture(autouse=True)
def _five_tries(isolated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "BACKOFF", retry.Backoff(first=0.001))
    monkeypatch.setattr(retry, "PATIENCE", retry.Patience(least=1000))


class Once:
    """Does something to the first request for one part, and something else to the next one."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self._lock = threading.Lock()

    def __call__(self, request: Any) -> Any:
        with self._lock:
            act = self.script.pop(0) if self.script and request.span and request.span[0] // PART == 1 else None
        return act() if callable(act) else act


@BOTH
@pytest.mark.parametrize("how", ["cut", "end"])
def test_a_connection_that_is_cut_every_mebibyte(faulty, fault, content, monkeypatch, by_part: bool, how: str) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    data = Random(16).randbytes(48 * MIB)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    faulty.script = lambda request: fault(**{how: MIB})
    heard: list[Report] = []
    with listening(heard.append):
        assert fetch_content(URI, content(data, by_part=by_part)).read_bytes() == data
    assert faulty.sent < 1.2 * len(data)
    done = [report.done for report in heard]
    assert done == sorted(done)
    assert done[-1] == len(data)
    asked = [r for r in faulty.requests if r.span[0] % (16 * MIB)]
    assert len(asked) >= 45
    # Each piece but the first names the object that it is to be of.
    assert all("if-match" in r.headers for r in asked)


@BOTH
def test_a_connection_that_brings_nothing_is_tried_five_times(faulty, fault, wanted: Content) -> None:
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(cut=0) if request.span[0] // PART == 1 else None
    with pytest.raises(TransferError, match="broke off after 0 of"):
        fetch_content(URI, wanted)
    assert sum(r.span[0] // PART == 1 for r in faulty.requests) == 5


@BOTH
def test_what_a_try_brings_makes_up_for_those_before(faulty, fault, wanted: Content) -> None:
    faulty.objects["/bucket/key"] = DATA
    nothing = [fault(cut=0)] * 4
    faulty.script = Once(*nothing, fault(end=5000), *nothing, fault(end=5000), *nothing)
    assert fetch_content(URI, wanted).read_bytes() == DATA
    assert len(faulty.requests) == 3 + 14


@BOTH
def test_a_little_at_each_try_makes_up_for_nothing(faulty, fault, wanted: Content) -> None:
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(end=999) if request.span[0] // PART == 1 else None
    with pytest.raises(TransferError, match="broke off after 4995 of"):
        fetch_content(URI, wanted)


@BOTH
@pytest.mark.parametrize("blind", [False, True], ids=["If-Match", "ignores If-Match"])
@pytest.mark.parametrize("first", [0, 5000, PART - 1])
def test_an_object_that_is_replaced_between_two_pieces(
    faulty, fault, wanted: Content, by_part: bool, blind: bool, first: int
) -> None:
    faulty.objects["/bucket/key"] = OTHER

    def replaced() -> Any:
        faulty.objects["/bucket/key"] = DATA
        return fault(blind=blind)

    # Only the second part is ever asked of the other object.
    only = [part for part in wanted.parts() if part.index == 1]
    faulty.script = Once(fault(end=first), replaced, *[fault(blind=blind)] * 9)
    got, counted, reader = reading(faulty, wanted, strict=not by_part)
    if by_part:
        read_all(reader, only, got)
        assert got.data[PART : 2 * PART] == DATA[PART : 2 * PART]
        assert sum(counted) == PART
        if not blind:
            assert faulty.sent - first - PART < 100  # of the other object only a refusal
    else:
        with pytest.raises((IntegrityError, TransferError), match=r"412|replaced"):
            read_all(reader, only, got)
        assert reader.replaced
        assert sum(counted) == 0


@BOTH
def test_a_download_of_an_object_that_is_replaced_between_two_pieces(faulty, fault, wanted: Content) -> None:
    faulty.objects["/bucket/key"] = OTHER

    def replaced() -> None:
        faulty.objects["/bucket/key"] = DATA

    faulty.script = Once(fault(end=5000), replaced)
    # Parts that came whole of the other object may end it; what it leaves is never joined with what comes next.
    with contextlib.suppress(IntegrityError):
        fetch_content(URI, wanted)
    replaced()
    assert fetch_content(URI, wanted).read_bytes() == DATA


@BOTH
def test_pieces_of_an_object_without_a_name(faulty, fault, wanted: Content) -> None:
    """Their digest judges them; where there is none, nothing is joined."""
    faulty.objects["/bucket/key"] = DATA
    unnamed = fault(headers={"ETag": ""})
    faulty.script = Once(fault(end=5000, headers={"ETag": ""}))
    honest = faulty.script
    faulty.script = lambda request: honest(request) or unnamed
    assert fetch_content(URI, wanted).read_bytes() == DATA
    assert faulty.sent == len(DATA) + (0 if wanted.by_part else 5000)


def test_pieces_of_two_objects_without_a_name(faulty, fault, content) -> None:
    wanted = content(DATA, part_size=PART)
    faulty.objects["/bucket/key"] = OTHER
    unnamed = {"headers": {"ETag": ""}, "blind": True}

    def replaced() -> Any:
        faulty.objects["/bucket/key"] = DATA
        return fault(**unnamed)

    faulty.script = Once(fault(end=5000, **unnamed), replaced, fault(**unnamed))
    got, counted, reader = reading(faulty, wanted, strict=False)
    read_all(reader, [part for part in wanted.parts() if part.index == 1], got)
    assert got.data[PART : 2 * PART] == DATA[PART : 2 * PART]
    assert sum(counted) == PART
    assert [r.span[0] - PART for r in faulty.requests] == [0, 5000, 0]


@BOTH
def test_a_wrong_byte_in_the_first_piece(faulty, fault, wanted: Content) -> None:
    faulty.objects["/bucket/key"] = DATA
    # Also where many tries before it brought little.
    little = [fault(end=10)] * 3
    faulty.script = Once(fault(end=5000, flip=7), *little)
    assert fetch_content(URI, wanted).read_bytes() == DATA
    whole = [r.span for r in faulty.requests if r.span[0] == PART]
    assert whole == [(PART, 2 * PART - 1)] * 2


def test_after_wrong_pieces_a_part_comes_in_one_piece_or_not_at_all(faulty, fault, content) -> None:
    faulty.objects["/bucket/key"] = DATA
    wanted = content(DATA, part_size=PART)
    faulty.script = Once(fault(end=5000, flip=7), None, *[fault(end=5000)] * 5)
    with pytest.raises(TransferError, match="broke off after 5000 of"):
        fetch_content(URI, wanted)
    assert [r.span[0] - PART for r in faulty.requests if r.span[0] // PART == 1] == [0, 5000, 0, 0, 0, 0, 0]
    faulty.script = Once(fault(end=5000, flip=7), None, fault(end=5000), fault(end=5000), None)
    assert fetch_content(URI, wanted).read_bytes() == DATA


@BOTH
def test_bytes_that_are_always_wrong_behind_a_piece(faulty, fault, wanted: Content) -> None:
    """A store that cannot go on: what it sends then is wrong, and what it sends at once is right."""
    faulty.objects["/bucket/key"] = DATA
    faulty.script = Once(fault(end=5000), fault(flip=7))
    assert fetch_content(URI, wanted).read_bytes() == DATA


@BOTH
def test_a_store_that_goes_on_wrongly_is_asked_for_whole_parts(faulty, fault, wanted: Content) -> None:
    faulty.objects["/bucket/key"] = DATA
    cuts = Once(fault(end=5000), None, fault(end=5000))
    faulty.script = lambda request: cuts(request) or (fault(flip=7) if request.span[0] % PART else None)
    assert fetch_content(URI, wanted).read_bytes() == DATA
    asked = [r.span[0] - PART for r in faulty.requests if r.span[0] // PART == 1]
    assert asked == [0, 5000, 0, 0]


@BOTH
def test_an_object_that_is_wrong_is_told_as_such_also_over_a_flaky_link(faulty, fault, wanted: Content) -> None:
    faulty.objects["/bucket/key"] = OTHER
    faulty.script = Once(fault(end=5000))
    with pytest.raises(IntegrityError, match="sha256"):
        fetch_content(URI, wanted)


@BOTH
@pytest.mark.parametrize(
    "how",
    [
        {"whole": True},
        {"whole": True, "unsized": True},
        {"headers": {"Content-Range": f"bytes {PART}-{2 * PART - 1}/{len(DATA)}"}},
        {"headers": {"Content-Range": "bytes 1-2/3"}},
        {"status": 416},
        {"headers": {"Content-Encoding": "gzip"}},
        {"chunked": True, "body": DATA[:PART]},
    ],
)
def test_a_store_that_does_not_know_how_to_go_on(faulty, fault, wanted: Content, how: dict[str, Any]) -> None:
    faulty.objects["/bucket/key"] = DATA
    # Also where it is the last try.
    faulty.script = Once(fault(cut=0), fault(cut=0), fault(cut=0), fault(end=900), fault(**how))
    assert fetch_content(URI, wanted).read_bytes() == DATA
    asked = [r.span[0] - PART for r in faulty.requests if r.span[0] // PART == 1]
    assert asked[3:] == [0, 900, 0]


@BOTH
def test_a_store_without_ranges_that_breaks_off(faulty, fault, content, by_part: bool) -> None:
    data = DATA[:PART]
    faulty.objects["/bucket/key"] = data
    faulty.script = lambda request: fault(whole=True, end=5000 if request.number < 5 else None)
    assert fetch_content(URI, content(data, part_size=PART, by_part=by_part)).read_bytes() == data
    assert [r.span for r in faulty.requests] == [(0, PART - 1)] * 5


@BOTH
@pytest.mark.parametrize("chunked", [False, True])
def test_a_silent_connection_is_given_up_soon_and_told(
    faulty, fault, wanted: Content, monkeypatch, chunked: bool
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(retry, "PATIENCE", retry.Patience(seconds=0.3))
    faulty.objects["/bucket/key"] = DATA
    faulty.script = Once(fault(stall=40_000, chunked=chunked))
    heard: list[Report] = []
    start = time.monotonic()
    with listening(heard.append):
        assert fetch_content(URI, wanted).read_bytes() == DATA
    assert time.monotonic() - start < 30  # the time-out of the socket is twice that
    assert "connection fell silent, trying again (1 of 5)" in {report.note for report in heard}
    assert PART + 40_000 in {r.span[0] for r in faulty.requests}


def test_a_connection_that_stays_silent(faulty, fault, content, monkeypatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(retry, "PATIENCE", retry.Patience(seconds=0.2))
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(stall=10)
    heard: list[Report] = []
    with listening(heard.append), pytest.raises(TransferError, match=r"nothing came for 0\.2 s, after 50 of"):
        fetch_content(URI, content(DATA))
    notes = list(dict.fromkeys(report.note for report in heard if report.note))
    assert [note[-8:] for note in notes] == [f"({i} of 5)" for i in (2, 3, 4, 5)]


class Into:
    """Takes parts."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)

    def __call__(self, part: Part, data: memoryview) -> None:
        self.data[part.start : part.start + part.length] = data


def reading(server: Any, content: Content, *, strict: bool) -> tuple[Into, list[int], PartReader]:
    counted: list[int] = []
    client = object_client("gs", Credentials.from_environment())
    source = Source(client, parse_uri(URI), content.size, threading.Event(), counted.append)
    return Into(content.size), counted, PartReader(source, strict=strict)


LEAST = 1000
CUTS = st.tuples(st.sampled_from(["cut", "end"]), st.integers(LEAST, PART))
EVIL = st.one_of(
    CUTS,
    st.tuples(st.sampled_from(["cut", "end", "flip"]), st.integers(0, LEAST)),
    st.tuples(st.just("whole"), st.just(True)),
    st.tuples(st.just("status"), st.sampled_from([503, 416, 412])),
    st.tuples(st.just("headers"), st.sampled_from([{"ETag": '"x"'}, {"ETag": ""}, {"ETag": 'W/"x"'}])),
)
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@SHARED
@given(cuts=st.lists(CUTS, max_size=12), by_part=st.booleans())
@example(cuts=[("end", LEAST)] * 40, by_part=True)
@example(cuts=[("end", PART)] * 3, by_part=False)
def test_any_cuts_with_progress_give_the_right_bytes_and_cost_none_twice(faulty, fault, content, cuts, by_part) -> None:
    wanted = content(DATA, part_size=PART, by_part=by_part)
    faulty.objects["/bucket/key"] = DATA
    faulty.sent = 0
    left = [fault(end=count) if how == "end" else fault(end=count, chunked=True) for how, count in cuts]
    faulty.script = lambda request: left.pop() if left else None
    got, counted, reader = reading(faulty, wanted, strict=not by_part)
    read_all(reader, wanted.parts(), got)
    assert got.data == DATA
    assert sum(counted) == len(DATA)
    assert min(counted) >= 0


@SHARED
@given(
    faults=st.lists(EVIL, max_size=12),
    replaced=st.none() | st.integers(0, 12),
    by_part=st.booleans(),
)
def test_whatever_happens_it_ends_with_the_right_bytes_or_an_error(
    faulty, fault, content, faults, replaced, by_part
) -> None:
    wanted = content(DATA, part_size=PART, by_part=by_part)
    faulty.objects["/bucket/key"] = DATA if replaced is None else OTHER
    faulty.requests.clear()
    left = [fault(**{how: value}) for how, value in faults]

    def script(request: Any) -> Any:
        if request.number == replaced:
            faulty.objects["/bucket/key"] = DATA
        return left.pop() if left else None

    faulty.script = script
    got, counted, reader = reading(faulty, wanted, strict=not by_part)
    with contextlib.suppress(StorageError):
        read_all(reader, wanted.parts(), got)
        if by_part:
            assert got.data == DATA
        assert sum(counted) == len(DATA)
    assert len(faulty.requests) < 60


@BOTH
def test_a_store_that_never_keeps_its_word_comes_to_an_end(faulty, fault, wanted: Content) -> None:
    """Each answer brings much and is of another object than the one before."""
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(end=5000, blind=True, headers={"ETag": f'"{request.number}"'})
    with pytest.raises((TransferError, IntegrityError)):
        fetch_content(URI, wanted)
    assert len(faulty.requests) < 150
