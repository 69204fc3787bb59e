"""A result as plain text, for terminals and logs; what is printed where is the command line's business.

Names and reasons come from files that anybody may have written. Whatever is put into a table here goes through
:func:`printable`, so that none of them can drive the terminal that shows it.
"""

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prima_bench.tasks.results.records import ScoreRecord
    from prima_bench.tasks.results.schema import EvalResult

_NARROWEST = 20
"""Columns that a folded text gets at least, lest it become one word a line."""

ARROWS = {"max": "↑", "min": "↓"}


def printable(text: str) -> str:
    r"""The text on one line and without power over a terminal: what does not print is written out, as ``repr`` does.

    That is control characters, with line ends and escape sequences among them, marks that turn the direction of
    writing, and halves of characters.

    >>> printable("a\x1b[2Jb\n"), printable("Zürich ↑")
    ('a\\x1b[2Jb\\n', 'Zürich ↑')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def columns_of(text: str) -> int:
    """How many columns of a terminal a printable text takes: two for wide characters, none for combining marks.

    >>> columns_of("ab"), columns_of("細胞")
    (2, 4)
    """
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me") else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def clip(text: str, columns: int) -> str:
    """The text, or its beginning and an ellipsis where it takes more than ``columns``.

    >>> clip("perturbation", 8), clip("細胞細胞", 6)
    ('perturb…', '細胞…')
    """
    if columns_of(text) <= columns:
        return text
    end = taken = 0
    while taken + columns_of(text[end]) < columns:
        taken += columns_of(text[end])
        end += 1
    return text[:end] + "…"


def fold(text: str, columns: int, indent: str = "") -> list[str]:
    """A printable text in pieces that fit, at least one; words stay whole.

    Args:
        text: The text; of spaces between words one is kept, those it begins with stay.
        columns: How many a piece may take, unless one word takes more.
        indent: What the pieces but the first begin with.

    Example:
        >>> fold("the mean over all units", 10, "  ")
        ['the mean', '  over all', '  units']
    """
    words = text.split()
    pieces = [text[: len(text) - len(text.lstrip())] + "".join(words[:1])]
    for word in words[1:]:
        if columns_of(pieces[-1]) + 1 + columns_of(word) <= columns:
            pieces[-1] += " " + word
        else:
            pieces.append(indent + word)
    return pieces


def number(value: float | None) -> str:
    """A score in few characters.

    >>> number(0.61234567), number(1234567.0), number(0.0), number(None)
    ('0.6123', '1.235e+06', '0.0000', '—')
    """
    if value is None:
        return "—"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value + 0.0:.4f}"  # so that -0.0 is no other zero
    return f"{value:.3e}"


def share(value: float | None) -> str:
    """A skill in few characters: on its scale a ten-thousandth is nothing, and anchors are kept to 12 digits only.

    >>> share(4.356e-14), share(-0.1249), share(0.0005), share(None)
    ('0.0000', '-0.1249', '0.0005', '—')
    """
    return number(value) if value is None or abs(value) >= 1 else f"{round(value, 4) + 0.0:.4f}"


def numbers(values: Sequence[float | None]) -> list[str]:
    """One metric's scores, written alike so that they can be read down a column.

    Four decimals, unless all are small or one is huge: then powers of ten. Beside ordinary values, one that would
    look like zero and is not is told apart from it.

    >>> numbers([0.25, 9.4e-09, 0.0, -2e-05]), numbers([2.5e-05, 9.4e-09])
    (['0.2500', '<0.0001', '0.0000', '>-0.0001'], ['2.500e-05', '9.400e-09'])
    """
    largest = max((abs(v) for v in values if v is not None), default=0.0)
    if not 1e-2 <= largest < 1e5:
        return [number(v) for v in values]
    return ["—" if v is None else _beside_ordinary(v) for v in values]


def _beside_ordinary(value: float) -> str:
    if value and f"{abs(value):.4f}" == "0.0000":
        return "<0.0001" if value > 0 else ">-0.0001"
    return f"{value + 0.0:.4f}"


def unit_count(score: "ScoreRecord") -> str:
    """How many units a value stands on, and how many were left out."""
    if score.n_units is None:
        return ""
    return f"{score.n_units}" + (f" of {score.n_units + score.n_undefined}" if score.n_undefined else "")


def headline(result: "EvalResult") -> str:
    """Task, dataset and model in one line."""
    model = result.model.name or "unnamed model"
    version = f" {result.model.version}" if result.model.version else ""
    return printable(f"{result.task.name} {result.task.version} on {result.dataset.key}: {model}{version}")


def score_table(result: "EvalResult") -> tuple[list[str], list[list[str]]]:
    """Titles and cells of the scores: metric, value, skill where one is known, units, and what is undefined."""
    skilled = any(score.skill is not None for score in result.scores.values())
    header = ["metric", "value", *(["skill"] if skilled else []), plural(result.units.kind), ""]
    rows = [
        [
            f"{name} {ARROWS[score.direction]}",
            number(score.value),
            *([share(score.skill)] if skilled else []),
            unit_count(score),
            score.reason or "",
        ]
        for name, score in result.scores.items()
    ]
    return header, rows


def result_text(result: "EvalResult", columns: int | None = None) -> str:
    """The whole result but its units.

    Args:
        result: The result.
        columns: The width to fit; None for any.
    """
    p = result.predictions
    header, rows = score_table(result)
    lines = [headline(result), ""]
    lines += table(header, rows, right=range(1, len(header) - 1), columns=columns)
    lines += ["", f"{p.n_rows} rows, {p.n_units} {printable(plural(result.units.kind))}"]
    if p.duplicates_dropped:
        lines[-1] += f", {p.duplicates_dropped} equal repeats counted once"
    lines += [f"flag: {printable(flag)}" for flag in result.flags]
    lines += [f"result {result.result_digest[:19]}, comparable with {result.comparability_key[:19]}"]
    return "\n".join(lines)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), columns: int | None = None
) -> list[str]:
    """Lines of a table with aligned columns and printable cells.

    Args:
        header: One title per column.
        rows: Cells, as many as titles.
        right: Positions of the columns that are flush right.
        columns: The width to fit, by folding the last column where there is room for that; None for any.

    Example:
        >>> table(("a", "b"), [("x", "10"), ("yy", "9")], right=(1,))
        ['a    b', '──────', 'x   10', 'yy   9']
    """
    lines = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(columns_of, column)) for column in zip(*lines, strict=True)]
    gap = "  "
    if columns is not None:
        widths[-1] = min(widths[-1], max(columns - sum(widths[:-1]) - len(gap) * (len(widths) - 1), _NARROWEST))
        lines = [line for row in lines for line in _folded(row, widths[-1])]

    def line(row: Sequence[str]) -> str:
        cells = []
        for c, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - columns_of(cell))
            cells.append(space + cell if c in right else cell + space)
        return gap.join(cells).rstrip()

    rule = "─" * (sum(widths) + len(gap) * (len(widths) - 1))
    return [line(lines[0]), rule, *map(line, lines[1:])]


def _folded(row: list[str], columns: int) -> list[list[str]]:
    """The row, and further ones for what of its last cell takes more than ``columns``."""
    first, *rest = fold(row[-1], columns)
    return [[*row[:-1], first], *([*[""] * (len(row) - 1), piece] for piece in rest)]


def plural(word: str) -> str:
    """The plural of a unit's name.

    >>> plural("class"), plural("perturbation")
    ('classes', 'perturbations')
    """
    return f"{word}es" if word.endswith("s") else f"{word}s"
