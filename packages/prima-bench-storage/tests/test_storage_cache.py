"""The cache alone: a blob appears complete and verified, or not at all, and a damaged one is never handed out."""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.storage import AddressError, Cache, CacheError, IntegrityError
from prima_bench.storage.cache.layout import STAMP, Layout
from prima_bench.storage.cache.lock import one_at_a_time
from prima_bench.storage.cache.partial import PlainFile, VerifiedParts, check_room
from prima_bench.storage.content import Content, part_count

URI = "gs://bucket/key"
DATA = Random(2).randbytes(1000)  # noqa: S311 - seeded data
Pin = Callable[..., Content]


def leftovers(cache: Cache) -> list[Path]:
    return [path for path in cache.root.rglob("*") if path.is_file() and path.name != "CACHEDIR.TAG"]


def fill(cache: Cache, wanted: Content, data: bytes) -> Path:
    with VerifiedParts(cache.layout, wanted, uri=URI) as file:
        for part in wanted.parts():
            file.write(part, memoryview(data)[part.start : part.start + part.length])
        return file.publish()


@given(st.binary(max_size=200), st.integers(1, 50))
def test_the_name_commits_to_every_byte(content: Pin, data: bytes, part_size: int) -> None:
    wanted = content(data, part_size=part_size)
    assert sum(part.length for part in wanted.parts()) == len(data)
    assert len(wanted.digests or (1,)) == part_count(len(data), part_size) == len(list(wanted.parts()))
    names = {wanted.name, content(data, part_size=part_size, by_part=False).name}
    assert len(names) == (1 if len(data) <= part_size else 2)
    assert content(data + b"x", part_size=part_size).name not in names
    if data:
        changed = bytes([data[0] ^ 1]) + data[1:]
        assert content(changed, part_size=part_size).name not in names


@pytest.mark.parametrize(
    ("size", "digests"), [(10, ("1" * 64,)), (20, ("1" * 64,)), (20, ("1" * 64,) * 3), (20, ("1" * 64, "x"))]
)
def test_part_digests_that_do_not_fit(size: int, digests: tuple[str, ...]) -> None:
    with pytest.raises(AddressError):
        Content.pinned(URI, "0" * 64, size, digests, part_size=10)


@given(st.lists(st.binary(max_size=20), max_size=5), st.binary(max_size=20))
def test_a_blob_is_the_pinned_bytes_or_absent(tmp_path_factory, content: Pin, chunks: list[bytes], old: bytes) -> None:
    cache = Cache(tmp_path_factory.mktemp("cache"))
    data = b"".join(chunks)
    wanted = content(data, part_size=7, by_part=False)
    with PlainFile(cache.layout, wanted, uri=URI) as file:
        file.append(memoryview(old[: len(data)]))
        file.restart()
        for chunk in chunks:
            file.append(memoryview(chunk))
        file.publish()
    path = cache.find(wanted)
    assert path is not None
    assert path.read_bytes() == data
    assert leftovers(cache) == [path]


@pytest.mark.parametrize("sent", [b"abcd", b"abcdef", b"abcdX", b""])
def test_other_bytes_never_get_the_name(tmp_path: Path, content: Pin, sent: bytes) -> None:
    wanted = content(b"abcde", part_size=2, by_part=False)
    cache = Cache(tmp_path)

    def publish() -> None:
        with PlainFile(cache.layout, wanted, uri=URI) as file:
            file.append(memoryview(sent))
            file.publish()

    with pytest.raises(IntegrityError):
        publish()
    assert cache.find(wanted) is None
    assert leftovers(cache) == []


@pytest.mark.parametrize("name", ["no etag", "etag"])
def test_an_interruption_keeps_what_can_be_continued(tmp_path: Path, content: Pin, name: str) -> None:
    cache = Cache(tmp_path)
    wanted = content(b"abcdefgh", part_size=2, by_part=False)

    def interrupted() -> None:
        with PlainFile(cache.layout, wanted, uri=URI) as file:
            file.remember('"etag"' if name == "etag" else None)
            file.append(memoryview(b"abc"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(leftovers(cache)) == (2 if name == "etag" else 0)
    with PlainFile(cache.layout, wanted, uri=URI) as file:
        file.adopt(remove=True)
        assert (file.written, file.etag) == ((3, '"etag"') if name == "etag" else (0, None))
        file.append(memoryview(b"abcdefgh"[file.written :]))
        assert file.publish().read_bytes() == b"abcdefgh"
    assert leftovers(cache) == [cache.path(wanted.name)]


@pytest.mark.parametrize("limit", ["free space", "quota"])
def test_a_beginning_that_cannot_be_copied_is_given_up(tmp_path: Path, content: Pin, monkeypatch, limit: str) -> None:
    cache = Cache(tmp_path)
    wanted = content(b"abcdefgh", part_size=2, by_part=False)
    cache.layout.partial.mkdir(parents=True)
    (cache.layout.partial / f"{wanted.name}.0.plain").write_bytes(b"abc")
    (cache.layout.partial / f"{wanted.name}.0.etag").write_bytes(b"etag")
    with PlainFile(cache.layout, wanted, uri=URI) as file, monkeypatch.context() as full:
        if limit == "quota":
            full.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(122, "Disk quota exceeded")))
        else:
            full.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 98, 2))  # type: ignore[attr-defined]
        file.adopt(remove=True)
        full.undo()
        assert (file.written, file.etag) == (0, None)
        file.append(memoryview(b"abcdefgh"))
        assert file.publish().read_bytes() == b"abcdefgh"
    assert leftovers(cache) == [cache.path(wanted.name)]


@pytest.mark.parametrize("etag", [b"", b"x" * 2000, b"\xff", b"a\nb"])
def test_a_note_that_is_none_is_not_believed(tmp_path: Path, content: Pin, etag: bytes) -> None:
    cache = Cache(tmp_path)
    wanted = content(b"abcdefgh", part_size=2, by_part=False)
    cache.layout.partial.mkdir(parents=True)
    (cache.layout.partial / f"{wanted.name}.0.plain").write_bytes(b"abc")
    (cache.layout.partial / f"{wanted.name}.0.etag").write_bytes(etag)
    with PlainFile(cache.layout, wanted, uri=URI) as file:
        file.adopt(remove=True)
        assert file.written == 0
    assert leftovers(cache) == []


def test_an_interruption_keeps_verified_parts(tmp_path: Path, content: Pin) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    parts = list(wanted.parts())
    with VerifiedParts(cache.layout, wanted, uri=URI) as file:
        file.write(parts[2], memoryview(DATA)[600:900])
    with VerifiedParts(cache.layout, wanted, uri=URI) as file:
        assert [file.holds(part) for part in parts] == [False, False, True, False]
        for part in parts[:2] + parts[3:]:
            file.write(part, memoryview(DATA)[part.start : part.start + part.length])
        assert file.publish().read_bytes() == DATA
    with VerifiedParts(cache.layout, wanted, uri=URI):
        pass
    assert leftovers(cache) == [cache.path(wanted.name)]


def test_a_partial_file_of_others_making_is_looked_through(tmp_path: Path, content: Pin) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    path = cache.layout.part_file(wanted)
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA[:300] + b"x" * 5000)
    with VerifiedParts(cache.layout, wanted, uri=URI) as file:
        assert [file.holds(part) for part in wanted.parts()] == [True, False, False, False]
    assert path.stat().st_size == len(DATA)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheError):
        VerifiedParts(cache.layout, wanted, uri=URI)
    assert not (tmp_path / "elsewhere").exists()


def test_two_writers_of_one_content(tmp_path: Path, content: Pin) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    with VerifiedParts(cache.layout, wanted, uri=URI) as slow:
        path = fill(cache, wanted, DATA)
        assert path == cache.find(wanted)
        # The slow one still has the file open that has become the blob; it can only write what is there.
        for part in wanted.parts():
            slow.write(part, memoryview(DATA)[part.start : part.start + part.length])
        assert slow.publish() == path
    assert cache.find(wanted) == path
    assert path.read_bytes() == DATA
    assert path.stat().st_mtime == STAMP
    assert leftovers(cache) == [path]


def test_what_is_late_is_not_written(tmp_path: Path, content: Pin) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    with VerifiedParts(cache.layout, wanted, uri=URI) as file:
        file.write(next(wanted.parts()), memoryview(DATA)[:300])
    with pytest.raises(CacheError, match="given up"):
        file.write(next(wanted.parts()), memoryview(DATA)[:300])


@pytest.mark.parametrize("damage", ["shorter", "longer", "flipped", "gone"])
def test_a_damaged_blob_is_put_aside(tmp_path: Path, content: Pin, damage: str, caplog) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    path = fill(cache, wanted, DATA)
    path.chmod(0o644)
    path.write_bytes({"shorter": DATA[:-1], "longer": DATA + b"x", "flipped": b"x" + DATA[1:], "gone": b""}[damage])
    with caplog.at_level(logging.WARNING, "prima_bench.storage"):
        assert cache.find(wanted) is None
    assert "damaged" in caplog.text
    assert str(path) in caplog.text
    assert len(list(cache.layout.quarantine.iterdir())) == 1
    assert fill(cache, wanted, DATA) == path == cache.find(wanted)


def test_a_blob_that_was_only_touched_is_verified_once(tmp_path: Path, content: Pin, monkeypatch) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    path = fill(cache, wanted, DATA)
    os.utime(path)
    assert cache.find(wanted) == path
    assert path.stat().st_mtime == STAMP
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("a hit reads nothing"))
    assert cache.find(wanted) == path


def test_a_symbolic_link_is_no_blob(tmp_path: Path, content: Pin) -> None:
    cache = Cache(tmp_path / "cache")
    wanted = content(DATA)
    (tmp_path / "data").write_bytes(DATA)
    cache.path(wanted.name).parent.mkdir(parents=True)
    cache.path(wanted.name).symlink_to(tmp_path / "data")
    assert cache.find(wanted) is None


def test_a_shared_cache_is_read_and_never_written(tmp_path: Path, content: Pin, caplog) -> None:
    shared = Cache(tmp_path / "shared")
    wanted = content(DATA, part_size=300)
    path = fill(shared, wanted, DATA)
    cache = Cache(tmp_path / "own", (tmp_path / "none", tmp_path / "shared"))
    assert cache.find(wanted) == path
    assert not cache.root.exists()
    path.chmod(0o644)
    path.write_bytes(b"x")
    assert cache.find(wanted) is None
    assert "cannot be moved" in caplog.text
    assert path.read_bytes() == b"x"
    assert fill(cache, wanted, DATA) == cache.find(wanted) == cache.path(wanted.name)


def test_a_view_has_a_name_that_people_know(tmp_path: Path, content: Pin, monkeypatch) -> None:
    cache = Cache(tmp_path)
    blob = fill(cache, content(DATA), DATA)
    link = cache.view("sim@1.0.0-abcd", "deep/train.h5ad", blob)
    assert link == tmp_path / "v1" / "views" / "sim@1.0.0-abcd" / "deep" / "train.h5ad"
    assert link.samefile(blob)
    assert cache.view("sim@1.0.0-abcd", "deep/train.h5ad", blob) == link
    other = fill(cache, content(DATA[1:]), DATA[1:])
    assert cache.view("sim@1.0.0-abcd", "deep/train.h5ad", other).read_bytes() == DATA[1:]
    assert [p.name for p in link.parent.iterdir()] == ["train.h5ad"]
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    assert cache.view("sim@1.0.0-abcd", "test.h5ad", blob) == blob


def test_the_tag_keeps_backups_away(tmp_path: Path, content: Pin) -> None:
    fill(Cache(tmp_path / "new"), content(b""), b"")
    assert (tmp_path / "new" / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")


def test_a_file_where_a_folder_should_be(tmp_path: Path, content: Pin) -> None:
    (tmp_path / "cache").write_text("in the way")
    cache = Cache(tmp_path / "cache")
    assert cache.find(content(DATA)) is None
    with pytest.raises(CacheError) as caught:
        fill(cache, content(DATA), DATA)
    assert "PRIMA_BENCH_CACHE_DIR" in caught.value.hint


def test_too_little_room_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create(layout.partial)
    check_room(layout, 1, uri=URI)
    with pytest.raises(CacheError, match="are free"):
        check_room(layout, 1 << 60, uri=URI)


@pytest.mark.parametrize("told", [OSError(38, "Function not implemented"), shutil._ntuple_diskusage(0, 0, 0)])  # type: ignore[attr-defined]
def test_a_file_system_that_does_not_tell_its_room(tmp_path: Path, monkeypatch, told: Any) -> None:
    def usage(path: Path) -> Any:
        if isinstance(told, OSError):
            raise told
        return told

    monkeypatch.setattr(shutil, "disk_usage", usage)
    check_room(Layout(tmp_path), 1 << 60, uri=URI)


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    order: list[str] = []

    def wait() -> None:
        with one_at_a_time(path, finished=lambda: False, progress=lambda: None) as held:
            order.append(f"second {held}")

    with one_at_a_time(path, finished=lambda: False, progress=lambda: None) as held:
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.1)
        order.append(f"first {held}")
    thread.join()
    assert order == ["first True", "second True"]
    assert not path.exists()


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    grows = iter([1, 2, 3, *[3] * 1000])
    with one_at_a_time(path, finished=lambda: False, progress=lambda: None):
        with one_at_a_time(path, finished=lambda: False, progress=lambda: next(grows), patience=0.05) as held:
            assert not held
        assert next(grows) == 3
        with one_at_a_time(path, finished=lambda: True, progress=lambda: None) as held:
            assert not held
    for useless in (tmp_path / "none" / "a.lock", tmp_path):
        with one_at_a_time(useless, finished=lambda: False, progress=lambda: None) as held:
            assert not held
    path.symlink_to(tmp_path / "elsewhere")
    with one_at_a_time(path, finished=lambda: False, progress=lambda: None) as held:
        assert not held
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_that_another_user_left_is_held_too(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "a.lock"
    path.touch(0o444)
    honest = os.open

    def opened(name: Any, flags: int, *args: Any, **options: Any) -> int:
        if name == path and flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(13, "Permission denied")
        return honest(name, flags, *args, **options)

    monkeypatch.setattr(os, "open", opened)
    with one_at_a_time(path, finished=lambda: False, progress=lambda: None) as held:
        assert held
        with one_at_a_time(path, finished=lambda: True, progress=lambda: None) as second:
            assert not second


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    code = textwrap.dedent("""
        import os, pathlib, signal, sys
        from prima_bench.storage.cache.lock import one_at_a_time
        with one_at_a_time(pathlib.Path(sys.argv[1]), finished=bool, progress=bool) as held:
            assert held
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    assert path.exists()
    with one_at_a_time(path, finished=lambda: False, progress=lambda: None) as held:
        assert held


def test_digests_are_those_of_hashlib(tmp_path: Path, content: Pin) -> None:
    from prima_bench.storage.verify import matches, measure, names_of

    for size in (0, 1, 299, 300, 301, 900, 1000):
        path = tmp_path / str(size)
        path.write_bytes(DATA[:size])
        found: Any = measure(path, 300)
        assert found.sha256 == hashlib.sha256(DATA[:size]).hexdigest()
        wanted = content(DATA[:size], part_size=300)
        assert found.size == size
        assert wanted.digests in ((), found.digests)
        assert wanted.name in names_of(found)
        assert matches(found, wanted)
        assert not matches(found, content(DATA[:size] + b"x", part_size=300))
