"""The formulas on tables of differential expression equal scipy, scikit-learn and plain loops."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import (
    average_precision_score,
    jaccard_score,
    matthews_corrcoef,
    precision_score,
    recall_score,
    roc_auc_score,
)

from prima_bench.metrics.perturbation.de.calls import de_precision, de_recall, de_sig_jaccard, de_sig_mcc
from prima_bench.metrics.perturbation.de.direction import de_direction_fidelity, de_direction_match, de_direction_reach
from prima_bench.metrics.perturbation.de.fold_change import de_count_spearman, de_lfc_nmae, de_lfc_spearman
from prima_bench.metrics.perturbation.de.metric import compacted
from prima_bench.metrics.perturbation.de.overlap import de_overlap_at_n, de_precision_at_n
from prima_bench.metrics.perturbation.de.ranking import de_auprc, de_auprc_signed, de_auroc


def tables(data: st.DataObject) -> dict[str, np.ndarray]:
    """Two rows of two tables, with ties, infinite fold changes and rows without calls."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    genes = data.draw(st.integers(1, 25))
    shape = (2, genes)
    coarse = data.draw(st.booleans())

    def lfc() -> np.ndarray:
        values = rng.integers(-2, 3, shape).astype(float) if coarse else rng.normal(0, 2, shape)
        if data.draw(st.booleans()):
            values[rng.random(shape) < 0.1] = rng.choice([np.inf, -np.inf])
        return values

    keep = rng.random(shape) < data.draw(st.sampled_from([0.7, 1.0]))
    share = st.sampled_from([0.0, 0.2, 0.6, 1.0])
    return {
        "pred_lfc": lfc(),
        "true_lfc": lfc(),
        "pred_p": rng.integers(1, 6, shape) / 6 if coarse else rng.random(shape),
        "score": rng.integers(-2, 3, shape).astype(float) if coarse else rng.normal(0, 1, shape),
        "keep": keep,
        "pred_called": keep & (rng.random(shape) < data.draw(share)),
        "true_called": keep & (rng.random(shape) < data.draw(share)),
    }


def row_by_row(formula: Callable[..., float], *names: str) -> Callable[[dict[str, np.ndarray]], list[float]]:
    return lambda t: [formula(*(t[name][row] for name in names)) for row in range(2)]


def weights(size: np.ndarray, called: np.ndarray, n: int) -> np.ndarray:
    return np.array(
        [
            min(max((n - sum(size[called] > s)) / sum(size[called] == s), 0), 1) if c else 0.0
            for s, c in zip(size, called, strict=True)
        ]
    )


def overlap(pred_lfc: np.ndarray, true_lfc: np.ndarray, pred: np.ndarray, true: np.ndarray, n: int) -> float:
    sizes = (weights(abs(lfc), called, n) for lfc, called in ((pred_lfc, pred), (true_lfc, true)))
    return sum(map(min, *sizes)) / n


def overlap_at_n(k: int) -> Callable[..., float]:
    def value(pred_lfc: np.ndarray, true_lfc: np.ndarray, pred: np.ndarray, true: np.ndarray) -> float:
        n = min(k or true.sum(), true.sum())
        return overlap(pred_lfc, true_lfc, pred, true, n) if n else np.nan

    return value


def precision_at_n(k: int) -> Callable[..., float]:
    def value(pred_lfc: np.ndarray, true_lfc: np.ndarray, pred: np.ndarray, true: np.ndarray) -> float:
        if not true.any():
            return np.nan
        n = min(k or pred.sum(), pred.sum())
        return overlap(pred_lfc, true_lfc, pred, true, n) if n else 0.0

    return value


def if_called(formula: Callable[[np.ndarray, np.ndarray], float]) -> Callable[..., float]:
    return lambda pred, true: formula(true, pred) if true.any() else np.nan


def mcc(pred: np.ndarray, true: np.ndarray, keep: np.ndarray) -> float:
    return matthews_corrcoef(true[keep], pred[keep]) if true.any() and (keep & ~true).any() else np.nan


def match(pred_lfc: np.ndarray, true_lfc: np.ndarray, true: np.ndarray) -> float:
    return np.mean(np.sign(pred_lfc[true]) == np.sign(true_lfc[true])) if true.any() else np.nan


def fidelity(pred_lfc: np.ndarray, true_lfc: np.ndarray, pred: np.ndarray, true: np.ndarray) -> float:
    n_pred, n_true = (sum(called & (true_lfc != 0)) for called in (pred, true))
    right = sum(np.sign(p) == np.sign(t) for p, t, c in zip(pred_lfc, true_lfc, pred, strict=True) if c and t != 0)
    return right / max(n_pred, n_true) if n_true else np.nan


def fidelity_without_calls(pred_lfc: np.ndarray, true_lfc: np.ndarray, pred: np.ndarray, true: np.ndarray) -> float:
    counted = pred & (true_lfc != 0)
    if not (true & (true_lfc != 0)).any():
        return np.mean(np.sign(pred_lfc[counted]) == np.sign(true_lfc[counted])) if counted.any() else np.nan
    return fidelity(pred_lfc, true_lfc, pred, true)


def reach(pred_p: np.ndarray, pred_lfc: np.ndarray, true_lfc: np.ndarray, true: np.ndarray) -> float:
    genes = [
        (p, -abs(e), np.sign(e) == np.sign(d))
        for p, e, d, c in zip(pred_p, pred_lfc, true_lfc, true, strict=True)
        if c and d != 0
    ]
    if not genes:
        return np.nan
    right = [r for *_, r in sorted(genes)]
    return max([k for k in range(1, len(right) + 1) if sum(right[:k]) >= 0.9 * k] or [0]) / len(right)


def spearman(pred_lfc: np.ndarray, true_lfc: np.ndarray, true: np.ndarray) -> float:
    x, y = (np.nan_to_num(lfc[true], posinf=1e9, neginf=-1e9) for lfc in (pred_lfc, true_lfc))
    if len(np.unique(y)) < 2:
        return np.nan
    return spearmanr(x, y).statistic if len(np.unique(x)) > 1 else 0.0


def nmae(pred_lfc: np.ndarray, true_lfc: np.ndarray, true: np.ndarray) -> float:
    gate = true & np.isfinite(true_lfc)
    if gate.sum() < 3 or not abs(true_lfc[gate]).sum():
        return np.nan
    pred = np.nan_to_num(pred_lfc[gate], posinf=0, neginf=0)
    return abs(pred - true_lfc[gate]).sum() / abs(true_lfc[gate]).sum()


def both_classes(metric: Callable[..., float]) -> Callable[..., float]:
    def value(score: np.ndarray, true: np.ndarray, keep: np.ndarray) -> float:
        return metric(true[keep], score[keep]) if true.any() and (keep & ~true).any() else np.nan

    return value


def signed(score: np.ndarray, sign: np.ndarray, true: np.ndarray, keep: np.ndarray) -> float:
    if not (keep & ~true).any():
        return np.nan
    sides = [(side * score, true & (side * sign > 0)) for side in (1, -1)]
    return np.mean([average_precision_score(t[keep], s[keep]) for s, t in sides if t.any()] or [np.nan])


LFCS, CALLS = ("pred_lfc", "true_lfc"), ("pred_called", "true_called")
SILENT = {"zero_division": 0}

CASES = {
    "overlap": (
        lambda t: de_overlap_at_n(*(abs(t[n]) for n in LFCS), *(t[n] for n in CALLS)),
        row_by_row(overlap_at_n(0), *LFCS, *CALLS),
    ),
    "overlap at 3": (
        lambda t: de_overlap_at_n(*(abs(t[n]) for n in LFCS), *(t[n] for n in CALLS), k=3),
        row_by_row(overlap_at_n(3), *LFCS, *CALLS),
    ),
    "precision at n": (
        lambda t: de_precision_at_n(*(abs(t[n]) for n in LFCS), *(t[n] for n in CALLS)),
        row_by_row(precision_at_n(0), *LFCS, *CALLS),
    ),
    "precision at 3": (
        lambda t: de_precision_at_n(*(abs(t[n]) for n in LFCS), *(t[n] for n in CALLS), k=3),
        row_by_row(precision_at_n(3), *LFCS, *CALLS),
    ),
    "precision": (
        lambda t: de_precision(*(t[n] for n in CALLS)),
        row_by_row(if_called(lambda y, p: precision_score(y, p, **SILENT)), *CALLS),
    ),
    "recall": (
        lambda t: de_recall(*(t[n] for n in CALLS)),
        row_by_row(if_called(lambda y, p: recall_score(y, p, **SILENT)), *CALLS),
    ),
    "jaccard": (
        lambda t: de_sig_jaccard(*(t[n] for n in CALLS)),
        row_by_row(if_called(lambda y, p: jaccard_score(y, p, **SILENT)), *CALLS),
    ),
    "jaccard of nothing": (
        lambda t: de_sig_jaccard(*(t[n] for n in CALLS), defined_without_calls=True),
        row_by_row(lambda p, y: jaccard_score(y, p, zero_division=1), *CALLS),
    ),
    "mcc": (
        lambda t: de_sig_mcc(*(t[n] for n in CALLS), t["keep"]),
        row_by_row(mcc, *CALLS, "keep"),
    ),
    "match": (
        lambda t: de_direction_match(*(t[n] for n in (*LFCS, "true_called"))),
        row_by_row(match, *LFCS, "true_called"),
    ),
    "fidelity": (
        lambda t: de_direction_fidelity(*(t[n] for n in (*LFCS, *CALLS))),
        row_by_row(fidelity, *LFCS, *CALLS),
    ),
    "fidelity of nothing": (
        lambda t: de_direction_fidelity(*(t[n] for n in (*LFCS, *CALLS)), defined_without_calls=True),
        row_by_row(fidelity_without_calls, *LFCS, *CALLS),
    ),
    "reach": (
        lambda t: de_direction_reach(*(t[n] for n in ("pred_p", *LFCS, "true_called"))),
        row_by_row(reach, "pred_p", *LFCS, "true_called"),
    ),
    "spearman": (
        lambda t: de_lfc_spearman(*(t[n] for n in (*LFCS, "true_called"))),
        row_by_row(spearman, *LFCS, "true_called"),
    ),
    "nmae": (
        lambda t: de_lfc_nmae(*(t[n] for n in (*LFCS, "true_called")), min_genes=3),
        row_by_row(nmae, *LFCS, "true_called"),
    ),
    "auroc": (
        lambda t: de_auroc(*(t[n] for n in ("score", "true_called", "keep"))),
        row_by_row(both_classes(roc_auc_score), "score", "true_called", "keep"),
    ),
    "auprc": (
        lambda t: de_auprc(*(t[n] for n in ("score", "true_called", "keep"))),
        row_by_row(both_classes(average_precision_score), "score", "true_called", "keep"),
    ),
    "auprc signed": (
        lambda t: de_auprc_signed(*(t[n] for n in ("score", "true_lfc", "true_called", "keep"))),
        row_by_row(signed, "score", "true_lfc", "true_called", "keep"),
    ),
}


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
def test_a_formula_equals_an_independent_one(case: str, data: st.DataObject) -> None:
    ours, theirs = CASES[case]
    given_tables = tables(data)
    values = ours({name: torch.from_numpy(x) for name, x in given_tables.items()})
    assert values.dtype == torch.float64
    np.testing.assert_allclose(values.numpy(), theirs(given_tables), rtol=1e-12, atol=1e-12)


@given(data=st.data())
def test_an_order_of_genes_changes_nothing(data: st.DataObject) -> None:
    given_tables = {name: torch.from_numpy(x) for name, x in tables(data).items()}
    order = torch.from_numpy(np.random.default_rng(0).permutation(given_tables["keep"].shape[1]))
    moved = {name: x[:, order] for name, x in given_tables.items()}
    for case, (ours, _) in CASES.items():
        values = (ours(t).numpy() for t in (moved, given_tables))
        np.testing.assert_allclose(*values, rtol=1e-12, atol=1e-12, err_msg=case)


@given(data=st.data())
def test_the_truth_is_perfect(data: st.DataObject) -> None:
    t = tables(data)
    t |= {"pred_lfc": t["true_lfc"], "pred_called": t["true_called"], "score": np.where(t["true_called"], 9.0, 0.0)}
    given_tables = {name: torch.from_numpy(x) for name, x in t.items()}
    given_tables["true_lfc"] = given_tables["pred_lfc"]
    for case, (ours, _) in CASES.items():
        if case == "auprc signed":
            values = de_auprc_signed(
                given_tables["score"] * given_tables["true_lfc"].sign(),
                given_tables["true_lfc"],
                given_tables["true_called"] & (given_tables["true_lfc"] != 0),
                given_tables["keep"],
            )
        else:
            values = ours(given_tables)
        perfect = 0.0 if case == "nmae" else 1.0
        np.testing.assert_allclose(values[~values.isnan()].numpy(), perfect, rtol=1e-12, atol=1e-12, err_msg=case)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_numbers_of_calls_are_correlated_over_perturbations_with_true_calls(counts: list[tuple[int, int]]) -> None:
    pred, true = (np.array(x) for x in zip(*counts, strict=True))
    value = de_count_spearman(torch.from_numpy(pred), torch.from_numpy(true))
    x, y = pred[true > 0], true[true > 0]
    if len(np.unique(y)) < 2:
        assert value is None
    elif len(np.unique(x)) < 2:
        assert value == 0.0
    else:
        assert math.isclose(value, spearmanr(x, y).statistic, abs_tol=1e-12)


def test_many_genes_are_counted_exactly() -> None:
    # Sums of ranks and numbers of pairs here are far beyond what float32 holds.
    rng = np.random.default_rng(0)
    true, score = rng.random((1, 40_001)) < 0.4, rng.normal(0, 1, (1, 40_001))
    called = score > 0.2
    for ours, theirs in (
        (de_auroc(torch.from_numpy(score), torch.from_numpy(true)), roc_auc_score(true[0], score[0])),
        (de_auprc(torch.from_numpy(score), torch.from_numpy(true)), average_precision_score(true[0], score[0])),
        (de_sig_mcc(torch.from_numpy(called), torch.from_numpy(true)), matthews_corrcoef(true[0], called[0])),
    ):
        assert ours.tolist() == [pytest.approx(theirs, rel=1e-12)]


def test_positions_break_ties_where_they_are_asked_to() -> None:
    size = torch.tensor([[1.0, 2.0, 2.0, 2.0]])
    true = torch.tensor([[False, True, True, False]])
    every = torch.ones_like(true)
    assert de_overlap_at_n(size, size, every, true, shares_ties=False).tolist() == [1.0]
    assert de_overlap_at_n(size.flip(1), size.flip(1), every, true.flip(1), shares_ties=False).tolist() == [0.5]
    assert de_overlap_at_n(size, size, every, true).tolist() == [pytest.approx(2 / 3)]


def test_confidence_that_is_tied_counts_wrong_genes_first() -> None:
    p = torch.full((1, 4), 0.5)
    lfc = torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    pred = torch.tensor([[1.0, 1.0, 1.0, -1.0]])
    called = torch.ones(1, 4, dtype=torch.bool)
    assert de_direction_reach(p, pred, lfc, called).tolist() == [0.0]
    assert de_direction_reach(p, pred * torch.tensor([2.0, 2.0, 2.0, 1.0]), lfc, called).tolist() == [0.75]


@given(data=st.data())
def test_compacted_keeps_what_is_chosen_in_order(data: st.DataObject) -> None:
    t = tables(data)
    mask = t["true_called"]
    there, values = compacted(torch.from_numpy(mask), torch.from_numpy(t["score"]))
    assert there.shape == (2, max(1, mask.sum(axis=1).max()))
    for row in range(2):
        assert values[row][there[row]].tolist() == t["score"][row][mask[row]].tolist()
        assert not values[row][~there[row]].any()


@pytest.mark.parametrize("case", CASES)
def test_no_perturbations_and_no_genes_have_no_values(case: str) -> None:
    ours, _ = CASES[case]
    for shape in ((0, 3), (2, 0)):
        empty = {
            name: torch.zeros(shape, dtype=torch.bool if name in ("keep", *CALLS) else torch.float64)
            for name in ("pred_lfc", "true_lfc", "pred_p", "score", "keep", *CALLS)
        }
        values = ours(empty)
        assert values.shape == shape[:1]
        assert values.isnan().all() or case == "jaccard of nothing"
