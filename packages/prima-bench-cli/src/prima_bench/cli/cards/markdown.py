"""Markdown's syntax, and nothing about what is written in it."""

from collections.abc import Iterable, Sequence

from prima_bench.tasks.results import text

MARK = "<!-- Written by `prima-bench docs build`: change the spec, not this page. -->"


def page(*blocks: str) -> str:
    """A whole page: the mark of generated pages, then blocks with a blank line between them; empty blocks vanish."""
    return "\n\n".join([MARK, *(block.strip() for block in blocks if block.strip())]) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """A table; empty when there are no rows.

    >>> print(table(["a", "b"], [["x|y", "1"]], right=[1]))
    | a | b |
    |---|---:|
    | x&#124;y | 1 |
    """
    body = [_row(row) for row in rows]
    if not body:
        return ""
    rule = "|" + "|".join("---:" if i in right else "---" for i in range(len(header))) + "|"
    return "\n".join([_row(header), rule, *body])


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A table of labels and values, without those whose value is empty."""
    return table(["", ""], [(f"**{label}**", value) for label, value in pairs if value])


def code(block: str, language: str = "") -> str:
    """A fenced block, its fence longer than any in the text."""
    fence = "```"
    while fence in block:
        fence += "`"
    return f"{fence}{language}\n{block.strip()}\n{fence}"


def bullets(items: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {item}" for item in items)


def link(label: str, target: str) -> str:
    """A link.

    >>> link("mae", "../metrics/mae.md")
    '[mae](../metrics/mae.md)'
    """
    return f"[{label}]({target})"


def tick(word: str) -> str:
    """Code inside a line.

    >>> tick("a`b")
    '`` a`b ``'
    """
    return f"`` {word} ``" if "`" in word else f"`{word}`"


def score(x: float | None) -> str:
    """A score as cards show it: what is nothing but rounding is zero, since another machine may round otherwise.

    >>> score(0.61234), score(-9e-9), score(None)
    ('0.6123', '0.0000', '—')
    """
    return text.number(0.0 if x is not None and abs(x) < 1e-6 else x)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "&#124;") for cell in cells) + " |"
