"""``prima-bench demo``: the whole way on data inside the package, with the proof that sharding changes nothing.

It is the first thing that a newcomer runs. It computes nothing of its own: it calls what users call.
"""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prima_bench.cli.cards.scores import embedded
from prima_bench.cli.commands.leaderboard import boards_text
from prima_bench.cli.options import output_folder
from prima_bench.cli.render import Steps, facts, heading, on_terminal, prose, remark, width, write
from prima_bench.tasks import registry
from prima_bench.tasks.errors import IncomparableError

if TYPE_CHECKING:
    from anndata import AnnData

    from prima_bench.tasks.evaluation import Evaluation
    from prima_bench.tasks.results.schema import EvalResult


_MEANING = (
    "Equal digests mean equal results, to the last digit: "
    "however predictions are cut or ordered, a model gets one score."
)


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the results; made when missing.")
    ] = Path("results/demo"),
) -> None:
    """Run everything once, on data inside the package: no account, no download, under a minute.

    For every task: fetch its default dataset, run its naive baselines, score each in one piece and again in shards of
    uneven sizes and shuffled order, check that both results are the same to the last digit, and rank the baselines.
    Ends with 6 if two results differ.

    \b
    Examples:
      prima-bench demo
      prima-bench demo --output /tmp/demo && prima-bench leaderboard /tmp/demo
    """
    began = time.perf_counter()
    disagreeing: list[str] = []
    with output_folder(output):
        for name in registry.list_tasks():
            if embedded(registry.get_dataset(task=name).spec):
                with Steps() as steps:
                    report, differing = _one_task(name, output, steps)
                write(report)
                disagreeing += differing
    if disagreeing:
        raise IncomparableError(f"one shot and shards disagree for {', '.join(disagreeing)}")
    steps_on = [
        ("prima-bench show task TASK", "what to predict, and in which form"),
        ("prima-bench evaluate --help", "score predictions of your own"),
        (f"prima-bench leaderboard {output}", "these rankings again; name your results after it to rank them too"),
        ("GUIDE.md", "the whole way, and how to add a metric, a task, a dataset"),
    ]
    write(f"{prose(_MEANING)}\n\n{heading('Next')}\n{facts(steps_on)}")
    remark(f"took {time.perf_counter() - began:.0f} s")


def _one_task(task: str, output: Path, steps: Steps) -> tuple[str, list[str]]:
    """The report of one task, and the baselines whose two digests differ."""
    steps("loading torch")
    from prima_bench.tasks.artifacts import fetch_data
    from prima_bench.tasks.baselines import run_baseline
    from prima_bench.tasks.evaluation import Evaluation
    from prima_bench.tasks.results.leaderboard import leaderboard

    spec = registry.get_task(task).spec
    steps(f"{task}: fetching {spec.default_dataset}")
    fetch_data(task=task)
    lines = [heading(spec.title)]
    results: list[EvalResult] = []
    differing: list[str] = []
    run: Evaluation | None = None
    for baseline in spec.baselines:
        steps(f"{task}: running {baseline.name}")
        predictions = run_baseline(task=task, name=baseline.name)
        steps(f"{task}: scoring {baseline.name} in one shot")
        # The run before is held until this one is made, so that both share one solution.
        run = Evaluation(task=task, model=baseline.name)
        whole = score(run, [predictions])
        pieces = list(shuffled_shards(predictions, seed=len(results)))
        steps(f"{task}: scoring {baseline.name} in {len(pieces)} shards")
        sharded = score(run, pieces)
        agree = whole.result_digest == sharded.result_digest
        lines.append(f"  {baseline.name}")
        lines.append(f"    one shot   {whole.result_digest[:23]}  {whole.predictions.n_rows} rows")
        lines.append(
            f"    {f'{len(pieces)} shards':<9}  {sharded.result_digest[:23]}  {'the same' if agree else 'DIFFERS'}"
        )
        if not agree:
            differing.append(f"{task}/{baseline.name}")
        whole.save(output / f"{task}--{baseline.name}.json")
        results.append(whole)
    board = boards_text(leaderboard(results), width() if on_terminal() else None)
    return "\n".join([*lines, "", board, ""]), differing


def score(run: "Evaluation", shards: "list[AnnData]") -> "EvalResult":
    """The result of feeding predictions to an evaluation anew, one update for each shard."""
    run.reset()
    for shard in shards:
        run.update(predictions=shard)
    return run.compute()


def shuffled_shards(predictions: "AnnData", *, seed: int) -> "Iterator[AnnData]":
    """Cut predictions into shards of which each holds about half of what is left, rows and shards in random order."""
    chance = random.Random(seed)  # noqa: S311
    rows = list(range(predictions.n_obs))
    chance.shuffle(rows)
    shards = []
    while rows:
        taken = (len(rows) + 1) // 2
        shards.append(rows[:taken])
        rows = rows[taken:]
    chance.shuffle(shards)
    for shard in shards:
        yield predictions[shard].copy()
