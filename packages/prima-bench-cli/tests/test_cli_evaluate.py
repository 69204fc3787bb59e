"""From predictions in files to a result and a ranking, by the commands alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest

from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.results.schema import EvalResult

Cli = Callable[..., Any]
LABELS = "cell_type_annotation"


@pytest.fixture(scope="module")
def predictions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Predictions of a baseline, written by the command."""
    from prima_bench.cli.main import main

    path = tmp_path_factory.mktemp("predictions") / "centroid.h5ad"
    assert main(["baseline", "-t", LABELS, "-n", "nearest_centroid", "-o", str(path)]) == 0
    assert [p.name for p in path.parent.iterdir()] == ["centroid.h5ad"]
    return path


def strict(text: str) -> Any:
    """Parse JSON in which NaN and infinity are errors."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def test_fetch_prints_two_paths_that_load(cli: Cli) -> None:
    for task in (LABELS, "perturbation_prediction"):
        train, test = cli("fetch", "--task", task).out.splitlines()
        assert anndata.read_h5ad(train).n_obs > anndata.read_h5ad(test).n_obs > 0
        assert strict(cli("fetch", "--task", task, "--json").out) == {"train": train, "test": test}


def test_result_file_stdout_and_api_say_the_same(cli: Cli, predictions: Path, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    answer = cli("evaluate", "-t", LABELS, "-p", predictions, "-o", output, "--model", "m", "--json")
    assert answer.code == 0
    assert strict(answer.out) == strict(output.read_text(encoding="utf-8"))
    run = Evaluation(LABELS, model="m")
    run.update(predictions=predictions)
    assert EvalResult.load(output).result_digest == run.compute().result_digest


def test_the_table_has_every_metric(cli: Cli, predictions: Path, tmp_path: Path) -> None:
    answer = cli("evaluate", "-t", LABELS, "-p", predictions, "-o", tmp_path / "r.json", "-m", "labels")
    result = EvalResult.load(tmp_path / "r.json")
    assert len(result.scores) > 5
    for name, score in result.scores.items():
        line = next(line for line in answer.out.splitlines() if line.startswith(f"{name} "))
        assert f"{score.value:.4f}" in line
        assert ("↑" if score.direction == "max" else "↓") in line
    assert "wrote" in answer.err


def test_shards_by_any_spelling_give_one_digest(cli: Cli, predictions: Path, tmp_path: Path) -> None:
    cells = anndata.read_h5ad(predictions)
    order = np.random.RandomState(3).permutation(cells.n_obs)
    files = []
    for number, rows in enumerate(np.split(order, [1, 40, 41, 200])):
        files.append(tmp_path / f"{number}.h5ad")
        cells[rows].copy().write_h5ad(files[-1])
    digests = set()
    spellings = [
        ["-p", predictions],
        [word for file in files for word in ("-p", file)],
        ["--predictions", *reversed(files)],
        files,
    ]
    for spelling in spellings:
        answer = cli("evaluate", "-t", LABELS, "-o", tmp_path / "r.json", *spelling)
        assert answer.code == 0, answer.err
        digests.add(EvalResult.load(tmp_path / "r.json").result_digest)
    assert len(digests) == 1


def test_bad_predictions_are_five_and_touch_nothing(cli: Cli, predictions: Path, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    assert cli("evaluate", "-t", LABELS, "-p", predictions, "-o", output).code == 0
    before = output.read_bytes()
    cells = anndata.read_h5ad(predictions)
    cells[:-3].copy().write_h5ad(tmp_path / "missing.h5ad")
    strange = cells.copy()
    strange.obs_names = ["stranger", *strange.obs_names[1:]]
    strange.write_h5ad(tmp_path / "unknown.h5ad")
    (tmp_path / "text.h5ad").write_text("no h5ad")
    for name, named in (("missing", cells.obs_names[-1]), ("unknown", "stranger"), ("text", "text.h5ad")):
        answer = cli("evaluate", "-t", LABELS, "-p", tmp_path / f"{name}.h5ad", "-o", output)
        assert answer.code == 5
        assert "error: " in answer.err
        assert named in answer.err
        assert "Traceback" not in answer.err
        assert answer.out == ""
    assert output.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["missing.h5ad", "result.json", "text.h5ad", "unknown.h5ad"]


def test_labels_where_expression_is_wanted_are_five(cli: Cli, predictions: Path, tmp_path: Path) -> None:
    answer = cli("evaluate", "-t", "perturbation_prediction", "-p", predictions, "-o", tmp_path / "r.json")
    assert answer.code == 5
    assert "no X" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_work_is_said_before_work_begins(cli: Cli, predictions: Path, tmp_path: Path) -> None:
    good = ["evaluate", "-t", LABELS, "-p", predictions, "-o", tmp_path / "r.json"]
    for wrong, code, named in [
        ([*good[:-1], predictions / "r.json"], 2, "cannot be written"),
        ([*good[:-1], predictions / "deep" / "r.json"], 2, "cannot be written"),
        ([*good[:-1], tmp_path / f"{'r' * 300}.json"], 2, "cannot be written"),
        ([*good[:-1], tmp_path / ("d" * 300) / "r.json"], 2, "cannot be written"),
        ([*good[:-1], tmp_path], 2, "json"),
        ([*good[:-1], tmp_path / "r.csv"], 2, ".json"),
        (["evaluate", "-t", LABELS, "-p", tmp_path / "absent.h5ad", "-o", tmp_path / "r.json"], 2, "absent.h5ad"),
        (["evaluate", "-t", LABELS, "-o", tmp_path / "r.json"], 2, "--predictions"),
        ([*good, "--dataset", "pbmc68k", "--solution", predictions], 2, "exclude"),
        ([*good, "--label-key", "cell_type"], 2, "--label-key"),
        ([*good, "--scale", "logs"], 2, "counts"),
        ([*good, "-m", "f1_macr"], 3, "f1_macro"),
        ([*good, "-m", "mae"], 2, "mae"),
        ([*good, "-d", "pbmc"], 3, "pbmc68k"),
        ([*good, "--device", "abacus"], 2, "abacus"),
    ]:
        answer = cli(*wrong)
        assert (answer.code, named in answer.err, answer.out) == (code, True, ""), answer.err
        assert "hint: " in answer.err
        assert "reading" not in answer.err
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_an_output_is_made(cli: Cli, predictions: Path, tmp_path: Path) -> None:
    assert cli("evaluate", "-t", LABELS, "-p", predictions, "-o", tmp_path / "a" / "b" / "r.json").code == 0
    assert [p.name for p in (tmp_path / "a" / "b").iterdir()] == ["r.json"]
    assert cli("baseline", "-t", LABELS, "-n", "majority_class", "-o", tmp_path / "c" / "p.h5ad").code == 0
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["p.h5ad"]


def test_a_folder_made_for_nothing_is_taken_away(cli: Cli, predictions: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "text.h5ad").write_text("no h5ad")
    for folder in (tmp_path / "a" / "b", tmp_path / "kept" / "c", tmp_path / "kept"):
        answer = cli("evaluate", "-t", LABELS, "-p", tmp_path / "text.h5ad", "-o", folder / "r.json")
        assert answer.code == 5
    assert cli("baseline", "-t", LABELS, "-n", "majority", "-o", tmp_path / "d" / "p.h5ad").code == 3
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["kept", "text.h5ad"]


def test_a_solution_of_ones_own(cli: Cli, tmp_path: Path) -> None:
    names = [f"cell{i}" for i in range(6)]
    truth = anndata.AnnData(obs=pd.DataFrame({"kind": list("aabbcc")}, index=names))
    guess = anndata.AnnData(obs=pd.DataFrame({"kind": list("aabbca")}, index=names))
    truth.write_h5ad(tmp_path / "truth.h5ad")
    guess.write_h5ad(tmp_path / "guess.h5ad")
    own = ["evaluate", "-t", LABELS, "--solution", tmp_path / "truth.h5ad", "--label-key", "kind"]
    answer = cli(*own, "-p", tmp_path / "guess.h5ad", "-m", "accuracy", "-o", tmp_path / "r.json")
    assert answer.code == 0, answer.err
    result = EvalResult.load(tmp_path / "r.json")
    assert result.dataset.name == "local"
    assert result.scores["accuracy"].value == 5 / 6


def test_own_perturbations_with_all_options(cli: Cli, tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    labels = np.repeat(["ctrl", "g0", "g1", "g0+g1"], 8)
    genes = pd.DataFrame(index=[f"g{i}" for i in range(12)])

    def cells(seed: int) -> anndata.AnnData:
        counts = np.random.RandomState(seed).poisson(5, size=(len(labels), 12)).astype("float32")
        obs = pd.DataFrame({"target": labels}, index=[f"c{i}" for i in range(len(labels))])
        return anndata.AnnData(counts, obs=obs, var=genes)

    cells(1).write_h5ad(tmp_path / "truth.h5ad")
    cells(2)[random.permutation(len(labels))].copy().write_h5ad(tmp_path / "guess.h5ad")
    answer = cli(
        *["evaluate", "-t", "perturbation_prediction", "--solution", tmp_path / "truth.h5ad"],
        *["--perturbation-key", "target", "--control", "ctrl", "--scale", "counts", "--target-map", "labels"],
        *["-p", tmp_path / "guess.h5ad", "-m", "mae,pds_cosine(exclude_targets=own)", "-o", tmp_path / "r.json"],
    )
    assert answer.code == 0, answer.err
    assert list(EvalResult.load(tmp_path / "r.json").scores) == ["mae", "pds_cosine(exclude_targets=own)"]


def test_leaderboard_ranks_what_evaluate_wrote(cli: Cli, predictions: Path, tmp_path: Path) -> None:
    results = tmp_path / "results" / "deep"
    results.mkdir(parents=True)
    cli("baseline", "-t", LABELS, "-n", "majority_class", "-o", tmp_path / "majority.h5ad")
    for model, file in (("majority", tmp_path / "majority.h5ad"), ("centroid", predictions)):
        assert cli("evaluate", "-t", LABELS, "-p", file, "-o", results / f"{model}.json", "--model", model).code == 0
    (results / "notes.json").write_text("{}")
    answer = cli("leaderboard", tmp_path / "results")
    assert answer.code == 0
    assert answer.out.index("centroid") < answer.out.index("majority")
    assert "notes.json" in answer.out
    boards = strict(cli("leaderboard", tmp_path / "results", "--json").out)["boards"]
    assert [(row["rank"], row["model"]) for row in boards[0]["rows"]] == [(1, "centroid"), (2, "majority")]
    files = [results / "majority.json", results / "centroid.json"]
    assert strict(cli("leaderboard", *files, "--json").out)["boards"] == boards
    assert cli("leaderboard", results / "notes.json").code == 4
    assert cli("leaderboard", tmp_path / "nothing").code == 2
