"""Ranks of a group in which something goes wrong, without an agent that would end the others.

    python failing_rank.py < COMMANDS

Each line of the input is a world size and a name of what goes wrong; the answer is a line of JSON with the exit code,
stdout and stderr of every rank.
"""

import json
import os
import runpy
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch.distributed as dist

from prima_bench.metrics import attendance, sync
from prima_bench.metrics.catalog import load_metric
from prima_bench.tasks import request
from prima_bench.tasks.errors import PredictionError
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.problems import classification, perturbation  # noqa: F401 (loaded before the ranks are made)

HERE = Path(__file__).parent
laws, ranks = (SimpleNamespace(**runpy.run_path(str(HERE / name))) for name in ("laws_data.py", "forked_ranks.py"))

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


def take_part(rank: int, world: int, what: str) -> None:
    """What a user's script does, and what goes wrong in it."""
    dist.barrier()  # all are connected: what goes wrong, goes wrong later
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


if __name__ == "__main__":
    attendance.BEAT_SECONDS, attendance.LOST_SECONDS, attendance.LOOK_SECONDS = 0.2, 5.0, 0.2
    for metric in laws.every_metric("perturbation_prediction"):
        load_metric(metric.partition("(")[0])
    for line in sys.stdin:
        size, _, wrong = line.strip().partition(" ")
        part = partial(take_part, world=int(size), what=wrong)
        sys.stdout.write(json.dumps(ranks.run(int(size), part, 60, (1,) if wrong == "stuck" else ())) + "\n")
        sys.stdout.flush()
