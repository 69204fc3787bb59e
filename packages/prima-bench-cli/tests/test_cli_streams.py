"""What reaches stdout and stderr: nothing that drives a terminal, JSON alone where JSON is asked for, quiet ends."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import pandas as pd
import pytest

from prima_bench.cli.render import write, write_json

Cli = Callable[..., Any]
LABELS = "cell_type_annotation"
HOSTILE = "evil\x1b[2J\x1b]0;title\x07\r\x7f\x9b31m\u202e"
ENTRY = "from prima_bench.cli.main import run; run()"


def harmless(text: str) -> bool:
    return all(c.isprintable() for c in text.replace("\n", ""))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a truth and predictions whose labels, ids and file names are hostile."""
    names = [f"c{i}{HOSTILE}" for i in range(4)]
    truth = anndata.AnnData(obs=pd.DataFrame({"kind": ["a", "b", f"b{HOSTILE}", "a"]}, index=names))
    truth.write_h5ad(tmp_path / f"truth{HOSTILE}.h5ad")
    truth[:3].copy().write_h5ad(tmp_path / f"missing{HOSTILE}.h5ad")
    return tmp_path


def evaluate(cli: Cli, own: Path, predictions: str, *options: str | Path) -> Any:
    return cli(
        *("evaluate", "-t", LABELS, "--solution", own / f"truth{HOSTILE}.h5ad", "--label-key", "kind"),
        *("-p", own / f"{predictions}{HOSTILE}.h5ad", "-m", "f1_macro", "-o", own / "results" / f"r{HOSTILE}.json"),
        *("--model", f"m{HOSTILE}", *options),
    )


def test_nothing_in_a_file_drives_a_terminal(cli: Cli, own: Path) -> None:
    for options in ((), ("--json",)):
        answer = evaluate(cli, own, "truth", *options)
        assert answer.code == 0, answer.err
        assert harmless(answer.out)
        assert harmless(answer.err)
    assert json.loads(answer.out)["model"]["name"] == f"m{HOSTILE}"
    board = cli("leaderboard", own / "results")
    assert harmless(board.out)
    assert r"mevil\x1b[2J" in board.out
    as_json = cli("leaderboard", own / "results", "--json")
    assert harmless(as_json.out)
    assert json.loads(as_json.out)["boards"][0]["rows"][0]["model"] == f"m{HOSTILE}"


def test_no_error_drives_a_terminal(cli: Cli, own: Path) -> None:
    missing = evaluate(cli, own, "missing")
    assert missing.code == 5
    wrong = [
        missing,
        evaluate(cli, own, "truth", "--classes", f"x{HOSTILE}"),
        evaluate(cli, own, "truth", f"--opt{HOSTILE}"),
        evaluate(cli, own, "truth", "--metrics", f"m{HOSTILE}"),
        cli("fetch", "--task", LABELS, "--dataset", f"d{HOSTILE}"),
        evaluate(cli, own, "absent"),
        cli("show", "task", f"t{HOSTILE}"),
        cli("show", f"t{HOSTILE}"),
        cli(f"t{HOSTILE}"),
        cli("list", "metrics", "--task", f"t{HOSTILE}"),
        cli("leaderboard", own / f"absent{HOSTILE}"),
        cli("demo", "-o", own / f"truth{HOSTILE}.h5ad" / "x"),
    ]
    for answer in wrong:
        assert answer.code in (2, 3, 5)
        assert answer.out == ""
        assert harmless(answer.err)
        assert "evil" in answer.err


def test_writing_keeps_layout_and_json_keeps_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    write("a\tb\n\x1b[31mc ↑")
    assert capsys.readouterr().out == "a\tb\n\\x1b[31mc ↑\n"
    value = {HOSTILE: [HOSTILE, "Zürich ↑", 1.5, None], "astral": "\U000e0001"}
    write_json(value)
    out = capsys.readouterr().out
    assert harmless(out)
    assert "Zürich ↑" in out
    assert json.loads(out) == value


@pytest.mark.parametrize(
    "arguments",
    [
        *(["list", kind] for kind in ("tasks", "datasets", "metrics")),
        ["list", "metrics", "--task", LABELS],
        *(["show", *what] for what in (("task", LABELS), ("dataset", "pbmc68k"), ("metric", "mae"))),
        ["fetch", "--task", LABELS],
        ["doctor"],
    ],
)
def test_json_stands_alone_on_stdout(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, *arguments, "--json"], capture_output=True, text=True, check=True
    )
    json.loads(done.stdout)
    assert done.stdout.startswith(("[", "{"))
    assert done.stdout.endswith(("]\n", "}\n"))


@pytest.mark.skipif(os.name == "nt", reason="pipes end otherwise")
@pytest.mark.parametrize(
    ("arguments", "closed", "code"),
    [
        (["--help"], "stdout", 0),
        (["evaluate", "--help"], "stdout", 0),
        (["list", "metrics"], "stdout", 0),
        (["show", "task", LABELS, "--json"], "stdout", 0),
        (["evaluate"], "stderr", 2),
        (["fetch", "--task", LABELS], "stderr", 0),
    ],
)
def test_a_reader_who_leaves_ends_it_quietly(arguments: list[str], closed: str, code: int) -> None:
    read, write_end = os.pipe()
    os.close(read)
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: write_end}
    child = subprocess.Popen([sys.executable, "-c", ENTRY, *arguments], **streams)
    os.close(write_end)
    out, err = child.communicate(timeout=60)
    assert child.returncode == code
    assert not err
    assert bool(out) == (arguments[0] == "fetch")


@pytest.mark.skipif(os.name == "nt", reason="descriptors are closed otherwise")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_are_not_there_are_for_nobody(closed: str) -> None:
    command = f'"{sys.executable}" -c "{ENTRY}" list tasks {closed}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_disk_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", ENTRY, "list", "tasks"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 4
    assert done.stderr.startswith("error: cannot write to stdout: ")
    assert len(done.stderr.splitlines()) == 1
