"""Options for data of one's own: the same names as in the API, refused early and in the words that were typed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.cli.own_data import OF_PREDICTIONS, OPTIONAL, REQUIRED, as_options, read_classes
from prima_bench.tasks import registry
from prima_bench.tasks.errors import UsageError
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.request import PREDICTION_OPTIONS
from prima_bench.tasks.results.schema import EvalResult

Cli = Callable[..., Any]
LABELS = "cell_type_annotation"
EXPRESSION = "perturbation_prediction"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a truth of three classes, labels, probabilities and logits."""
    names = [f"cell{i}" for i in range(8)]
    random = np.random.RandomState(1)
    logits = pd.DataFrame(random.normal(size=(8, 4)), index=names, columns=["b", "t", "nk", "mono"])
    exponential = np.exp(logits)
    logits.to_csv(tmp_path / "logits.csv")
    exponential.div(exponential.sum(axis=1), axis=0).to_csv(tmp_path / "probabilities.csv")
    pd.DataFrame({"kind": [*list("btbtbt"), "nk", "nk"]}, index=names).to_csv(tmp_path / "truth.csv")
    return tmp_path


def evaluate(cli: Cli, own: Path, predictions: str, *options: str | Path) -> Any:
    solution = ("--solution", own / "truth.csv", "--label-key", "kind")
    arguments = ("-p", own / predictions, "-o", own / "r.json", "-m", "f1_macro,log_loss")
    return cli("evaluate", "-t", LABELS, *solution, *arguments, *options)


@pytest.mark.parametrize("written", ["list", "file", "windows"])
def test_classes_and_scores_are_those_of_the_api(cli: Cli, own: Path, written: str) -> None:
    classes = ["b", "t", "nk", "mono"]
    text = {"list": "b, t,nk,mono", "file": "classes.txt", "windows": "classes.txt"}[written]
    if written != "list":
        ending = "\r\n" if written == "windows" else "\n"
        mark = "\ufeff" if written == "windows" else ""
        text = str(own / text)
        Path(text).write_bytes((mark + ending.join([*classes, "", ""])).encode())
    for predictions, scores in (("logits", "logit"), ("probabilities", "probability")):
        answer = evaluate(cli, own, f"{predictions}.csv", "--classes", text, "--scores", scores)
        assert answer.code == 0, answer.err
        run = Evaluation(
            LABELS,
            solution=own / "truth.csv",
            label_key="kind",
            classes=classes,
            scores=scores,
            metrics="f1_macro,log_loss",
        )
        run.update(own / f"{predictions}.csv")
        assert EvalResult.load(own / "r.json").result_digest == run.compute().result_digest


def test_scores_may_stand_beside_a_dataset(cli: Cli, own: Path) -> None:
    cli("baseline", "-t", LABELS, "-n", "nearest_centroid", "-o", own / "p.h5ad")
    task = ("evaluate", "-t", LABELS, "-p", own / "p.h5ad", "-o", own / "r.json", "-m", "log_loss")
    assert cli(*task, "--scores", "probability").code == 0
    as_probabilities = EvalResult.load(own / "r.json").scores["log_loss"].value
    assert cli(*task, "--scores", "logit").code == 0
    assert EvalResult.load(own / "r.json").scores["log_loss"].value != as_probabilities


def test_contexts_and_anchors_are_those_of_the_api(cli: Cli, tmp_path: Path) -> None:
    labels = np.tile(np.repeat(["ctrl", "g0", "g1", "g2"], 8), 2)
    obs = pd.DataFrame({"target": labels, "donor": np.repeat(["d1", "d2"], 32)}, index=[f"c{i}" for i in range(64)])
    counts = np.random.RandomState(1).poisson(5, size=(64, 12)).astype("float32")
    truth = anndata.AnnData(counts, obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(12)]))
    truth.write_h5ad(tmp_path / "truth.h5ad")
    answer = cli(
        *("evaluate", "-t", EXPRESSION, "--solution", tmp_path / "truth.h5ad", "-m", "mae"),
        *("--perturbation-key", "target", "--control", "ctrl", "--scale", "counts", "--context-key", "donor"),
        *("--anchors", "-p", tmp_path / "truth.h5ad", "-o", tmp_path / "r.json"),
    )
    assert answer.code == 0, answer.err
    options = {"perturbation_key": "target", "control": "ctrl", "scale": "counts", "context_key": "donor"}
    run = Evaluation(EXPRESSION, metrics="mae", solution=tmp_path / "truth.h5ad", anchors=True, **options)
    run.update(tmp_path / "truth.h5ad")
    result = EvalResult.load(tmp_path / "r.json")
    assert result.result_digest == run.compute().result_digest
    assert result.predictions.n_units == 6
    if result.scores["mae"].skill is not None:
        assert "skill" in answer.out


def test_classes_that_cannot_be_are_refused(cli: Cli, own: Path) -> None:
    (own / "binary.txt").write_bytes(b"\xff\xfe\x00b")
    for classes, named in [
        ("absent.txt", "there is no such file"),
        (own, "there is no such file"),
        (own / "binary.txt", "cannot be read as text"),
        ("b,t", "labels that --classes lacks: 'nk'"),
        ("b,t,nk,t", "--classes names a class more than once"),
        ("b,t,,nk", "--classes holds an empty name"),
    ]:
        answer = evaluate(cli, own, "probabilities.csv", "--classes", classes)
        assert (answer.code, answer.out) == (2, "")
        assert named in answer.err
        assert "classes=" not in answer.err


def test_options_are_the_keywords_of_the_api() -> None:
    assert OF_PREDICTIONS == PREDICTION_OPTIONS
    families = {registry.get_task(name).spec.problem: name for name in registry.list_tasks()}
    assert set(families) == set(REQUIRED) == set(OPTIONAL)
    for family, task in families.items():
        with pytest.raises(UsageError, match="must be given") as caught:
            Evaluation(task, solution=pd.DataFrame())
        for name in REQUIRED[family]:
            assert f"{name}=" in caught.value.message
        given = dict.fromkeys(REQUIRED[family], "x")
        with pytest.raises(UsageError, match="unknown option 'nothing'") as caught:
            Evaluation(task, solution=pd.DataFrame(), nothing=1, **given)
        assert caught.value.hint.endswith(f"All: {', '.join((*REQUIRED[family], *OPTIONAL[family]))}.")


@pytest.mark.parametrize(
    ("task", "options", "message", "hint"),
    [
        (
            EXPRESSION,
            ["--scale", "counts", "--dataset", "perturbsim"],
            "--scale says how a solution of your own is read, but a dataset is scored against",
            "Leave out --scale, or add --solution FILE, in the place of --dataset perturbsim.",
        ),
        (
            EXPRESSION,
            ["--scale", "counts", "--control", "c", "--perturbation-key", "x"],
            "--perturbation-key, --control and --scale say how a solution of your own is read",
            "Leave out --perturbation-key, --control and --scale, or add --solution FILE.",
        ),
        (
            EXPRESSION,
            ["--solution", "PREDICTIONS", "--scale", "counts"],
            "--solution needs --perturbation-key and --control",
            "Nothing about a solution is guessed",
        ),
        (
            EXPRESSION,
            ["--solution", "PREDICTIONS", "--label-key", "x"],
            "--label-key has no meaning for perturbation_prediction",
            "--solution, --perturbation-key, --control, --scale, --target-map, --target-separator, --context-key.",
        ),
        (
            LABELS,
            ["--scale", "counts", "--control", "x"],
            "--control and --scale have no meaning for cell_type_annotation",
            "--solution, --label-key, --classes, --scores.",
        ),
        (LABELS, ["--solution", "PREDICTIONS"], "--solution needs --label-key", "Nothing about a solution"),
        (
            LABELS,
            ["--solution", "PREDICTIONS", "--dataset", "pbmc68k"],
            "--solution and --dataset exclude each other",
            "Leave out one of the two.",
        ),
        (LABELS, ["--scores", "logits"], "'logits' is not one of 'probability', 'logit'", "evaluate --help"),
        (
            LABELS,
            ["--solution", "PREDICTIONS", "--label-key", "x"],
            "the solution has no column 'x'",
            "Nearest: kind",
        ),
    ],
)
def test_options_that_do_not_go_together(
    cli: Cli, own: Path, task: str, options: list[str], message: str, hint: str
) -> None:
    truth = str(own / "truth.csv")
    given = [truth if word == "PREDICTIONS" else word for word in options]
    answer = cli("evaluate", "-t", task, "-p", truth, "-o", own / "r.json", *given)
    assert (answer.code, answer.out) == (2, "")
    error, _, advice = answer.err.partition("hint: ")
    assert message in error
    assert hint in advice


def test_errors_speak_of_what_was_typed(cli: Cli, own: Path) -> None:
    answer = evaluate(cli, own, "logits.csv", "--classes", "b,t,nk,mono")
    assert answer.code == 5
    assert "--scores logit" in answer.err
    assert "scores=" not in answer.err


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("label_key= must be given", "--label-key must be given"),
        ("scale='counts' was declared", "--scale counts was declared"),
        ('Declare scores="probability" or scores="logit".', "Declare --scores probability or --scores logit."),
        ("target_map 'x' is neither", "--target-map 'x' is neither"),
        ("target_map='labels' reads", "--target-map labels reads"),
        ("hand in further shards with update().", "hand in further shards with --predictions."),
        ("distinct names, or pass ids=; a cell is", "distinct names; a cell is"),
        ("Add obs['t'], or pass perturbation=, one label for each cell.", "Add obs['t']."),
        (
            "f1_macro(labels=union), pds_l1(control_source=solution)",
            "f1_macro(labels=union), pds_l1(control_source=solution)",
        ),
        ("the scale of the solution", "the scale of the solution"),
    ],
)
def test_keywords_become_options(said: str, typed: str) -> None:
    assert as_options(said) == typed


def test_a_list_of_classes_may_be_longer_than_the_name_of_a_file() -> None:
    names = [f"class {i}" for i in range(1000)]
    assert read_classes(",".join(names)) == names


@given(st.lists(st.from_regex(r"[A-Za-z][A-Za-z +-]{0,8}[A-Za-z]", fullmatch=True), min_size=2))
def test_a_list_of_classes_is_read_as_it_was_written(names: list[str]) -> None:
    assert read_classes(",".join(names)) == read_classes(", ".join(names)) == names
