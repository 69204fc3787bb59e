"""Peak memory and time of 15 metrics of pseudobulks that share one buffer, beside 15 that do not.

Each way runs in a process of its own on the same random cells. Memory is the peak resident size above what the process
held once the inputs (predicted and true cells) were there, as a multiple of the predicted cells' own size. One thread.

    uv run python benchmarks/panel_memory.py
    uv run python benchmarks/panel_memory.py --cells 50000 --genes 5000 --perturbations 500
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torchmetrics import Metric, MetricCollection

from prima_bench.metrics.base import BufferedMetric
from prima_bench.metrics.catalog import load_metric, parse_ref
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.reference import PerturbationReference

REFS = (
    "mae",
    "mse",
    "rmse",
    "pearson_delta",
    "spearman_delta",
    "cosine_delta",
    "pearson_delta_pertmean",
    "r2_delta",
    "top_k_delta_pearson",
    "pds_cosine",
    "pds_l1",
    "pds_l2",
    "pearson_delta(exclude_targets=own)",
    "top_k_delta_pearson(k=50)",
    "pds_cosine(exclude_targets=own)",
)
LIMIT = 1.3
WAYS = {
    "panel": "15 metrics, one buffer (Panel)",
    "one": "1 metric (mae)",
    "collection": "15 metrics, a buffer each (MetricCollection)",
    "stock": "15 plain torchmetrics metrics that concatenate",
}


class StockMeanError(Metric):
    """What is commonly written: list states, concatenated in compute, then means by group in float32."""

    full_state_update = False
    x: list[torch.Tensor]
    group: list[torch.Tensor]

    def __init__(self, true: torch.Tensor) -> None:
        super().__init__()
        self.true = true
        self.add_state("x", default=[], dist_reduce_fx="cat")
        self.add_state("group", default=[], dist_reduce_fx="cat")

    def update(self, x: torch.Tensor, perturbation: torch.Tensor) -> None:
        self.x.append(x.clone())
        self.group.append(perturbation.clone())

    def compute(self) -> torch.Tensor:
        x, group = torch.cat(self.x), torch.cat(self.group)
        sums = torch.zeros_like(self.true).index_add_(0, group, x)
        return (sums / torch.bincount(group)[:, None] - self.true).abs().mean()


def resident(peak: bool = False) -> int:
    """Bytes that this process holds, or the most it held since the peak was last reset."""
    field = "VmHWM:" if peak else "VmRSS:"
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith(field))
    return int(line.split()[1]) * 1024


def metrics_of(reference: PerturbationReference) -> dict[str, BufferedMetric]:
    metrics: dict[str, BufferedMetric] = {}
    for ref in map(parse_ref, REFS):
        metric: type[Any] = load_metric(ref.name)
        metrics[str(ref)] = metric(reference, **ref.params)
    return metrics


def scorer(
    way: str, reference: PerturbationReference
) -> tuple[Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None], Callable[[], object]]:
    """How a way takes in rows, and how it scores them."""
    if way == "panel":
        panel = Panel(metrics_of(reference))
        return lambda index, x, group: panel.update(index, x=x, group=group), panel.results
    if way == "stock":
        true = reference.profiles().float()
        stock = MetricCollection({r: StockMeanError(true) for r in REFS}, compute_groups=False)
        return lambda _, x, group: stock.update(x, perturbation=group), stock.compute
    metrics = metrics_of(reference)
    some = {"mae": metrics["mae"]} if way == "one" else metrics
    collection = MetricCollection(dict(some), compute_groups=False)
    return lambda index, x, group: collection.update(x, perturbation=group, index=index), collection.compute


def measure(way: str, cells: int, genes: int, perturbations: int, chunk: int) -> dict[str, float]:
    """Score in this process; peak above the inputs in raw sizes, seconds of wall and CPU."""
    torch.manual_seed(0)
    pred, true = torch.rand(cells, genes), torch.rand(cells, genes)
    group = torch.arange(cells) % (perturbations + 1)
    reference = PerturbationReference.from_cells(
        true,
        group,
        num_perturbations=perturbations,
        scale="log1p_cp10k",
        targets=[[p] for p in range(perturbations)],
    )
    # A small problem first: libraries that load on first use belong to the process, not to the panel.
    small = PerturbationReference.from_cells(true[:3], group[:3], num_perturbations=2, scale="log1p_cp10k")
    update, compute = scorer(way, small)
    update(torch.arange(3), pred[:3], group[:3])
    compute()

    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    base, wall, cpu = resident(), time.perf_counter(), time.process_time()
    update, compute = scorer(way, reference)
    for start in range(0, cells, chunk):
        part = slice(start, start + chunk)
        update(torch.arange(cells)[part], pred[part], group[part])
    compute()
    raw = cells * genes * 4
    return {
        "peak": (resident(peak=True) - base) / raw,
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "raw_mb": raw / 2**20,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=20_000)
    parser.add_argument("--genes", type=int, default=5_000)
    parser.add_argument("--perturbations", type=int, default=200)
    parser.add_argument("--chunk", type=int, default=1_000)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = {n: getattr(args, n) for n in ("cells", "genes", "perturbations", "chunk")}
    if args.way:
        print(json.dumps(measure(args.way, **sizes)))
        return 0
    options = [f"--{name}={value}" for name, value in sizes.items()]
    print(f"{args.cells:,} cells x {args.genes:,} genes in float32, {args.perturbations} perturbations")
    print(f"{'':48s} {'peak / raw':>10s} {'wall s':>8s} {'CPU s':>8s}")
    over = False
    for way in args.ways:
        command = [sys.executable, __file__, f"--way={way}", *options]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)
        print(f"{WAYS[way]:48s} {answer['peak']:10.2f} {answer['wall']:8.1f} {answer['cpu']:8.1f}", flush=True)
        over |= way == "panel" and answer["peak"] > LIMIT
    print(f"The panel is meant to stay below {LIMIT}: {'it does not' if over else 'it does'}.")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
