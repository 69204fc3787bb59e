"""A result as a small table for notebooks: inline styles, inherited colours, so that it reads on light and dark."""

from html import escape
from typing import TYPE_CHECKING

from prima_bench.tasks.results.text import ARROWS, headline, number, plural, printable, unit_count

if TYPE_CHECKING:
    from prima_bench.tasks.results.schema import EvalResult

_CELL = "padding:0.15em 0.9em 0.15em 0;border-bottom:1px solid rgba(128,128,128,0.3);text-align:"
_FAINT = "opacity:0.7;font-size:85%"


def result_html(result: "EvalResult") -> str:
    """The scores as HTML; every text is printable and escaped."""
    rows = []
    for name, score in result.scores.items():
        cells = (
            (f"{name} {ARROWS[score.direction]}", "left"),
            (number(score.value), "right"),
            (unit_count(score), "right"),
            (score.reason or "", "left"),
        )
        rows.append("<tr>" + "".join(_cell("td", text, align) for text, align in cells) + "</tr>")
    header = (("metric", "left"), ("value", "right"), (plural(result.units.kind), "right"), ("", "left"))
    head = "<tr>" + "".join(_cell("th", text, align) for text, align in header) + "</tr>"
    p = result.predictions
    foot = f"{p.n_rows} rows · {' · '.join([*result.flags, result.result_digest[:19]])}"
    return (
        '<div style="color:inherit;background:none">'
        f"<div><strong>{escape(headline(result))}</strong></div>"
        f'<table style="border-collapse:collapse;color:inherit;background:none">'
        f"<thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"
        f'<div style="{_FAINT}">{escape(printable(foot))}</div></div>'
    )


def _cell(tag: str, text: str, align: str) -> str:
    return f'<{tag} style="{_CELL}{align}">{escape(printable(text))}</{tag}>'
