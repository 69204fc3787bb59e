"""How the command line speaks: data to stdout by plain writes, progress and remarks to stderr.

It knows tables, facts, JSON and steps, and nothing of tasks or scores. Nothing here wraps or colours what another
program reads: columns are cut to the terminal's width only where there is a terminal. What passes through
:func:`write`, :func:`write_json` and :func:`remark` cannot drive a terminal, wherever it came from.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from prima_bench.cli.interrupts import heed
from prima_bench.tasks.errors import DataError
from prima_bench.tasks.results import text

if TYPE_CHECKING:
    from rich.progress import Progress

_PIPED_WIDTH = 80
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_OURS = re.compile(f"({re.escape(_BOLD)}|{re.escape(_PLAIN)}|[\n\t])")
"""What :func:`write` lets through that is no printable character: spacing, and what :func:`heading` adds."""


class ReaderGoneError(Exception):
    """Whoever read stdout has stopped reading, as ``head`` does; nobody needs to be told."""


def write(data: str = "") -> None:
    """Write one piece of data to stdout, followed by a line end.

    Raises:
        ReaderGoneError: If the pipe is closed.
        DataError: If there is no room for it.
    """
    try:
        sys.stdout.write("".join(p if _OURS.fullmatch(p) else text.printable(p) for p in _OURS.split(data)) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGoneError from None
    except OSError as error:
        raise DataError(f"cannot write to stdout: {error.strerror}") from error


def write_json(value: Any) -> None:
    """Write a value as strict JSON, indented, one document; what does not print is escaped, which JSON reads alike.

    Raises:
        ReaderGoneError: If the pipe is closed.
        DataError: If there is no room for it.
    """
    lines = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).split("\n")
    write("\n".join("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line) for line in lines))


def remark(sentence: str) -> None:
    """Write a line for the person, not for the program, to stderr; when it cannot be had there, work goes on."""
    with suppress(OSError):
        sys.stderr.write("\n".join(map(text.printable, sentence.split("\n"))) + "\n")
        sys.stderr.flush()


def on_terminal(stream: TextIO | None = None) -> bool:
    """Whether a person reads the stream (stdout unless given)."""
    return (stream or sys.stdout).isatty()


def width() -> int:
    """Columns that fit: the terminal's, or 80 where there is none."""
    return shutil.get_terminal_size((_PIPED_WIDTH, 24)).columns if on_terminal() else _PIPED_WIDTH


def heading(line: str) -> str:
    """A line that stands out: bold on a terminal that can, plain elsewhere."""
    can = on_terminal() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return f"{_BOLD}{text.printable(line)}{_PLAIN}" if can else line


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Columns of text; on a terminal the last one is folded to fit, and what still runs over the edge is cut.

    Args:
        header: One title per column.
        rows: Cells, as many as titles.
        right: Positions of the columns that are aligned to the right.
    """
    edge = width() if on_terminal() else None
    return "\n".join(cut(line, edge) for line in text.table(header, list(rows), right, edge))


def cut(line: str, limit: int | None) -> str:
    """The line, or its beginning and an ellipsis where it is longer than ``limit``.

    >>> cut("perturbation", 8)
    'perturb…'
    """
    if limit is None:
        return line
    return line[:limit] if set(line) == {"─"} else text.clip(line, limit)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Labels with their values beside them, the values wrapped under themselves; lines of a value are kept.

    >>> print(facts([("name", "mae"), ("range", "0 to inf")]))
    name   mae
    range  0 to inf
    """
    known = list(pairs)
    indent = max(len(label) for label, _ in known) + 2
    out = []
    for label, value in known:
        lines = [part for line in value.splitlines() or [""] for part in wrapped(line, width() - indent)]
        out.append((label.ljust(indent) + lines[0]).rstrip())
        out.extend((" " * indent + line).rstrip() for line in lines[1:])
    return "\n".join(out)


def prose(markdown: str) -> str:
    """Markdown prose for reading as it is: every line wrapped by itself, code and tables left alone."""
    out: list[str] = []
    fenced = False
    for line in markdown.strip().splitlines():
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        if fence or fenced or line.startswith(("    ", "|")):
            out.append(line.rstrip())
        else:
            out.extend(wrapped(line, width(), "  " if line.startswith(("- ", "* ")) else ""))
    return "\n".join(out)


def wrapped(line: str, columns: int, indent: str = "") -> list[str]:
    """The line in pieces that fit, but for very narrow terminals; pieces but the first begin with ``indent``."""
    return text.fold(line, max(columns, 20), indent)


class Steps:
    """Says on stderr what is being done: one moving line with the time on a terminal, a line for each step elsewhere.

    Write data to stdout after it has ended: on a terminal both share the screen.

    Args:
        quiet: Say nothing, as the processes but the first of several do.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        if not self._quiet and on_terminal(sys.stderr) and os.environ.get("TERM") != "dumb":
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            # Without the redirects of rich, stdout stays what it is: a pipe gets every byte and nothing else.
            self._progress = Progress(
                SpinnerColumn("line"),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._progress.add_task("starting")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, step: str) -> None:
        """Name the step that begins now.

        Raises:
            KeyboardInterrupt: If an interrupt got lost in the step before.
        """
        heed()
        if self._quiet:
            return
        if self._progress is None:
            remark(step)
        else:
            self._progress.update(self._progress.task_ids[0], description=text.printable(step))
