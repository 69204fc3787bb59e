"""Baselines: predictions in the task's format, the same every time, whatever the order of rows."""

from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, issparse

from prima_bench.tasks import registry as r
from prima_bench.tasks.artifacts import fetch_data, load, solution_path
from prima_bench.tasks.baselines import list_baselines, run_baseline, save_predictions
from prima_bench.tasks.definitions import cell_type_annotation as annotation
from prima_bench.tasks.definitions import perturbation_prediction as perturbation
from prima_bench.tasks.errors import UnknownNameError, UsageError

ALL = [(task, name) for task in r.list_tasks() for name in list_baselines(task)]


def _data(task: str) -> tuple[anndata.AnnData, anndata.AnnData]:
    train, test = fetch_data(task)
    return load(train, task, "train"), load(test, task, "test")


def _dense(x: object) -> np.ndarray:
    return np.asarray(x.toarray() if issparse(x) else x)  # type: ignore[attr-defined]


def _same(a: anndata.AnnData, b: anndata.AnnData) -> bool:
    b = b[a.obs_names]
    same_x = (a.X is None) if b.X is None else np.array_equal(_dense(a.X), _dense(b.X))
    scores = all(np.array_equal(a.obsm[k], b.obsm[k]) for k in a.obsm)
    return same_x and scores and a.obs.astype(str).equals(b.obs.astype(str))


@pytest.mark.parametrize(("task", "name"), ALL)
def test_a_baseline_is_reproducible_whatever_the_order_of_test_rows(task: str, name: str) -> None:
    train, test = _data(task)
    function = getattr(r.get_task(task).module, name)
    options = dict(r.get_dataset(task=task).spec.options)
    first = run_baseline(task, name)
    order = np.random.RandomState(1).permutation(test.n_obs)
    assert _same(first, function(train, test, **options))
    if name != "logistic_regression":  # its dense products may differ in the last bit with the order of rows
        assert _same(first, function(train, test[order].copy(), **options))


@pytest.mark.parametrize(("task", "name"), ALL)
def test_predictions_come_back_from_a_file(task: str, name: str, tmp_path: Path) -> None:
    predictions = run_baseline(task, name)
    path = save_predictions(predictions, tmp_path / "preds.h5ad")
    assert _same(predictions, anndata.read_h5ad(path))


def test_predictions_are_saved_as_h5ad_into_a_folder(tmp_path: Path) -> None:
    predictions = run_baseline("cell_type_annotation", "majority_class")
    with pytest.raises(UsageError, match=r"saved as \.h5ad"):
        save_predictions(predictions, tmp_path / "preds.csv")
    with pytest.raises(UsageError, match="no folder"):
        save_predictions(predictions, tmp_path / "none" / "preds.h5ad")


def test_unknown_baselines_tell_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown baseline of cell_type_annotation 'majority'") as caught:
        run_baseline("cell_type_annotation", "majority")
    assert caught.value.nearest[0] == "majority_class"
    with pytest.raises(UsageError, match="belongs to task"):
        run_baseline("cell_type_annotation", "majority_class", "perturbsim")


@pytest.mark.parametrize("name", list_baselines("cell_type_annotation"))
def test_labels_are_the_class_of_the_highest_score(name: str) -> None:
    _, test = _data("cell_type_annotation")
    predictions = run_baseline("cell_type_annotation", name)
    scores, classes = predictions.obsm["cell_type_scores"], predictions.uns["classes"]
    assert predictions.obs_names.equals(test.obs_names)
    assert scores.shape == (test.n_obs, len(classes))
    assert scores.min() >= 0
    assert np.abs(scores.sum(axis=1, dtype=np.float64) - 1).max() < 1e-5
    assert predictions.obs["cell_type"].tolist() == [classes[i] for i in scores.argmax(axis=1)]


def test_annotation_baselines_are_in_the_order_of_their_skill() -> None:
    truth = anndata.read_h5ad(solution_path(r.get_dataset("pbmc68k").spec)).obs["cell_type"].astype(str)
    right = [
        (run_baseline("cell_type_annotation", name).obs["cell_type"].astype(str) == truth).mean()
        for name in list_baselines("cell_type_annotation")
    ]
    assert right[0] == pytest.approx(96 / 280)
    assert right[0] + 0.3 < right[1] < right[2]


def _tiny(labels: list[str], x: list[list[float]]) -> anndata.AnnData:
    obs = pd.DataFrame({"cell_type": labels}, index=[f"c{i}" for i in range(len(labels))])
    return anndata.AnnData(X=csr_matrix(np.array(x, dtype=np.float32)), obs=obs)


def test_the_majority_is_the_first_by_name_among_equals() -> None:
    train = _tiny(["b", "b", "a", "a", "c"], [[0.0]] * 5)
    predictions = annotation.majority_class(train, _tiny(["?"] * 2, [[0.0]] * 2))
    assert predictions.obs["cell_type"].tolist() == ["a", "a"]
    assert predictions.obsm["cell_type_scores"][0].tolist() == pytest.approx([0.4, 0.4, 0.2])


def test_the_nearest_centroid_by_hand() -> None:
    train = _tiny(["a", "a", "b"], [[0.0, 0.0], [2.0, 0.0], [5.0, 0.0]])
    predictions = annotation.nearest_centroid(train, _tiny(["?"] * 2, [[2.0, 0.0], [4.0, 0.0]]))
    assert predictions.obs["cell_type"].tolist() == ["a", "b"]
    # distances 1 and 3: softmax(-1, -3)
    expected = np.exp([-1.0, -3.0]) / np.exp([-1.0, -3.0]).sum()
    assert predictions.obsm["cell_type_scores"][0] == pytest.approx(expected, rel=1e-6)


def _screen(labels: list[str], x: np.ndarray, *, prefix: str = "c", **obs: object) -> anndata.AnnData:
    index = [f"{prefix}{i}" for i in range(len(labels))]
    frame = pd.DataFrame({"perturbation": labels, **obs}, index=index)
    return anndata.AnnData(X=csr_matrix(x.astype(np.float32)), obs=frame)


@pytest.mark.parametrize("name", list_baselines("perturbation_prediction"))
def test_perturbation_baselines_predict_the_cells_asked_for_in_counts(name: str) -> None:
    _, test = _data("perturbation_prediction")
    predictions = run_baseline("perturbation_prediction", name)
    assert set(predictions.obs_names) == set(test.obs_names[test.obs["to_predict"]])
    assert predictions.var_names.equals(test.var_names)
    asked = test.obs.loc[predictions.obs_names]
    assert predictions.obs["perturbation"].astype(str).equals(asked["perturbation"].astype(str))
    values = predictions.X.data
    assert predictions.X.dtype == np.float32
    assert np.array_equal(values, np.rint(values))
    assert values.min() >= 0
    assert predictions.X.sum(axis=1).min() > 0


def test_the_mean_response_is_the_mean_of_perturbations_not_of_cells() -> None:
    # Perturbation A has one cell, B has three: each counts once.
    x = np.array([[50, 50], [90, 10], [10, 90], [10, 90], [10, 90]])
    train = _screen(["control", "A", "B", "B", "B"], x)
    test = _screen(["X"] * 400, np.zeros((400, 2)), to_predict=[True] * 400)
    total = perturbation.mean_response(train, test).X.sum(axis=0)
    assert np.asarray(total).ravel() == pytest.approx([20_000, 20_000], rel=0.02)


def test_the_mean_response_on_log_scale_is_the_mean_itself() -> None:
    x = np.array([[0.5, 0.0], [1.0, 0.0], [3.0, 1.0], [5.0, 1.0]])
    train = _screen(["ctrl", "A", "B", "B"], x)
    test = _screen(["X", "ctrl"], np.zeros((2, 2)), to_predict=[True, False])
    predictions = perturbation.mean_response(train, test, control="ctrl", scale="log1p_cp10k")
    assert predictions.X.toarray().tolist() == [[2.5, 0.5]]


def test_a_tiled_mean_is_one_cell_over_and_over() -> None:
    x = np.array([[50, 50], [90, 10], [10, 90], [10, 90]])
    test = _screen(["X"] * 3, np.zeros((3, 2)), to_predict=[True] * 3)
    counts = perturbation.mean_response_tiled(_screen(["control", "A", "B", "B"], x), test)
    assert counts.X.toarray().tolist() == [[500_000, 500_000]] * 3
    log = perturbation.mean_response_tiled(_screen(["control", "A", "B", "B"], x), test, scale="log1p_cp10k")
    assert log.X.toarray().tolist() == [[50, 50]] * 3


def test_the_linear_model_tells_unseen_targets_apart_by_coexpression() -> None:
    # Two programs of ten genes; knocking down a gene lowers its program. Targets g9 and g19 are not in training.
    random = np.random.RandomState(3)
    program = np.repeat([0, 1], 10)
    names = [f"g{i}" for i in range(20)]

    def cells(level: np.ndarray, n: int) -> np.ndarray:
        activity = np.exp(random.normal(0, 0.5, (n, 2)))
        return random.poisson(100 * activity[:, program] * level)

    def knocked(*targets: int) -> np.ndarray:
        return np.where(np.isin(program, program[list(targets)]), 0.4, 1.0)

    seen = [0, 1, 2, 10, 11, 12]
    x = np.vstack([cells(np.ones(20), 200), *(cells(knocked(g), 30) for g in seen)])
    train = _screen(["control"] * 200 + [names[g] for g in seen for _ in range(30)], x)
    train.var_names = names
    test = _screen(["g9"] * 50 + ["g19"] * 50 + ["g9+g19"] * 50, np.zeros((150, 20)), to_predict=[True] * 150)
    test.var_names = names
    predictions = perturbation.linear(train, test)
    first = predictions.X[:, program == 0].sum(axis=1) / predictions.X.sum(axis=1)
    share = pd.Series(np.asarray(first).ravel()).groupby(predictions.obs["perturbation"].to_numpy()).mean()
    assert share["g9"] < 0.4
    assert share["g19"] > 0.6
    assert share["g9+g19"] == pytest.approx(0.5, abs=0.05)


def test_the_linear_model_falls_back_to_the_average_where_labels_name_no_gene() -> None:
    random = np.random.RandomState(4)
    train = _screen(["control"] * 20 + ["drug a"] * 10 + ["drug b"] * 10, random.poisson(20, (40, 5)))
    test = _screen(["drug c"] * 5, np.zeros((5, 5)), to_predict=[True] * 5)
    predictions = perturbation.linear(train, test)
    assert predictions.shape == (5, 5)
    assert predictions.X.sum() > 0


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(1, 6), st.booleans())
def test_pasted_cells_are_real_controls_of_their_batch_dealt_evenly(n: int, controls: int, in_test: bool) -> None:
    batches = ["b0", "b1"]
    source = _screen(
        ["control"] * (2 * controls),
        np.arange(1, 2 * controls + 1)[:, None] * np.ones((1, 2)),
        batch=[batches[i % 2] for i in range(2 * controls)],
        to_predict=[False] * (2 * controls),
        prefix="k",
    )
    asked = _screen(
        ["X"] * n, np.zeros((n, 2)), batch=[batches[i % 2] for i in range(n)], to_predict=[True] * n, prefix="p"
    )
    both = anndata.concat([source, asked])
    predictions = perturbation.paste_control(source, both if in_test else asked)
    pasted = predictions.X.toarray()[:, 0]
    batch_of = {float(i + 1): batches[i % 2] for i in range(2 * controls)}
    assert [batch_of[v] for v in pasted] == predictions.obs["batch"].tolist()
    for batch in set(predictions.obs["batch"]):
        times = np.bincount(
            pasted[(predictions.obs["batch"] == batch).to_numpy()].astype(int), minlength=2 * controls + 1
        )
        mine = [times[int(v)] for v, b in batch_of.items() if b == batch]
        assert max(mine) - min(mine) <= 1


def test_a_batch_without_controls_is_served_from_all() -> None:
    train = _screen(["control"], np.array([[3, 4]]), batch=["b0"])
    test = _screen(["X"], np.zeros((1, 2)), batch=["b9"], to_predict=[True])
    assert perturbation.paste_control(train, test).X.toarray().tolist() == [[3.0, 4.0]]
