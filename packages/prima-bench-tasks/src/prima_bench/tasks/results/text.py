"""A result as plain text, for terminals and logs; what is printed where is the command line's business."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prima_bench.tasks.results.schema import EvalResult, ScoreRecord

ARROWS = {"max": "↑", "min": "↓"}


def number(value: float | None) -> str:
    """A score in few characters.

    >>> number(0.61234567), number(1234567.0), number(0.0), number(None)
    ('0.6123', '1.235e+06', '0.0000', '—')
    """
    if value is None:
        return "—"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4f}"
    return f"{value:.3e}"


def unit_count(score: "ScoreRecord") -> str:
    """How many units a value stands on, and how many were left out."""
    if score.n_units is None:
        return ""
    return f"{score.n_units}" + (f" of {score.n_units + score.n_undefined}" if score.n_undefined else "")


def headline(result: "EvalResult") -> str:
    """Task, dataset and model in one line."""
    model = result.model.name or "unnamed model"
    version = f" {result.model.version}" if result.model.version else ""
    return f"{result.task.name} {result.task.version} on {result.dataset.key}: {model}{version}"


def result_text(result: "EvalResult") -> str:
    """The whole result but its units."""
    p = result.predictions
    rows = [
        (f"{name} {ARROWS[s.direction]}", number(s.value), unit_count(s), s.reason or "")
        for name, s in result.scores.items()
    ]
    lines = [headline(result), ""]
    lines += table(("metric", "value", plural(result.units.kind), ""), rows, right=(1, 2))
    lines += ["", f"{p.n_rows} rows, {p.n_units} {plural(result.units.kind)}"]
    if p.duplicates_dropped:
        lines[-1] += f", {p.duplicates_dropped} equal repeats counted once"
    lines += [f"flag: {flag}" for flag in result.flags]
    lines += [f"result {result.result_digest[:19]}, comparable with {result.comparability_key[:19]}"]
    return "\n".join(lines)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lines of a table with aligned columns; those in ``right`` are flush right.

    >>> table(("a", "b"), [("x", "10"), ("yy", "9")], right=(1,))
    ['a    b', '──────', 'x   10', 'yy   9']
    """
    widths = [max(len(row[c]) for row in (header, *rows)) for c in range(len(header))]
    gap = "  "

    def line(row: Sequence[str]) -> str:
        cells = (t.rjust(w) if c in right else t.ljust(w) for c, (t, w) in enumerate(zip(row, widths, strict=True)))
        return gap.join(cells).rstrip()

    return [line(header), "─" * (sum(widths) + len(gap) * (len(widths) - 1)), *map(line, rows)]


def plural(word: str) -> str:
    """The plural of a unit's name.

    >>> plural("class"), plural("perturbation")
    ('classes', 'perturbations')
    """
    return f"{word}es" if word.endswith("s") else f"{word}s"
