"""What was written reaches the disk before the blob has its name, and what the disk loses is told and never used."""

import errno
import os
import re
from pathlib import Path
from random import Random

import pytest

from prima_bench.storage import Cache, CacheError
from prima_bench.storage.cache import open_file
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
