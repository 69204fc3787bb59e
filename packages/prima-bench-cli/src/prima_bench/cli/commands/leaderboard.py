"""``prima-bench leaderboard``: rank the results that lie in a folder, in tables that fit the terminal."""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prima_bench.cli.options import Json
from prima_bench.cli.render import cut, on_terminal, width, write, write_json

if TYPE_CHECKING:
    from prima_bench.tasks.results.leaderboard import Board, Leaderboard


def leaderboard(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with result files, searched to the bottom.", exists=True)
    ],
    as_json: Json = False,
) -> None:
    """Rank the results in a folder, one table for each set of results that may be compared.

    Results on another dataset, with another panel or another version of a metric stand in a table of their own. A
    narrow terminal shows the metrics that fit; a pipe and --json get all.

    \b
    Examples:
      prima-bench leaderboard results
      prima-bench leaderboard results --json
    """
    from prima_bench.tasks.results.leaderboard import leaderboard as rank

    ranked = rank(directory)
    if as_json:
        write_json(ranked.to_dict())
    else:
        write(boards_text(ranked, width() if on_terminal() else None))


def boards_text(ranked: "Leaderboard", columns: int | None) -> str:
    """All boards, each as wide as ``columns`` allows; None allows everything."""
    if columns is None or not ranked.boards:
        return ranked.to_text()
    blocks = [_fitted(board, columns) for board in ranked.boards]
    blocks += [f"left out: {entry.path}: {entry.reason}" for entry in ranked.left_out]
    return "\n\n".join(blocks)


def _fitted(board: "Board", columns: int) -> str:
    names = [*board.order_by, *(name for name in board.directions if name not in board.order_by)]
    shown = board
    for kept in range(len(names), 0, -1):
        shown = replace(board, directions={name: board.directions[name] for name in names[:kept]})
        # The title and remarks may be long; what must fit is the table, whose rule is as long as its longest line.
        if max((len(line) for line in shown.to_text().splitlines() if set(line) == {"─"}), default=0) <= columns:
            break
    hidden = names[len(shown.directions) :]
    note = [cut(f"and {len(hidden)} more: {', '.join(hidden)}", columns)] if hidden else []
    return "\n".join([*(cut(line, columns) for line in shown.to_text().splitlines()), *note])
