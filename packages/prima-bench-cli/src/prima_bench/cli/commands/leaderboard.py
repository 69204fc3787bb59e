"""``prima-bench leaderboard``: rank results, in tables that fit the terminal."""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prima_bench.cli.options import Json
from prima_bench.cli.render import cut, on_terminal, width, wrapped, write, write_json

if TYPE_CHECKING:
    from prima_bench.tasks.results.leaderboard import Board, Leaderboard


def leaderboard(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|FILE", help="Result files, and folders that are searched to the bottom.", exists=True
        ),
    ],
    as_json: Json = False,
) -> None:
    """Rank results, in one table for each set of results that may be compared.

    Results on another dataset, with another panel or another version of a metric stand in a table of their own. A
    narrow terminal shows the metrics that fit; a pipe and --json get all.

    \b
    Examples:
      prima-bench leaderboard results
      prima-bench leaderboard results --json
      prima-bench leaderboard results/demo mine.json
    """
    from prima_bench.tasks.results.leaderboard import leaderboard as rank

    ranked = rank(sources)
    if as_json:
        write_json(ranked.to_dict())
    else:
        write(boards_text(ranked, width() if on_terminal() else None))


def boards_text(ranked: "Leaderboard", columns: int | None) -> str:
    """All boards, each as wide as ``columns`` allows; None allows everything."""
    if columns is None:
        return ranked.to_text()
    blocks = ["\n".join(_fitted(board, columns)) for board in ranked.boards]
    rest = replace(ranked, boards=()).to_text() if ranked.left_out or not ranked.boards else ""
    blocks += ["\n".join(_folded(rest.splitlines(), columns))] if rest else []
    return "\n\n".join(blocks)


def _fitted(board: "Board", columns: int) -> list[str]:
    """The lines of a board with the metrics that fit; those that rank come first and stay longest."""
    names = [*board.order_by, *(name for name in board.directions if name not in board.order_by)]
    lines: list[str] = []
    kept = len(names)
    for kept in range(len(names), 0, -1):
        lines = _with(board, names[:kept]).to_text().splitlines()
        if len(lines[_rule(lines)]) <= columns:
            break
    first, last = _rule(lines) - 1, _rule(lines) + len(board.rows)
    hidden = names[kept:]
    note = [f"and {len(hidden)} more: {', '.join(hidden)}"] if hidden else []
    table = [cut(line, columns) for line in lines[first : last + 1]]
    return [*_folded(lines[:first], columns), *table, *_folded([*note, *lines[last + 1 :]], columns)]


def _with(board: "Board", names: list[str]) -> "Board":
    order_by = tuple(name for name in board.order_by if name in names)
    return replace(board, directions={name: board.directions[name] for name in names}, order_by=order_by)


def _rule(lines: list[str]) -> int:
    return next(i for i, line in enumerate(lines) if set(line) == {"─"})


def _folded(lines: list[str], columns: int) -> list[str]:
    return [piece for line in lines for piece in wrapped(line, columns, "    ")]
