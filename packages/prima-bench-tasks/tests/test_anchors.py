"""Anchors and skill: what is measured on a panel, what is made of it, and what a stored file may hold."""

import json
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest

from prima_bench.metrics.spec import MetricRef
from prima_bench.tasks.anchoring import measure_anchors
from prima_bench.tasks.anchors import Anchor, Anchors, skill, uncalibrated
from prima_bench.tasks.artifacts import stored_anchors
from prima_bench.tasks.baselines import run_baseline
from prima_bench.tasks.errors import DataError, UsageError
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.registry import get_dataset

OPTIONS = {"perturbation_key": "gene", "control": "ctrl", "scale": "log1p_cp10k"}
METRICS = "mae, pearson_delta, pds_cosine"


def screen(effect: float, seed: int, noise: float = 0.3) -> anndata.AnnData:
    """Eight perturbations that share a response and differ by ``effect``; the truth is the same for every seed."""
    truth = np.random.RandomState(0)
    shared, own = truth.normal(0, 1, 60), truth.normal(0, 1, (8, 60))
    random = np.random.RandomState(seed)
    labels = np.repeat(["ctrl", *(f"p{i}" for i in range(8))], 20)
    means = np.vstack([np.zeros(60), 0.3 * shared + effect * own]) + 2
    x = np.repeat(means, 20, axis=0) + random.normal(0, noise, (180, 60))
    obs = pd.DataFrame({"gene": labels}, index=[f"s{seed}c{i}" for i in range(180)])
    return anndata.AnnData(np.clip(x, 0, None).astype(np.float32), obs=obs)


def result(solution: anndata.AnnData, predictions: anndata.AnnData, **more: Any) -> Any:
    run = Evaluation("perturbation_prediction", solution=solution, metrics=METRICS, **OPTIONS, **more)
    run.update(predictions)
    return run.compute()


def anchor(replicate: float | None = 0.8, **baselines: float | None) -> Anchor:
    return Anchor(version=1, baselines=baselines, replicate=replicate, dynamic_range=None, discrimination=None)


@pytest.mark.parametrize(
    ("value", "direction", "given", "expected"),
    [
        (0.8, "max", anchor(a=0.2, b=0.4), 1.0),
        (0.4, "max", anchor(a=0.2, b=0.4), 0.0),
        (1.0, "max", anchor(a=0.2, b=0.4), 1.5),
        (0.0, "max", anchor(a=0.2, b=0.4), -1.0),
        (2.0, "min", anchor(1.0, a=3.0, b=5.0), 0.5),
        (2.0, "min", anchor(4.0, a=3.0), None),
        (0.5, "max", anchor(0.4, a=0.4), None),
        (0.5, "max", anchor(None, a=0.4), None),
        (0.5, "max", anchor(0.8, a=None), None),
        (0.5, "max", anchor(0.8, a=None, b=0.2), 0.5),
        (None, "max", anchor(a=0.2), None),
        (0.5, "max", None, None),
    ],
)
def test_skill_is_the_way_from_the_best_naive_model_to_the_replicate(
    value: float | None, direction: str, given: Anchor | None, expected: float | None
) -> None:
    found = skill(value, given, direction)
    assert found is None if expected is None else found == pytest.approx(expected, rel=1e-12)


def test_a_replicate_of_a_clear_screen_has_skill_near_one_and_a_naive_model_none() -> None:
    solution = screen(1.0, seed=1)
    replicate = result(solution, screen(1.0, seed=2), anchors=True)
    assert replicate.flags == ["targets_not_excluded"]
    for score in replicate.scores.values():
        assert score.skill == pytest.approx(1.0, abs=0.15)
    naive = screen(1.0, seed=3)
    naive.X[20:] = naive.X[20:].mean(axis=0)
    for score in result(solution, naive, anchors=True).scores.values():
        assert score.skill < 0.35


def test_a_metric_by_which_the_shared_response_beats_a_replicate_is_called_uncalibrated() -> None:
    noisy = result(screen(0.02, seed=1, noise=1.5), screen(0.02, seed=2, noise=1.5), anchors=True)
    assert "uncalibrated_on_this_panel: mae" in noisy.flags
    assert noisy.scores["mae"].skill is None


def test_scores_do_not_move_when_anchors_are_measured() -> None:
    solution, predictions = screen(1.0, seed=1), screen(1.0, seed=2)
    without, with_anchors = result(solution, predictions), result(solution, predictions, anchors=True)
    assert all(score.skill is None for score in without.scores.values())
    assert {n: s.value for n, s in without.scores.items()} == {n: s.value for n, s in with_anchors.scores.items()}
    assert without.comparability_key == with_anchors.comparability_key
    again = result(solution, predictions, anchors=True)
    assert again.result_digest == with_anchors.result_digest


def test_row_order_of_the_solution_moves_no_anchor() -> None:
    solution, predictions = screen(1.0, seed=1), screen(1.0, seed=2)
    order = np.random.RandomState(7).permutation(solution.n_obs)
    ours = result(solution, predictions, anchors=True)
    assert ours.result_digest == result(solution[order].copy(), predictions, anchors=True).result_digest


def test_anchors_are_for_tasks_that_have_them() -> None:
    truth = pd.DataFrame({"type": ["B", "T"]}, index=["c1", "c2"])
    with pytest.raises(UsageError, match="anchors cannot be measured for cell_type_annotation"):
        Evaluation("cell_type_annotation", solution=truth, label_key="type", anchors=True)


def anchors(version: int = 1) -> Anchors:
    return Anchors(
        schema="prima-bench/anchors",
        schema_version="1.0",
        solution_digest="sha256:0",
        null="mean",
        splits=5,
        metrics={
            "mae": anchor(1.0, mean=0.9).model_copy(update={"version": version}),
            "pearson_delta": anchor(0.9, mean=0.2),
            "pds_cosine": anchor(None, mean=0.2),
        },
    )


def test_uncalibrated_are_those_whose_replicate_does_not_beat_the_null() -> None:
    refs = [MetricRef(name) for name in ("mae", "pearson_delta", "pds_cosine", "r2_delta")]
    assert uncalibrated(anchors(), refs) == ["mae"]


def test_an_anchor_of_another_version_of_a_metric_counts_for_nothing() -> None:
    assert anchors().of(MetricRef("mae")) is not None
    assert anchors(version=2).of(MetricRef("mae")) is None
    assert anchors().of(MetricRef("mae", {"exclude_targets": "own"})) is None


def test_a_file_of_anchors_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "anchors.json"
    path.write_text(anchors().to_json())
    assert Anchors.load(path) == anchors()


@pytest.mark.parametrize(
    "change", [{"schema": "other"}, {"splits": 0}, {"more": 1}, {"metrics": {"mae": {"version": 1}}}]
)
def test_a_file_that_is_no_anchors_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "anchors.json"
    path.write_text(json.dumps(json.loads(anchors().to_json()) | change))
    with pytest.raises(DataError, match="holds no anchors"):
        Anchors.load(path)


def test_stored_anchors_are_those_of_the_code_and_data() -> None:
    spec = get_dataset("perturbsim").spec
    stored, measured = stored_anchors(spec), measure_anchors("perturbsim")
    assert stored is not None
    assert stored.solution_digest == measured.solution_digest == f"sha256:{spec.artifact('solution').sha256}"
    assert stored.metrics.keys() == measured.metrics.keys()
    for name, anchor in measured.metrics.items():
        kept = stored.metrics[name]
        assert anchor.version == kept.version
        assert anchor.baselines.keys() == kept.baselines.keys()
        pairs = [(anchor.baselines[kind], kept.baselines[kind]) for kind in kept.baselines]
        pairs += [(getattr(anchor, f), getattr(kept, f)) for f in ("replicate", "dynamic_range", "discrimination")]
        for ours, theirs in pairs:
            assert ours is theirs is None or ours == pytest.approx(theirs, rel=1e-9, abs=1e-9), name


def test_a_registered_dataset_brings_its_anchors() -> None:
    run = Evaluation("perturbation_prediction", metrics="pds_cosine, mae", device="cpu")
    run.update(run_baseline("perturbation_prediction", "linear"))
    result = run.compute()
    assert 0.85 < result.scores["pds_cosine"].skill < 1
    assert result.scores["mae"].skill is None
    run = Evaluation("perturbation_prediction", metrics="mse_debiased_ratio", device="cpu")
    run.update(run_baseline("perturbation_prediction", "mean_response"))
    assert run.compute().scores["mse_debiased_ratio"].skill == pytest.approx(0.0, abs=1e-9)
