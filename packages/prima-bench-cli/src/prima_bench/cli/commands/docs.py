"""``prima-bench docs``: write the cards of all tasks, datasets and metrics, or say which ones are stale."""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

from pathlib import Path
from typing import Annotated

import typer

from prima_bench.cli.grammar import Group
from prima_bench.cli.render import Steps, remark, write
from prima_bench.tasks.errors import IncomparableError

app = typer.Typer(cls=Group, no_args_is_help=True)


@app.callback()
def docs() -> None:
    """Write the documentation's cards."""


@app.command()
def build(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the documentation; cards/ goes into it.")
    ] = Path("docs"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; end with 6 and name the cards that are stale.")
    ] = False,
) -> None:
    """Write a card for each thing that is registered.

    A card is a Markdown page for a task, a dataset or a metric, those of plugins included. Everything on it comes from
    its spec, and the baselines' scores from an evaluation that runs here. Paths of written or stale cards are printed.

    \b
    Examples:
      prima-bench docs build
      prima-bench docs build --check
    """
    from prima_bench.cli.cards.scores import baseline_results
    from prima_bench.cli.cards.writer import changes, render_cards, write_cards

    with Steps() as steps:
        cards = render_cards(baseline_results(steps))
    differing = changes(cards, output / "cards")
    if differing:
        write("\n".join(str(output / "cards" / name) for name in differing))
    if check and differing:
        raise IncomparableError(f"{len(differing)} stale cards", hint="Run prima-bench docs build and commit.")
    if not check:
        write_cards(cards, output / "cards", differing)
    remark(f"{len(cards)} cards, {len(differing)} {'written' if differing else 'changed'}")
