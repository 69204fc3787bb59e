"""A result as a small table for notebooks: inline styles, inherited colours, so that it reads on light and dark."""

from html import escape
from typing import TYPE_CHECKING

from prima_bench.tasks.results.text import headline, printable, score_table

if TYPE_CHECKING:
    from prima_bench.tasks.results.schema import EvalResult

_CELL = "padding:0.15em 0.9em 0.15em 0;border-bottom:1px solid rgba(128,128,128,0.3);text-align:"
_FAINT = "opacity:0.7;font-size:85%"


def result_html(result: "EvalResult") -> str:
    """The scores as HTML; every text is printable and escaped."""
    header, rows = score_table(result)
    head, *body = [_row(tag, cells) for tag, cells in (("th", header), *(("td", row) for row in rows))]
    p = result.predictions
    foot = f"{p.n_rows} rows · {' · '.join([*result.flags, result.result_digest[:19]])}"
    return (
        '<div style="color:inherit;background:none">'
        f"<div><strong>{escape(headline(result))}</strong></div>"
        f'<table style="border-collapse:collapse;color:inherit;background:none">'
        f"<thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"
        f'<div style="{_FAINT}">{escape(printable(foot))}</div></div>'
    )


def _row(tag: str, cells: list[str]) -> str:
    aligned = ["left", *["right"] * (len(cells) - 2), "left"]
    written = (
        f'<{tag} style="{_CELL}{align}">{escape(printable(cell))}</{tag}>'
        for cell, align in zip(cells, aligned, strict=True)
    )
    return f"<tr>{''.join(written)}</tr>"
