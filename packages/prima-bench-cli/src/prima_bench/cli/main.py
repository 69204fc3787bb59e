"""The entry of ``prima-bench``: it gathers the commands, and is the one place where an error becomes an exit code.

::

    0 done    1 a bug, with its traceback    2 usage    3 unknown name    4 data unavailable
    5 bad predictions    6 incomparable, or a check failed    130 interrupted
"""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from prima_bench.cli.commands import (
    baseline,
    cache,
    demo,
    docs,
    doctor,
    evaluate,
    fetch,
    leaderboard,
    listing,
    merge,
    recipes,
    show,
)
from prima_bench.cli.grammar import Command, Group, complaint
from prima_bench.cli.interrupts import remember
from prima_bench.cli.ranks import place
from prima_bench.cli.render import ReaderGoneError, remark, write
from prima_bench.metrics.errors import MetricError
from prima_bench.storage.errors import StorageError
from prima_bench.tasks.errors import PrimaBenchError
from prima_bench.tasks.registry import broken_modules

INTERRUPTED = 130
UNKNOWN_NAME = 3


class InOrder(Group):
    """Commands in the order in which a user meets them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        first = ["demo", "list", "show", "fetch", "baseline", "evaluate", "merge", "leaderboard"]
        return [*first, *sorted(set(super().list_commands(ctx)) - set(first))]


app = typer.Typer(
    name="prima-bench",
    cls=InOrder,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("demo", short_help="See it all run, on data inside the package.")(demo.demo)
app.add_typer(listing.app, name="list")
app.add_typer(show.app, name="show")
app.command("fetch", short_help="Get a task's training and test data.")(fetch.fetch)
app.command("baseline", short_help="Let a naive model predict.")(baseline.baseline)
app.command("evaluate", cls=Command, short_help="Score predictions.")(evaluate.evaluate)
app.command("merge", cls=Command, short_help="Score the parts of an array job.")(merge.merge)
app.command("leaderboard", cls=Command, short_help="Rank results.")(leaderboard.leaderboard)
app.command("doctor", short_help="Check the installation.")(doctor.doctor)
app.add_typer(cache.app, name="cache")
app.add_typer(docs.app, name="docs")
app.add_typer(recipes.app, name="recipes")


@app.callback(invoke_without_command=True)
def prima_bench(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Score biological foundation models from their predictions.

    \b
    First steps:
      prima-bench demo                see it all run, on data inside the package
      prima-bench list tasks          what can be asked
      prima-bench show task TASK      what a task wants and how it is scored
      prima-bench fetch --task TASK   where its training and test data lie
      prima-bench evaluate --help     how to score your predictions
    """
    if version:
        from importlib.metadata import version as installed

        write(f"prima-bench {installed('prima-bench-cli')}")
    elif ctx.invoked_subcommand is None:
        write(ctx.get_help())
    else:
        return
    raise typer.Exit


def run() -> NoReturn:
    """Run the command in ``sys.argv`` and leave the process with its exit code."""
    # A stream that was closed before we began is none at all for Python; what goes there is for nobody.
    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (it is to stay open)
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show an arrow or a Greek letter must not end an evaluation.
            stream.reconfigure(errors="replace")
    remember()
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Whoever read it has gone. The interpreter flushes once more when it ends; let that go nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if code == INTERRUPTED:
        # Where the signal met code that was run from a text, Python would end itself by the signal, not by this code.
        os._exit(code)
    sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: What follows the program's name.

    Returns:
        The exit code. A bug is not caught: its traceback is the report.
    """
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="prima-bench", standalone_mode=False)
    except ReaderGoneError:
        return 0
    except SystemExit as leaving:
        # What typer itself writes, such as --help, ends like this when nobody reads on.
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        return 0
    except typer.TyperException as error:
        for line in complaint(error):
            remark(line)
        return error.exit_code
    except (PrimaBenchError, MetricError, StorageError) as error:
        here = place()
        remark(f"error: {error.args[0]}" if here.world == 1 else f"rank {here.rank}: error: {error.args[0]}")
        if error.hint:
            remark(f"hint: {error.hint}")
        if error.exit_code == UNKNOWN_NAME and broken_modules():
            remark("note: prima-bench doctor names every module that cannot be read")
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    if code == INTERRUPTED:
        remark("interrupted")
    return code if isinstance(code, int) else 0
