"""Predictions larger than memory: what an evaluation takes with rows on disk, and how long, beside rows in memory.

    python benchmarks/beyond_memory.py                       # 200,000 cells x 18,000 genes, a tenth of it not zero
    python benchmarks/beyond_memory.py --cells 20000 --buffers memory disk

Each evaluation is a process of its own: it reads predictions shard by shard from seeded counts that it draws itself,
scores them with preset ``fast`` and with metrics of differential expression, and prints its digest. Printed are the
largest resident size by kind (what is its own, and what is mapped from files), wall and CPU time. Digests of two
buffers must be the same.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp

GENES, SHARD = 18_000, 2_000
METRICS = {"fast": ["fast"], "fast and DE": ["fast", "de_overlap_at_n", "de_auprc_signed", "de_direction_fidelity"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--cells", type=int, default=200_000)
    parser.add_argument("--solution-cells", type=int, default=10_000)
    parser.add_argument("--perturbations", type=int, default=150)
    parser.add_argument("--buffers", nargs="+", default=["disk"], choices=["memory", "disk", "auto"])
    parser.add_argument("--one", nargs=2, metavar=("BUFFER", "METRICS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(evaluate(args, *args.one)))
        return 0
    dense = args.cells * GENES * 4 / 1e9
    print(f"{args.cells:,} cells x {GENES:,} genes ({dense:.1f} GB if dense), {args.perturbations} perturbations")
    print(f"{'metrics':14s}{'buffer':>8s}{'rows MB':>10s}{'peak MB':>10s}{'own MB':>10s}{'wall s':>9s}{'CPU s':>9s}")
    same = True
    for name in METRICS:
        digests = set()
        for buffer in args.buffers:
            found = in_process(args, buffer, name)
            digests.add(found["digest"])
            figures = "".join(f"{found[k]:{w}.0f}" for k, w in (("rows", 10), ("peak", 10), ("own", 10)))
            print(f"{name:14s}{buffer:>8s}{figures}{found['wall']:9.1f}{found['cpu']:9.1f}  {found['digest'][:19]}")
        same &= len(digests) == 1
    if len(args.buffers) > 1:
        print("digests are the same" if same else "digests DIFFER")
    return 0 if same else 1


def in_process(args: argparse.Namespace, buffer: str, name: str) -> dict:
    sizes = ["--cells", args.cells, "--solution-cells", args.solution_cells, "--perturbations", args.perturbations]
    command = [sys.executable, __file__, *map(str, sizes), "--one", buffer, name]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def evaluate(args: argparse.Namespace, buffer: str, name: str) -> dict:
    """One evaluation in this process, watched."""
    from prima_bench.tasks.evaluation import Evaluation

    draw = Draw(args.perturbations)
    peak = Peak()
    start, cpu = time.perf_counter(), time.process_time()
    run = Evaluation(
        "perturbation_prediction",
        solution=draw.cells(0, args.solution_cells, control=True),
        perturbation_key="perturbation",
        control="control",
        scale="counts",
        target_map="none",
        metrics=METRICS[name],
        buffer=buffer,
        device="cpu",
    )
    stored = 0
    for number in range(args.cells // SHARD):
        shard = draw.cells(1 + number, SHARD, control=False)
        stored += shard.X.data.nbytes + shard.X.indices.nbytes
        run.update(shard)
        if sys.stderr.isatty():
            print(f"\r{(number + 1) * SHARD:,} cells", end="", file=sys.stderr)
    digest = run.compute().result_digest
    figures = {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu, "rows": stored / 1e6}
    return {"digest": digest, **figures, **peak.stop()}


class Draw:
    """Seeded counts of which about a tenth is not zero."""

    def __init__(self, perturbations: int) -> None:
        random = np.random.RandomState(0)
        level = random.lognormal(0.0, 1.6, GENES)
        strong = random.rand(perturbations, GENES) < 0.05
        effect = np.exp(random.normal(0, 1.2, (perturbations, GENES)) * strong)
        self._mean = np.vstack([level, level * effect])
        self._mean *= GENES * 0.13 / self._mean.sum(axis=1, keepdims=True)

    def cells(self, number: int, n: int, *, control: bool) -> anndata.AnnData:
        random = np.random.RandomState(100 + number)
        codes = np.arange(n) % len(self._mean) if control else 1 + np.arange(n) % (len(self._mean) - 1)
        rows = [sp.csr_matrix(random.poisson(self._mean[part]), dtype=np.float32) for part in np.split(codes, n // 200)]
        names = np.array(["control", *(f"p{i}" for i in range(len(self._mean) - 1))])
        obs = pd.DataFrame({"perturbation": names[codes]}, index=[f"s{number}c{i}" for i in range(n)])
        return anndata.AnnData(sp.vstack(rows, "csr"), obs=obs, var=pd.DataFrame(index=[f"G{i}" for i in range(GENES)]))


class Peak:
    """The largest resident size of this process, in MB, while it runs; Linux only."""

    def __init__(self) -> None:
        self._most, self._own, self._done = 0.0, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            own, mapped = (int(lines[key].split()[0]) / 1024 for key in ("RssAnon", "RssFile"))
            self._most, self._own = max(self._most, own + mapped), max(self._own, own)

    def stop(self) -> dict:
        self._done.set()
        self._thread.join()
        return {"peak": self._most, "own": self._own}


if __name__ == "__main__":
    raise SystemExit(main())
