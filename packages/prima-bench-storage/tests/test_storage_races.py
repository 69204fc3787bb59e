"""What others do to a cache while it is used: remove, replace, fork, wait. Never a wrong byte, nothing good is lost."""

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

import pytest

from prima_bench.storage import Cache, CacheError, Credentials, IntegrityError, OfflineError, verify
from prima_bench.storage import client as clients
from prima_bench.storage.cache import layout, upkeep
from prima_bench.storage.cache.layout import STAMP
from prima_bench.storage.cache.partial import PlainFile, VerifiedParts
from prima_bench.storage.content import Content
from prima_bench.storage.credentials import Secret
from prima_bench.storage.fetching import fetch_content
from prima_bench.storage.transfer import download

URI = "gs://bucket/key"
DATA = Random(12).randbytes(1000)  # noqa: S311 - seeded data
Pin = Callable[..., Content]


def fill(file: VerifiedParts, wanted: Content) -> None:
    for part in wanted.parts():
        file.write(part, memoryview(DATA)[part.start : part.start + part.length])


def test_a_file_in_the_making_that_was_replaced_is_not_published(tmp_path: Path, content: Pin) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    with VerifiedParts(cache.layout, wanted, uri=URI) as slow:
        fill(slow, wanted)
        upkeep.remove(cache, upkeep.removable(cache, now=time.time() + 1e6))
        # Another process has begun anew, and has holes where the slow one has bytes.
        with VerifiedParts(cache.layout, wanted, uri=URI) as other:
            other.write(next(wanted.parts()), memoryview(DATA)[:300])
            assert slow.publish() is None
            assert cache.find(wanted) is None
            fill(other, wanted)
            path = other.publish()
            assert path is not None
            # Now the right bytes are there, whoever brought them.
            assert slow.publish() == path == cache.find(wanted)
    assert path.read_bytes() == DATA


def test_a_file_with_holes_is_looked_at_wherever_it_gets_to(tmp_path: Path, content: Pin, caplog) -> None:
    # As if it were replaced in the moment before it gets its name.
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    with VerifiedParts(cache.layout, wanted, uri=URI) as file:
        file.write(next(wanted.parts()), memoryview(DATA)[:300])
        cache.path(wanted.name).parent.mkdir(parents=True)
        cache.layout.part_file(wanted).replace(cache.path(wanted.name))
    assert cache.find(wanted) is None
    assert "damaged" in caplog.text


def test_a_blob_of_the_right_size_alone_is_not_taken_for_right(tmp_path: Path, content: Pin) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    with VerifiedParts(cache.layout, wanted, uri=URI) as file:
        fill(file, wanted)
        cache.layout.part_file(wanted).unlink()
        cache.path(wanted.name).parent.mkdir(parents=True)
        cache.path(wanted.name).write_bytes(bytes(len(DATA)))
        assert file.publish() is None


@pytest.mark.parametrize("by_part", [True, False])
def test_what_was_removed_meanwhile_is_fetched_again(faulty, content: Pin, isolated: Path, by_part: bool) -> None:
    faulty.objects["/bucket/key"] = DATA
    wanted = content(DATA, part_size=300, by_part=by_part)

    def script(request) -> None:
        if request.number == 4:
            for path in (isolated / "v1" / "partial").iterdir():
                path.unlink()

    faulty.script = script
    assert fetch_content(URI, wanted).read_bytes() == DATA
    assert list((isolated / "v1" / "partial").iterdir()) == []


def test_what_another_has_just_opened_is_not_removed_as_empty(tmp_path: Path, content: Pin) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    with VerifiedParts(cache.layout, wanted, uri=URI):
        cache.layout.part_file(wanted).unlink()
        with VerifiedParts(cache.layout, wanted, uri=URI) as other:
            fill(other, wanted)
    assert cache.layout.part_file(wanted).exists()


def test_a_kill_before_the_name_leaves_a_file_that_can_be_written(tmp_path: Path, content: Pin, monkeypatch) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))

    def interrupted() -> None:
        with VerifiedParts(cache.layout, wanted, uri=URI) as file:
            fill(file, wanted)
            file.publish()

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    # Only the superuser may write to what is read-only.
    assert stat.S_IMODE(cache.layout.part_file(wanted).stat().st_mode) == 0o644


def test_a_blob_that_was_not_yet_stamped_is_verified_and_made_read_only(tmp_path: Path, content: Pin) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    path = cache.path(wanted.name)
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA)
    path.chmod(0o600)
    assert cache.find(wanted) == path
    assert (path.stat().st_mtime, stat.S_IMODE(path.stat().st_mode)) == (STAMP, 0o444)


def test_a_pin_of_another_size_spoils_nothing(faulty, content: Pin, monkeypatch, caplog) -> None:
    faulty.objects["/bucket/key"] = DATA
    wanted = content(DATA)
    path = fetch_content(URI, wanted)
    wrong = Content.pinned(URI, wanted.sha256, 999)
    with pytest.raises(IntegrityError):
        fetch_content(URI, wrong)
    monkeypatch.setenv("PRIMA_BENCH_OFFLINE", "1")
    with pytest.raises(OfflineError):
        fetch_content(URI, wrong)
    assert fetch_content(URI, wanted) == path
    assert "damaged" not in caplog.text
    cache = Cache.from_environment()
    with VerifiedParts(cache.layout, wanted, uri=URI) as file:
        fill(file, wanted)
        with VerifiedParts(cache.layout, wrong, uri=URI):
            assert file.holds(next(wanted.parts()))


def test_leftovers_may_vanish_while_they_are_looked_at(tmp_path: Path, content: Pin, monkeypatch) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300, by_part=False)
    cache.layout.partial.mkdir(parents=True)
    for i in range(3):
        (cache.layout.partial / f"{wanted.name}.{i}.plain").write_bytes(DATA[:300])
        (cache.layout.partial / f"{wanted.name}.{i}.etag").write_bytes(b"etag")
    with PlainFile(cache.layout, wanted, uri=URI) as file:
        honest = PlainFile._leftovers

        def vanishing(self: PlainFile):
            for path in list(honest(self)):
                if path.name != f"{wanted.name}.2.plain":
                    path.unlink()
                yield path

        monkeypatch.setattr(PlainFile, "_leftovers", vanishing)
        file.adopt(remove=False)
        assert (file.written, file.etag) == (300, "etag")


def test_who_waits_sees_that_a_slow_part_grows(faulty, fault, content: Pin, isolated: Path, monkeypatch) -> None:
    monkeypatch.setattr(download, "HEARTBEAT", 0.0)
    faulty.objects["/bucket/key"] = DATA[:100]
    faulty.script = lambda request: fault(drip=0.01)
    wanted = content(DATA[:100])
    thread = threading.Thread(target=fetch_content, args=(URI, wanted))
    thread.start()
    cache, seen = Cache(isolated), set()
    while thread.is_alive() and len(seen) < 10:
        seen.add(repr(cache.layout.growth(wanted.name)))
        time.sleep(0.005)
    thread.join()
    assert len(seen) >= 10


def test_a_fork_while_a_client_is_made_does_not_hang(keypair: Credentials) -> None:
    with clients._lock:
        pid = os.fork()
        if pid == 0:
            threading.Timer(30, os._exit, (1,)).start()
            clients.object_client("gs", Credentials("id", Secret("secret")))
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_only_what_was_judged_is_put_aside(tmp_path: Path, content: Pin) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    path = cache.path(wanted.name)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    judged = path.lstat()
    path.unlink()
    with VerifiedParts(cache.layout, wanted, uri=URI) as file:
        fill(file, wanted)
        file.publish()
    assert cache.quarantine(path, judged) is None
    assert cache.find(wanted) == path


def test_a_lock_is_removed_once(tmp_path: Path, monkeypatch) -> None:
    from prima_bench.storage.cache.lock import one_at_a_time

    cache = Cache(tmp_path)
    cache.layout.create(cache.layout.locks)
    path = cache.layout.lock_file("0" * 64)
    path.touch()
    os.utime(path, (0, 0))
    honest = os.close
    taken = []

    def close(handle: int) -> None:
        honest(handle)
        # In the moment in which cleaning lets go of the lock, another takes it.
        if not taken:
            taken.append(one_at_a_time(path, finished=bool, progress=bool))
            assert taken[0].__enter__()

    monkeypatch.setattr(os, "close", close)
    upkeep.remove(cache, upkeep.removable(cache, now=time.time() + 1e6))
    monkeypatch.undo()
    assert path.exists()
    taken[0].__exit__(None, None, None)


def published(cache: Cache, wanted: Content) -> Path:
    """The blob, fetched into the cache."""
    with VerifiedParts(cache.layout, wanted, uri=URI) as file:
        fill(file, wanted)
        path = file.publish()
    assert path is not None
    return path


@pytest.mark.parametrize("how", ["written to", "replaced"])
@pytest.mark.parametrize("by", ["use", "upkeep"])
def test_what_changes_while_it_is_read_is_not_taken_for_right(
    tmp_path: Path, content: Pin, monkeypatch, by: str, how: str
) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA)
    path = published(cache, wanted)
    path.chmod(0o644)
    os.utime(path)
    honest = verify.measure_stream

    def measured(stream: BinaryIO, part_size: int = 300) -> Content:
        found = honest(stream, part_size)
        monkeypatch.undo()
        # All of it has been read; now other bytes get there.
        target = path if how == "written to" else path.with_name("new")
        with target.open("wb") as other:
            other.write(bytes(len(DATA)))
        target.replace(path)
        return found

    monkeypatch.setattr(verify, "measure_stream", measured)
    if by == "use":
        cache.find(wanted)
    else:
        upkeep.damaged(cache)
    assert cache.find(wanted) is None


@pytest.mark.parametrize("how", ["touched", "fetched again"])
def test_what_is_right_is_not_called_damaged_whatever_others_do(
    tmp_path: Path, content: Pin, monkeypatch, how: str
) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA)
    path = published(cache, wanted)
    os.utime(path)
    honest = verify.measure_stream

    def measured(stream: BinaryIO, part_size: int = 300) -> Content:
        found = honest(stream, part_size)
        monkeypatch.undo()
        if how == "touched":
            os.utime(path, (0, 0))
        else:
            path.unlink()
            published(cache, wanted)
        return found

    monkeypatch.setattr(verify, "measure_stream", measured)
    assert upkeep.damaged(cache) == []
    assert cache.find(wanted) == path
    assert path.stat().st_mtime == STAMP


def test_a_kill_before_the_stamp_leaves_a_blob_that_others_can_read(tmp_path: Path, content: Pin, monkeypatch) -> None:
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    monkeypatch.setattr(layout, "stamp", lambda file: (_ for _ in ()).throw(KeyboardInterrupt))

    def interrupted() -> None:
        with VerifiedParts(cache.layout, wanted, uri=URI) as file:
            fill(file, wanted)
            file.publish()

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    # Whoever owns it may never come back to it; the others verify it at every use.
    assert cache.path(wanted.name).stat().st_mode & 0o044 == 0o044


@pytest.mark.parametrize("sticky", [False, True])
def test_a_blob_of_another_user_that_nobody_else_can_read(
    tmp_path: Path, content: Pin, monkeypatch, sticky: bool
) -> None:
    # As an earlier version left it that was killed at the end of a download.
    cache = Cache(tmp_path)
    wanted = content(DATA, part_size=300)
    path = cache.path(wanted.name)
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(len(DATA)))
    theirs, refusal = path.stat(), PermissionError(1, "Operation not permitted")
    for where, name, applies in ((os, "open", True), (Path, "replace", sticky)):
        honest = getattr(where, name)

        def refused(*args: Any, honest: Any = honest, applies: bool = applies, **options: Any) -> Any:
            if applies and path.stat().st_ino == theirs.st_ino and {path, str(path)} & set(args):
                raise refusal
            return honest(*args, **options)

        monkeypatch.setattr(where, name, refused)
    assert cache.find(wanted) is None
    assert path.stat().st_ino == theirs.st_ino
    with VerifiedParts(cache.layout, wanted, uri=URI) as file:
        fill(file, wanted)
        if sticky:
            with pytest.raises(CacheError, match="Operation not permitted"):
                file.publish()
        else:
            assert file.publish() == cache.find(wanted) == path
