"""Data, panels and ways of handing in predictions that the law tests share; run as a script, it is one rank of a group.

    python laws_data.py FOLDER RANK WORLD_SIZE CASE...

Values are drawn over many decades and kept in float64: on data of one scale sums come out exact and every order looks
right.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch.distributed as dist

from prima_bench.metrics import buffer
from prima_bench.metrics.catalog import get_spec
from prima_bench.tasks.errors import PrimaBenchError
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.registry import list_metrics

PERTURBATIONS = ("AHR", "AHR+KLF1", "KLF1", "one cell")
CASES = ("perturbation, log", "perturbation, counts", "labels", "scores")


def every_metric(task: str) -> list[str]:
    """Every metric of a task by itself, and with every value of every parameter that has a choice."""
    refs = []
    for name in list_metrics(task):
        variants = [f"{name}({p.name}={value})" for p in get_spec(name).params for value in p.choices]
        refs += [name, *variants]
    return refs


def screen(seed: int, log: bool, scale: float = 1.0) -> anndata.AnnData:
    random = np.random.default_rng(seed)
    labels = np.array([*["control"] * 7, *np.repeat(PERTURBATIONS[:3], 5), "one cell"])
    x = random.gamma(0.3, scale * 40.0, (len(labels), 16)) * 10 ** random.uniform(-3, 1, 16)
    x = np.round(x) if not log else np.log1p(1e4 * x / x.sum(axis=1, keepdims=True))
    x[random.random(x.shape) < 0.3] = 0
    names = [f"cell{i}" for i in range(len(labels))]
    var = pd.DataFrame(index=["AHR", "KLF1", *(f"g{i}" for i in range(14))])
    return anndata.AnnData(x, obs=pd.DataFrame({"target": labels}, index=names), var=var)


def solution(case: str, seed: int = 1) -> Any:
    """What the case's predictions are scored against."""
    if case.startswith("perturbation"):
        return screen(seed, case.endswith("log"))
    truth = np.random.default_rng(seed).choice(["B", "NK", "T", "pDC"], 60, p=[0.5, 0.3, 0.15, 0.05])
    return pd.DataFrame({"type": truth}, index=[f"c{i}" for i in range(60)])


def evaluation(case: str, seed: int = 1, **changes: Any) -> Evaluation:
    """A run of every metric of the case's task."""
    if case.startswith("perturbation"):
        arguments: dict[str, Any] = {
            "task": "perturbation_prediction",
            "solution": solution(case, seed),
            "perturbation_key": "target",
            "control": "control",
            "scale": "log1p_cp10k" if case.endswith("log") else "counts",
            "target_map": {"AHR": "AHR", "KLF1": "KLF1", "AHR+KLF1": "AHR+KLF1", "one cell": []},
        }
    else:
        classes = ["B", "NK", "T", "absent", "pDC"]
        truth = solution(case, seed)
        arguments = {"task": "cell_type_annotation", "solution": truth, "label_key": "type", "classes": classes}
    arguments |= {"metrics": every_metric(arguments["task"]), "device": "cpu", "model": case}
    return Evaluation(**arguments | changes)


def predictions(case: str, seed: int = 2) -> Any:
    """Rows of predictions: an AnnData, a Series or a DataFrame, each of which rows can be taken from."""
    if case.startswith("perturbation"):
        return screen(seed, case.endswith("log"), scale=1.3)
    random = np.random.default_rng(seed)
    names = [f"c{i}" for i in range(60)]
    if case == "labels":
        return pd.Series(random.choice(["B", "NK", "T", "absent", "pDC", "unknown"], 60), index=names)
    scores = random.gamma(0.2, 1.0, (60, 5)) + 1e-12
    scores[::7] = 0.2  # ties
    return pd.DataFrame(
        scores / scores.sum(axis=1, keepdims=True), index=names, columns=["pDC", "B", "NK", "T", "absent"]
    )


def take(rows: Any, which: Any, layout: str = "dense") -> Any:
    """Some rows, in another layout."""
    if not isinstance(rows, anndata.AnnData):
        return rows.iloc[which]
    part = rows[which].copy()
    part.X = {"dense": np.asarray, "csr": sp.csr_matrix, "csc": sp.csc_array}[layout](part.X)
    return part


def lasting(document: dict[str, Any]) -> dict[str, Any]:
    """Everything of a result's document that must be the same to the last bit."""
    kept = {key: value for key, value in document.items() if key != "provenance"}
    kept["predictions"] = {k: v for k, v in kept["predictions"].items() if k != "duplicates_dropped"}
    return kept


def shards(rank: int, world: int, n: int) -> Iterator[tuple[str, list[Any]]]:
    """Ways to deal ``n`` rows to ranks: for each, its name and this rank's shards."""
    rows = np.random.default_rng(3).permutation(n)
    uneven = np.split(rows, [n // 5])
    yield "uneven", [uneven[rank]] if rank < 2 else []
    yield "one rank is empty", np.array_split(rows, 3) if rank == 0 else []
    yield "the first rank is empty", np.array_split(rows, 2) if rank == world - 1 else []
    yield "every rank has everything", [np.roll(rows, rank)]
    padded = np.resize(rows, -(-n // world) * world)  # as a sampler pads
    yield "padded and dealt out", np.array_split(padded[rank::world], 4)
    yield "one row at a time", [[row] for row in rows[rank::world]]


def failures(case: str, run: Evaluation, rank: int) -> Iterator[tuple[str, Evaluation]]:
    """Runs whose ``compute`` must fail on every rank: for each, its name and the run."""
    rows = predictions(case)
    everything = np.arange(len(rows))
    run.reset()
    run.update(take(rows if rank == 0 else predictions(case, seed=9), everything))
    yield "conflict", run
    run.reset()
    last = rows.obs["target"].to_numpy() == "one cell" if isinstance(rows, anndata.AnnData) else everything == 59
    run.update(take(rows, ~last))
    yield "missing", run
    other = evaluation(case, seed=1 + rank)
    other.update(take(rows, everything))
    yield "another solution", other
    if case == "labels":
        run.reset()
        run.update(predictions("labels" if rank == 0 else "scores"))
        yield "another form", run


def main(folder: Path, rank: int, world: int, cases: list[str]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world)
    report: dict[str, Any] = {}
    buffer._LEAST_KEPT_BYTES = buffer._SLAB_BYTES = 1
    for case in cases:
        # One rank has its own rows and those it receives on disk, the others have theirs in memory.
        run, rows = evaluation(case, buffer="disk" if rank == 1 else "memory"), predictions(case)
        for name, parts in shards(rank, world, len(rows)):
            run.reset()
            for part, layout in zip(parts, itertools.cycle(["csr", "dense", "csc"]), strict=False):
                run.update(take(rows, part, layout))
            report[f"{case}: {name}"] = json.loads(run.compute().to_json())
        for name, failing in failures(case, run, rank):
            try:
                failing.compute()
                report[f"{case}: {name}"] = "no error"
            except PrimaBenchError as error:
                report[f"{case}: {name}"] = f"{type(error).__name__}: {error.message}"
        run.reset()
        run.update(take(rows, np.arange(len(rows))[rank::world]))
        report[f"{case}: after errors"] = json.loads(run.compute().to_json())
    (folder / f"rank{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
