"""Leaderboards: comparable results in order, ties together, what cannot be ranked below with the reason."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from prima_bench.tasks.errors import DataError, UsageError
from prima_bench.tasks.results.leaderboard import differences, leaderboard


@pytest.fixture
def models(labelled: Any) -> dict[str, Any]:
    """Three models: one right, one that is half wrong, one that says the same everywhere."""
    truth = labelled.solution.obs["type"]
    half = truth.where(np.arange(24) % 2 == 0, "Treg")
    same = pd.Series("NK", index=truth.index)
    guesses = {"right": truth, "half": half, "same": same}
    return {name: labelled.result(guess, model=name) for name, guess in guesses.items()}


def ranks(board: Any) -> list[tuple[int | None, str]]:
    return [(row.rank, row.model) for row in board.rows]


def test_ranked_by_the_primary_metric(models: dict[str, Any], tmp_path: Path) -> None:
    for name, result in models.items():
        result.save(tmp_path / f"{name}.json")
    table = leaderboard(tmp_path)
    (board,) = table.boards
    assert board.order_by == ("f1_macro", "accuracy")
    assert ranks(board) == [(1, "right"), (2, "half"), (3, "same")]
    assert board.rows[0].paths == (str(tmp_path / "right.json"),)
    assert board.rows[0].values["accuracy"] == 1.0
    assert table.left_out == ()
    assert leaderboard(list(models.values())[::-1]).boards[0].tie_groups() == [["right"], ["half"], ["same"]]
    lines = board.to_text().splitlines()
    assert lines[0].startswith("cell_type_annotation@1.0.0 on local@")
    assert lines[1].split()[:4] == ["rank", "model", "f1_macro", "↑"]
    assert lines[3].split()[:2] == ["1", "right"]


def test_equal_models_share_a_rank(models: dict[str, Any], labelled: Any) -> None:
    twin = labelled.result(labelled.solution.obs["type"], model={"name": "twin", "version": "2"})
    (board,) = leaderboard([*models.values(), twin]).boards
    assert ranks(board) == [(1, "right"), (1, "twin 2"), (3, "half"), (4, "same")]
    assert board.tie_groups()[0] == ["right", "twin 2"]
    assert "1=" in board.to_text()


def test_models_of_one_name_are_told_apart_by_their_files(
    models: dict[str, Any], labelled: Any, tmp_path: Path
) -> None:
    for name, guess in {"half": "Treg", "same": "NK"}.items():
        labels = pd.Series(guess, index=labelled.solution.obs_names)
        labelled.result(labels, model="m").save(tmp_path / f"{name}.json")
    models["right"].save(tmp_path / "right.json")
    text = leaderboard(tmp_path).to_text()
    assert "m (half.json) " in text
    assert "m (same.json) " in text
    assert "right.json" not in text


def test_a_column_is_written_alike(screen: Any) -> None:
    result = screen.result(model="m")
    tiny = {name: score.model_copy(update={"value": 9.4e-09}) for name, score in result.scores.items()}
    other = result.model_copy(update={"scores": tiny, "result_digest": "sha256:" + 64 * "1"})
    (board,) = leaderboard([result, other]).boards
    row = next(line for line in board.to_text().splitlines() if "<0.0001" in line)
    assert row.split()[2:] == ["<0.0001"] * len(tiny)


HOSTILE = "evil\x1b[2J\x1b]0;title\x07\r\n\x9b31m\u202erow"


def test_no_name_drives_a_terminal_or_breaks_a_row(labelled: Any, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m.json"
    labelled.result(model={"name": HOSTILE, "version": "\x1b[0m"}).save(path)
    (tmp_path / "b\x1b[31m.json").write_text("{}")
    text = leaderboard(tmp_path).to_text()
    assert all(c.isprintable() for c in text.replace("\n", ""))
    assert r"evil\x1b[2J" in text
    assert r"left out: " in text
    assert len(leaderboard(path).to_text().splitlines()) == 4


def test_a_long_name_leaves_room_for_the_scores(labelled: Any) -> None:
    for name in ("m" * 5000, "細" * 5000):
        text = leaderboard(labelled.result(model=name)).to_text()
        assert max(map(len, text.splitlines())) < 160
        assert "…" in text


def test_smaller_is_better_where_the_metric_says_so(screen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from prima_bench.tasks import registry

    far = screen.predictions.copy()
    far.X = far.X * 9
    near = screen.solution[screen.solution.obs["target"] != "ctrl"].copy()
    results = [screen.result(far, model="far"), screen.result(near, model="near")]
    entry = registry.get_task("perturbation_prediction")
    by_error = dataclasses.replace(entry, spec=dataclasses.replace(entry.spec, primary=("mae",)))
    monkeypatch.setattr(registry, "get_task", lambda _: by_error)
    (board,) = leaderboard(results).boards
    assert ranks(board) == [(1, "near"), (2, "far")]
    assert "mae ↓" in board.to_text()


def test_the_same_file_twice_is_one_row(models: dict[str, Any], tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        models["half"].save(tmp_path / name)
    (board,) = leaderboard(tmp_path).boards
    assert [Path(p).name for p in board.rows[0].paths] == ["a.json", "b.json"]
    assert len(board.rows) == 1


def test_what_cannot_be_ranked_stands_below_with_the_reason(labelled: Any) -> None:
    results = [labelled.result(metrics="mcc", model="m"), labelled.result(metrics="mcc", model="n")]
    (board,) = leaderboard(results).boards
    assert ranks(board) == [(None, "m"), (None, "n")]
    lines = board.to_text().splitlines()
    assert [line.split() for line in lines[3:5]] == [
        ["—", name, f"{board.rows[0].values['mcc']:.4f}"] for name in ("m", "n")
    ]
    assert lines[5:] == ["not ranked: m, n: none of the task's primary metrics (f1_macro, accuracy) was computed"]


def test_an_undefined_primary_metric_is_no_rank(screen: Any) -> None:
    one = screen.solution[screen.solution.obs["target"].isin(["ctrl", "KLF1"])].copy()
    cells = screen.predictions[screen.predictions.obs["target"] == "KLF1"].copy()
    result = screen.result(cells, solution=one, metrics=["pds_cosine", "mae"], model="m")
    assert result.scores["pds_cosine"].status == "undefined"
    (board,) = leaderboard(result).boards
    assert ranks(board) == [(None, "m")]
    assert "pds_cosine is undefined: needs at least two perturbations" in board.to_text()


def test_the_incomparable_is_never_mixed_and_the_difference_named(labelled: Any, screen: Any) -> None:
    a = labelled.result(model="a")
    b = labelled.result(model="b", classes=[*labelled.options["classes"], "other"])
    c = labelled.result(model="c", metrics=[*labelled.metrics, "f1_macro(labels=union)"])
    d = screen.result(model="d")
    boards = leaderboard([a, b, c, d]).boards
    assert len(boards) == 4
    assert sorted(row.model for board in boards for row in board.rows) == ["a", "b", "c", "d"]
    assert differences(a, a) == []
    assert differences(a, b) == [f"dataset: {a.dataset.key}, elsewhere {b.dataset.key}"]
    assert differences(a, c) == ["metrics: without f1_macro(labels=union)"]
    assert differences(c, a) == ["metrics: also f1_macro(labels=union)"]
    text = leaderboard([a, c]).to_text()
    assert text.count("differs in metrics") == 1


def test_differences_are_short(labelled: Any) -> None:
    a = labelled.result(metrics="mcc")
    b = labelled.result(metrics="accuracy,balanced_accuracy,cohen_kappa,f1_macro,f1_weighted,recall_macro")
    assert differences(b, a) == [
        "metrics: also accuracy, balanced_accuracy, cohen_kappa, f1_macro, 2 more; without mcc"
    ]
    other = a.dataset.model_copy(update={"solution_digest": "sha256:" + 64 * "0"})
    assert differences(a, a.model_copy(update={"dataset": other})) == [
        f"dataset.solution_digest: {a.dataset.solution_digest[:19]}, elsewhere sha256:000000000000"
    ]


def test_versions_and_parameters_of_a_metric_are_differences(labelled: Any) -> None:
    a = labelled.result()
    newer = a.scores["mcc"].model_copy(update={"version": 9, "params": {"k": 1}})
    b = a.model_copy(update={"scores": a.scores | {"mcc": newer}})
    assert differences(a, b) == ["version of mcc: 1, elsewhere 9", "params of mcc: {}, elsewhere {'k': 1}"]


def test_a_board_says_once_what_sets_it_apart_from_the_first(labelled: Any) -> None:
    panels = ["mcc", "accuracy", "f1_macro", "f1_weighted"]
    boards = leaderboard([labelled.result(metrics=panel) for panel in panels]).boards
    assert boards[0].differs == ()
    assert [len(board.differs) for board in boards[1:]] == [1, 1, 1]


def test_no_forged_file_ends_a_board_or_joins_one(models: dict[str, Any], tmp_path: Path) -> None:
    from prima_bench.tasks.results.digest import result_digest

    def forge(name: str, part: str, key: str, value: Any) -> None:
        document = json.loads(models["right"].to_json())
        document["model"]["name"] = name
        if value is None:
            document[part].pop(key)
            document["units"]["values"].pop(key)
            document["units"]["undefined"].pop(key)
        else:
            document[part][key] = value
        document["result_digest"] = result_digest(document)
        (tmp_path / f"{name}.json").write_text(json.dumps(document))

    for name, result in models.items():
        result.save(tmp_path / f"{name}.json")
    score = json.loads(models["right"].to_json())["scores"]["accuracy"]
    forge("0 other dataset", "dataset", "name", "pbmc68k")
    forge("1 without", "scores", "f1_macro", None)
    forge("2 with more", "scores", "zzz", score)
    forge("3 turned", "scores", "accuracy", score | {"direction": "min"})
    table = leaderboard(tmp_path)
    (board,) = table.boards
    assert ranks(board) == [(1, "right"), (2, "half"), (3, "same")]
    assert [Path(entry.path).stem[0] for entry in table.left_out] == ["0", "1", "2", "3"]
    assert all("cannot be true" in entry.reason for entry in table.left_out)


def test_changed_copies_never_share_a_board(models: dict[str, Any]) -> None:
    result = models["right"]
    fewer = result.model_copy(update={"scores": {"mcc": result.scores["mcc"]}})
    moved = result.model_copy(update={"dataset": result.dataset.model_copy(update={"name": "pbmc68k"})})
    boards = leaderboard([result, fewer, moved]).boards
    assert [len(board.rows) for board in boards] == [1, 1, 1]
    assert len({board.comparability_key for board in boards}) == 3


@pytest.mark.parametrize("wrong", [None, 5, [None], ["a.json", 5], [b"a.json"]])
def test_what_is_neither_path_nor_result_is_a_usage_error(wrong: Any) -> None:
    with pytest.raises(UsageError, match="neither a path nor a result"):
        leaderboard(wrong)


def test_folders_list_what_they_cannot_read_and_files_raise(models: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    models["half"].save(tmp_path / "sub" / "half.json")
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / "cut.json").write_text(models["half"].to_json()[:100])
    table = leaderboard(tmp_path)
    assert ranks(table.boards[0]) == [(1, "half")]
    assert [Path(entry.path).name for entry in table.left_out] == ["cut.json", "notes.json"]
    assert f"left out: {tmp_path / 'notes.json'}: is no evaluation result" in table.to_text()
    with pytest.raises(DataError, match="is no evaluation result"):
        leaderboard(tmp_path / "notes.json")
    with pytest.raises(DataError, match="cannot read"):
        leaderboard(tmp_path / "missing.json")
    with pytest.raises(UsageError, match="no results were given"):
        leaderboard([])


def test_json_is_strict_and_complete(models: dict[str, Any]) -> None:
    document = json.loads(leaderboard(models.values()).to_json())
    assert [row["model"] for row in document["boards"][0]["rows"]] == ["right", "half", "same"]
    assert document["boards"][0]["directions"]["f1_macro"] == "max"


def test_an_empty_folder_has_no_boards(tmp_path: Path) -> None:
    assert leaderboard(tmp_path).to_text() == "no results"
    (tmp_path / "notes.json").write_text("{}")
    assert leaderboard(tmp_path).to_text().startswith("left out: ")
