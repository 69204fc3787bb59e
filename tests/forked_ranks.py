"""Ranks of a process group, forked from a process that has loaded everything; each ends as a script of a user ends.

Loaded by path, by the workers that tests start. The group's store is kept as torchrun's agent keeps it: in no rank.
"""

import atexit
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

Ended = list[int | str | None]
"""Exit code, stdout and stderr of a rank; None as the code of one that had to be ended."""

_PORT_BYTES = 2


def run(world: int, take_part: Callable[[int], None], seconds: float, stuck: tuple[int, ...] = ()) -> list[Ended]:
    """Let every rank of a gloo group do something.

    Args:
        world: How many there are.
        take_part: What a rank does, once the group is up.
        seconds: After which those that still run are ended.
        stuck: Ranks that never end, and are not waited for.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        receiver, sender = pipe = os.pipe()
        ranks = [_forked(pipe, folder, rank, world, take_part) for rank in range(world)]
        os.close(receiver)
        # Not before: a fork would copy the locks that the store's thread holds just then, and no thread to free them.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(sender, store.port.to_bytes(_PORT_BYTES) * world)
        os.close(sender)
        codes: dict[int, int] = {}
        until = time.monotonic() + seconds
        while len(codes) < world - len(stuck) and time.monotonic() < until:
            for rank, pid in enumerate(ranks):
                ended, status = (0, 0) if rank in codes else os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[rank] = os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        for rank, pid in enumerate(ranks):
            if rank not in codes:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return [
            [codes.get(r), *((folder / f"{r}.{stream}").read_text() for stream in ("out", "err"))] for r in range(world)
        ]


def _forked(pipe: tuple[int, int], folder: Path, rank: int, world: int, take_part: Callable[[int], None]) -> int:
    with warnings.catch_warnings(action="ignore"):  # the threads of torch: none of them is needed here
        pid = os.fork()
    if pid:
        return pid
    code = 1
    atexit._clear()  # what was registered so far is the other process's business
    for number, stream in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{rank}.{stream}", os.O_CREAT | os.O_WRONLY), number)
    try:
        receiver, sender = pipe
        os.close(sender)  # so that reading ends, should the other process end before it has written
        port = int.from_bytes(os.read(receiver, _PORT_BYTES))
        os.close(receiver)
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        take_part(rank)
        code = 0
    except Exception as error:  # noqa: BLE001 (what the interpreter does with an uncaught one)
        sys.last_exc = error
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
