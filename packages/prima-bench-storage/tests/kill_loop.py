"""Kills a download at each of its steps with SIGKILL, then runs it again, and prints what it saw as JSON.

    python kill_loop.py URI SHA256 SIZE PART_SIZE [PART_DIGEST ...]

A step is a call that changes the disk: open, write, truncate, chmod, utime, rename, mkdir, remove, fsync, flock. Every
try is a fork of this process, so that boto3 is imported once.
"""

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from prima_bench.storage.cache import open_file
from prima_bench.storage.cache.store import Cache
from prima_bench.storage.client import object_client
from prima_bench.storage.content import Content
from prima_bench.storage.credentials import Credentials
from prima_bench.storage.fetching import fetch_content
from prima_bench.storage.transfer import download

EVENTS = {"open", "os.truncate", "os.chmod", "os.utime", "os.rename", "os.mkdir", "os.remove", "fcntl.flock"}
assert download is not None


class Steps:
    """Counts steps, and kills the process before the one it is told."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.count = 0
        self.lock = threading.Lock()

    def step(self) -> None:
        with self.lock:
            self.count += 1
            if self.count == self.last:
                os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in EVENTS:
            return
        if event == "open" and "cache" not in str(args[0]):
            return
        self.step()

    def install(self) -> None:
        for name in ("pwrite", "fsync", "fdatasync"):
            honest = getattr(os, name)

            def counted(*args: Any, honest: Any = honest) -> Any:
                self.step()
                return honest(*args)

            setattr(os, name, counted)
        sys.addaudithook(self.audit)


def fetch_in_a_fork(uri: str, wanted: Content, kill_at: int) -> tuple[int, int]:
    """The exit status of a download that is killed at a step (0: never), and the number of steps it took."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            steps = Steps(kill_at)
            report = os.write
            steps.install()
            fetch_content(uri, wanted)
            report(writer, str(steps.count).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    told = os.read(reader, 100)
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    return status, int(told or b"0")


def main() -> None:
    uri, sha256, size, part_size, *digests = sys.argv[1:]
    wanted = Content.pinned(uri, sha256, int(size), tuple(digests), int(part_size))
    cache = Cache.from_environment()
    # So that it is reached, and once, whichever thread is quicker.
    open_file.SYNC_EVERY = wanted.size * 3 // 4
    # So that the forks need not read botocore's models anew.
    object_client("gs", Credentials.from_environment())
    status, steps = fetch_in_a_fork(uri, wanted, 0)
    assert status == 0, status
    seen = {"steps": steps, "killed": 0, "published": 0, "wrong": 0, "failed": 0, "debris": 0, "waited": 0}
    for kill_at in range(1, steps + 1):
        shutil.rmtree(cache.root)
        status, _ = fetch_in_a_fork(uri, wanted, kill_at)
        seen["killed"] += os.WIFSIGNALED(status)
        blob = cache.path(wanted.name)
        if blob.exists():
            seen["published"] += 1
            seen["wrong"] += measured(blob) != sha256
        since = time.monotonic()
        again, _ = fetch_in_a_fork(uri, wanted, 0)
        seen["waited"] += time.monotonic() - since > 20
        seen["failed"] += again != 0
        seen["wrong"] += measured(blob) != sha256
        left = [p for p in cache.root.rglob("*") if p.is_file() and p not in (blob, cache.root / "CACHEDIR.TAG")]
        seen["debris"] += len([p for p in left if p.suffix != ".lock"])
    sys.stdout.write(json.dumps(seen))


def measured(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
