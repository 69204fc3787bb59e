"""One rank of the process group of ``test_sync.py``: runs every case and writes what it saw.

``python sync_worker.py WORLD MEETING_FILE RANK REPORT``
"""

import json
import runpy
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torchmetrics import MetricCollection

from prima_bench.metrics.errors import ConflictingRowsError, InputError, SyncError
from prima_bench.metrics.rows import SparseRows

TOYS = runpy.run_path(str(Path(__file__).with_name("kernel_toys.py")))
panel, some, data, digest = TOYS["panel"], TOYS["some"], TOYS["data"], TOYS["digest"]
GroupMeans, LAYOUTS, Correlation = TOYS["GroupMeans"], TOYS["LAYOUTS"], TOYS["Correlation"]
N, WIDTH = 301, 37


def sharded(rank: int, world: int, seed: int, group=None) -> str:
    """A random sharding with uneven, sometimes empty ranks, padded duplicates, mixed layouts and dtypes."""
    rng = torch.Generator().manual_seed(seed)
    fields = data(N, WIDTH, seed=1)
    owner = torch.randint(0, world + 1, (N,), generator=rng) % (world - seed % 2)  # odd seeds leave the last one empty
    order = torch.randperm(N, generator=rng)
    padding = torch.randint(0, N, (7,), generator=rng)
    mine = torch.cat([order[owner[order] == rank], padding])
    if seed % 2 and rank == world - 1:
        mine = mine[:0]
    metric = panel(process_group=group)
    for i, rows in enumerate(mine.split(1 + seed % 50)):
        metric.update(index=rows, **some(rows, fields, LAYOUTS[(seed + i + rank) % len(LAYOUTS)]))
    return digest(metric.results())


def everything_everywhere(rank: int, world: int) -> str:
    fields = data(N, WIDTH, seed=1)
    metric = panel()
    metric.update(index=torch.arange(N), **some(torch.arange(N), fields, LAYOUTS[rank]))
    return digest(metric.results())


def large_windows(rank: int, world: int) -> str:
    """Tensors larger than one window, in chunks that straddle the windows."""
    module = sys.modules["prima_bench.metrics.sync"]
    before, module._WINDOW_BYTES = module._WINDOW_BYTES, 1000
    try:
        return sharded(rank, world, seed=4)
    finally:
        module._WINDOW_BYTES = before


def on_one_rank(rank: int, world: int) -> list:
    """Only one rank gets the rows of all; the others keep to their own, and all go on afterwards."""
    fields = data(N, WIDTH, seed=1)
    mine = torch.arange(N)[rank::world] if rank else torch.arange(0)
    metric = panel()
    for rows in mine.split(31):
        metric.update(index=rows, **some(rows, fields, LAYOUTS[rank]))
    seen = []
    for to in range(world):
        with metric.gathered(to) as batch:
            seen.append(None if batch is None else [batch.n, metric.n_rows])
    if not rank:
        rows = torch.arange(N)[0::world]
        metric.update(index=rows, **some(rows, fields))
    return [*seen, metric.n_rows == len(torch.arange(N)[rank::world]), digest(metric.results())]


def other_destination(rank: int, world: int) -> list:
    metric = panel()
    try:
        with metric.gathered(rank % 2):
            return ["no error"]
    except SyncError as error:
        return [str(error), metric.n_rows, metric._is_synced]


def local_rows_come_back(rank: int, world: int) -> list:
    fields = data(N, WIDTH, seed=1)
    mine = torch.arange(rank, N, world)
    metric = panel()
    metric.update(index=mine, **some(mine, fields))
    before = metric.x_chunks[0].data_ptr()
    with metric.synced() as batch:
        seen = [batch.n, metric.n_rows]
    seen += [metric.n_rows == len(mine), metric.x_chunks[0].data_ptr() == before]
    metric.update(index=mine[:2], **some(mine[:2], fields))
    with metric.synced() as batch:
        seen += [batch.n, batch.duplicates_dropped]
    metric.sync()
    seen += [metric._is_synced, metric.n_rows]
    metric.unsync()
    return [*seen, metric._is_synced]


def moved_while_synced(rank: int, world: int) -> list:
    metric = GroupMeans()
    metric.update(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64), torch.arange(2))
    metric.sync()
    metric.to("meta")
    metric.unsync()
    return [str(metric.device), metric.x_chunks[0].device.type]


def conflict_then_mend(rank: int, world: int) -> list:
    fields = data(N, WIDTH, seed=1)
    fields["group"][5] = rank
    metric = panel()
    metric.update(index=torch.arange(N), **some(torch.arange(N), fields))
    seen = []
    try:
        metric.compute()
    except ConflictingRowsError as error:
        seen = [str(error), list(error.rows)]
    fields["group"][5] = 0
    seen += [metric._is_synced, metric.n_rows]
    metric.reset()
    metric.update(index=torch.arange(N), **some(torch.arange(N), fields))
    return [*seen, sorted(metric.compute())]


def refused(metric, rank: int) -> list:
    """What ``compute`` says when ranks disagree, and that the rank's own rows survive it."""
    try:
        metric.compute()
    except SyncError as error:
        return [str(error), metric.n_rows, metric._is_synced]
    return ["no error"]


def other_width(rank: int, world: int) -> list:
    metric = GroupMeans()
    metric.update(torch.ones(2, 3 + (rank == 1)), torch.zeros(2, dtype=torch.int64), torch.arange(2))
    return refused(metric, rank)


def other_tag(rank: int, world: int) -> list:
    metric = panel()
    metric.schema_tag = f"solution {rank // 2}"
    return refused(metric, rank)


def other_tag_of_a_member(rank: int, world: int) -> list:
    metric = panel()
    metric.metrics["first"].schema_tag = f"reference {rank % 2}"
    return refused(metric, rank)


def other_fields(rank: int, world: int) -> list:
    metric = panel()
    part = some(torch.arange(2), data(2, 3, seed=0))
    if rank == 2:
        del part["extra"]
    metric.update(index=torch.arange(2), **part)
    return refused(metric, rank)


def other_metric(rank: int, world: int) -> list:
    return refused(GroupMeans() if rank else Correlation(), rank)


def no_rows(rank: int, world: int) -> list:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric = GroupMeans()
        return [float(metric.compute()), metric.result().reason]


def no_index(rank: int, world: int) -> list:
    try:
        Correlation().update(torch.ones(2), torch.ones(2))
    except InputError as error:
        return [str(error), error.hint]
    return ["no error"]


def own_rows_only(rank: int, world: int) -> list:
    metric = Correlation(sync_on_compute=False)
    metric.update(torch.arange(3.0) + rank, torch.arange(3.0) * (1 - 2 * rank))
    value = float(metric.compute())
    return [value, refused_sync(metric)]


def refused_sync(metric) -> str:
    try:
        metric.sync()
    except SyncError as error:
        return str(error)
    return "no error"


def in_a_loop(rank: int, world: int) -> list:
    """``forward`` gives this rank's batch value; ``compute`` gives the value over all ranks."""
    a, b = torch.linspace(0, 1, 30), torch.linspace(0, 1, 30) ** 2
    metric = Correlation()
    whole = Correlation(sync_on_compute=False)
    whole.update(a, b)
    batches = [float(metric(a[rows], b[rows], rows)) for rows in torch.arange(rank, 30, world).split(5)]
    stepwise = Correlation(dist_sync_on_step=True)
    step = float(stepwise(a[rank::world], b[rank::world], torch.arange(rank, 30, world)))
    collection = MetricCollection({"r": Correlation(), "again": Correlation()})
    collection.update(a[rank::world], b[rank::world], index=torch.arange(rank, 30, world))
    together = collection.compute()
    values = [metric.compute(), stepwise.compute(), whole.compute(), together["r"], together["again"]]
    return [len(batches), stepwise.n_rows, step, *map(float, values)]


def extra_state(rank: int, world: int) -> list:
    class Counted(Correlation):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.add_state("seen", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, preds, target, index=None):
            super().update(preds, target, index)
            self.seen += len(preds)

    metric = Counted()
    for _ in range(rank):
        metric.update(torch.arange(2.0), torch.arange(2.0), torch.arange(2))
    with metric.sync_context():
        return [int(metric.seen), metric.n_rows]


def sparse_without_values(rank: int, world: int) -> float:
    metric = GroupMeans()
    rows = torch.arange(2) + 2 * rank
    metric.update(SparseRows.from_dense(torch.zeros(2, 4)), torch.tensor([0, 1]), rows)
    return float(metric.compute())


def main() -> None:
    world, meeting, rank, report = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1 + rank % 2)
    dist.init_process_group("gloo", f"file://{meeting}", timedelta(seconds=60), world, rank)
    pair = dist.new_group([0, 2])
    cases = {f"sharded {seed}": lambda seed=seed: sharded(rank, world, seed) for seed in range(12)}
    if rank != 1:
        cases.update({f"pair {s}": lambda s=s: sharded(rank // 2, 2, s, group=pair) for s in range(6)})
    for case in (
        everything_everywhere, large_windows, on_one_rank, other_destination, local_rows_come_back,
        moved_while_synced, conflict_then_mend, other_width, other_tag, other_tag_of_a_member,
        other_fields, other_metric, no_rows, no_index, own_rows_only, in_a_loop, extra_state, sparse_without_values,
    ):  # fmt: skip
        cases[case.__name__] = lambda case=case: case(rank, world)
    report.write_text(json.dumps({name: case() for name, case in cases.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
