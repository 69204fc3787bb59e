"""Ranks of a group in which something goes wrong, without an agent that would end the others.

    python failing_rank.py < COMMANDS

Each line of the input is a world size and a name of what goes wrong; the answer is a line of JSON with the exit code,
stdout and stderr of every rank. The ranks are forked from one process that has loaded everything, and end as a script
with an uncaught error ends.
"""

import atexit
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch.distributed as dist

from prima_bench.metrics import attendance, sync
from prima_bench.metrics.catalog import load_metric
from prima_bench.tasks import request
from prima_bench.tasks.errors import PredictionError
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.problems import classification, perturbation  # noqa: F401 (loaded before the ranks are made)

SPEC = importlib.util.spec_from_file_location("laws_data", Path(__file__).parent / "laws_data.py")
assert SPEC is not None
assert SPEC.loader is not None
laws = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(laws)

CASE = "perturbation, log"


def evaluation(what: str, odd: bool) -> Evaluation:
    """A run, another one on the odd rank."""
    changes: dict[str, object] = {"metrics": "fast", "sync_to": "rank0" if what.endswith("rank0") else "all"}
    if odd and what.startswith("raises at once"):
        changes["solution"] = None
    if odd and what == "other cells":
        changes["solution"] = laws.solution(CASE, seed=5)
    if odd and what == "other genes":
        changes["solution"] = laws.solution(CASE)[:, :15].copy()
    if odd and what == "genes in another order":
        changes["solution"] = laws.solution(CASE)[:, ::-1].copy()
    if odd and what == "other panel":
        changes["metrics"] = "mae"
    if odd and what == "other sync_to":
        changes["sync_to"] = "rank0"
    if what == "other version":
        entry = request.get_dataset("pbmc68k")
        later = replace(entry, spec=replace(entry.spec, version="1.0.1"))
        request.get_dataset = lambda *_, **__: later if odd else entry
        return Evaluation("cell_type_annotation", metrics="accuracy", device="cpu")
    return laws.evaluation(CASE, **changes)


def take_part(store: dist.Store, rank: int, world: int, what: str) -> None:
    """What a user's script does, and what goes wrong in it."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    odd = rank == 1
    run = evaluation(what, odd)
    if what in ("other version", "other genes"):
        run.compute()
    rows = laws.predictions(CASE)
    mine = rows[np.arange(len(rows))[rank::world]].copy()
    if odd and what == "other dtype":
        mine.X = mine.X.astype(np.complex64)
    if odd and what.startswith("raises in update"):
        mine.obs_names = [f"{name}?" for name in mine.obs_names]
        mine.obs["target"] = "unheard of"
    try:
        run.update(mine)
    except PredictionError:
        if "goes on" not in what:
            raise
        run.update(rows[np.arange(len(rows))[rank::world]])
    if odd and what.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if odd and what.startswith("dies in the exchange"):
        sync._Route.carry = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    if odd and what == "stuck":
        os.kill(os.getpid(), signal.SIGSTOP)
    if odd and what == "never computes":
        return
    if odd and what.startswith("slow"):
        time.sleep(2 * attendance.LOST_SECONDS)
    if rank == 0 and what == "raises elsewhere":
        for _ in range(600):  # a long stream of shards: another rank's failure must end it
            run.update(mine)
            time.sleep(0.1)
    if odd and what == "raises elsewhere":
        raise ValueError("the model has no more memory\nin the second line")
    sys.stdout.write(run.compute().result_digest)


def forked(port: int, folder: Path, rank: int, world: int, what: str) -> int:
    """A process that takes part and then ends; returns its id to the one that forks it."""
    with warnings.catch_warnings(action="ignore"):  # the threads of torch: none of them is needed here
        pid = os.fork()
    if pid:
        return pid
    code = 1
    atexit._clear()  # what was registered so far is the other process's business
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{rank}.{name}", os.O_CREAT | os.O_WRONLY), number)
    try:
        take_part(dist.TCPStore("127.0.0.1", port, is_master=False), rank, world, what)
        code = 0
    except Exception as error:  # noqa: BLE001 (what the interpreter does with an uncaught one)
        sys.last_exc = error
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def port() -> Iterator[int]:
    """A store as torchrun's agent keeps it: in no rank."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port


def run(world: int, what: str) -> list[list[object]]:
    """Exit code, stdout and stderr of every rank; None as the code of one that had to be ended after a minute."""
    with tempfile.TemporaryDirectory() as name, port() as number:
        folder = Path(name)
        ranks = [forked(number, folder, rank, world, what) for rank in range(world)]
        codes: dict[int, int | None] = {}
        until = time.monotonic() + 60
        while len(codes) < world and time.monotonic() < until:
            for rank, pid in enumerate(ranks):
                ended, status = (0, 0) if rank in codes else os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[rank] = os.waitstatus_to_exitcode(status)
            if what == "stuck" and len(codes) == world - 1:
                break
            time.sleep(0.02)
        for rank, pid in enumerate(ranks):
            if rank not in codes:
                codes[rank] = None
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return [
            [codes[r], *((folder / f"{r}.{name}").read_text() for name in ("out", "err"))] for r in range(world)
        ]  # fmt: skip


if __name__ == "__main__":
    attendance.BEAT_SECONDS, attendance.LOST_SECONDS, attendance.LOOK_SECONDS = 0.2, 3.0, 0.2
    for metric in laws.every_metric("perturbation_prediction"):
        load_metric(metric.partition("(")[0])
    for line in sys.stdin:
        size, _, wrong = line.strip().partition(" ")
        sys.stdout.write(json.dumps(run(int(size), wrong)) + "\n")
        sys.stdout.flush()
