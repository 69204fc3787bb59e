"""The commands that run the whole machine: demo, doctor, recipes; and how they end when something is wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prima_bench.tasks import registry
from prima_bench.tasks.results.schema import EvalResult

Cli = Callable[..., Any]


def test_demo_proves_that_shards_agree(cli: Cli, tmp_path: Path) -> None:
    answer = cli("demo", "--output", tmp_path / "made" / "here")
    assert answer.code == 0, answer.err
    tasks = [registry.get_task(name).spec for name in registry.list_tasks()]
    baselines = [f"{task.name}--{b.name}" for task in tasks for b in task.baselines]
    files = sorted((tmp_path / "made" / "here").iterdir())
    assert [f.stem for f in files] == sorted(baselines)
    digests = re.findall(r"one shot +(\S+).*\n +(\d+) shards +(\S+) +the same", answer.out)
    assert len(digests) == len(baselines)
    assert all(one == other and int(shards) > 2 for one, shards, other in digests)
    assert {one for one, _, _ in digests} == {EvalResult.load(f).result_digest[:23] for f in files}
    for task in tasks:
        assert f"{task.name}@{task.version} on {task.default_dataset}" in answer.out
    closing = answer.out.partition("Equal digests mean ")[2]
    assert "Next\n" in closing
    assert f"prima-bench leaderboard {tmp_path / 'made' / 'here'}" in closing


def test_demo_ends_with_six_when_digests_differ(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prima_bench.cli.commands import demo

    honest = demo.score
    models = iter(range(1000))

    def renamed(run: Any, shards: Any) -> Any:
        # The model's name is part of a result, so another name for each run is a difference that must be seen.
        run._model = run._model.model_copy(update={"name": f"{next(models)}"})
        return honest(run, shards)

    monkeypatch.setattr(demo, "score", renamed)
    monkeypatch.setattr(registry, "list_tasks", lambda: ["cell_type_annotation"])
    answer = cli("demo", "-o", tmp_path)
    assert answer.code == 6
    assert "disagree" in answer.err
    assert "DIFFERS" in answer.out
    assert "Equal digests" not in answer.out


def test_demo_says_where_it_cannot_write(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    answer = cli("demo", "-o", tmp_path / "file" / "results")
    assert answer.code == 2
    assert "--output" in answer.err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_doctor_finds_nothing_wrong_here(cli: Cli) -> None:
    answer = cli("doctor", "--json")
    assert answer.code == 0, answer.out
    found = {finding["check"]: finding for finding in json.loads(answer.out)}
    assert all(finding["state"] != "failed" for finding in found.values())
    assert {"python", "prima-bench", "libraries", "device", "cache", *registry.list_datasets()} <= set(found)
    assert "none" in found["credentials"]["detail"]


def test_doctor_names_what_is_wrong_and_no_secret(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, plugin: Callable[..., Path]
) -> None:
    plugin("prima_bench.tasks", "ill_plugin", "SPEC = 1 +\n")
    monkeypatch.setenv("PRIMA_BENCH_DEVICE", "abacus")
    monkeypatch.setenv("HMAC_BOTO_PRIMA_MENTE_BENCHMARK_SECRET", "hunter2-hunter2")
    answer = cli("doctor")
    assert answer.code == 6
    for wrong in ("ill_plugin", "device", "credentials"):
        assert wrong in answer.err
    assert "SECRET: yes" in answer.out
    assert "hunter2" not in answer.out + answer.err


def test_a_recipe_reproduces_its_dataset(cli: Cli, tmp_path: Path) -> None:
    answer = cli("recipes", "build", "pbmc68k", "--output", tmp_path / "built")
    assert answer.code == 0, answer.err
    spec = registry.get_dataset("pbmc68k").spec
    assert {line.split()[0] for line in answer.out.splitlines()} == {a.sha256 for a in spec.artifacts}
    again = cli("recipes", "build", "pbmc68k", "--output", tmp_path / "built")
    assert again.code == 4
    assert "empty" in again.err


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_interrupted_is_130(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "prima_bench", "demo", "-o", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stderr is not None
    assert child.stderr.readline() == b"loading torch\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert err.endswith(b"interrupted\n")
    assert b"Traceback" not in err


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_an_interrupt_that_a_library_swallows_is_not_lost(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from prima_bench.cli.commands import fetch\n"
        "def swallowing(**_):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    except BaseException:\n"
        "        pass\n"
        "    return fetch.Steps.__call__(steps, 'next'), exit(3)\n"
        "fetch.fetch_data, steps = swallowing, fetch.Steps()\n"
        "sys.argv = ['prima-bench', 'fetch', '--task', 'cell_type_annotation']\n"
        "from prima_bench.cli.main import run\n"
        "run()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stderr.endswith("interrupted\n")
    assert "Traceback" not in done.stderr


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    from prima_bench.cli.commands import listing

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(listing, "_show", broken)
    with pytest.raises(ZeroDivisionError):
        cli("list", "tasks")
