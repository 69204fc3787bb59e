"""Looking after a cache: what is counted, what is found damaged, and what is never deleted."""

import errno
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prima_bench.storage import Cache, CacheError
from prima_bench.storage.cache import upkeep
from prima_bench.storage.cache.layout import STAMP
from prima_bench.storage.cache.lock import one_at_a_time
from prima_bench.storage.cache.partial import VerifiedParts
from prima_bench.storage.content import PART_SIZE

HOUR = 3600.0


@pytest.fixture
def cache(tmp_path: Path, content) -> Cache:
    """Three files of 1, 2 and 3 kB, one of them known by a name."""
    cache = Cache(tmp_path / "cache")
    for i in (1, 2, 3):
        add(cache, content(bytes([i]) * 1000 * i), bytes([i]) * 1000 * i)
    cache.view("sim@1.0.0-abc123456789", "train.h5ad", cache.path(content(b"\x02" * 2000).name))
    return cache


def add(cache: Cache, wanted, data: bytes) -> Path:
    with VerifiedParts(cache.layout, wanted, uri="gs://bucket/key") as file:
        for part in wanted.parts():
            file.write(part, memoryview(data)[part.start : part.start + part.length])
        return file.publish()


def sizes(entries: list[upkeep.Entry]) -> list[int]:
    return sorted(entry.size for entry in entries if entry.kind == "blob")


def test_what_is_in_a_cache(cache: Cache) -> None:
    found = upkeep.entries(cache)
    assert sizes(found) == [1000, 2000, 3000]
    assert [entry.views for entry in found if entry.views] == [("sim@1.0.0-abc123456789/train.h5ad",)]
    assert all(abs(entry.used - time.time()) < 60 for entry in found)
    assert upkeep.entries(Cache(cache.root / "nowhere")) == []


def test_damage_is_found_and_moved_aside(cache: Cache, content) -> None:
    assert upkeep.damaged(cache) == []
    bad = cache.path(content(b"\x03" * 3000).name)
    # As when the disk has damaged it: nothing in its status tells.
    bad.chmod(0o644)
    bad.write_bytes(b"\x03" * 2999 + b"x")
    os.utime(bad, (STAMP, STAMP))
    assert cache.find(content(b"\x03" * 3000)) == bad
    steps: list[str] = []
    assert upkeep.damaged(cache, steps.append) == [bad]
    assert len(steps) == 3
    assert cache.find(content(b"\x03" * 3000)) is None
    assert [e.kind for e in upkeep.entries(cache)] == ["blob", "blob", "quarantine"]


def test_files_of_several_parts_are_verified_too(tmp_path: Path, content) -> None:
    cache = Cache(tmp_path)
    data = bytes(PART_SIZE) + b"x"
    path = add(cache, content(data), data)
    os.utime(path)
    assert upkeep.damaged(cache) == []
    assert path.stat().st_mtime == STAMP


def test_without_limits_only_leftovers_go(cache: Cache, content) -> None:
    wanted = content(b"y" * 100)
    with VerifiedParts(cache.layout, wanted, uri="gs://bucket/key") as file:
        file.write(next(wanted.parts()), memoryview(b"y" * 100))
    cache.quarantine(cache.path(content(b"\x01" * 1000).name))
    assert [e.kind for e in upkeep.removable(cache)] == ["quarantine"]
    later = time.time() + 2 * HOUR
    going = upkeep.removable(cache, now=later)
    assert sorted(e.kind for e in going) == ["partial", "quarantine"]
    assert upkeep.remove(cache, going) == going
    assert sizes(upkeep.entries(cache)) == [2000, 3000]
    assert list(cache.layout.partial.iterdir()) == []


def test_age_and_size(cache: Cache, content) -> None:
    now = time.time()
    later = now + 10 * HOUR
    for i, hours in ((1, 1), (2, 9), (3, 5)):
        path = cache.path(content(bytes([i]) * 1000 * i).name)
        os.utime(path, (now + hours * HOUR, STAMP))
    assert sizes(upkeep.removable(cache, older_than=0, now=now + 60)) == []
    assert sizes(upkeep.removable(cache, older_than=6 * HOUR, now=later)) == [1000]
    assert sizes(upkeep.removable(cache, older_than=4 * HOUR, now=later)) == [1000, 3000]
    assert sizes(upkeep.removable(cache, max_size=6000, now=later)) == []
    assert sizes(upkeep.removable(cache, max_size=5999, now=later)) == [1000]
    assert sizes(upkeep.removable(cache, max_size=4999, now=later)) == [1000, 3000]
    assert sizes(upkeep.removable(cache, max_size=0, now=now + 9.5 * HOUR)) == [1000, 3000]
    assert sizes(upkeep.removable(cache, everything=True, now=now)) == [1000, 2000, 3000]


def test_a_view_goes_with_its_file(cache: Cache) -> None:
    gone = upkeep.remove(cache, upkeep.removable(cache, everything=True))
    assert sizes(gone) == [1000, 2000, 3000]
    assert [path for path in cache.root.rglob("*") if path.is_file()] == [cache.root / "CACHEDIR.TAG"]


def test_empty_folders_of_others_stay(cache: Cache, tmp_path: Path) -> None:
    # The folder of views may be a link to where people keep other things.
    (tmp_path / "elsewhere" / "mine").mkdir(parents=True)
    cache.layout.views.rename(tmp_path / "elsewhere" / "views")
    (tmp_path / "elsewhere" / "views" / "sim@1.0.0-abc123456789").rename(
        tmp_path / "elsewhere" / "sim@1.0.0-abc123456789"
    )
    cache.layout.views.symlink_to(tmp_path / "elsewhere")
    upkeep.remove(cache, upkeep.removable(cache, everything=True))
    assert sorted(p.name for p in (tmp_path / "elsewhere").iterdir()) == ["mine", "views"]


def test_what_is_being_downloaded_stays(cache: Cache, content) -> None:
    name = content(b"\x01" * 1000).name
    cache.layout.locks.mkdir()
    with one_at_a_time(cache.layout.lock_file(name), finished=bool, progress=bool) as held:
        assert held
        gone = upkeep.remove(cache, upkeep.removable(cache, everything=True))
        assert sizes(gone) == [2000, 3000]
        assert cache.path(name).exists()
        assert cache.layout.lock_file(name).exists()


def test_a_folder_that_is_no_cache_is_not_cleaned(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    with pytest.raises(CacheError, match=r"no CACHEDIR\.TAG"):
        upkeep.check_is_cache(Cache(tmp_path))
    upkeep.check_is_cache(Cache(tmp_path / "none"))


def test_a_use_is_noted_where_reading_moves_no_time(cache: Cache, content, monkeypatch) -> None:
    wanted = content(b"\x02" * 2000)
    path = cache.path(wanted.name)
    made, before = time.time(), path.stat()
    monkeypatch.setattr(time, "time", lambda: made + 50)
    assert cache.find(wanted) == path
    assert path.stat() == before
    assert not cache.layout.uses.exists()
    monkeypatch.setattr(time, "time", lambda: made + 70)
    assert Cache(cache.root / "own", (cache.root,)).find(wanted) == path
    assert not cache.layout.uses.exists()
    assert cache.find(wanted) == path
    note = cache.layout.use_file(path.name)
    os.utime(note, (made + 70, made + 70))
    monkeypatch.setattr(time, "time", lambda: made + 100)
    assert cache.find(wanted) == path
    assert note.stat().st_mtime == pytest.approx(made + 70)
    # In layers, as of a container, to change anything of a file is to copy it.
    assert path.stat() == before
    # So what was used goes last, and stays for an hour.
    assert [e.size for e in upkeep.entries(cache)] == [1000, 3000, 2000]
    assert 2000 not in sizes(upkeep.removable(cache, max_size=0, now=made + 70 + HOUR))
    going = upkeep.removable(cache, max_size=0, now=made + 3 * HOUR)
    os.utime(note, (made + 90, made + 90))
    assert 2000 not in sizes(upkeep.remove(cache, going))
    assert 2000 in sizes(upkeep.remove(cache, upkeep.removable(cache, everything=True)))
    assert not note.exists()


def test_a_use_is_noted_of_what_cannot_be_marked_too(cache: Cache, content, monkeypatch) -> None:
    path = cache.path(content(b"\x02" * 2000).name)
    os.utime(path, (0, 0))
    monkeypatch.setattr(os, "utime", lambda *_: (_ for _ in ()).throw(PermissionError))
    later = time.time() + 70
    monkeypatch.setattr(time, "time", lambda: later)
    assert cache.find(content(b"\x02" * 2000)) == path
    assert cache.layout.use_file(path.name).exists()


def test_where_no_use_can_be_noted_a_blob_is_found(cache: Cache, content, monkeypatch) -> None:
    wanted = content(b"\x02" * 2000)
    later = time.time() + 70
    monkeypatch.setattr(time, "time", lambda: later)
    cache.layout.uses.touch()
    assert cache.find(wanted) == cache.path(wanted.name)
    assert len(upkeep.entries(cache)) == 3


@pytest.mark.parametrize("folder", ["blobs", "partial", "views", "quarantine"])
def test_a_folder_that_cannot_be_read_is_not_taken_for_empty(cache: Cache, monkeypatch, folder: str) -> None:
    closed = cache.layout.root / "v1" / folder
    honest = {name: getattr(os, name) for name in ("listdir", "scandir")}

    def refused(path, *, name: str):
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return honest[name](path)

    for name in honest:
        monkeypatch.setattr(os, name, partial(refused, name=name))
    for look in (upkeep.entries, upkeep.damaged, upkeep.removable):
        with pytest.raises(CacheError, match=r"cannot be read: .*Permission denied"):
            look(cache)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_blob_that_cannot_be_read_keeps_no_other_from_being_verified(
    cache: Cache, content, monkeypatch, caplog, number: int
) -> None:
    closed = cache.path(content(b"\x01" * 1000).name)
    bad = cache.path(content(b"\x03" * 3000).name)
    bad.chmod(0o644)
    bad.write_bytes(b"\x03" * 2999 + b"x")
    honest = os.open

    def opened(path: Any, *args: Any, **options: Any) -> int:
        if path in (closed, str(closed)):
            raise OSError(number, os.strerror(number))
        return honest(path, *args, **options)

    monkeypatch.setattr(os, "open", opened)
    assert sorted(upkeep.damaged(cache)) == sorted([closed, bad])
    assert os.strerror(number) in caplog.text
    assert not bad.exists()
    # What the disk cannot give is lost; what we may not read is good for somebody else perhaps.
    assert closed.exists() == (number == errno.EACCES)


def test_a_file_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="is not a folder"):
        upkeep.entries(Cache(tmp_path / "file"))


def test_what_can_be_deleted_is_although_something_cannot(cache: Cache, monkeypatch) -> None:
    going = upkeep.removable(cache, everything=True)
    honest = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path == going[0].path:
            raise PermissionError(13, "Permission denied", str(path))
        honest(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    told: list[upkeep.Entry] = []
    with pytest.raises(CacheError, match="1 of its files cannot be deleted") as caught:
        upkeep.remove(cache, going, told.append)
    assert str(going[0].path) in caught.value.message
    assert told == going[1:]
    assert [e.path for e in upkeep.entries(cache)] == [going[0].path]


def test_a_cache_copied_without_its_links(cache: Cache, content, tmp_path: Path) -> None:
    copied = Cache(tmp_path / "copy")
    shutil.copytree(cache.root, copied.root)  # as rsync -a
    (copied.layout.views / "mine").mkdir()
    (copied.layout.views / "mine" / "notes.txt").write_text("precious")
    (stray,) = (e for e in upkeep.entries(copied) if e.kind == "view")
    assert stray.views == ("sim@1.0.0-abc123456789/train.h5ad",)
    assert stray.size >= 2000
    assert all(e.kind == "blob" for e in upkeep.removable(copied, max_size=0))
    assert upkeep.remove(copied, [stray]) == [stray]
    assert not stray.path.exists()
    blob = copied.find(content(b"\x02" * 2000))
    assert blob is not None
    assert copied.view(stray.path.parent.name, "train.h5ad", blob).samefile(blob)
    upkeep.remove(copied, upkeep.removable(copied, everything=True))
    assert {p.name for p in copied.root.rglob("*") if p.is_file()} == {"CACHEDIR.TAG", "notes.txt"}


def test_a_folder_of_downloads_that_cannot_be_searched(tmp_path: Path, content, monkeypatch) -> None:
    cache = Cache(tmp_path)
    wanted = content(b"x" * 10)
    cache.layout.create(cache.layout.partial)
    cache.layout.part_file(wanted).touch()
    monkeypatch.setattr(Path, "lstat", lambda path: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert cache.layout.growth(wanted.name) is None


def test_what_is_used_after_it_was_listed_stays(cache: Cache, content) -> None:
    going = upkeep.removable(cache, everything=True)
    path = cache.path(content(b"\x02" * 2000).name)
    # Another process is handed it, or fetches it anew.
    os.utime(path, (time.time() + 1, STAMP))
    assert sizes(upkeep.remove(cache, going)) == [1000, 3000]
    assert cache.view("sim@1.0.0-abc123456789", "train.h5ad", path).samefile(path)
    assert sizes(upkeep.remove(cache, upkeep.removable(cache, everything=True))) == [2000]


@pytest.mark.skipif(not hasattr(os, "O_NOATIME"), reason="this system notes every reading")
def test_verifying_is_no_use(cache: Cache, content) -> None:
    path = cache.path(content(b"\x02" * 2000).name)
    os.utime(path, (0, STAMP))  # so that even file systems that note little would note this
    assert upkeep.damaged(cache) == []
    assert path.stat().st_atime == 0
