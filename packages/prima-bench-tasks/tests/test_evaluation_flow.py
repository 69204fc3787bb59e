"""Evaluation from the outside: arguments, updates, results, and what a refused update leaves behind."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from prima_bench.tasks.errors import PredictionError, UnknownNameError, UsageError
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.results.schema import EvalResult


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        Evaluation("pertubation_prediction")
    assert caught.value.nearest[0] == "perturbation_prediction"
    with pytest.raises(UnknownNameError) as caught:
        Evaluation("cell_type_annotation", metrics="f1_marco")
    assert "f1_macro" in caught.value.hint
    with pytest.raises(UnknownNameError):
        Evaluation("cell_type_annotation", "pbmc86k")


def test_metrics_by_preset_list_and_reference(labelled: Any) -> None:
    assert list(labelled.result(metrics="fast").scores) == ["f1_macro", "accuracy", "balanced_accuracy", "mcc"]
    picked = labelled.result(metrics=["mcc", "f1_macro(labels=union)"])
    assert list(picked.scores) == ["mcc", "f1_macro(labels=union)"]
    assert picked.scores["f1_macro(labels=union)"].params == {"labels": "union"}
    assert len(labelled.result(metrics=None).scores) > 10


def test_metrics_of_one_panel_do_not_change_each_other(screen: Any) -> None:
    alone = screen.result(metrics="pearson_delta").scores["pearson_delta"].value
    assert screen.result(metrics=None).scores["pearson_delta"].value == alone


@pytest.mark.parametrize("device", ["tpu9", "cuda:99"])
def test_unavailable_devices_are_usage_errors(labelled: Any, device: str) -> None:
    with pytest.raises(UsageError, match=device):
        labelled.evaluation(device=device)


def test_the_device_may_come_from_the_environment(labelled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIMA_BENCH_DEVICE", "cpu")
    assert labelled.result(device=None).provenance.device == "cpu"
    assert labelled.result(device=torch.device("cpu")).provenance.device == "cpu"


def test_models(labelled: Any) -> None:
    assert labelled.result().model.name is None
    assert labelled.result(model="mine").model.name == "mine"
    model = labelled.result(model={"name": "mine", "version": "2", "params": {"lr": 0.1}}).model
    assert (model.version, model.params) == ("2", {"lr": 0.1})
    for wrong in ({"nam": "mine"}, {"name": 3}, {"params": {"x": [1]}}, 3):
        with pytest.raises(UsageError, match="no description of a model"):
            labelled.evaluation(model=wrong)


def test_compute_may_be_called_again_and_followed_by_updates(labelled: Any) -> None:
    run = labelled.evaluation()
    run.update(labelled.predictions)
    first = run.compute()
    assert run.compute().result_digest == first.result_digest
    run.update(labelled.predictions[:3])
    again = run.compute()
    assert again.result_digest == first.result_digest
    assert again.predictions.duplicates_dropped == 3


def test_reset_forgets_predictions_and_keeps_the_solution(labelled: Any) -> None:
    run = labelled.evaluation()
    run.update(pd.Series("NK", index=labelled.predictions.index))
    run.reset()
    with pytest.raises(PredictionError, match="no predictions"):
        run.compute()
    run.update(labelled.predictions)
    assert run.compute().result_digest == labelled.result().result_digest


def test_a_refused_update_can_be_mended_and_repeated(screen: Any) -> None:
    run = screen.evaluation()
    for a in range(0, 17, 4):
        shard = screen.predictions[a : a + 4].copy()
        wrong = shard.copy()
        wrong.X[-1, 0] = -1
        with pytest.raises(PredictionError):
            run.update(wrong)
        run.update(shard)
    assert run.compute().result_digest == screen.result().result_digest


def test_a_file_that_fails_in_its_last_block_leaves_nothing(screen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from prima_bench.tasks.inputs import matrix

    monkeypatch.setattr(matrix, "BLOCK_BYTES", 1)
    wrong = screen.predictions.copy()
    wrong.X = wrong.X.toarray()
    wrong.X[16, 11] = np.nan
    run = screen.evaluation()
    with pytest.raises(PredictionError, match="'pred16'"):
        run.update(wrong)
    assert "0 rows" in repr(run)


def test_scores_of_perfect_and_shifted_predictions(screen: Any) -> None:
    perfect = screen.solution[screen.solution.obs["target"] != "ctrl"].copy()
    result = screen.result(perfect)
    assert result.scores["mae"].value == 0
    assert result.scores["pds_cosine"].value == 1
    assert result.scores["pearson_delta"].value == pytest.approx(1)
    rolled = perfect.copy()
    rolled.X = perfect.X[np.roll(np.arange(24), 6)]
    assert screen.result(rolled).scores["pds_cosine"].value < 0.7


def test_undefined_units_are_counted_and_never_nan(screen: Any) -> None:
    cells = screen.solution.copy()
    x = cells.X.toarray()
    x[:9] = x[0]
    x[9:15] = x[0]  # AHR looks like control
    cells.X = x
    result = screen.result(solution=cells)
    score = result.scores["pearson_delta"]
    assert (score.status, score.n_units, score.n_undefined) == ("partial", 3, 1)
    assert score.reason == "1 of 4 perturbations undefined: constant solution effect (1)"
    assert result.units.undefined["pearson_delta"] == {"AHR": "constant solution effect"}
    assert result.units.values["pearson_delta"][result.units.ids.index("AHR")] is None
    assert result.per_unit["pearson_delta"].isna().sum() == 1
    assert "NaN" not in result.to_json()


def test_the_result_is_complete(screen: Any) -> None:
    result = screen.result(model="m")
    document = json.loads(result.to_json())
    assert document["task"]["name"] == "perturbation_prediction"
    assert document["predictions"]["n_rows"] == 17
    assert document["predictions"]["n_units"] == 4
    assert document["predictions"]["coverage"] == 1.0
    assert document["units"]["ids"] == ["AHR", "AHR+KLF1", "KLF1", "drug X"]
    assert document["units"]["n_obs"] == [6, 6, 6, 6]
    assert document["provenance"]["world_size"] == 1
    assert document["provenance"]["packages"]["torch"] == torch.__version__.partition("+")[0]
    assert document["provenance"]["wall_seconds"] > 0
    assert set(document["scores"]) == set(screen.metrics)
    for score in document["scores"].values():
        assert (score["alias"], score["ci"], score["skill"]) == (None, None, None)


def test_fingerprints_follow_predictions_alone(screen: Any, log_screen: Any) -> None:
    one = screen.result()
    assert screen.result(metrics="mae", model="m").predictions.fingerprint == one.predictions.fingerprint
    changed = screen.predictions.copy()
    changed.X[0, 0] += 1
    assert screen.result(changed).predictions.fingerprint != one.predictions.fingerprint
    renamed = screen.predictions.copy()
    renamed.obs_names = [f"x{name}" for name in renamed.obs_names]
    assert screen.result(renamed).predictions.fingerprint != one.predictions.fingerprint


def test_comparability_follows_data_and_metrics_alone(screen: Any) -> None:
    key = screen.result().comparability_key
    changed = screen.predictions.copy()
    changed.X[0, 0] += 1
    assert screen.result(changed, model="other").comparability_key == key
    assert screen.result(metrics=screen.metrics[::-1]).comparability_key == key
    assert screen.result(metrics="mae").comparability_key != key
    assert screen.result(target_map=None).comparability_key != key


def test_loading_what_was_saved(screen: Any, tmp_path: Any) -> None:
    result = screen.result(model="m")
    assert EvalResult.load(result.save(tmp_path / "r.json")) == result
