"""Own data with contexts: cells of a cell type or donor are scored against control cells of the same one."""

from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import torch

from prima_bench.tasks.errors import DataError, PredictionError, UsageError
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.results.schema import EvalResult

OPTIONS = {"perturbation_key": "gene", "control": "ctrl", "scale": "log1p_cp10k", "context_key": "cell_line"}
METRICS = "mae, pearson_delta, pds_cosine"


def screen(seed: int) -> anndata.AnnData:
    """Four perturbations in two cell lines; K562 lacks C. The lines differ, and a perturbation differs between them."""
    truth, random = np.random.RandomState(0), np.random.RandomState(seed)
    names = [f"g{i}" for i in range(30)]
    pairs = [(line, label) for line in ("HepG2", "K562") for label in ("ctrl", "A", "B", "C", "D")]
    means = {pair: truth.normal(2, 0.5, 30) for pair in pairs}
    rows = [pair for pair in pairs if pair != ("K562", "C") for _ in range(6)]
    x = np.clip([means[pair] + random.normal(0, 0.2, 30) for pair in rows], 0, 3)
    x = (np.round(x * 64) / 64).astype(np.float32)  # exact in decimal text too
    obs = pd.DataFrame(rows, columns=["cell_line", "gene"], index=[f"cell{i}" for i in range(len(rows))])
    return anndata.AnnData(x, obs=obs, var=pd.DataFrame(index=names))


def evaluation(solution: Any, **more: Any) -> Evaluation:
    return Evaluation("perturbation_prediction", solution=solution, **({"metrics": METRICS} | OPTIONS | more))


def result(solution: Any, *parts: Any, **more: Any) -> EvalResult:
    run = evaluation(solution, **more)
    for part in parts:
        run.update(part)
    return run.compute()


def test_a_context_scores_as_it_does_alone() -> None:
    solution, predictions = screen(1), screen(2)
    whole = result(solution, predictions).per_unit
    assert whole.index.names == ["context", "perturbation"]
    assert whole.index.tolist() == [("HepG2", p) for p in "ABCD"] + [("K562", p) for p in "ABD"]
    assert whole["n_obs"].tolist() == [6] * 7
    for line in ("HepG2", "K562"):
        own = {k: v for k, v in OPTIONS.items() if k != "context_key"}
        run = Evaluation(
            "perturbation_prediction", solution=solution[solution.obs["cell_line"] == line], metrics=METRICS, **own
        )
        run.update(predictions[predictions.obs["cell_line"] == line])
        pd.testing.assert_frame_equal(whole.loc[line], run.compute().per_unit, rtol=1e-12)


def test_shards_row_order_and_forms_do_not_matter(tmp_path: Path) -> None:
    solution, predictions = screen(1), screen(2)
    once = result(solution, predictions)
    order = np.random.RandomState(0).permutation(predictions.n_obs)
    shards = [predictions[part].copy() for part in np.array_split(order, 4)]
    assert result(solution[order].copy(), *shards).result_digest == once.result_digest
    run = evaluation(solution)
    run.update(
        torch.from_numpy(predictions.X),
        ids=list(predictions.obs_names),
        perturbation=predictions.obs["gene"],
        context=predictions.obs["cell_line"].tolist(),
    )
    assert run.compute().result_digest == once.result_digest
    frame = predictions.to_df().assign(gene=predictions.obs["gene"], cell_line=predictions.obs["cell_line"])
    frame.to_csv(tmp_path / "predictions.csv")
    assert result(solution, tmp_path / "predictions.csv").result_digest == once.result_digest


def test_one_name_in_two_contexts_is_two_cells() -> None:
    solution, predictions = screen(1), screen(2)
    predictions.obs_names = [f"cell{i % 6}" for i in range(predictions.n_obs)]
    assert result(solution, predictions).predictions.n_rows == 42


def test_contexts_are_part_of_what_a_solution_is() -> None:
    solution, predictions = screen(1), screen(2)
    one = result(solution, predictions)
    solution.obs["cell_line"] = solution.obs["cell_line"].replace({"K562": "k"})
    predictions.obs["cell_line"] = predictions.obs["cell_line"].replace({"K562": "k"})
    assert result(solution, predictions).comparability_key != one.comparability_key


def test_the_result_comes_back_with_its_levels(tmp_path: Path) -> None:
    saved = result(screen(1), screen(2))
    again = EvalResult.load(saved.save(tmp_path / "r.json"))
    pd.testing.assert_frame_equal(again.per_unit, saved.per_unit)
    assert again.units.ids[0] == "HepG2 | A"
    assert "context | perturbations" in again.to_text()


def test_anchors_are_measured_within_contexts() -> None:
    scores = result(screen(1), screen(2), anchors=True).scores
    assert scores["mae"].skill == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p[p.obs["gene"] != "B"], "2 of 7 perturbations without predicted cells: 'HepG2 | B', 'K562 | B'"),
        (lambda p: p[p.obs["cell_line"] != "K562"], "3 of 7 perturbations without predicted cells"),
    ],
)
def test_what_is_missing_is_named_with_its_context(change: Any, words: str) -> None:
    run = evaluation(screen(1))
    run.update(change(screen(2)))
    with pytest.raises(PredictionError) as caught:
        run.compute()
    assert words in str(caught.value)


def relabelled(column: str, old: str, new: str, where: str | None = None) -> anndata.AnnData:
    cells = screen(2)
    rows = (cells.obs[column] == old) & ((cells.obs["cell_line"] == where) if where else True)
    cells.obs.loc[rows, column] = new
    cells.obs_names_make_unique()
    return cells


def without_context() -> anndata.AnnData:
    cells = screen(2)
    del cells.obs["cell_line"]
    return cells


@pytest.mark.parametrize(
    ("predictions", "words"),
    [
        (without_context(), "in which context each cell is: there is no column 'cell_line'"),
        (relabelled("cell_line", "K562", "k562"), "'K562'"),
        (relabelled("gene", "B", "C", where="K562"), "the solution does not have in their context: 'K562 | C'"),
    ],
)
def test_predictions_of_other_contexts_are_refused_and_change_nothing(predictions: Any, words: str) -> None:
    solution, good = screen(1), screen(2)
    run = evaluation(solution)
    run.update(good)
    with pytest.raises(PredictionError) as caught:
        run.update(predictions)
    assert words in str(caught.value)
    assert run.compute().result_digest == result(solution, good).result_digest


def test_a_context_for_a_solution_that_has_none_is_refused() -> None:
    run = evaluation(screen(1), context_key=None)
    with pytest.raises(UsageError, match="context= was given"):
        run.update(screen(2), context=["K562"] * 54)
    labels = Evaluation(
        "cell_type_annotation", solution=pd.DataFrame({"t": ["a", "b"]}, index=["1", "2"]), label_key="t"
    )
    with pytest.raises(UsageError, match="context= has no meaning"):
        labels.update(pd.Series(["a"], index=["1"]), context=["x"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda o: o.assign(cell_line=[None, *o["cell_line"][1:]]), "without a context label"),
        (lambda o: o.assign(cell_line=o["cell_line"].replace({"K562": "a | b"})), "cannot hold ' | '"),
        (lambda o: o.assign(gene=o["gene"].where(o["cell_line"] != "K562", "ctrl")), "no perturbed cells in context"),
        (
            lambda o: o.assign(gene=o["gene"].where(o["cell_line"] != "K562", "A")),
            "labelled 'ctrl' in context",
        ),
    ],
)
def test_a_solution_whose_contexts_cannot_be_scored_is_refused(change: Any, words: str) -> None:
    solution = screen(1)
    solution.obs = change(solution.obs)
    with pytest.raises(DataError) as caught:
        evaluation(solution)
    assert words in str(caught.value)
    with pytest.raises(UsageError, match="no column"):
        evaluation(screen(1), context_key="cell_lien")
