"""How far downloads and uploads are, in the line that says what a command does."""

import contextlib
import sys
import time
from collections.abc import Iterator

from prima_bench.cli.render import Steps, on_terminal
from prima_bench.storage.transfer.progress import Report, listening

_EVERY = 5.0
"""Seconds between two lines where there is no terminal."""


@contextlib.contextmanager
def transfers(steps: Steps) -> Iterator[None]:
    """Let ``steps`` tell of every transfer in this block: on a terminal as it moves, elsewhere a line now and then."""
    told = time.monotonic()

    def tell(report: Report) -> None:
        nonlocal told
        if report.finished:
            return
        if on_terminal(sys.stderr) or time.monotonic() - told >= _EVERY:
            told = time.monotonic()
            steps(str(report))

    with listening(tell):
        yield
