"""Fetching one large object: this package, verified, beside boto3, s3fs and obstore, unverified, and ``cat``.

    uv venv peers && uv pip install --python peers/bin/python boto3 "s3fs>=2025" obstore
    python benchmarks/storage.py --peers peers/bin/python [--size 1024] [--repeats 3] [--folder DIR]

All read the same file from one server on loopback, which answers ranges by ``sendfile`` and looks at no signature; each
run writes it to the same disk, in a process of its own, with a cold cache. Wall time excludes imports; memory is the
peak above what the process had before it began. A hit of the cache is timed at the end. Peers need an environment of
their own; a peer that is missing there is named.

Two measures: ``cat`` copies the file without any network, and does not wait until the disk has it. The floor is the
least that a verified and durable copy takes here: plain sockets, sha256 of each part, write, fsync, in as many threads
as ours and with none of our code or boto3's; it retries nothing, resumes nothing and checks no header. ``cat, synced``,
``sockets alone`` (nothing hashed, nothing kept) and ``sockets, sha256`` (nothing kept) say which of it is the disk's
share, the connection's and the digest's.
"""

import argparse
import hashlib
import json
import mmap
import os
import queue
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from object_server import Server

PART, RECEIVED, WRITTEN = 1 << 24, 1 << 20, 1 << 18
PEERS = ("boto3", "s3fs", "obstore")
OURS = ("prima-bench", "prima-bench as a whole")
CAT = ("cat", "cat, synced")
FLOOR = "floor"
BARE = ("sockets alone", "sockets, sha256", FLOOR)
CHECKED = {"cat, synced": "synced"} | dict.fromkeys((FLOOR, *OURS), "verified, synced") | {BARE[1]: "verified"}
KEY, SECRET = "GOOGBENCHMARK", "no-secret"
_HITS = 2000


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--peers", default="", help="the Python of an environment with boto3, s3fs and obstore")
    parser.add_argument("--size", type=int, default=1024, help="MiB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where to read and write; a temporary folder when left out")
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(*args.case)))
        return 0
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        write_object(folder / "object", args.size)
        with Server(folder / "object") as server:
            compare(folder, server, args)
    return 0


def compare(folder: Path, server: "Server", args: argparse.Namespace) -> None:
    """Print a line for each way, all measured in turn, as many times as asked for."""
    ways = [*CAT, *BARE, *OURS, *(PEERS if args.peers else ())]
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(args.repeats):
        for way in ways:
            found[way].append(run(way, folder, server, args.peers))
    best = {way: min(runs, key=lambda r: r["seconds"]) for way, runs in found.items() if "error" not in runs[0]}
    cat, floor = best["cat"]["seconds"], best[FLOOR]["seconds"]
    print(f"{args.size} MiB, best of {args.repeats}, CPU too; memory above the start")
    for way in ways:
        if way not in best:
            print(f"{way:<24} {found[way][0]['error']}")
            continue
        seconds = best[way]["seconds"]
        rate = args.size * (1 << 20) / seconds / 1e6
        memory = f"{max(r['memory'] for r in found[way]) / 1e6:6.0f} MB" if way not in CAT else " " * 9
        cpu = f"{min(r['cpu'] for r in found[way]):5.2f} s CPU"
        ratios = f"{seconds / cat:5.2f} x cat {seconds / floor:5.2f} x floor"
        print(f"{way:<24} {seconds:6.2f} s {ratios} {rate:6.0f} MB/s {cpu} {memory}  {CHECKED.get(way, '')}".rstrip())
    print(f"a hit of the cache, offline: {best['prima-bench']['hit'] * 1e6:.0f} µs")


def run(way: str, folder: Path, server: "Server", peers: str) -> dict[str, Any]:
    """One measurement in a process of its own."""
    target = folder / "target"
    if target.exists():
        target.rename(folder / "before")
    target.mkdir()
    source = folder / "object"
    with source.open("rb") as stream:  # in memory for all alike
        while stream.read(1 << 20):
            pass
    if way in CAT:
        remove_last(target)
        with (target / "object").open("wb") as stream:
            start, cpu, own = time.perf_counter(), children_cpu(), time.process_time()
            subprocess.run(["cat", str(source)], stdout=stream, check=True)
            if way == "cat, synced":
                os.fsync(stream.fileno())
            used = children_cpu() - cpu + time.process_time() - own
            return {"seconds": time.perf_counter() - start, "cpu": used}
    python = peers if way in PEERS else sys.executable
    command = [python, __file__, "--case", way, str(source), server.url, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment())
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:100]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def remove_last(target: Path) -> None:
    """Delete what the last run wrote, just before the next begins.

    So every run finds as much memory that was in use a moment ago. A virtual machine gives memory back that stays free
    for seconds, and pays for it again when a file is written there: ``cat`` starts at once, a Python does not.
    """
    shutil.rmtree(target.parent / "before", ignore_errors=True)


def children_cpu() -> float:
    """CPU seconds of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PRIMA_BENCH_", "HMAC_"))}


def measure(way: str, source: str, url: str, target: str) -> dict[str, Any]:
    """Time one way in this process."""
    fetch: Callable[[], object] = WAYS[way](Path(source), url, Path(target))
    remove_last(Path(target))
    before = resident()
    peak = Peak()
    start, cpu = time.perf_counter(), time.process_time()
    fetch()
    found = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu, "memory": peak.stop() - before}
    if way == "prima-bench":
        # No request can be made any more, so every hit shows that it makes none.
        os.environ["PRIMA_BENCH_OFFLINE"] = "1"
        start = time.perf_counter()
        for _ in range(_HITS):
            fetch()
        found["hit"] = (time.perf_counter() - start) / _HITS
    return found


def ours(by_part: bool) -> Callable[[Path, str, Path], Callable[[], object]]:
    def prepare(source: Path, url: str, target: Path) -> Callable[[], object]:
        os.environ |= {
            "HMAC_BOTO_PRIMA_MENTE_BENCHMARK_KEY_ID": KEY,
            "HMAC_BOTO_PRIMA_MENTE_BENCHMARK_SECRET": SECRET,
            "PRIMA_BENCH_GCS_ENDPOINT_URL": url,
            "PRIMA_BENCH_CACHE_DIR": str(target),
        }
        from prima_bench.storage import fetch
        from prima_bench.storage.credentials import Credentials
        from prima_bench.storage.transfer import download
        from prima_bench.storage.transfer.gate import connect
        from prima_bench.storage.uri import ObjectUri

        assert download
        connect(ObjectUri("gs", "bucket", "object"), Credentials.from_environment())
        sha256, *parts = source.with_suffix(".digests").read_text().split()
        size = source.stat().st_size
        return lambda: fetch("gs://bucket/object", sha256=sha256, size=size, parts=parts if by_part else ())

    return prepare


def bare(hashed: bool, kept: bool) -> Callable[[Path, str, Path], Callable[[], object]]:
    """Plain sockets; with every part hashed and compared, written and synced, or with nothing of it."""

    def prepare(source: Path, url: str, target: Path) -> Callable[[], object]:
        from prima_bench.storage.cache.open_file import SYNC_EVERY
        from prima_bench.storage.transfer.pool import THREADS

        _, *digests = source.with_suffix(".digests").read_text().split()
        address, size = urllib.parse.urlsplit(url), source.stat().st_size

        turn = threading.Lock()

        def work(parts: "queue.SimpleQueue[int | None]", file: int) -> None:
            memory = memoryview(mmap.mmap(-1, PART))
            with socket.create_connection((str(address.hostname), int(address.port or 0))) as connection:
                while (index := parts.get()) is not None:
                    into = memory[: min(PART, size - index * PART)]
                    digest = receive(connection, index * PART, into, hashed=hashed)
                    assert not hashed or digest == digests[index]
                    if not kept:
                        continue
                    with turn:  # those who wait in the file system spin
                        for start in range(0, len(into), WRITTEN):
                            os.pwrite(file, into[start : start + WRITTEN], index * PART + start)
                    if (index + 1) % (SYNC_EVERY // PART) == 0:
                        os.fdatasync(file)

        def fetch() -> None:
            parts: queue.SimpleQueue[int | None] = queue.SimpleQueue()
            for index in [*range(len(digests)), *[None] * THREADS]:
                parts.put(index)
            with (target / "object").open("wb") as stream, ThreadPoolExecutor(THREADS) as threads:
                stream.truncate(size)  # a file that grows under several threads syncs slowly
                for done in [threads.submit(work, parts, stream.fileno()) for _ in range(THREADS)]:
                    done.result()
                if kept:
                    os.fsync(stream.fileno())

        return fetch

    return prepare


def receive(connection: socket.socket, start: int, into: memoryview, *, hashed: bool) -> str:
    """One range into memory; its sha256 where it is asked for."""
    ask = f"GET /bucket/object HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-{start + len(into) - 1}\r\n\r\n"
    connection.sendall(ask.encode())
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(1 << 12)
    first = head.partition(b"\r\n\r\n")[2]
    got = len(first)
    into[:got] = first
    digest = hashlib.sha256(first)
    while got < len(into) and (count := connection.recv_into(into[got : got + RECEIVED])):
        if hashed:
            digest.update(into[got : got + count])
        got += count
    assert got == len(into)
    return digest.hexdigest()


def with_boto3(source: Path, url: str, target: Path) -> Callable[[], object]:
    import boto3

    client = boto3.client(
        "s3", endpoint_url=url, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="auto"
    )
    return lambda: client.download_file("bucket", "object", str(target / "object"))


def with_s3fs(source: Path, url: str, target: Path) -> Callable[[], object]:
    import s3fs

    system = s3fs.S3FileSystem(key=KEY, secret=SECRET, client_kwargs={"endpoint_url": url})
    return lambda: system.get_file("bucket/object", str(target / "object"))


def with_obstore(source: Path, url: str, target: Path) -> Callable[[], object]:
    from obstore.store import S3Store

    store = S3Store(
        "bucket", endpoint=url, access_key_id=KEY, secret_access_key=SECRET, region="auto",
        client_options={"allow_http": True},
    )  # fmt: skip

    def fetch() -> None:
        with (target / "object").open("wb") as stream:
            for chunk in store.get("object").stream(min_chunk_size=PART):
                stream.write(chunk)

    return fetch


WAYS = {
    "sockets alone": bare(hashed=False, kept=False),
    "sockets, sha256": bare(hashed=True, kept=False),
    FLOOR: bare(hashed=True, kept=True),
    "prima-bench": ours(by_part=True),
    "prima-bench as a whole": ours(by_part=False),
    "boto3": with_boto3,
    "s3fs": with_s3fs,
    "obstore": with_obstore,
}


def write_object(path: Path, mebibytes: int) -> None:
    """A file that does not compress, and its digests beside it: of the whole, then of each part."""
    whole, parts = hashlib.sha256(), []
    block = os.urandom(PART - 8)
    with path.open("wb") as stream:
        for i in range(-(-mebibytes * (1 << 20) // PART)):
            part = (i.to_bytes(8, "big") + block)[: min(PART, mebibytes * (1 << 20) - i * PART)]
            stream.write(part)
            whole.update(part)
            parts.append(hashlib.sha256(part).hexdigest())
    path.with_suffix(".digests").write_text("\n".join([whole.hexdigest(), *parts]))


def resident() -> int:
    """Bytes of this process that are in memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


class Peak(threading.Thread):
    """The most memory that the process has while this runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self._most = 0
        self.start()

    def run(self) -> None:
        while not self._ended.wait(0.01):
            self._most = max(self._most, resident())

    def stop(self) -> int:
        self._ended.set()
        self.join()
        return self._most


if __name__ == "__main__":
    sys.exit(main())
