"""Measures the anchors of a registered dataset: the trivial baselines of its task and a replicate, by the same code.

What anchors are, and how skill follows from them, is in ``anchors``. This is run when a dataset is built, and again
when a metric gets a new version; the file becomes one of the dataset's pinned artifacts.
"""

from collections.abc import Callable

import torch

from prima_bench.tasks.anchors import Anchored, Anchors, measure
from prima_bench.tasks.artifacts import solution_path
from prima_bench.tasks.baselines import run_baseline
from prima_bench.tasks.errors import UsageError
from prima_bench.tasks.problems.base import Source, open_problem
from prima_bench.tasks.registry import get_dataset, get_task, resolve_metrics


def measure_anchors(name: str, step: Callable[[str], object] = lambda _: None) -> Anchors:
    """The anchors of a dataset for every metric in a preset of its task.

    Metrics that need predicted control cells are left out: the cells to predict hold none.

    Args:
        name: ``name`` or ``name@version``.
        step: Told what is being done.

    Raises:
        UnknownNameError: If there is no such dataset.
        UsageError: If its task has no anchors.
        DataError: If its data cannot be had.
    """
    dataset = get_dataset(name).spec
    task = get_task(dataset.task).spec
    problem = open_problem(task, Source(solution_path(dataset), dataset.options, dataset), torch.device("cpu"))
    if task.null is None or not isinstance(problem, Anchored):
        raise UsageError(f"anchors cannot be measured for {task.name}", hint="Its spec names no null baseline.")
    refs = problem.without_predicted_control(resolve_metrics(task.name, list(task.presets)))
    scores = {}
    for baseline in filter(lambda b: b.trivial, task.baselines):
        step(f"scoring {baseline.name} on {dataset.key}")
        panel = problem.panel(refs)
        with problem.encode(run_baseline(task.name, baseline.name, dataset.key), None, None, None) as encoded:
            panel.extend(encoded.chunks)
        scores[baseline.name] = panel.results()
    step(f"splitting {dataset.key} in halves")
    return measure(problem, refs, scores, task.null)
