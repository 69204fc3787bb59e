"""Options that several commands share, and the completion of names behind the tab key.

Completion asks the registry, which imports nothing heavy; it never raises, since a shell would print the error
into the line being typed.
"""

from pathlib import Path
from typing import Annotated

import typer

from prima_bench.tasks.errors import UsageError


def complete_task(incomplete: str) -> list[str]:
    """Names of tasks that begin with what is typed."""
    from prima_bench.tasks.registry import list_tasks

    return _beginning(list_tasks(), incomplete)


def complete_dataset(ctx: typer.Context, incomplete: str) -> list[str]:
    """Keys of datasets that begin with what is typed; those of the task when one is named already."""
    from prima_bench.tasks.registry import list_datasets, list_tasks

    task = ctx.params.get("task")
    return _beginning(list_datasets(task if task in list_tasks() else None), incomplete)


def complete_metric(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of metrics that begin with what is typed; those of the task when one is named already."""
    from prima_bench.tasks.registry import list_metrics, list_tasks

    task = ctx.params.get("task")
    return _beginning(list_metrics(task if task in list_tasks() else None), incomplete)


def complete_panel(ctx: typer.Context, incomplete: str) -> list[str]:
    """Presets and metrics that continue a list separated by commas."""
    from prima_bench.tasks.registry import get_task, list_tasks

    before, comma, last = incomplete.rpartition(",")
    task = ctx.params.get("task")
    presets = sorted(get_task(task).spec.presets) if task in list_tasks() and not comma else []
    return [before + comma + name for name in _beginning(presets, last) + complete_metric(ctx, last)]


def complete_baseline(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the task's baselines that begin with what is typed."""
    from prima_bench.tasks.registry import get_task, list_tasks

    task = ctx.params.get("task")
    known = [b.name for b in get_task(task).spec.baselines] if task in list_tasks() else []
    return _beginning(known, incomplete)


def _beginning(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


Task = Annotated[
    str,
    typer.Option("--task", "-t", metavar="TASK", help="Name of a task.", autocompletion=complete_task),
]
OptionalTask = Annotated[
    str | None,
    typer.Option("--task", "-t", metavar="TASK", help="Only those of this task.", autocompletion=complete_task),
]
Dataset = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        "-d",
        metavar="NAME@VERSION",
        help="A registered dataset; the task's default when left out.",
        autocompletion=complete_dataset,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def check_output(path: Path, *, suffix: str) -> Path:
    """Refuse a place that cannot be written, before anything is computed for it.

    Raises:
        UsageError: If the folder does not exist, the path is a folder, or the suffix is another.
    """
    if path.is_dir():
        raise UsageError(f"--output {path}: is a folder", hint=f"Name a file in it: {path / ('name' + suffix)}")
    if path.suffix != suffix:
        raise UsageError(f"--output {path}: the name must end in {suffix}", hint=f"Try {path.with_suffix(suffix)}")
    if not path.parent.is_dir():
        raise UsageError(
            f"--output {path}: the folder {path.parent} does not exist", hint=f"Create it: mkdir -p {path.parent}"
        )
    return path
