"""Result files that say what cannot be: refused when loaded, also where their digest was made anew."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prima_bench.tasks.errors import DataError
from prima_bench.tasks.results.checks import score_key
from prima_bench.tasks.results.digest import result_digest
from prima_bench.tasks.results.schema import EvalResult

Change = Callable[[dict[str, Any]], Any]


def forge(result: EvalResult, path: Path, change: Change) -> Path:
    document = json.loads(result.to_json())
    change(document)
    document["result_digest"] = result_digest(document)
    path.write_text(json.dumps(document))
    return path


def put(*keys: str | int, value: Any) -> Change:
    def change(document: dict[str, Any]) -> None:
        part: Any = document
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value

    return change


def drop(document: dict[str, Any]) -> None:
    for part in (document["scores"], document["units"]["values"], document["units"]["undefined"]):
        part.pop("f1_macro")


def hole(document: dict[str, Any]) -> None:
    document["units"]["values"]["f1_macro"][0] = None
    document["units"]["undefined"]["f1_macro"][document["units"]["ids"][0]] = "because"


@pytest.fixture
def result(labelled: Any) -> EvalResult:
    made: EvalResult = labelled.result(metrics="f1_macro, accuracy, top_k_accuracy(k=2), mcc")
    return made


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (put("scores", "accuracy", "value", value=99.0), "accuracy is 99.0, outside the metric's range"),
        (put("scores", "accuracy", "value", value=-0.1), "accuracy is -0.1, outside the metric's range"),
        (put("scores", "f1_macro", "direction", value="min"), "direction 'min', but the metric's is 'max'"),
        (put("units", "values", "f1_macro", 0, value=1.5), "f1_macro is 1.5, outside"),
        (put("comparability_key", value="sha256:" + "0" * 64), "its comparability_key is not that of"),
        (put("dataset", "name", value="pbmc68k"), "its comparability_key is not that of"),
        (put("task", "version", value="9"), "its comparability_key is not that of"),
        (put("scores", "accuracy", "version", value=9), "its comparability_key is not that of"),
        (drop, "its comparability_key is not that of"),
        (put("scores", "top_k_accuracy(k=2)", "params", "k", value=4), "has the params of 'top_k_accuracy\\(k=4\\)'"),
        (lambda d: d["scores"].__setitem__("zz z", d["scores"]["accuracy"]), "not a metric reference"),
        (lambda d: d["scores"].__setitem__("zzz", d["scores"]["accuracy"]), "its comparability_key is not that of"),
        (put("scores", value={}), "scores holds no metric"),
        (put("scores", "accuracy", "status", value="partial"), "status 'partial' contradicts n_undefined 0"),
        (put("scores", "accuracy", "n_undefined", value=2), "status 'ok' contradicts n_undefined 2"),
        (put("scores", "accuracy", "reason", value="why"), "status 'ok' contradicts reason"),
        (put("scores", "top_k_accuracy(k=2)", "reason", value=None), "status 'undefined' contradicts reason"),
        (lambda d: d["units"]["ids"].__setitem__(0, d["units"]["ids"][1]), "ids holds a unit twice"),
        (put("units", "values", "zzz", value=[0.0, 0.0, 0.0]), "not of the same metrics"),
        (put("units", "values", "f1_macro", 0, value=None), "the reasons of f1_macro are not those"),
        (hole, "f1_macro: n_undefined is 0, but 1 units are undefined"),
        (put("scores", "f1_macro", "n_units", value=None), "f1_macro has n_units=None, but its units are listed"),
        (put("scores", "accuracy", "n_units", value=3), "accuracy has n_units=3, but its units are not listed"),
        (put("units", "undefined", value={}), "not of the same metrics"),
        (put("schema_version", value=1.0), "schema version 1.0, which is no text"),
    ],
)
def test_what_cannot_be_is_refused(result: EvalResult, tmp_path: Path, change: Change, seen: str) -> None:
    with pytest.raises(DataError, match=seen) as caught:
        EvalResult.load(forge(result, tmp_path / "r.json", change))
    assert caught.value.hint
    assert EvalResult.load(forge(result, tmp_path / "r.json", lambda d: None)) == result


def test_units_of_no_score(result: EvalResult, tmp_path: Path) -> None:
    def add(document: dict[str, Any]) -> None:
        document["units"]["values"]["zzz"] = document["units"]["values"]["f1_macro"]
        document["units"]["undefined"]["zzz"] = {}

    with pytest.raises(DataError, match="'zzz', which is not among the scores"):
        EvalResult.load(forge(result, tmp_path / "r.json", add))


def test_metrics_that_are_not_installed_are_taken_at_their_word(result: EvalResult, tmp_path: Path) -> None:
    def rename(document: dict[str, Any]) -> None:
        document["scores"]["elsewhere"] = document["scores"].pop("accuracy") | {"value": 99.0, "direction": "min"}
        document["scores"]["mcc"] |= {"version": 7, "value": -8.0}
        scores = EvalResult.model_validate_json(json.dumps(document))
        document["comparability_key"] = score_key(scores)

    loaded = EvalResult.load(forge(result, tmp_path / "r.json", rename))
    assert loaded.scores["elsewhere"].value == 99.0
    assert loaded.comparability_key != result.comparability_key
