"""The controls of each task come out in the order of what they know: nothing, something, a replicate, the truth."""

import anndata
import numpy as np
import pytest

from prima_bench.metrics.catalog import get_spec
from prima_bench.tasks import registry as r
from prima_bench.tasks.artifacts import solution_path
from prima_bench.tasks.baselines import run_baseline
from prima_bench.tasks.datasets import perturbsim
from prima_bench.tasks.evaluation import Evaluation


def _scores(task: str, predictions: anndata.AnnData, metrics: str) -> dict[str, float]:
    run = Evaluation(task=task, metrics=metrics)
    run.update(predictions=predictions)
    values = {name: score.value for name, score in run.compute().scores.items()}
    assert None not in values.values()
    return {name: float(value) for name, value in values.items() if value is not None}


def test_perturbation_controls_are_ordered() -> None:
    task = "perturbation_prediction"
    solution = anndata.read_h5ad(solution_path(r.get_dataset("perturbsim").spec))
    truth = solution[solution.obs["to_predict"].to_numpy()].copy()
    labels = truth.obs["perturbation"].astype(str).to_numpy()
    batches = truth.obs["batch"].cat.codes.to_numpy(dtype=np.int64)
    biology = perturbsim.simulate_truth(np.random.RandomState(perturbsim._SEED))
    replicate = truth.copy()
    replicate.X = perturbsim.draw_counts(np.random.RandomState(5), biology, labels, batches).astype(np.float32)
    named = {
        "nothing": run_baseline(task, "paste_control"),
        "mean": run_baseline(task, "mean_response"),
        "replicate": replicate,
        "truth": truth,
    }
    scores = {name: _scores(task, cells, "default") for name, cells in named.items()}
    specific = {"pds_cosine", "pds_l1", "pds_l2", "pearson_delta_pertmean"}
    for metric in scores["truth"]:
        nothing, mean, again, best = (scores[name][metric] for name in ("nothing", "mean", "replicate", "truth"))
        spec = get_spec(metric)
        sign = 1 if spec.direction == "max" else -1
        # An unbiased distance of cells to themselves is below that of a replicate, which is zero on average.
        assert best < 0 if metric == "energy_ratio" else best == pytest.approx(spec.perfect)
        assert sign * best >= sign * again > sign * mean, metric
        if metric in specific:  # no better than chance: the mean response knows nothing specific
            assert max(mean, nothing) < (0.6 if metric.startswith("pds") else 0.1)
        else:
            assert sign * mean > sign * nothing, metric
    assert scores["replicate"]["pds_cosine"] > 0.99
    assert scores["replicate"]["pearson_delta"] > 0.8


def test_annotation_controls_are_ordered() -> None:
    task = "cell_type_annotation"
    names = ("majority_class", "nearest_centroid", "logistic_regression")
    scores = [_scores(task, run_baseline(task, name), "fast, auroc_macro, log_loss") for name in names]
    for metric in scores[0]:
        sign = -1 if metric == "log_loss" else 1
        assert sign * scores[0][metric] < sign * scores[1][metric] < sign * scores[2][metric], metric
    assert scores[0]["auroc_macro"] == pytest.approx(0.5)
    assert scores[0]["mcc"] == 0
    truth = anndata.read_h5ad(solution_path(r.get_dataset("pbmc68k").spec))
    assert set(_scores(task, truth, "labels").values()) == {0.0, 1.0}  # unknown_rate is 0
