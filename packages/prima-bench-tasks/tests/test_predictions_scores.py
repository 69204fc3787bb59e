"""Predicted class scores: probabilities and logits, their columns, and how far rounding may take a sum from 1."""

from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from prima_bench.tasks.errors import PredictionError

CLASSES = ["B cell", "CD4+/CD25 T", "NK", "Treg"]
SCORE_METRICS = ["f1_macro", "log_loss", "auroc_macro", "top_k_accuracy"]


@pytest.mark.parametrize(
    ("poke", "seen"),
    [
        (np.nan, "NaN or infinite scores in 1 row: 'c05'"),
        (-np.inf, "NaN or infinite scores in 1 row: 'c05'"),
        (-0.2, "outside [0, 1]"),
        (1.4, "outside [0, 1]"),
        (0.9999, "do not sum to 1"),
    ],
)
def test_scores_that_are_no_probabilities(labelled: Any, poke: float, seen: str) -> None:
    scores = labelled.others["scores"].copy()
    scores.iloc[5, 1] = poke
    scores.iloc[5, 2] = min(scores.iloc[5, 2], 0.3)
    run = labelled.evaluation()
    with pytest.raises(PredictionError) as caught:
        run.update(scores)
    assert seen in caught.value.message
    assert "'c05'" in caught.value.message


def rounded(labelled: Any, dtype: torch.dtype, error: float = 0.0) -> tuple[torch.Tensor, Any]:
    """Probabilities in half precision, the first row off by ``error`` beyond rounding, and the rows' names."""
    scores = torch.from_numpy(labelled.others["scores"].to_numpy(dtype=np.float64, copy=True))
    scores[0] *= 1 + error
    return scores.to(dtype), list(labelled.others["scores"].index)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_probabilities_in_half_precision(labelled: Any, dtype: torch.dtype) -> None:
    exact = labelled.result(labelled.others["scores"], metrics=SCORE_METRICS)
    scores, ids = rounded(labelled, dtype)
    off = (scores.double().sum(dim=1) - 1).abs().max()
    assert (off > 1e-3) == (dtype == torch.bfloat16)  # so that a tolerance of 0.001 would not do
    digests = set()
    for rows in (range(24), range(23, -1, -1)):
        run = labelled.evaluation(metrics=SCORE_METRICS)
        run.update(scores[list(rows)[:1]], ids=[ids[i] for i in list(rows)[:1]])
        run.update(scores[list(rows)], ids=[ids[i] for i in rows])
        result = run.compute()
        digests.add(result.result_digest)
        for name, score in exact.scores.items():
            assert result.scores[name].value == pytest.approx(score.value, rel=2e-2)
    assert len(digests) == 1


def test_half_precision_excuses_no_more_than_its_rounding(labelled: Any, refused: Any) -> None:
    scores, ids = rounded(labelled, torch.bfloat16, error=0.02)
    run = labelled.evaluation()
    with pytest.raises(PredictionError, match=r"do not sum to 1 within 0.008 in 1 row .*'c00'"):
        run.update(scores, ids=ids)
    scores, ids = rounded(labelled, torch.bfloat16)
    with pytest.raises(PredictionError, match=r"do not sum to 1 within 0.001 in \d+ rows") as caught:
        run.update(scores.float(), ids=ids)
    assert "half precision" in caught.value.hint.lower()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("off", [0.00098, 0.00102])
def test_what_passes_the_update_can_be_scored(labelled: Any, dtype: Any, off: float) -> None:
    scores = labelled.others["scores"].astype(np.float64)
    scores = (scores.div(scores.sum(axis=1), axis=0) * (1 + off)).astype(dtype)
    run = labelled.evaluation(metrics=SCORE_METRICS)
    if off < 0.001:
        run.update(scores)
        assert run.compute().predictions.n_rows == 24
    else:
        with pytest.raises(PredictionError, match=r"within 0.001 in 24 rows"):
            run.update(scores)


def test_logits_are_declared_not_guessed(labelled: Any) -> None:
    scores = labelled.others["scores"]
    logits = np.log(scores) + 3.5
    with pytest.raises(PredictionError, match="declare scores='logit'"):
        labelled.evaluation().update(logits)
    as_logits = labelled.result(logits, metrics=SCORE_METRICS, scores="logit")
    as_scores = labelled.result(scores, metrics=SCORE_METRICS)
    assert as_logits.comparability_key == as_scores.comparability_key
    for name, score in as_scores.scores.items():
        assert as_logits.scores[name].value == pytest.approx(score.value, rel=1e-5)


@pytest.mark.parametrize(
    ("columns", "seen"),
    [
        (["B cell", "CD4+/CD25 T", "NK", "nk"], "they hold besides the classes 'nk'"),
        (["B cell", "CD4+/CD25 T", "NK", "NK"], "name more than once 'NK'"),
        (["B cell", "CD4+/CD25 T", "NK", "other"], "lack 'Treg'"),
    ],
)
def test_wrong_columns_of_scores(labelled: Any, columns: list[str], seen: str) -> None:
    scores = labelled.others["scores"].set_axis(columns, axis=1)
    with pytest.raises(PredictionError) as caught:
        labelled.evaluation().update(scores)
    assert seen in caught.value.message
    assert "'CD4+/CD25 T'" in caught.value.hint


def test_wrong_width_without_names(labelled: Any, refused: Any) -> None:
    error = refused(labelled, torch.full((24, 5), 0.2), ids=labelled.predictions.index)
    assert "5 columns for 4 classes" in error.message


def test_a_label_beside_scores_must_agree(labelled: Any) -> None:
    scores = labelled.others["scores"]
    best = scores.idxmax(axis=1)
    cells = anndata.AnnData(obs=pd.DataFrame({"type": best}), obsm={"type_scores": scores})
    agreed = labelled.result(cells, metrics=SCORE_METRICS)
    assert agreed.result_digest == labelled.result(scores, metrics=SCORE_METRICS).result_digest
    cells.obs.loc["c02", "type"] = scores.loc["c02"].idxmin()
    with pytest.raises(PredictionError, match="other than the best-scoring class in 1 row: 'c02'"):
        labelled.evaluation().update(cells)


SCORES = {
    "permuted classes": lambda f: f[CLASSES[::-1]],
    "permuted rows": lambda f: f[::-1],
    "float64": lambda f: f.astype(np.float64),
    "obsm": lambda f: anndata.AnnData(obs=pd.DataFrame(index=f.index), obsm={"type_scores": f}),
    "obsm under the default name": lambda f: anndata.AnnData(
        obs=pd.DataFrame(index=f.index), obsm={"cell_type_scores": f}
    ),
    "obsm array": lambda f: anndata.AnnData(
        obs=pd.DataFrame(index=f.index), obsm={"type_scores": f.to_numpy()}, uns={"classes": np.array(CLASSES)}
    ),
    "anndata of scores": lambda f: anndata.AnnData(f),
    "sparse scores": lambda f: anndata.AnnData(
        sp.csr_matrix(f.to_numpy()), obs=pd.DataFrame(index=f.index), var=pd.DataFrame(index=f.columns)
    ),
}


@pytest.mark.parametrize("form", SCORES)
def test_forms_that_are_the_same_scores(labelled: Any, form: str) -> None:
    scores = labelled.others["scores"]
    expected = labelled.result(scores, metrics=SCORE_METRICS)
    assert labelled.result(SCORES[form](scores), metrics=SCORE_METRICS).result_digest == expected.result_digest
    run = labelled.evaluation(metrics=SCORE_METRICS)
    run.update(torch.from_numpy(scores.to_numpy(copy=True)), ids=list(scores.index))
    assert run.compute().result_digest == expected.result_digest


def test_scores_are_not_kept_or_changed(labelled: Any) -> None:
    scores = torch.from_numpy(labelled.others["scores"].to_numpy(copy=True))
    run = labelled.evaluation()
    run.update(scores, ids=labelled.predictions.index)
    before = run.compute().result_digest
    scores.zero_()
    assert run.compute().result_digest == before


def test_an_array_of_scores_needs_class_names(labelled: Any) -> None:
    scores = labelled.others["scores"]
    cells = anndata.AnnData(obs=pd.DataFrame(index=scores.index), obsm={"type_scores": scores.to_numpy()})
    with pytest.raises(PredictionError, match="have no names"):
        labelled.evaluation().update(cells)


def test_score_metrics_of_a_label_run_are_undefined_with_the_reason(labelled: Any) -> None:
    result = labelled.result(metrics=["accuracy", "log_loss"])
    assert result.scores["log_loss"].status == "undefined"
    assert result.scores["log_loss"].value is None
    assert result.scores["log_loss"].reason == "needs class probabilities or scores"
    assert result.scores["accuracy"].status == "ok"
