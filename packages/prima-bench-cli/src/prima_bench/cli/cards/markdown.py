"""Markdown's syntax, and nothing about what is written in it."""

from collections.abc import Iterable, Sequence

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


def code(text: str, language: str = "") -> str:
    """A fenced block, its fence longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.strip()}\n{fence}"


def bullets(items: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {item}" for item in items)


def link(label: str, target: str) -> str:
    """A link.

    >>> link("mae", "../metrics/mae.md")
    '[mae](../metrics/mae.md)'
    """
    return f"[{label}]({target})"


def tick(text: str) -> str:
    """Code inside a line.

    >>> tick("a`b")
    '`` a`b ``'
    """
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "&#124;") for cell in cells) + " |"
