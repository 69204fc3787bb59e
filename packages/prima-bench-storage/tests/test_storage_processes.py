"""Downloads in real processes: many at once, killed at any step, interrupted, with a full disk, in odd places."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from prima_bench.storage import AccessError, Cache, CacheError, IntegrityError, TransferError, fetch
from prima_bench.storage.content import PART_SIZE, Content
from prima_bench.storage.fetching import fetch_content

URI = "gs://bucket/key"
FETCH = (
    "import sys, json; from prima_bench.storage import fetch; uri, sha256, size, *parts = sys.argv[1:]; "
    "print(fetch(uri, sha256=sha256, size=int(size), parts=parts))"
)
BOTH = pytest.mark.parametrize("by_part", [True, False], ids=["by part", "as a whole"])


def arguments(wanted: Content) -> list[str]:
    return [URI, wanted.sha256, str(wanted.size), *wanted.digests]


def start(*command: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def answers(running: list[subprocess.Popen[str]]) -> list[Path]:
    told = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * len(running), told
    return [Path(out.strip()) for out, _ in told]


def blobs(cache: Path) -> list[Path]:
    return [path for path in (cache / "v1" / "blobs").rglob("*") if path.is_file()]


@BOTH
def test_eight_processes_fetch_a_large_object_once(faulty, content, isolated: Path, by_part: bool) -> None:
    data = Random(1).randbytes(200_000_000)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    wanted = content(data, by_part=by_part)
    paths = answers([start("-c", FETCH, *arguments(wanted)) for _ in range(8)])
    assert set(paths) == set(blobs(isolated))
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == data
    assert len(data) <= faulty.sent <= 1.05 * len(data)


@BOTH
def test_eight_processes_without_a_lock(faulty, content, isolated: Path, by_part: bool) -> None:
    data = Random(2).randbytes(3 * PART_SIZE + 1)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    wanted = content(data, by_part=by_part)
    (isolated / "v1").mkdir(parents=True)
    (isolated / "v1" / "locks").write_text("in the way")
    paths = answers([start("-c", FETCH, *arguments(wanted)) for _ in range(8)])
    assert set(paths) == set(blobs(isolated))
    assert paths[0].read_bytes() == data
    assert Cache(isolated).find(wanted) == paths[0]


@BOTH
def test_a_download_that_is_killed_at_any_step(faulty, content, isolated: Path, by_part: bool) -> None:
    data = Random(3).randbytes(40_000)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    wanted = content(data, by_part=by_part, part_size=10_000)
    script = Path(__file__).parent / "kill_loop.py"
    process = start(str(script), URI, wanted.sha256, str(wanted.size), "10000", *wanted.digests)
    out, err = process.communicate()
    assert process.returncode == 0, err
    seen = json.loads(out)
    assert seen["steps"] > 12
    assert seen["killed"] >= seen["steps"] - 2
    assert seen["published"] < seen["killed"]
    assert seen == seen | {"wrong": 0, "failed": 0, "debris": 0, "waited": 0}


def test_what_was_verified_before_a_kill_is_not_fetched_again(faulty, fault, content, isolated: Path) -> None:
    data = Random(4).randbytes(3 * PART_SIZE)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    wanted = content(data)
    faulty.script = lambda request: fault(drip=1.0) if request.span[0] == PART_SIZE else None
    process = start("-c", FETCH, *arguments(wanted))
    gathered = Cache(isolated).layout.part_file(wanted)
    while not gathered.exists() or gathered.stat().st_blocks * 512 < 2 * PART_SIZE:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    sent, faulty.script = faulty.sent, lambda request: None
    assert fetch_content(URI, wanted).read_bytes() == data
    assert faulty.sent - sent <= PART_SIZE + 100


@BOTH
def test_ctrl_c_ends_at_once_and_leaves_only_what_can_be_continued(
    faulty, fault, content, isolated: Path, by_part: bool
) -> None:
    data = Random(5).randbytes(4 * PART_SIZE)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    wanted = content(data, by_part=by_part)
    # Every thread waits for a network that says nothing more.
    faulty.script = lambda request: fault(drip=30.0) if request.span[0] else None
    process = start("-c", FETCH, *arguments(wanted))
    while len(faulty.requests) < 4 or faulty.sent < PART_SIZE:
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.2)
    since = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - since < 20
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
    kinds = {path.suffix for path in isolated.rglob("*") if path.is_file()}
    assert kinds == ({".TAG", ".part"} if by_part else {".TAG", ".plain", ".etag"})
    faulty.script = lambda request: None
    assert fetch_content(URI, wanted).read_bytes() == data
    assert {path.suffix for path in isolated.rglob("*") if path.is_file()} == {".TAG", ""}


FULL = """
mount -t tmpfs -o size=24m tmpfs "$PRIMA_BENCH_CACHE_DIR" || exit 77
"$0" -c "$FETCH" "$@" 2>"$PRIMA_BENCH_CACHE_DIR.err"; code=$?
ls -ls "$PRIMA_BENCH_CACHE_DIR/v1/partial"
mount -o remount,size=80m "$PRIMA_BENCH_CACHE_DIR" && "$0" -c "$FETCH" "$@" && exit $code
"""

CROWDED = """
mount -t tmpfs -o size=60m tmpfs "$PRIMA_BENCH_CACHE_DIR" || exit 77
"$0" -c "$BEGIN" && "$0" -c "$FETCH" "$@" && "$0" -c "$FETCH" "$@"
"""


@BOTH
@pytest.mark.parametrize("told_before", [True, False])
def test_a_full_disk(faulty, content, lacking, isolated: Path, by_part: bool, told_before: bool) -> None:
    data = Random(6).randbytes(3 * PART_SIZE)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    wanted = content(data, by_part=by_part)
    isolated.mkdir()
    code = FETCH
    if not told_before:
        # The room goes while it downloads.
        code = "import shutil; shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 60, 0, 1 << 60); " + FETCH
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", FULL, sys.executable, *arguments(wanted)],
        env=os.environ | {"FETCH": code},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        lacking("this system lets nobody mount a small file system")
    err = Path(f"{isolated}.err").read_text()
    assert done.returncode == 1, done
    assert "CacheError" in err
    assert "PRIMA_BENCH_CACHE_DIR" in err
    assert ("are free" if told_before else "No space left") in err
    # With room again it goes on from where it stood.
    assert str(isolated / "v1" / "blobs") in done.stdout
    assert len(data) <= faulty.sent <= 2 * len(data)


def test_a_beginning_that_there_is_no_room_to_copy(faulty, content, lacking, isolated: Path) -> None:
    data = Random(13).randbytes(3 * PART_SIZE)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    wanted = content(data, by_part=False)
    isolated.mkdir()
    begin = f"""
        from pathlib import Path
        from prima_bench.storage import Cache
        from prima_bench.storage.cache.partial import PlainFile
        from prima_bench.storage.content import Content
        with PlainFile(Cache.from_environment().layout, Content("{wanted.sha256}", {wanted.size}), uri="{URI}") as file:
            file.remember('"an etag"')
            file.append(memoryview(bytes({5 * PART_SIZE // 2})))
    """
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", CROWDED, sys.executable, *arguments(wanted)],
        env=os.environ | {"FETCH": FETCH, "BEGIN": textwrap.dedent(begin)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        lacking("this system lets nobody mount a small file system")
    assert done.returncode == 0, done.stderr
    # It is given up, since both together do not fit, and all of it is fetched.
    assert str(isolated / "v1" / "blobs") in done.stdout
    assert len(data) <= faulty.sent


@BOTH
def test_a_file_may_not_grow(faulty, content, isolated: Path, by_part: bool) -> None:
    data = Random(7).randbytes(2 * PART_SIZE)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    wanted = content(data, by_part=by_part)
    limited = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({PART_SIZE}, -1)); "
    )
    process = start("-c", limited + FETCH, *arguments(wanted))
    _, err = process.communicate()
    assert process.returncode == 1
    assert "CacheError" in err
    assert "File too large" in err
    assert fetch_content(URI, wanted).read_bytes() == data


def read_only(folder: Path) -> dict[str, Any]:
    """How to start a process for which the folder is read-only, the superuser included."""
    return {
        "args": [
            "unshare",
            "--mount",
            "--map-root-user",
            "sh",
            "-c",
            f"""
        mount --bind "{folder}" "{folder}" && mount -o remount,ro,bind "{folder}" || exit 77
        exec "$@"
    """,
            "sh",
            sys.executable,
        ]
    }


def test_a_read_only_cache(faulty, content, lacking, isolated: Path) -> None:
    data, other = b"in the cache", b"not in the cache"
    faulty.objects["/bucket/key"] = data
    wanted = content(data)
    path = fetch_content(URI, wanted)
    asked = len(faulty.requests)
    faulty.objects["/bucket/key"] = other
    for each, code in ((wanted, 0), (content(other), 1)):
        command = [*read_only(isolated)["args"], "-c", FETCH, *arguments(each)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 77 or "unshare" in done.stderr:
            lacking("this system lets nobody mount a folder read-only")
        assert done.returncode == code, done.stderr
        if code:
            assert "CacheError" in done.stderr
            assert "Read-only file system" in done.stderr
        else:
            assert done.stdout.strip() == str(path)
    assert len(faulty.requests) == asked


@pytest.mark.parametrize("name", ["with space", "ünï ça 测试", "CON.aux", "a'b\"c$d"])
def test_a_cache_in_an_odd_place(faulty, content, tmp_path: Path, monkeypatch, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / name, target_is_directory=True)
    faulty.objects["/bucket/key"] = b"data"
    wanted = content(b"data")
    monkeypatch.setenv("PRIMA_BENCH_CACHE_DIR", str(tmp_path / name))
    path = fetch_content(URI, wanted)
    assert path.is_relative_to(tmp_path / name)
    # Through a symbolic link it is the same cache.
    monkeypatch.setenv("PRIMA_BENCH_CACHE_DIR", str(tmp_path / "link"))
    assert fetch_content(URI, wanted).samefile(path)
    assert len(faulty.requests) == 1
    assert not (tmp_path / "link" / "v1" / "locks").is_symlink()


@pytest.mark.parametrize("key", ["CON", "aux.h5ad", "a/NUL.txt/b", "com1", "trailing.", "trailing ", "a:b", "x" * 900])
def test_no_name_in_a_uri_becomes_the_name_of_a_file(faulty, content, isolated: Path, key: str) -> None:
    from urllib.parse import quote

    faulty.objects["/bucket/" + quote(key)] = b"data"
    wanted = content(b"data")
    path = fetch(f"gs://bucket/{key}", sha256=wanted.sha256, size=4)
    assert path == isolated / "v1" / "blobs" / wanted.sha256[:2] / wanted.sha256


def test_proxy_variables_are_honoured(elsewhere, keypair, content, monkeypatch) -> None:
    elsewhere.objects["http://store.invalid/bucket/key"] = b"data"
    monkeypatch.setenv("PRIMA_BENCH_GCS_ENDPOINT_URL", "http://store.invalid")
    monkeypatch.setenv("http_proxy", elsewhere.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert fetch_content(URI, content(b"data")).read_bytes() == b"data"
    assert [r.path for r in elsewhere.requests] == ["http://store.invalid/bucket/key"]
    assert elsewhere.requests[0].headers["host"] == "store.invalid"


def test_a_store_of_ones_own_machine_needs_no_proxy(faulty, content, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    faulty.objects["/bucket/key"] = b"data"
    assert fetch_content(URI, content(b"data")).read_bytes() == b"data"


def test_a_metadata_server_is_never_asked(faulty, elsewhere, content, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", elsewhere.url)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{elsewhere.url}/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "decoy")
    monkeypatch.setenv("GCE_METADATA_HOST", elsewhere.url.removeprefix("http://"))
    monkeypatch.setenv("AWS_DEFAULTS_MODE", "auto")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    faulty.objects["/bucket/key"] = b"data"
    faulty.script = lambda request: None
    assert fetch_content(URI, content(b"data")).read_bytes() == b"data"
    with pytest.raises((AccessError, IntegrityError)):
        fetch_content("s3://bucket/key", content(b"other data"))
    assert elsewhere.requests == []


def test_a_cache_that_cannot_be_created_costs_no_request(faulty, content, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PRIMA_BENCH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(CacheError):
        fetch_content(URI, content(b"data"))
    assert faulty.requests == []


@BOTH
def test_threads_of_one_process_fetch_once_too(faulty, content, by_part: bool) -> None:
    data = Random(10).randbytes(500_000)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    wanted = content(data, by_part=by_part, part_size=100_000)
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: fetch_content(URI, wanted), range(8)))
    assert len(paths) == 1
    assert paths.pop().read_bytes() == data
    assert faulty.sent == len(data)


@BOTH
def test_a_fork_does_not_share_its_parents_connections(faulty, content, by_part: bool) -> None:
    data = Random(11).randbytes(300_000)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    code = (
        "import os, sys; from prima_bench.storage import fetch; uri, sha256, size, *parts = sys.argv[1:]\n"
        "def get(): return fetch(uri, sha256=sha256, size=int(size), parts=parts).stat().st_size\n"
        "get(); os.environ['PRIMA_BENCH_CACHE_DIR'] += '-of-the-child'\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0 if get() == int(size) else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0; print('both')"
    )
    process = start("-W", "ignore::DeprecationWarning", "-c", code, *arguments(content(data, by_part=by_part)))
    out, err = process.communicate()
    assert out == "both\n", err


def test_no_file_of_the_cache_holds_a_secret(faulty, fault, keypair, content, isolated: Path) -> None:
    data = Random(12).randbytes(500_000)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    wanted = content(data, by_part=False, part_size=100_000)
    faulty.script = lambda request: fault(cut=10) if request.span[0] // 100_000 == 3 else None
    with pytest.raises(TransferError):
        fetch_content(URI, wanted)
    assert any(path.suffix == ".etag" for path in isolated.rglob("*"))
    faulty.script = lambda request: None
    for _ in range(2):
        for path in isolated.rglob("*"):
            told = path.name.encode() + (path.read_bytes() if path.is_file() else b"")
            assert keypair.secret.reveal().encode() not in told
            assert keypair.key_id.encode() not in told
        fetch_content(URI, wanted)
