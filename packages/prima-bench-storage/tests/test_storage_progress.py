"""What is told of a transfer while it runs, and that nothing is told where nobody looks."""

import io
import os
import pty
import sys
import termios
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from prima_bench.storage import IntegrityError
from prima_bench.storage.fetching import fetch_content
from prima_bench.storage.transfer import progress
from prima_bench.storage.transfer.progress import Progress, Report, listening

DATA = Random(9).randbytes(1_000_000)  # noqa: S311 - seeded data


@pytest.mark.parametrize("by_part", [True, False])
def test_a_download_counts_every_byte_once(faulty, fault, content, monkeypatch, by_part: bool) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(end=1000) if request.number == 2 else None
    heard: list[Report] = []
    with listening(heard.append):
        fetch_content("gs://bucket/key", content(DATA, part_size=100_000, by_part=by_part))
    assert heard[-1].finished
    assert not any(report.finished for report in heard[:-1])
    assert heard[-1].done == heard[-1].total == len(DATA)
    assert all(0 <= report.done <= len(DATA) for report in heard)
    assert len(heard) > 10
    assert "1.0 of 1.0 MB" in str(heard[-1])


def test_a_failure_is_told_as_an_end(faulty, fault, content) -> None:
    faulty.objects["/bucket/key"] = DATA
    faulty.script = lambda request: fault(flip=3)
    heard: list[Report] = []
    with pytest.raises(IntegrityError), listening(heard.append):
        fetch_content("gs://bucket/key", content(DATA, part_size=100_000))
    assert heard[-1].finished


def test_a_hit_tells_nothing(faulty, content) -> None:
    faulty.objects["/bucket/key"] = DATA
    fetch_content("gs://bucket/key", content(DATA))
    heard: list[Report] = []
    with listening(heard.append):
        fetch_content("gs://bucket/key", content(DATA))
    assert heard == []


def test_without_a_terminal_nothing_is_written(monkeypatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Progress("a", 10) as moved:
        moved.add(10)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_on_a_terminal_one_line_moves_and_is_taken_away(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Progress("train\x1b[2J.h5ad", 10_000_000) as moved:
            moved.add(5_000_000)
            shown = os.read(ours, 1000).decode()
        cleared = os.read(ours, 1000).decode()
    os.close(ours)
    assert shown.startswith("\r\x1b[Ktrain[2J.h5ad: 5.0 of 10.0 MB, ")
    assert "\n" not in shown
    assert cleared == "\r\x1b[K"


class _Tee:
    def write(self, text: str) -> None:
        raise AssertionError(text)

    def flush(self) -> None:
        return


def _closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, _Tee(), _closed()], ids=["none", "some object", "closed"])
def test_a_stderr_that_is_no_terminal(faulty, content, monkeypatch, stream: object) -> None:
    faulty.objects["/bucket/key"] = DATA
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    assert fetch_content("gs://bucket/key", content(DATA)).read_bytes() == DATA


@pytest.mark.parametrize("columns", [40, 20, 1])
def test_a_line_is_never_wider_than_the_terminal(monkeypatch, columns: int) -> None:
    # What wraps is not taken away: only its last row is.
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        progress.on_terminal(Report("gs://bucket/a/long/folder/train.h5ad", 3_000_000, 9_000_000, 1e6, False))
        shown = os.read(ours, 1000).decode().removeprefix("\r\x1b[K")
    os.close(ours)
    assert len(shown) == columns - 1
    assert "3.0 of 9.0 MB, 1.0 MB/s, 6 s left".endswith(shown) or shown.endswith("3.0 of 9.0 MB, 1.0 MB/s, 6 s left")


def test_nothing_is_told_after_the_end(monkeypatch) -> None:
    # By threads that were left to a network which still answers, long after an error was shown.
    monkeypatch.setattr(progress, "EVERY", 0.0)
    heard: list[Report] = []
    with listening(heard.append), Progress("a", 10) as moved:
        moved.add(4)
    moved.add(6)
    assert [report.finished for report in heard] == [False, True]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that progress sees; it stands still."""
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_what_happens_is_told_for_a_moment_and_not_by_every_thread(clock: list[float]) -> None:
    heard: list[Report] = []
    with listening(heard.append), Progress("a", 2000) as moved:
        clock[0] += 1
        for thread in range(8):
            moved.note(f"connection broke off, trying again ({thread} of 8)")
        assert len(heard) == 1
        clock[0] += 1
        moved.add(500)
        assert str(heard[-1]) == "a: 0.5 of 2.0 kB, 250 bytes/s; connection broke off, trying again (7 of 8)"
        clock[0] += 5
        moved.add(500)
    assert [bool(report.note) for report in heard] == [True, True, False, False]


def test_silence_is_told_as_long_as_it_lasts(clock: list[float]) -> None:
    heard: list[Report] = []
    with listening(heard.append), Progress("a", 2000) as moved:
        for _ in range(40):
            clock[0] += 0.2
            moved.look()
        assert [report.note for report in heard][:2] == ["nothing came for 5 s", "nothing came for 6 s"]
        assert len(heard) <= 3 / progress.EVERY
        moved.restart(100)
        told = len(heard)
        clock[0] += 4
        moved.look()
        assert len(heard) == told


def test_nothing_happens_after_the_end(clock: list[float]) -> None:
    heard: list[Report] = []
    with listening(heard.append), Progress("a", 10) as moved:
        clock[0] += 1
    moved.note("connection broke off")
    moved.look()
    assert [report.note for report in heard] == [""]


@pytest.mark.parametrize(
    ("done", "total", "rate", "told"),
    [
        (0, 0, 0.0, "a: 0 of 0 bytes"),
        (0, 999, 0.0, "a: 0 of 999 bytes"),
        (1234, 20_500, 900.0, "a: 1.2 of 20.5 kB, 900 bytes/s, 21 s left"),
        (10**6, 10**9, 1e3, "a: 1.0 of 1000.0 MB, 1.0 kB/s, 999000 s left"),
    ],
)
def test_amounts_are_told_in_units_that_fit(done: int, total: int, rate: float, told: str) -> None:
    assert str(Report("a", done, total, rate, False)) == told


def test_what_comes_late_of_an_attempt_that_was_given_up_is_not_counted(faulty, fault, content) -> None:
    size = 50_000
    faulty.objects["/bucket/key"] = DATA[: 2 * size]
    asked, again = threading.Event(), threading.Event()
    times = Counter[int]()

    def script(request: Any) -> Any:
        part = request.span[0] // size
        times[part] += 1
        if times[part] > 1:
            if part == 0:
                again.set()
                time.sleep(0.3)  # what was held comes first
        elif part == 1:
            asked.wait(30)
            return fault(status=412)
        else:
            asked.set()
            again.wait(30)
        return None

    faulty.script = script
    heard: list[Report] = []
    with listening(heard.append):
        fetch_content("gs://bucket/key", content(DATA[: 2 * size], part_size=size, by_part=False))
    assert times == {0: 2, 1: 2}
    assert heard[-1].done == 2 * size
