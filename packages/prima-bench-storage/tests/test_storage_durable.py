"""What was written reaches the disk before the blob has its name, and what the disk loses is told and never used."""

import errno
import os
import re
from pathlib import Path
from random import Random

import pytest

from prima_bench.storage import Cache, CacheError
from prima_bench.storage.cache import open_file
from prima_bench.storage.cache.partial import PlainFile, VerifiedParts
from prima_bench.storage.fetching import fetch_content

URI = "gs://bucket/key"
BOTH = pytest.mark.parametrize("by_part", [True, False], ids=["by part", "as a whole"])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("when", ["while it comes", "at the end"])
@BOTH
def test_a_disk_that_loses_what_was_written(
    faulty, content, isolated: Path, monkeypatch, by_part: bool, when: str, number: int
) -> None:
    data = Random(8).randbytes(9 << 16)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    wanted = content(data, part_size=1 << 16, by_part=by_part)
    monkeypatch.setattr(open_file, "SYNC_EVERY", 1 << 17)
    honest = os.fdatasync
    told: list[int] = []

    def lost(handle: int) -> None:
        told.append(handle)
        # As Linux does it: an error is told once.
        if len(told) == 1:
            raise OSError(number, os.strerror(number))
        honest(handle)

    monkeypatch.setattr(os, "fdatasync" if when == "while it comes" else "fsync", lost)
    with pytest.raises(CacheError, match=re.escape(os.strerror(number))):
        fetch_content(URI, wanted)
    assert told
    assert Cache.from_environment().find(wanted) is None
    # What is left cannot be told from what is lost, so nothing of it is used.
    assert list((isolated / "v1" / "partial").iterdir()) == []
    asked = len(faulty.requests)
    assert fetch_content(URI, wanted).read_bytes() == data
    assert len(faulty.requests) >= asked + 9


@BOTH
def test_what_has_come_is_brought_to_the_disk_while_more_comes(
    faulty, content, isolated: Path, monkeypatch, by_part: bool
) -> None:
    data = Random(9).randbytes(9 << 16)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    monkeypatch.setattr(open_file, "SYNC_EVERY", 1 << 17)
    honest = os.fdatasync
    asked: list[int] = []

    def sync(handle: int) -> None:
        asked.append(handle)
        honest(handle)

    monkeypatch.setattr(os, "fdatasync", sync)
    wanted = content(data, part_size=1 << 16, by_part=by_part)
    assert fetch_content(URI, wanted).read_bytes() == data
    assert asked


def first_free_handle() -> int:
    handle = os.open(os.devnull, os.O_RDONLY)
    os.close(handle)
    return handle


def test_a_file_that_the_disk_cannot_hold_is_not_left_open(tmp_path: Path, content, monkeypatch) -> None:
    cache = Cache(tmp_path)
    wanted = content(b"x" * 100)
    monkeypatch.setattr(os, "truncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EFBIG, "File too large")))
    before = first_free_handle()
    with pytest.raises(CacheError, match="File too large"):
        VerifiedParts(cache.layout, wanted, uri=URI)
    assert first_free_handle() == before
    assert list(cache.layout.partial.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_folder_that_vanishes_at_the_end_hides_no_error(tmp_path: Path, content, monkeypatch, number: int) -> None:
    cache = Cache(tmp_path)
    honest = Path.exists

    def exists(path: Path) -> bool:
        if path.suffix in (".etag", ".plain"):
            raise OSError(number, os.strerror(number))
        return honest(path)

    def interrupted() -> None:
        with PlainFile(cache.layout, content(b"x" * 100, part_size=10, by_part=False), uri=URI) as file:
            file.remember("etag")
            file.append(memoryview(b"x"))
            monkeypatch.setattr(Path, "exists", exists)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
