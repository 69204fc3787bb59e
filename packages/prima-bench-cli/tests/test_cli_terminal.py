"""What a person at a terminal of 80 columns sees, and what a pipe beside it gets."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prima_bench.tasks.results.schema import EvalResult

fcntl = pytest.importorskip("fcntl")
pty = pytest.importorskip("pty")
termios = pytest.importorskip("termios")

COMMAND = [sys.executable, "-m", "prima_bench"]
DIGESTS_AND_URLS = ("sha256:", "https://", "package://")


def at_terminal(*arguments: str, out: bool, columns: int = 80, **environment: str) -> tuple[bytes, bytes, int]:
    """Run with stderr, and stdout too if ``out``, on a terminal; returns what the terminal and the pipe got."""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=other if out else subprocess.PIPE,
        stderr=other,
        stdin=subprocess.DEVNULL,
        env={**{k: v for k, v in os.environ.items() if k != "COLUMNS"}, "TERM": "xterm", **environment},
    )
    os.close(other)
    seen = b""
    while True:
        try:
            piece = os.read(main, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(main)
    piped, _ = child.communicate(timeout=60)
    return seen, piped or b"", child.returncode


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "tasks"],
        ["list", "metrics"],
        ["show", "task", "cell_type_annotation"],
        ["show", "task", "perturbation_prediction"],
        ["show", "dataset", "perturbsim"],
        ["show", "metric", "ece"],
        ["evaluate", "--help"],
    ],
)
def test_nothing_runs_over_the_edge(arguments: list[str]) -> None:
    seen, _, code = at_terminal(*arguments, out=True, NO_COLOR="1")
    assert code == 0
    assert b"\x1b" not in seen
    lines = seen.decode().replace("\r", "").splitlines()
    example = next((i for i, line in enumerate(lines) if line == "Example"), len(lines))
    code_lines = set(range(example, next((i for i, line in enumerate(lines) if line == "Default panel"), example)))
    for number, line in enumerate(lines):
        # Code, digests and addresses stay whole, so that they can be copied.
        if number not in code_lines and not any(mark in line for mark in DIGESTS_AND_URLS):
            assert len(line) <= 80, line


def test_colour_is_for_terminals_that_want_it() -> None:
    assert b"\x1b[1m" in at_terminal("show", "metric", "mae", out=True)[0]
    assert b"\x1b" not in at_terminal("show", "metric", "mae", out=True, NO_COLOR="1")[0]
    piped = subprocess.run(
        [*COMMAND, "show", "metric", "mae"],
        capture_output=True,
        env={**os.environ, "FORCE_COLOR": "1", "GITHUB_ACTIONS": "true"},
        check=True,
    )
    assert b"\x1b" not in piped.stdout


def test_progress_on_a_terminal_leaves_the_pipe_alone(tmp_path: Path) -> None:
    seen, piped, code = at_terminal("fetch", "--task", "cell_type_annotation", "--json", out=False)
    assert code == 0
    assert set(json.loads(piped)) == {"train", "test"}
    assert b"\x1b" not in piped
    assert b"train.h5ad" not in seen


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_narrow_leaderboard_keeps_the_metrics_that_rank(
    cli: Callable[..., Any], tmp_path: Path, columns: int
) -> None:
    predictions, results = str(tmp_path / "p.h5ad"), tmp_path / "results"
    task = ("-t", "cell_type_annotation")
    cli("baseline", *task, "-n", "majority_class", "-o", predictions)
    for name, panel in (("a-model", "default"), ("b-model", "labels"), ("c-" + 50 * "x", "default"), ("d", "mcc,ece")):
        cli("evaluate", *task, "-p", predictions, "-o", results / f"{name}.json", "--model", name, "-m", panel)
    (results / f"{30 * 'long '}.json").write_text("{}")
    seen = at_terminal("leaderboard", str(results), out=True, columns=columns)[0].decode().replace("\r", "")
    lines = seen.splitlines()
    assert max(len(line) for line in lines if str(results) not in line) <= columns
    # Of what does not fit, notes are folded and say everything; only tables leave columns out.
    text = " ".join(seen.split())
    result = EvalResult.load(results / "a-model.json")
    assert all(name in text for name in result.scores)
    assert "f1_macro ↑" in text
    assert "c-xxx" in text
    assert text.count("differs in metrics: ") == 2
    assert "not ranked: d: none of the task's primary metrics (f1_macro, accuracy) was computed" in text
    assert "is no evaluation result" in text
    everything = subprocess.run([*COMMAND, "leaderboard", str(results)], check=True, capture_output=True, text=True)
    assert "coverage_accuracy ↑" in everything.stdout
    assert "more: " not in everything.stdout


def test_an_empty_folder_has_no_results(tmp_path: Path) -> None:
    assert at_terminal("leaderboard", str(tmp_path), out=True)[0] == b"no results\r\n"
