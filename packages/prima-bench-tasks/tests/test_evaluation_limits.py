"""Values beyond what can be scored: refused by name, with the parameters that ask for them."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from prima_bench.tasks.errors import DataError, PredictionError, UnknownNameError, UsageError


def spiked(cells: Any, label: str, value: float) -> Any:
    changed = cells.copy()
    x = changed.X.toarray().astype(np.float64)
    x[(changed.obs["target"] == label).to_numpy(), 0] = value
    changed.X = sp.csr_matrix(x)
    return changed


@pytest.mark.parametrize("value", [1e60, 1e300, 1e308, -1e308])
def test_no_input_beyond_all_bounds_is_taken(screen: Any, log_screen: Any, value: float) -> None:
    for data in (screen, log_screen):
        with pytest.raises(PredictionError):
            data.result(spiked(data.predictions, "KLF1", value))
        with pytest.raises(DataError):
            data.result(solution=spiked(data.solution, "KLF1", value))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [1e8, 1e20, 1e38, 3.4e38])
def test_sums_that_overflow_gain_nothing(screen: Any, log_screen: Any, dtype: Any, value: float) -> None:
    for data in (screen, log_screen):
        cells = data.predictions.copy()
        cells.X = np.full(cells.shape, value, dtype=dtype)
        if value < 2**53 and data is screen:
            result = data.result(cells)  # counts that a cell could hold
            assert result.scores["mae"].value > screen.result().scores["mae"].value
        else:
            with pytest.raises(PredictionError) as caught:
                data.result(cells)
            assert caught.value.hint


LOGITS = {
    "float32": lambda x: (x * 1e38).astype(np.float32),
    "both ends of float32": lambda x: np.where(x > 0, 3.4e38, -3.4e38).astype(np.float32),
    "float64": lambda x: x * 1e300,
    "both ends of float64": lambda x: np.where(x > 0, 1.79e308, -1.79e308),
    "all magnitudes": lambda x: x * 10.0 ** np.random.default_rng(1).integers(-300, 300, x.shape),
}


@pytest.mark.parametrize("kind", LOGITS)
def test_huge_logits_have_finite_scores(labelled: Any, kind: str) -> None:
    from prima_bench.tasks.registry import list_metrics

    x = LOGITS[kind](np.random.default_rng(0).normal(size=(24, 4)))
    run = labelled.evaluation(scores="logit", metrics=list_metrics("cell_type_annotation"))
    run.update(x, ids=list(labelled.predictions.index))
    for name, score in run.compute().scores.items():
        assert score.value is not None, name
        assert np.isfinite(score.value)
        assert name not in ("accuracy", "f1_macro", "auroc_macro") or score.value < 0.7


@pytest.mark.parametrize("metric", ["pds_cosine", "mae", "r2_delta", "pearson_delta_pertmean"])
def test_what_the_kernel_cannot_score_is_refused_by_name(screen: Any, metric: str) -> None:
    run = screen.evaluation(metrics=metric)
    run.update(screen.predictions)
    second = run._problem.unit_ids.index("KLF1") + 1
    huge = torch.full((2, screen.solution.n_vars), 1e308, dtype=torch.float64)
    # Past the checks of the input, which refuse such counts already.
    run._panel.update(torch.tensor([90, 91]), x=huge, group=torch.tensor([second, second]))
    with pytest.raises(PredictionError, match="too large to be scored: perturbation 'KLF1'") as caught:
        run.compute()
    assert caught.value.exit_code == 5
    assert caught.value.hint


@pytest.mark.parametrize(
    "metric",
    [
        "mae(target_sum=-1)", "mae(target_sum=nan)", "mae(target_sum=1e300)", "pds_l2(target_sum=1e-300)",
        "top_k_delta_pearson(k=1)", "top_k_delta_pearson(k=-3)",
    ],
)  # fmt: skip
def test_absurd_parameters_are_usage_errors(screen: Any, metric: str) -> None:
    with pytest.raises((UsageError, UnknownNameError)) as caught:
        screen.evaluation(metrics=metric)
    assert caught.value.exit_code in (2, 3)
    assert caught.value.hint


@pytest.mark.parametrize("metric", ["top_k_accuracy(k=0)", "ece(bins=0)", "ece(bins=-1)", "ece(bins=1e3)"])
def test_absurd_parameters_of_classification_are_usage_errors(labelled: Any, metric: str) -> None:
    with pytest.raises((UsageError, UnknownNameError)) as caught:
        labelled.evaluation(metrics=metric)
    assert caught.value.exit_code in (2, 3)
    assert caught.value.hint


def test_infinite_scores_never_reach_a_result(screen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from prima_bench.metrics.base import Score

    run = screen.evaluation(metrics="mae")
    run.update(screen.predictions)
    monkeypatch.setattr(run._panel, "score_all", lambda batch: {"mae": Score(float("inf"))})
    with pytest.raises(PredictionError, match="mae has no finite value"):
        run.compute()


def test_ranks_that_disagree_are_told_what_they_must_share(screen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from prima_bench.metrics.errors import SyncError

    def disagree() -> Any:
        raise SyncError("ranks disagree about the tag: a on rank 0, b on rank 1")

    run = screen.evaluation()
    run.update(screen.predictions)
    monkeypatch.setattr(run._panel, "synced", disagree)
    with pytest.raises(PredictionError, match="ranks disagree") as caught:
        run.compute()
    assert "same task, data and metrics" in caught.value.hint
