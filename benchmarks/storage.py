"""Fetching one large object: this package, verified, beside boto3, s3fs and obstore, unverified, and ``cat``.

    python benchmarks/storage.py --peers /path/to/its/bin/python [--size 1024] [--repeats 3] [--folder DIR]

All read the same file from one server on loopback, which answers ranges by ``sendfile`` and looks at no signature; each
run writes it to the same disk, in a process of its own, with a cold cache. Wall time excludes imports; memory is the
peak above what the process had before it began. ``cat`` copies the file without any network and is the measure. A hit
of the cache is timed at the end. Peers need an environment of their own; a peer that is missing there is named.
"""

import argparse
import hashlib
import http.server
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PART = 1 << 24
PEERS = ("boto3", "s3fs", "obstore")
OURS = ("prima-bench", "prima-bench as a whole")
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
    ways = ["cat", *OURS, *(PEERS if args.peers else ())]
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(args.repeats):
        for way in ways:
            found[way].append(run(way, folder, server, args))
    best = {way: min(runs, key=lambda r: r["seconds"]) for way, runs in found.items() if "error" not in runs[0]}
    cat = best["cat"]["seconds"]
    print(f"{args.size} MiB, best of {args.repeats}; memory above the start")
    for way in ways:
        if way not in best:
            print(f"{way:<24} {found[way][0]['error']}")
            continue
        seconds = best[way]["seconds"]
        rate = args.size * (1 << 20) / seconds / 1e6
        checked = "verified" if way in OURS else ""
        memory = f"{max(r['memory'] for r in found[way]) / 1e6:6.0f} MB" if way != "cat" else " " * 9
        cpu = f"{best[way]['cpu']:5.2f} s CPU"
        line = f"{way:<24} {seconds:6.2f} s {seconds / cat:5.2f} x cat {rate:6.0f} MB/s {cpu} {memory}  {checked}"
        print(line.rstrip())
    print(f"a hit of the cache, offline: {best['prima-bench']['hit'] * 1e6:.0f} µs")


def run(way: str, folder: Path, server: "Server", args: argparse.Namespace) -> dict[str, Any]:
    """One measurement in a process of its own."""
    target = folder / "target"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    source = folder / "object"
    source.read_bytes()  # in memory for all alike
    if way == "cat":
        with (target / "object").open("wb") as stream:
            start, cpu = time.perf_counter(), children_cpu()
            subprocess.run(["cat", str(source)], stdout=stream, check=True)
            return {"seconds": time.perf_counter() - start, "cpu": children_cpu() - cpu}
    python = sys.executable if way in OURS else args.peers
    command = [python, __file__, "--case", way, str(source), server.url, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment())
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:100]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def children_cpu() -> float:
    """CPU seconds of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PRIMA_BENCH_", "HMAC_"))}


def measure(way: str, source: str, url: str, target: str) -> dict[str, Any]:
    """Time one way in this process."""
    fetch: Callable[[], object] = WAYS[way](Path(source), url, Path(target))
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


class Server(http.server.ThreadingHTTPServer):
    """Serves one file under every path."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.path = path
        # A process of its own, so that it does not share the interpreter with anybody.
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.serve_forever()
            finally:
                os._exit(0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        return


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "list-type" in self.path:  # s3fs asks whether the object is a folder
            body = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        with self.server.path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            start, stop = (int(span[1]), min(int(span[2] or size - 1) + 1, size)) if span else (0, size)
            self.send_response(206 if span else 200)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", '"benchmark"')
            self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            if span:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.end_headers()
            self.wfile.flush()
            if self.command == "GET":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
                while start < stop:
                    start += os.sendfile(self.connection.fileno(), stream.fileno(), start, stop - start)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        return


if __name__ == "__main__":
    sys.exit(main())
