"""Listing, showing, completing: what must be quick, light and exact about names."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prima_bench.metrics.catalog import list_specs
from prima_bench.tasks import registry

HEAVY = ("torch", "torchmetrics", "pandas", "anndata", "scipy", "sklearn", "boto3", "botocore")


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "tasks"],
        ["list", "datasets", "--task", "perturbation_prediction"],
        ["list", "metrics"],
        ["show", "task", "cell_type_annotation"],
        ["show", "dataset", "pbmc68k"],
        ["show", "metric", "mae"],
        ["evaluate", "--help"],
        ["show", "task", "nothing"],
        ["show", "pearson-delta"],
        ["evaluate", "-t", "nothing", "-p", __file__, "-o", "r.json"],
        ["evaluate", "-t", "cell_type_annotation", "-d", "nope", "-p", __file__, "-o", "r.json"],
        ["evaluate", "-t", "cell_type_annotation", "-m", "nope", "-p", __file__, "-o", "r.json"],
        ["evaluate", "-t", "cell_type_annotation", "--scale", "counts", "-p", __file__, "-o", "r.json"],
        ["evaluate", "-t", "cell_type_annotation", "--solution", __file__, "-p", __file__, "-o", "r.json"],
        ["baseline", "-t", "cell_type_annotation", "-n", "nope", "-o", "p.h5ad"],
        ["baseline", "-t", "cell_type_annotation", "-n", "majority_class", "-d", "nope", "-o", "p.h5ad"],
        ["fetch", "-t", "cell_type_annotation", "-d", "nope"],
    ],
)
def test_names_need_no_heavy_import(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom prima_bench.cli.main import main\n"
        f"main({arguments!r})\n"
        f"loaded = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "sys.exit(f'imported {loaded}' if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("group", [[], ["list"], ["show"], ["cache"], ["docs"], ["recipes"]])
def test_no_summary_of_a_command_is_cut_off(cli: Callable[..., Any], group: list[str]) -> None:
    commands = cli(*group, "--help").out.partition("Commands:")[2]
    assert commands
    assert "..." not in commands


def test_list_mirrors_the_api(cli: Callable[..., Any]) -> None:
    assert cli("list", "tasks").out.splitlines() == registry.list_tasks()
    assert cli("list", "datasets").out.splitlines() == registry.list_datasets()
    for task in registry.list_tasks():
        assert cli("list", "metrics", "--task", task).out.splitlines() == registry.list_metrics(task)
        assert json.loads(cli("list", "datasets", "-t", task, "--json").out) == registry.list_datasets(task)


def test_show_as_json_is_the_whole_spec(cli: Callable[..., Any]) -> None:
    for spec in list_specs():
        shown = json.loads(cli("show", "metric", spec.name, "--json").out)
        assert (shown["name"], shown["formula"], shown["range"]) == (spec.name, spec.formula, list(spec.range))
        assert [p["name"] for p in shown["params"]] == [p.name for p in spec.params]
    for name in registry.list_tasks():
        shown = json.loads(cli("show", "task", name, "--json").out)
        assert shown["presets"]["default"] == list(registry.get_task(name).spec.presets["default"])
    for key in registry.list_datasets():
        shown = json.loads(cli("show", "dataset", key, "--json").out)
        assert [a["sha256"] for a in shown["artifacts"]] == [a.sha256 for a in registry.get_dataset(key).spec.artifacts]


def test_show_says_what_the_spec_says(cli: Callable[..., Any]) -> None:
    for spec in list_specs():
        shown = " ".join(cli("show", "metric", spec.name).out.split())
        for fact in (spec.title, spec.summary, spec.formula, spec.undefined, *spec.references):
            assert " ".join(fact.split()) in shown
    for name in registry.list_tasks():
        task = registry.get_task(name).spec
        shown = cli("show", "task", name).out
        for fact in (task.title, *(b.name for b in task.baselines), *task.presets["default"], task.example.strip()):
            assert fact in shown


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["show", "task", "pertubation_prediction"], "perturbation_prediction"),
        (["show", "dataset", "pbmc68"], "pbmc68k"),
        (["show", "metric", "f1_macr"], "f1_macro"),
        (["list", "metrics", "--task", "cell_type"], "cell_type_annotation"),
        (["fetch", "--task", "cell_type"], "cell_type_annotation"),
        (["baseline", "-t", "cell_type_annotation", "-n", "majority", "-o", "x.h5ad"], "majority_class"),
    ],
)
def test_unknown_names_suggest_near_ones(cli: Callable[..., Any], arguments: list[str], near: str) -> None:
    answer = cli(*arguments)
    assert answer.code == 3
    assert near in answer.err
    assert "error: unknown" in answer.err
    assert answer.out == ""


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["show", "pds_cosine"], "prima-bench show metric pds_cosine"),
        (["show", "pearson-delta"], "prima-bench show metric pearson_delta"),
        (["show", "pbmc68k"], "prima-bench show dataset pbmc68k"),
        (["show", "perturbsim@1.0.0"], "prima-bench show dataset perturbsim@1.0.0"),
        (["show", "perturbation_prediction"], "prima-bench show task perturbation_prediction"),
        (["show", "metrics"], "Nearest: metric, "),
        (["list", "task"], "Nearest: tasks, "),
        (["list", "--task", "cell_type_annotation"], "Options follow the command"),
        (["evalute"], "Nearest: evaluate, "),
        (["evaluate", "--datset", "pbmc68k"], "Nearest: --dataset, "),
        (["evaluate", "--labelkey=x"], "Nearest: --label-key, "),
        (["evaluate", "--preds", "x"], "Nearest: --predictions, "),
        (["list", "tasks", "--jso"], "Nearest: --json, "),
    ],
)
def test_wrong_words_are_answered_with_the_right_ones(
    cli: Callable[..., Any], arguments: list[str], meant: str
) -> None:
    answer = cli(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert f"hint: {meant}" in answer.err.replace("Say what it is: ", "")


@pytest.mark.parametrize(
    "arguments",
    [["evaluate"], ["list", "things"], ["list", "tasks", "--nonsense"], ["nothing"], ["list"], ["fetch", "--task"]],
)
def test_usage_errors_are_two(cli: Callable[..., Any], arguments: list[str]) -> None:
    answer = cli(*arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err


@pytest.mark.parametrize(
    "command",
    [
        [],
        *(["list", kind] for kind in ("tasks", "datasets", "metrics")),
        *(["show", kind] for kind in ("task", "dataset", "metric")),
        *([name] for name in ("fetch", "baseline", "evaluate", "leaderboard", "demo", "doctor")),
        ["docs", "build"],
        ["recipes", "build"],
    ],
)
def test_help_teaches_with_examples(cli: Callable[..., Any], command: list[str]) -> None:
    answer = cli(*command, "--help")
    assert answer.code == 0
    assert f"prima-bench {' '.join(command)}".strip() in answer.out.replace("Usage: prima-bench", "", 1)
    assert "\x1b" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
    for typed_like_python in ("{", "}", "<str>", "<path>", "list["):
        assert typed_like_python not in answer.out


def test_version_and_bare_call(cli: Callable[..., Any]) -> None:
    assert cli("--version").out.startswith("prima-bench 0.")
    bare = cli()
    assert bare.code == 0
    assert "Commands:" in bare.out


def complete(*words: str) -> list[str]:
    environment = {
        **os.environ,
        "_PRIMA_BENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    code = "from prima_bench.cli.main import run; run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == ""
    return done.stdout.split()


def test_the_tab_key_completes_names() -> None:
    assert complete("prima-bench", "show", "task", "per") == ["perturbation_prediction"]
    assert complete("prima-bench", "evaluate", "--task", "cell") == ["cell_type_annotation"]
    of_task = complete("prima-bench", "evaluate", "--task", "cell_type_annotation", "--dataset", "p")
    assert of_task == ["pbmc68k@1.0.0"]
    assert complete("prima-bench", "evaluate", "-t", "cell_type_annotation", "-m", "mcc,f1_m") == ["mcc,f1_macro"]
    baselines = [b.name for b in registry.get_task("perturbation_prediction").spec.baselines]
    assert complete("prima-bench", "baseline", "-t", "perturbation_prediction", "-n", "") == baselines
    assert complete("prima-bench", "evaluate", "--task", "no_such_task", "--dataset", "pb") == ["pbmc68k@1.0.0"]


def test_a_reader_who_leaves_is_no_error() -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'prima_bench', 'show', 'task', 'cell_type_annotation'],"
        " stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "child.stdout.close()\n"
        "err = child.stderr.read()\n"
        "sys.exit(err.decode() or child.wait())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_broken_plugin_hides_nothing_and_is_named(cli: Callable[..., Any], plugin: Callable[..., Path]) -> None:
    plugin("prima_bench.tasks", "broken_plugin", "SPEC = open('nothing')\n")
    answer = cli("list", "tasks")
    assert answer.code == 0
    assert answer.out.splitlines() == ["cell_type_annotation", "perturbation_prediction"]
    assert "broken_plugin" in answer.err


def test_an_unknown_name_leads_to_the_module_that_cannot_be_read(
    cli: Callable[..., Any], plugin: Callable[..., Path]
) -> None:
    plugin("prima_bench.metrics", "other_plugin", "SPECS = (")
    plugin("prima_bench.metrics", "my_recall", "SPECS = make()\n")
    for arguments in (
        ["show", "metric", "my_recall"],
        ["evaluate", "-t", "cell_type_annotation", "-p", __file__, "-o", "r.json", "-m", "my_recall"],
    ):
        answer = cli(*arguments)
        assert answer.code == 3
        assert "Not read: my_recall (ValueError: my_recall.py:1: make() is not a literal" in answer.err
        assert "prima-bench doctor" in answer.err
