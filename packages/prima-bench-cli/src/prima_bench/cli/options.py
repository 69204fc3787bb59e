"""Options that several commands share, and the completion of names behind the tab key.

Completion asks the registry, which imports nothing heavy; it never raises, since a shell would print the error
into the line being typed.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
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


@contextmanager
def output_file(path: Path, *, suffix: str, others: Sequence[str] = ()) -> Iterator[None]:
    """Make the folder of a file that a command is to write, and refuse a place that cannot be written before any work.

    When the command fails, folders that were made here for nothing are taken away again.

    Args:
        path: The file.
        suffix: What its name ends in.
        others: What else it may end in.

    Raises:
        UsageError: If the path is a folder, has another suffix, or cannot be written.
    """
    if os.path.isdir(path):  # noqa: PTH112 (unlike Path.is_dir it does not raise for a name that is too long)
        raise UsageError(f"--output {path}: is a folder", hint=f"Name a file in it: {path / ('name' + suffix)}")
    if path.suffix not in (suffix, *others):
        ends = " or ".join((suffix, *others))
        raise UsageError(f"--output {path}: the name must end in {ends}", hint=f"Try {path.with_suffix(suffix)}")
    with output_folder(path.parent, file=path.name):
        yield


@contextmanager
def output_folder(path: Path, *, file: str = "") -> Iterator[None]:
    """Make a folder that a command is to write into, and refuse one that cannot be written before any work.

    When the command fails, folders that were made here for nothing are taken away again.

    Args:
        path: The folder.
        file: Name of the file in it that is to be written.

    Raises:
        UsageError: If it cannot be made or written.
    """
    made: list[Path] = []
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            made.insert(0, folder)
        # Files are written beside their place, under a longer name, and then moved: that is what must be possible.
        with NamedTemporaryFile(dir=path, prefix=f".{file}.new-", suffix=".part"):
            pass
    except OSError as error:
        _remove_empty(made)
        raise UsageError(
            f"--output {path / file}: cannot be written: {error.strerror}", hint="Choose another place."
        ) from error
    try:
        yield
    except BaseException:
        _remove_empty(made)
        raise


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
