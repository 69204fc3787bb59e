"""Rank-sum tests of every perturbation against the control, gene by gene: this package beside pdex, illico and hpdex.

    python benchmarks/rank_sum.py --peers /path/to/other/environment/bin/python [--sizes small big] [--repeats 3]

All sides run on the same seeded cells: log-normalised counts of which a tenth is not zero, as a sparse and as a dense
matrix, and continuous values of which 65 % are not zero. They take turns, each in a process of its own every time, so
that a machine whose speed drifts does so for all; a side that takes longer than 20 s has one turn. Wall time, CPU
seconds (user and system, all threads) and peak memory above the input are the best of its turns, after a warm-up on
some of the cells, so that imports and just-in-time compilation are paid before. They cover all that lies between the
matrix in memory and U, p, false discovery rates, means and log fold changes of all pairs. Largest differences of U and
of p (relative) from ours are printed too. Peers need an environment of their own; a peer that is missing there, or that
fails, is named.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"small": (3_000, 2_000, 50), "big": (16_000, 18_080, 150)}
LAYOUTS = ("sparse", "dense", "continuous")
PEERS = ("pdex", "illico", "hpdex")
Arrays = dict[str, Any]
_LONG_ENOUGH = 20.0  # seconds after which one turn will do


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--peers", default="", help="the Python of an environment with pdex, illico and hpdex")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--repeats", type=int, default=3, help="how many turns each side has")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args.case[0], Path(args.case[1]), args.threads)))
        return 0
    print(f"{args.threads} threads, best of {args.repeats}, memory in MB above the input; ratios are theirs over ours")
    for size in args.sizes:
        for layout in args.layouts:
            with tempfile.TemporaryDirectory() as folder:
                compare(size, layout, Path(folder), args)
    return 0


def compare(size: str, layout: str, folder: Path, args: argparse.Namespace) -> None:
    """Print our figures for one matrix, and those of each peer."""
    cells, genes, perturbations = SIZES[size]
    write_cells(folder, layout, cells, genes, perturbations)
    print(f"\n{layout}, {cells:,} cells x {genes:,} genes, {perturbations} perturbations")
    found = take_turns(
        {"prima-bench": sys.executable} | dict.fromkeys(PEERS if args.peers else (), args.peers), folder, args
    )
    ours = found.pop("prima-bench")
    if "failed" in ours:
        raise RuntimeError(f"prima-bench {ours['failed']}")
    _print_line("prima-bench", ours)
    mine = np.load(folder / "prima-bench.npz")
    for peer, theirs in found.items():
        if "failed" in theirs:
            print(f"{peer:<14}{theirs['failed']}")
            continue
        _print_line(peer, theirs)
        ratios = "".join(f"{theirs[key] / max(ours[key], 1e-9):>9.1f}x" for key in ("wall", "cpu", "memory"))
        table = np.load(folder / f"{peer}.npz")
        same = np.maximum(mine["p"], table["p"])
        gap = np.divide(np.abs(mine["p"] - table["p"]), same, out=np.zeros_like(same), where=same > 1e-290)
        print(f"{'':<14}{ratios}   U differs by {np.abs(mine['u'] - table['u']).max():g}, p by {gap.max():.1e}")


def take_turns(sides: dict[str, str], folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The best of each side's turns, or how it failed."""
    best: dict[str, Any] = {}
    for turn in range(args.repeats):
        for side, python in sides.items():
            before = best.get(side)
            if turn and ("failed" in before or before["wall"] > _LONG_ENOUGH):
                continue
            now = _in_a_process(python, side, folder, args)
            both_ran = before and "failed" not in now
            best[side] = {key: min(now[key], before[key]) for key in now} if both_ran else now
    return best


def write_cells(folder: Path, layout: str, cells: int, genes: int, perturbations: int) -> None:
    """Write seeded cells: a sixteenth is control, genes differ in how often they are expressed, cells in total."""
    rng = np.random.default_rng(0)
    group = rng.permutation(np.arange(cells) % (perturbations + 10) - 9).clip(min=0)
    np.save(folder / "group.npy", group)
    if layout == "continuous":
        x = rng.gamma(2.0, size=(cells, genes)).astype(np.float32)
        for row in x:
            row[rng.random(genes, dtype=np.float32) > 0.65] = 0
        np.save(folder / "dense.npy", x)
        return
    share = np.clip(rng.beta(0.6, 5.4, genes), 0, 1)
    values, columns = [], []
    for _ in range(cells):
        column = np.flatnonzero(rng.random(genes) < share).astype(np.int32)
        counts = rng.geometric(0.5, len(column)).astype(np.float32)
        values.append(np.log1p(counts * np.float32(1e4 / rng.integers(2_000, 20_000))))
        columns.append(column)
    lengths = np.array([len(c) for c in columns])
    if layout == "sparse":
        for name, array in {"values": np.concatenate(values), "columns": np.concatenate(columns)}.items():
            np.save(folder / f"{name}.npy", array)
        np.save(folder / "lengths.npy", lengths)
        return
    x = np.zeros((cells, genes), dtype=np.float32)
    for row, column, value in zip(x, columns, values, strict=True):
        row[column] = value
    np.save(folder / "dense.npy", x)


def measure(side: str, folder: Path, threads: int) -> dict[str, Any]:
    """Run one side in this process."""
    cells = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    cells["genes"] = np.array(_genes(cells))
    run = {"prima-bench": prima_bench, "pdex": pdex, "illico": illico, "hpdex": hpdex}[side]
    run(first_cells(cells), threads)()
    again = run(cells, threads)
    _forget_peak()
    before, start, used = _peak_mb(), time.perf_counter(), time.process_time()
    result = again()
    wall, cpu = time.perf_counter() - start, time.process_time() - used
    memory = _peak_mb() - before
    np.savez(folder / f"{side}.npz", **tidy(side, result, cells))
    return {"wall": wall, "cpu": cpu, "memory": memory}


def first_cells(cells: Arrays) -> Arrays:
    """Some of the cells, of every group."""
    n = min(len(cells["group"]), 2_000)
    if "dense" in cells:
        return cells | {"group": cells["group"][:n], "dense": cells["dense"][:n]}
    stored = int(cells["lengths"][:n].sum())
    cut = {"values": stored, "columns": stored, "lengths": n, "group": n}
    return cells | {name: cells[name][:end] for name, end in cut.items()}


def prima_bench(cells: Arrays, threads: int) -> Callable[[], Any]:
    """Our side."""
    import torch

    from prima_bench.metrics import SparseRows, benjamini_hochberg, rank_sum_test

    torch.set_num_threads(threads)
    parts = {name: torch.from_numpy(cells[name]) for name in ("values", "columns", "lengths", "dense") if name in cells}
    x = parts["dense"] if "dense" in parts else SparseRows(**parts, n_columns=int(cells["genes"]))
    group = torch.from_numpy(cells["group"])
    groups = 1 + int(group.max())

    def run() -> Any:
        tests = rank_sum_test(x, group, groups, linear="expm1")
        mean = tests.mean.numpy() + 1e-9
        fold = np.log2(mean[1:] / mean[0])
        return tests, benjamini_hochberg(tests.p_value), fold

    return run


def pdex(cells: Arrays, threads: int) -> Callable[[], Any]:
    from pdex import pdex as de

    cells_ = _anndata(cells)
    return lambda: de(
        cells_, "group", threads=threads, is_log1p=True, geometric_mean=False, epsilon=1e-9, reference="control"
    )


def illico(cells: Arrays, threads: int) -> Callable[[], Any]:
    from illico import asymptotic_wilcoxon

    cells_ = _anndata(cells)
    return lambda: asymptotic_wilcoxon(
        cells_, is_log1p=True, group_keys="group", reference="control", n_threads=threads
    )


def hpdex(cells: Arrays, threads: int) -> Callable[[], Any]:
    from hpdex import parallel_differential_expression

    cells_ = _anndata(cells)
    return lambda: parallel_differential_expression(
        cells_, "group", "control", min_samples=1, threads=threads, show_progress=False
    )


def tidy(side: str, result: Any, cells: Arrays) -> Arrays:
    """U of the perturbation over the control and p, ``[perturbations, genes]``."""
    if side == "prima-bench":
        return {"u": result[0].u.numpy(), "p": result[0].p_value.numpy()}
    if side == "illico":
        result = result.drop(index="control", level="pert").reset_index()
    target, feature, u, p = (
        np.asarray(result[_column(result.columns, *names)])
        for names in (("target", "pert", "group"), ("feature", "gene"), ("statistic",), ("p_value",))
    )
    at = np.array([int(t[1:]) - 1 for t in target]), np.array([int(f[1:]) for f in feature])
    sizes = np.bincount(cells["group"])
    table = {"u": np.full((len(sizes) - 1, int(cells["genes"])), np.nan)}
    table["p"] = table["u"].copy()
    table["u"][at], table["p"][at] = u, p
    return table


def _column(columns: Any, *names: str) -> str:
    return next(str(c) for name in names for c in columns if name in c)


def _anndata(cells: Arrays) -> Any:
    import anndata
    import pandas as pd
    import scipy.sparse

    genes = int(cells["genes"])
    if "dense" in cells:
        x = cells["dense"]
    else:
        starts = np.concatenate([[0], cells["lengths"].cumsum()]).astype(np.int32)
        x = scipy.sparse.csr_matrix((cells["values"], cells["columns"], starts), (len(starts) - 1, genes))
    names = np.array(["control", *(f"p{g:04d}" for g in range(1, 1 + int(cells["group"].max())))])
    obs = pd.DataFrame({"group": pd.Categorical(names[cells["group"]])}, index=[f"c{i}" for i in range(x.shape[0])])
    return anndata.AnnData(x, obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(genes)]))


def _genes(cells: Arrays) -> int:
    return cells["dense"].shape[1] if "dense" in cells else int(cells["columns"].max()) + 1


def _in_a_process(python: str, side: str, folder: Path, args: argparse.Namespace) -> Any:
    command = [python, __file__, f"--threads={args.threads}", "--case", side, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"failed": f"ended with {done.returncode}: {done.stderr.strip()[-200:]}"}
    return json.loads(done.stdout.splitlines()[-1])


def _print_line(name: str, case: Any) -> None:
    print(f"{name:<14}{case['wall']:>8.3f} s{case['cpu']:>8.3f} s{case['memory']:>7.0f} MB", flush=True)


def _forget_peak() -> None:
    """Let the peak start again from what is held now (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    sys.exit(main())
