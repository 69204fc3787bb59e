"""``prima-bench list``: the names that are registered, one a line, with a sentence beside them on a terminal."""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

import typer

from prima_bench.cli.grammar import Group
from prima_bench.cli.options import Json, OptionalTask
from prima_bench.cli.render import facts, on_terminal, remark, write, write_json
from prima_bench.metrics.catalog import get_spec
from prima_bench.tasks import registry

app = typer.Typer(cls=Group, no_args_is_help=True)


@app.callback()
def list_() -> None:
    """List the registered tasks, datasets and metrics."""


@app.command()
def tasks(as_json: Json = False) -> None:
    """List the tasks: the questions that can be asked of a model.

    \b
    Examples:
      prima-bench list tasks
      prima-bench list tasks --json
    """
    specs = [registry.get_task(name).spec for name in registry.list_tasks()]
    _show([(s.name, s.summary) for s in specs], as_json=as_json)


@app.command()
def datasets(task: OptionalTask = None, as_json: Json = False) -> None:
    """List the datasets as name@version.

    Each belongs to one task.

    \b
    Examples:
      prima-bench list datasets
      prima-bench list datasets --task perturbation_prediction
    """
    specs = [registry.get_dataset(key).spec for key in registry.list_datasets(task)]
    _show([(s.key, s.title) for s in specs], as_json=as_json)


@app.command()
def metrics(task: OptionalTask = None, as_json: Json = False) -> None:
    """List the metrics; with --task, those that score it.

    \b
    Examples:
      prima-bench list metrics
      prima-bench list metrics --task cell_type_annotation
    """
    specs = [get_spec(name) for name in registry.list_metrics(task)]
    _show([(s.name, s.title) for s in specs], as_json=as_json)


def _show(entries: list[tuple[str, str]], *, as_json: bool) -> None:
    if as_json:
        write_json([name for name, _ in entries])
    elif on_terminal() and entries:
        write(facts(entries))
    elif entries:
        write("\n".join(name for name, _ in entries))
    for broken in registry.broken_modules():
        remark(f"warning: {broken.module} cannot be read: {broken.reason}; see prima-bench doctor")
