"""Peak memory of an exchange between ranks, against what the ranks hold: run as it is, it starts the ranks itself.

    python benchmarks/sync_memory.py [--ranks 2] [--megabytes 500]

Every rank is a process of a gloo group that holds the given amount of rows. Shown is the largest resident memory of
each rank while it exchanges and holds the rows of all, above what it had before; for ``all`` and for ``rank0``, and for
stock torchmetrics on the same rows. The limit is 2.2 times local state plus the gathered rows of the others.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTH = 2000
WAYS = ("all", "rank0", "stock torchmetrics")


class Peak:
    """The largest resident memory while it lasts, sampled every millisecond, in MB."""

    def __enter__(self) -> "Peak":
        self.before = self.largest = resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.after = resident()

    @property
    def above(self) -> float:
        return self.largest - self.before

    def _watch(self) -> None:
        while not self._stop.wait(0.001):
            self.largest = max(self.largest, resident())


def resident() -> float:
    """Resident memory of this process in MB."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def holder(way: str, rank: int, rows: int) -> tuple[float, Callable[[], Any]]:
    """A metric full of rows: MB held, and what exchanges them."""
    import torch

    from prima_bench.metrics.base import BufferedMetric, Field, Score

    class Rows(BufferedMetric):
        fields = (Field("x", "real", "rows"),)
        higher_is_better = True

        def update(self, x: Any, index: Any = None) -> None:
            self._append({"x": x}, index, owned=True)

        def score(self, batch: Any) -> Score:
            return Score(float(batch.n))

    steps = range(rank * rows, (rank + 1) * rows, 500)
    if way == "stock torchmetrics":
        from torchmetrics import CatMetric

        stock = CatMetric()
        for start in steps:
            stock.update(torch.rand(500, WIDTH) + start)
        return rows * WIDTH * 4 / 1e6, stock.compute
    metric = Rows()
    for start in steps:
        metric.update(torch.rand(500, WIDTH), torch.arange(start, start + 500))

    def exchanged() -> Any:
        if way == "all":
            return metric.compute()
        with metric.gathered(0) as batch:
            return None if batch is None else metric.score(batch)

    return rows * WIDTH * 4 / 1e6, exchanged


def rank_main(way: str, rank: int, world: int, megabytes: int, folder: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world)
    rows = -(-megabytes * 1_000_000 // (4 * WIDTH) // 500) * 500
    held, exchange = holder(way, rank, rows)
    dist.barrier()
    began = time.perf_counter()
    with Peak() as peak:
        exchange()
    seconds = time.perf_counter() - began
    (folder / f"{rank}.json").write_text(
        json.dumps({"held": held, "peak": peak.above, "after": peak.after - peak.before, "seconds": seconds})
    )
    dist.barrier()


def measured(way: str, world: int, megabytes: int) -> list[dict[str, float]]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as name:
        words = [way, str(world), str(megabytes), name]
        ranks = [
            subprocess.Popen([sys.executable, __file__, "--rank", str(rank), *words], env=environment)
            for rank in range(world)
        ]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            raise SystemExit(f"{way}: a rank failed")
        return [json.loads((Path(name) / f"{rank}.json").read_text()) for rank in range(world)]


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        rank, way, world, megabytes, folder = sys.argv[2:]
        rank_main(way, int(rank), int(world), int(megabytes), Path(folder))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=500)
    asked = parser.parse_args()
    print(f"{asked.ranks} ranks x {asked.megabytes} MB")
    print(f"{'way':20}{'rank':>5}{'held MB':>9}{'peak MB':>9}{'x held':>8}{'limit':>7}{'after MB':>10}{'seconds':>9}")
    for way in WAYS:
        for rank, seen in enumerate(measured(way, asked.ranks, asked.megabytes)):
            gathered = seen["held"] * asked.ranks
            # Above the rows held already: the limit counts those once.
            limit = (2.2 * seen["held"] + gathered) / seen["held"] - 1
            ratio = seen["peak"] / seen["held"]
            print(
                f"{way:20}{rank:5}{seen['held']:9.0f}{seen['peak']:9.0f}{ratio:8.2f}{limit:7.1f}"
                f"{seen['after']:10.0f}{seen['seconds']:9.1f}"
            )


if __name__ == "__main__":
    main()
