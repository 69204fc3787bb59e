"""Whole commands that score perturbation predictions from two h5ad files: this package beside cell-eval and cell-eval2.

    python benchmarks/perturbation.py --cell-eval /path/to/bin/cell-eval --cell-eval2 /path/to/bin/cell-eval2
    python benchmarks/perturbation.py --sizes small --repeats 3

Two comparisons at two sizes, each command a fresh process, import included: our preset ``cell_eval`` beside
``cell-eval run --profile full`` on log-normalised values, and our preset ``vcc2026`` beside ``cell-eval2 run --preset
vcc2026`` on counts. Both read the same seeded screen: a real side of negative binomial counts of which about a tenth is
not zero, and a prediction whose cells are drawn around effects that are half right. Printed are wall time, CPU seconds
(user and system, children included) and the peak resident size of the largest process, the best of a few repeats, with
ratios of theirs over ours. Tests of differential expression by themselves are in ``rank_sum.py``.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp

SIZES = {"small": (3_000, 2_000, 50), "big": (16_000, 18_080, 150)}
CONTROL, KEY = "non-targeting", "target_gene"
Figures = tuple[float, float, float]
"""Wall seconds, CPU seconds, peak MB."""


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--cell-eval", default=shutil.which("cell-eval"), help="the command of cell-eval 0.8")
    parser.add_argument("--cell-eval2", default=shutil.which("cell-eval2"), help="the command of cell-eval2 0.20")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            compare(size, Path(folder), args)
    return 0


def compare(size: str, folder: Path, args: argparse.Namespace) -> None:
    """Print both comparisons at one size."""
    cells, genes, perturbations = SIZES[size]
    write_screen(folder, cells, genes, perturbations)
    print(f"\n{cells:,} cells x {genes:,} genes, {perturbations} perturbations, {args.threads} threads")
    print(f"{'':34s}{'wall s':>10s}{'CPU s':>10s}{'peak MB':>10s}")
    own = [sys.executable, "-m", "prima_bench", "evaluate", "--task", "perturbation_prediction"]
    own += ["--perturbation-key", KEY, "--control", CONTROL, "--target-map", "labels"]
    log, counts = (folder / f"real_{s}.h5ad" for s in ("log", "counts"))
    pairs = {
        "cell_eval": (
            [*own, "--scale", "log1p_cp10k", "--metrics", "cell_eval", "--solution", str(log)],
            args.cell_eval,
            f"run -ar {log} -ap {folder}/pred_log.h5ad --pert-col {KEY} --num-threads {args.threads} --profile full",
        ),
        "vcc2026": (
            [*own, "--scale", "counts", "--metrics", "vcc2026", "--solution", str(counts)],
            args.cell_eval2,
            f"run -ar {counts} -ap {folder}/pred_counts.h5ad --preset vcc2026 --pert-col {KEY} --control {CONTROL}",
        ),
    }
    for preset, (ours, peer, arguments) in pairs.items():
        scale = "log" if preset == "cell_eval" else "counts"
        command = [*ours, "--predictions", str(folder / f"pred_{scale}.h5ad"), "--output", str(folder / "ours.json")]
        mine = best(f"prima-bench, preset {preset}", command, folder, args)
        if peer is None:
            print(f"{'':4s}no peer: name its command")
            continue
        out = folder / f"peer_{preset}"
        theirs = best(Path(peer).name, [peer, *arguments.split(), "-o", str(out)], folder, args)
        print(f"{'theirs / ours':34s}" + "".join(f"{t / m:9.1f}x" for t, m in zip(theirs, mine, strict=True)))


def best(name: str, command: Sequence[str], folder: Path, args: argparse.Namespace) -> Figures:
    """Run a command a few times and print the smallest of each figure."""
    runs = [measured(command, folder, args.threads) for _ in range(args.repeats)]
    wall, cpu, peak = (min(column) for column in zip(*runs, strict=True))
    print(f"{name:34s}{wall:10.1f}{cpu:10.1f}{peak:10.0f}", flush=True)
    return wall, cpu, peak


def measured(command: Sequence[str], folder: Path, threads: int) -> Figures:
    """Figures of one process and its children.

    Raises:
        SystemExit: If the command fails; its last words are printed.
    """
    limits = {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL", "NUMBA", "POLARS", "RAYON")}
    log = folder / "log"
    start = time.perf_counter()
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=folder, env=os.environ | limits)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if process.returncode:
        print("\n".join(log.read_text(errors="replace").splitlines()[-20:]), file=sys.stderr)
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def write_screen(folder: Path, cells: int, genes: int, perturbations: int) -> None:
    """A real and a predicted side, as counts and as log1p of counts per 10,000, in CSR."""
    random = np.random.RandomState(0)
    each = cells // (perturbations + 10)
    names = [f"G{i:05d}" for i in range(genes)]
    level = random.lognormal(0.0, 1.6, genes)
    targets = random.choice(np.argsort(-level)[: genes // 2], perturbations, replace=False)
    shared = random.normal(0, 1.0, genes) * (random.rand(genes) < 0.05)
    true = shared + random.normal(0, 1.2, (perturbations, genes)) * (random.rand(perturbations, genes) < 0.1)
    true[np.arange(perturbations), targets] = -2.0
    guess = 0.5 * true + 0.5 * random.normal(0, 1.2, true.shape) * (random.rand(*true.shape) < 0.1)
    labels = [CONTROL] * (cells - each * perturbations) + [names[t] for t in targets for _ in range(each)]
    depth = genes * 0.13
    for side, effects in (("real", true), ("pred", guess)):
        blocks = []
        for effect, n in ((np.zeros(genes), cells - each * perturbations), *((e, each) for e in effects)):
            mean = level * np.exp(effect)
            mean = mean / mean.sum() * depth * random.lognormal(0, 0.3, (n, 1))
            blocks.append(sp.csr_matrix(random.poisson(mean * random.gamma(2.0, 0.5, mean.shape)), dtype=np.float32))
        x = sp.vstack(blocks, format="csr")
        obs = pd.DataFrame({KEY: labels}, index=[f"{side}{i}" for i in range(cells)])
        var = pd.DataFrame(index=names)
        anndata.AnnData(x, obs=obs, var=var).write_h5ad(folder / f"{side}_counts.h5ad")
        log = x.copy()
        log.data = np.log1p(1e4 * log.data / np.repeat(np.asarray(x.sum(axis=1)).ravel(), np.diff(x.indptr)))
        anndata.AnnData(log.astype(np.float32), obs=obs, var=var).write_h5ad(folder / f"{side}_log.h5ad")


if __name__ == "__main__":
    raise SystemExit(main())
