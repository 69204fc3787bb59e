"""From a result back to its predictions: neighbours, differential expression, effects; and when they are gone."""

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.stats

from prima_bench.tasks.errors import PredictionError, UnknownNameError, UsageError
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.results.schema import EvalResult

LINES = ("HepG2", "K562")


def screen(seed: int) -> anndata.AnnData:
    """Three perturbations of 40 genes in two cell lines, on log scale; K562 lacks g2."""
    truth, random = np.random.RandomState(0), np.random.RandomState(seed)
    rows = [(line, label) for line in LINES for label in ("ctrl", "g0", "g1", "g2") for _ in range(8)]
    means = {pair: truth.normal(2, 0.6, 40) for pair in dict.fromkeys(rows)}
    rows = [pair for pair in rows if pair != ("K562", "g2")]
    x = np.clip([means[pair] + random.normal(0, 0.3, 40) for pair in rows], 0, 3.5)
    obs = pd.DataFrame(rows, columns=["line", "label"], index=[f"c{i}" for i in range(len(rows))])
    return anndata.AnnData(x, obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(40)]))


def evaluation(contexts: bool, **more: Any) -> Evaluation:
    solution = screen(1) if contexts else screen(1)[screen(1).obs["line"] == "HepG2"].copy()
    options = {"perturbation_key": "label", "control": "ctrl", "scale": "log1p_cp10k", "target_map": "labels"}
    options |= {"context_key": "line"} if contexts else {}
    run = Evaluation("perturbation_prediction", solution=solution, metrics="pds_cosine", **options, **more)
    predictions = screen(2)
    run.update(predictions if contexts else predictions[predictions.obs["line"] == "HepG2"])
    return run


def test_retrieval_names_who_is_closer() -> None:
    run = evaluation(contexts=False)
    result = run.compute()
    table = result.retrieval()
    assert table.index.tolist() == ["g0", "g1", "g2"]
    assert table["score"].tolist() == pytest.approx(result.per_unit["pds_cosine"].tolist())
    for name, row in table.iterrows():
        assert (row["closer"] == []) == (row["nearest"] == name)
        assert len(row["closer"]) == round((1 - row["score"]) * 2)
    assert table.equals(result.retrieval("cosine", "panel"))
    assert not table["distance"].equals(result.retrieval("l1")["distance"])


def test_a_table_of_differential_expression_is_that_of_scipy() -> None:
    run = evaluation(contexts=True)
    table = run.compute().de_table("g1", context="K562", table="vcc2026")
    solution, predictions = screen(1), screen(2)
    where = solution.obs["line"] == "K562"
    control = solution.X[where & (solution.obs["label"] == "ctrl")]
    for side, cells in (("true", solution), ("pred", predictions)):
        own = cells.X[(cells.obs["line"] == "K562") & (cells.obs["label"] == "g1")]
        expected = scipy.stats.mannwhitneyu(own, control, method="asymptotic").pvalue
        assert table[f"{side}_p_value"].loc[solution.var_names].to_numpy() == pytest.approx(expected, rel=1e-9)
        change = np.log2(np.expm1(own).mean(axis=0) / np.expm1(control).mean(axis=0))
        assert table[f"{side}_log_fold_change"].loc[solution.var_names].to_numpy() == pytest.approx(change, rel=1e-6)
    assert table.index[table["target"]].tolist() == ["g1"]
    assert table["tested"].all()


def test_effects_count_cells_and_genes() -> None:
    run = evaluation(contexts=True)
    table = run.compute().effects()
    assert table.index.tolist() == [("HepG2", "g0"), ("HepG2", "g1"), ("HepG2", "g2"), ("K562", "g0"), ("K562", "g1")]
    assert table["true_cells"].tolist() == table["pred_cells"].tolist() == [8] * 5
    assert (table["true_de_genes"] > 0).all()
    assert table["pred_effect"].to_numpy() == pytest.approx(table["true_effect"].to_numpy(), rel=0.2)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"perturbation": "g9"}, UnknownNameError, "unknown perturbation 'g9'"),
        ({"perturbation": "g1"}, UsageError, "several contexts"),
        ({"perturbation": "g1", "context": "k562"}, UnknownNameError, "unknown context 'k562'"),
        ({"perturbation": "g2", "context": "K562"}, UsageError, "no cells of 'g2' in context 'K562'"),
        ({"perturbation": "g1", "context": "K562", "table": "x"}, UsageError, "table cannot be 'x'"),
    ],
)
def test_what_cannot_be_shown_is_said(arguments: dict[str, str], error: type[Exception], words: str) -> None:
    run = evaluation(contexts=True)
    with pytest.raises(error, match=words):
        run.compute().de_table(**arguments)


def test_choices_that_do_not_exist_are_refused() -> None:
    run = evaluation(contexts=False)
    result = run.compute()
    with pytest.raises(UsageError, match="distance cannot be 'l3'"):
        result.retrieval("l3")
    with pytest.raises(UsageError, match="the solution has no contexts"):
        result.de_table("g1", context="K562")


def test_predictions_that_came_or_went_since_are_not_shown_for_an_old_result(tmp_path: Path) -> None:
    run = evaluation(contexts=False)
    result = run.compute()
    assert result.retrieval().shape[0] == 3
    loaded = EvalResult.load(result.save(tmp_path / "r.json"))
    with pytest.raises(UsageError, match="are gone"):
        loaded.retrieval()
    run.reset()
    with pytest.raises(UsageError, match="are gone"):
        result.effects()
    fresh = evaluation(contexts=False)
    kept = fresh.compute()
    del fresh
    gc.collect()
    with pytest.raises(UsageError, match="are gone"):
        kept.retrieval()


def test_a_result_travels_to_another_process_without_its_predictions() -> None:
    run = evaluation(contexts=False)
    result = run.compute()
    there = pickle.loads(pickle.dumps(result))  # noqa: S301
    assert there == result
    with pytest.raises(UsageError, match="are gone"):
        there.retrieval()
    assert copy.deepcopy(result).retrieval().equals(result.retrieval())


def test_a_refused_update_changes_nothing_for_a_result() -> None:
    run = evaluation(contexts=False)
    result = run.compute()
    with pytest.raises(PredictionError, match="1 id for 56 rows"):
        run.update(screen(2).X, ids=["x"])
    assert result.retrieval().shape[0] == 3


def test_other_tasks_have_no_such_tables() -> None:
    truth = pd.DataFrame({"type": ["B", "T"]}, index=["c1", "c2"])
    run = Evaluation("cell_type_annotation", solution=truth, label_key="type", metrics="accuracy")
    run.update(pd.Series(["B", "T"], index=["c1", "c2"]))
    with pytest.raises(UsageError, match="cell_type_annotation has no retrieval"):
        run.compute().retrieval()
