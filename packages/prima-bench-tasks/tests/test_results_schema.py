"""The result as a document: schema 1.0 as promised, strict, digested, saved whole, loaded or refused."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from prima_bench.tasks.errors import DataError, UsageError
from prima_bench.tasks.results import files
from prima_bench.tasks.results.digest import comparability_key, result_digest, round_significant
from prima_bench.tasks.results.records import ModelRecord, ScoreRecord, UnitsRecord
from prima_bench.tasks.results.schema import EvalResult

ORDER = {
    "": [
        "schema", "schema_version", "task", "dataset", "comparability_key", "model", "predictions", "scores", "units",
        "provenance", "flags", "result_digest",
    ],
    "task": ["name", "version", "digest"],
    "dataset": ["name", "version", "digest", "solution_digest"],
    "model": ["name", "version", "params"],
    "predictions": ["fingerprint", "n_rows", "n_units", "coverage", "duplicates_dropped"],
    "units": ["kind", "ids", "n_obs", "values", "undefined"],
    "provenance": ["packages", "device", "world_size", "created", "wall_seconds"],
}  # fmt: skip
SCORE_ORDER = [
    "value", "status", "reason", "version", "params", "alias", "direction", "ci", "n_units", "n_undefined", "skill",
]  # fmt: skip


@pytest.fixture
def result(screen: Any) -> EvalResult:
    made: EvalResult = screen.result(model="<script>&", target_map=None)
    return made


def rewritten(result: EvalResult, path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(json.loads(result.to_json()) | changes))
    return path


def test_keys_and_their_order(result: EvalResult) -> None:
    document = json.loads(result.to_json())
    for part, keys in ORDER.items():
        assert list(document[part] if part else document) == keys
    for score in document["scores"].values():
        assert list(score) == SCORE_ORDER
    assert document["schema"] == "prima-bench/eval-result"
    assert document["schema_version"] == "1.0"


def test_a_stored_result_of_schema_1_0_still_loads() -> None:
    stored = Path(__file__).parent / "results-1.0" / "perturbation.json"
    result = EvalResult.load(stored)
    assert result.to_json() == stored.read_text(encoding="utf-8")
    assert result.scores["pearson_delta"].status == "partial"
    assert result.per_unit.shape == (4, 4)


def test_saving_is_whole_and_leaves_nothing_else(result: EvalResult, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")
    assert result.save(str(path)) == path
    assert EvalResult.load(path) == result
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failed_write_leaves_the_old_file(
    result: EvalResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = result.save(tmp_path / "r.json")
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        result.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_saving_into_no_folder(result: EvalResult, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot write"):
        result.save(tmp_path / "no" / "r.json")


@pytest.mark.parametrize("path", ["", ".", "/", None, 5])
def test_saving_to_no_name(result: EvalResult, path: Any) -> None:
    with pytest.raises(UsageError, match="names no file"):
        result.save(path)


@pytest.mark.parametrize("name", ["a\0.json", "\ud800.json", "a" * 300])
def test_names_that_no_file_can_have(result: EvalResult, tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot write"):
        result.save(tmp_path / name)
    with pytest.raises(DataError, match="cannot read"):
        EvalResult.load(tmp_path / name)


def test_an_edited_result_is_refused(result: EvalResult, tmp_path: Path) -> None:
    scores = json.loads(result.to_json())["scores"]
    scores["mae"]["value"] *= 0.5
    with pytest.raises(DataError, match="was changed after it was written"):
        EvalResult.load(rewritten(result, tmp_path / "r.json", scores=scores))
    provenance = json.loads(result.to_json())["provenance"] | {"device": "cuda:0"}
    assert EvalResult.load(rewritten(result, tmp_path / "r.json", provenance=provenance)).provenance.device == "cuda:0"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", "not strict JSON"),
        ('{"schema": "prima-bench/eval-result", "value": NaN}', "NaN is not a JSON number"),
        ('{"schema": 1, "schema": 2}', "key 'schema' comes twice"),
        ("[1, 2]", "holds a JSON list"),
        ("{}", "is no evaluation result"),
        (
            '{"schema": "prima-bench/eval-result", "schema_version": "2.0"}',
            "schema version '2.0'; this release reads 1.0",
        ),
        ('{"schema": "prima-bench/eval-result", "schema_version": "1.0"}', "is not a result of schema 1.0: "),
        ("[" * 100_000, "not strict JSON"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, text: str, seen: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(DataError, match=seen) as caught:
        EvalResult.load(tmp_path / "r.json")
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("part", "key", "value", "seen"),
    [
        ("predictions", "n_rows", "17", "predictions.n_rows"),
        ("predictions", "coverage", 1.5, "predictions.coverage"),
        ("task", "digest", "md5:0", "task.digest"),
        ("units", "n_obs", [1], "n_obs has 1 entries for 4 units"),
        ("units", "extra", 1, "units.extra"),
    ],
)
def test_wrong_fields_are_named(result: EvalResult, tmp_path: Path, part: str, key: str, value: Any, seen: str) -> None:
    document = json.loads(result.to_json())
    path = rewritten(result, tmp_path / "r.json", **{part: document[part] | {key: value}})
    with pytest.raises(DataError, match=seen):
        EvalResult.load(path)


def test_files_are_bounded(result: EvalResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = result.save(tmp_path / "r.json")
    monkeypatch.setattr(files, "MAX_BYTES", 100)
    with pytest.raises(DataError, match="larger than"):
        EvalResult.load(path)
    with pytest.raises(DataError, match="cannot read"):
        EvalResult.load(tmp_path)


def test_a_value_and_its_status_cannot_disagree(result: EvalResult) -> None:
    score = result.scores["mae"].model_dump()
    for wrong in ({"value": None}, {"status": "undefined"}, {"value": math.nan}, {"value": math.inf}):
        with pytest.raises(ValidationError):
            ScoreRecord(**score | wrong)
    with pytest.raises(ValidationError):
        UnitsRecord(kind="x", ids=["a"], n_obs=[1], values={"m": [1.0, 2.0]}, undefined={})


def test_results_do_not_change(result: EvalResult) -> None:
    with pytest.raises(ValidationError):
        result.model = ModelRecord(name="other")  # type: ignore[misc]


def test_the_digest_leaves_out_where_and_how_often(result: EvalResult) -> None:
    document = json.loads(result.to_json())
    assert result_digest(document) == result.result_digest
    moved = document | {"provenance": {}, "result_digest": ""}
    moved["predictions"] = document["predictions"] | {"duplicates_dropped": 9}
    assert result_digest(moved) == result.result_digest
    for part in ("model", "flags", "units", "dataset", "schema_version"):
        assert result_digest(document | {part: "other"}) != result.result_digest


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_keeps_twelve_digits(x: float) -> None:
    rounded = round_significant(x)
    assert abs(rounded - x) <= 5.0000001e-12 * abs(x) + 5e-324
    assert round_significant(rounded) == rounded
    assert math.copysign(1, round_significant(x * 0.0)) == 1


def test_the_last_bits_do_not_enter_the_digest(result: EvalResult) -> None:
    document = json.loads(result.to_json())
    value = document["scores"]["mae"]["value"]
    document["scores"]["mae"]["value"] = value * (1 + 2e-16)
    assert result_digest(document) == result.result_digest
    document["scores"]["mae"]["value"] = value * (1 + 1e-9)
    assert result_digest(document) != result.result_digest


def test_the_comparability_key_is_free_of_the_order_of_metrics() -> None:
    a, b = {"name": "a", "version": 1, "params": {}}, {"name": "b", "version": 1, "params": {"k": 3}}
    key = comparability_key({"name": "t"}, {"name": "d"}, [a, b])
    assert comparability_key({"name": "t"}, {"name": "d"}, [b, a]) == key
    assert comparability_key({"name": "t"}, {"name": "d"}, [a, b | {"version": 2}]) != key
    assert comparability_key({"name": "t"}, {"name": "d"}, [a, b | {"params": {"k": 4}}]) != key


def test_text_and_html(result: EvalResult) -> None:
    text = str(result)
    assert "pds_cosine ↑" in text
    assert "17 rows, 4 perturbations" in text
    assert "flag: targets_not_excluded" in text
    page = result._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;&amp;" in page
    assert page.count("<tr>") == 1 + len(result.scores)
    assert "color:inherit" in page
    assert repr(result).startswith("<EvalResult '<script>&' on perturbation_prediction / local@")


def test_per_unit_table(result: EvalResult) -> None:
    table = result.per_unit
    assert table.index.name == "perturbation"
    assert table.loc["KLF1", "n_obs"] == 6
    assert table.loc["KLF1", "mae"] == result.units.values["mae"][result.units.ids.index("KLF1")]
    assert table.dtypes.astype(str).tolist() == ["int64", *["float64"] * 4]
