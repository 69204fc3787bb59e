"""Makes the examples of docstrings readable on the site, without asking anybody to write them differently.

Griffe knows examples only below an ``Examples:`` heading. Elsewhere ``>>>`` would be three nested quotations to
Markdown, and a list's brackets a link. Roles (``:func:`name```) become code.
"""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([^`]+)`")


class ReadableDocstrings(griffe.Extension):
    """Puts doctests into fenced blocks and roles into code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object (called by Griffe)."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(_ROLE.sub(r"`\1`", obj.docstring.value))


def fenced(docstring: str) -> str:
    """The docstring with every doctest below ``Examples:``, where Griffe finds it, or inside a fence."""
    out: list[str] = []
    for block in docstring.split("\n\n"):
        lines = block.strip("\n").splitlines()
        start = next((i for i, line in enumerate(lines) if line.lstrip().startswith(">>>")), None)
        if start is None:
            out.append(block)
        elif lines[0].strip() in ("Example:", "Examples:"):
            out.append("\n".join([lines[0].replace("Example:", "Examples:"), *lines[1:]]))
        else:
            indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
            before = [*lines[:start], ""] if start else []
            out.append("\n".join([*before, f"{indent}```pycon", *lines[start:], f"{indent}```"]))
    return "\n\n".join(out)
