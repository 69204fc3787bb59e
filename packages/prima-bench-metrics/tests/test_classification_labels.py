"""Metrics of hard labels against scikit-learn, case by case and on generated rows."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import sklearn.metrics as sk
import torch
import torchmetrics.functional.classification as tm
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.base import Score
from prima_bench.metrics.classification.abstention import coverage_accuracy, unknown_rate
from prima_bench.metrics.classification.accuracy import accuracy, balanced_accuracy
from prima_bench.metrics.classification.agreement import cohen_kappa, mcc
from prima_bench.metrics.classification.f1 import f1_macro, f1_per_class, f1_weighted
from prima_bench.metrics.classification.precision_recall import precision_macro, recall_macro

Codes = npt.NDArray[np.int64]

# What scikit-learn computes for the same thing: over the classes of the truth, or over those of both sides.
OVER_PRESENT: dict[Callable[..., Score], Callable[..., Any]] = {
    f1_macro: sk.f1_score,
    precision_macro: sk.precision_score,
    recall_macro: sk.recall_score,
}
GLOBAL: dict[Callable[..., Score], Callable[[Codes, Codes], float]] = {
    accuracy: sk.accuracy_score,
    balanced_accuracy: sk.balanced_accuracy_score,
    f1_weighted: lambda t, p: sk.f1_score(t, p, average="weighted", zero_division=0),
}
CASES: dict[str, tuple[list[int], list[int]]] = {
    "right and wrong": ([0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 0]),
    "an absent class": ([0, 0, 3, 3], [0, 3, 3, 3]),
    "a class only predicted": ([0, 0, 1, 1], [0, 2, 1, 2]),
    "a class never called": ([0, 1, 2, 2], [0, 1, 1, 0]),
    "constant prediction": ([0, 1, 2, 2], [2, 2, 2, 2]),
    "constant absent prediction": ([0, 1, 2, 2], [3, 3, 3, 3]),
    "all wrong": ([0, 1, 2], [1, 2, 0]),
    "all right": ([0, 1, 2], [0, 1, 2]),
    "one class": ([1, 1, 1], [1, 0, 1]),
    "one row": ([2], [2]),
    "some abstained": ([0, 0, 1, 1, 2], [0, -1, 1, -1, -1]),
    "all abstained": ([0, 1, 2], [-1, -1, -1]),
}


@contextmanager
def quiet() -> Iterator[None]:
    """scikit-learn warns where it puts a 0 for 0/0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Codes, Codes, int]:
    """True and predicted codes over few classes, so that absent and foreign ones are common."""
    num_classes = draw(st.integers(1, 6))
    truths = st.sampled_from(draw(st.lists(st.integers(0, num_classes - 1), min_size=1, unique=True)))
    calls = st.sampled_from(draw(st.lists(st.integers(-1, num_classes - 1), min_size=1, unique=True)))
    rows = draw(st.lists(st.tuples(truths, calls), min_size=1, max_size=40))
    target, preds = np.array(rows, dtype=np.int64).T
    return target, preds, num_classes


def _close(expected: float) -> Any:
    return pytest.approx(expected, rel=1e-12, abs=1e-12)


def _score(metric: Callable[..., Score], target: Codes, preds: Codes, num_classes: int, **params: str) -> Score:
    return metric(torch.tensor(preds), torch.tensor(target), num_classes=num_classes, **params)


def _compare(target: Codes, preds: Codes, num_classes: int) -> None:
    present = np.unique(target)
    with quiet():
        for ours, theirs in GLOBAL.items():
            assert _score(ours, target, preds, num_classes).value == _close(theirs(target, preds))
        for ours, theirs in OVER_PRESENT.items():
            expected = theirs(target, preds, labels=present, average="macro", zero_division=0)
            each = theirs(target, preds, labels=present, average=None, zero_division=0)
            score = _score(ours, target, preds, num_classes)
            assert score.value == _close(expected)
            assert score.units is not None
            np.testing.assert_allclose(score.units.numpy()[present], each, rtol=1e-12, atol=1e-12)
            assert sorted(score.undefined) == sorted(set(range(num_classes)) - set(present.tolist()))
            if (preds >= 0).all():
                union = theirs(target, preds, average="macro", zero_division=0)
                assert _score(ours, target, preds, num_classes, labels="union").value == _close(union)
        if len(present) == 1:
            for ours in (cohen_kappa, mcc):
                score = _score(ours, target, preds, num_classes)
                assert (score.value, score.reason) == (None, "one class only in the solution")
        else:
            kappa = sk.cohen_kappa_score(target, preds)
            assert _score(cohen_kappa, target, preds, num_classes).value == _close(kappa)
            expected = sk.matthews_corrcoef(target, preds)
            assert _score(mcc, target, preds, num_classes).value == _close(expected)


@pytest.mark.parametrize("case", CASES)
def test_cases_equal_scikit_learn(case: str) -> None:
    target, preds = (np.array(codes, dtype=np.int64) for codes in CASES[case])
    _compare(target, preds, num_classes=4)


@given(labelled())
def test_generated_rows_equal_scikit_learn(rows: tuple[Codes, Codes, int]) -> None:
    _compare(*rows)


@given(labelled())
def test_f1_per_class_lists_what_f1_macro_averages(rows: tuple[Codes, Codes, int]) -> None:
    listed, averaged = (_score(metric, *rows) for metric in (f1_per_class, f1_macro))
    assert listed.value == averaged.value
    assert listed.units is not None
    assert averaged.units is not None
    assert listed.units.numpy().tobytes() == averaged.units.numpy().tobytes()
    assert listed.undefined == averaged.undefined


@given(labelled())
def test_abstention_is_counted_apart_and_against_accuracy(rows: tuple[Codes, Codes, int]) -> None:
    target, preds, _ = rows
    answered = preds >= 0
    assert _score(unknown_rate, *rows).value == _close(1 - answered.mean())
    right = float((preds == target)[answered].mean()) if answered.any() else 0.0
    assert _score(coverage_accuracy, *rows).value == _close(right)
    assert _score(accuracy, *rows).value == _close((preds == target).mean())


def test_a_stray_call_adds_no_zero_unless_asked_to() -> None:
    target, preds = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 2])
    present, union = (f1_macro(preds, target, num_classes=4, labels=labels) for labels in ("present", "union"))
    assert present.value == pytest.approx((1 + 2 / 3) / 2)
    assert union.value == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert dict(present.undefined) == dict.fromkeys((2, 3), "class absent from the solution")
    assert dict(union.undefined) == {3: "class absent from the solution and the predictions"}


def test_scores_are_read_as_the_first_of_the_highest_classes() -> None:
    preds = torch.tensor([[0.2, 0.4, 0.4], [0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]])
    target = torch.tensor([1, 0, 0])
    assert accuracy(preds, target, num_classes=3).value == 1.0
    assert accuracy(preds.log(), target, num_classes=3, scores="logit").value == 1.0


def test_large_counts_stay_exact() -> None:
    n = 1_200_000
    target = torch.zeros(n, dtype=torch.int64)
    target[: n // 3] = 1
    assert mcc(target, target, num_classes=2).value == 1.0
    assert cohen_kappa(target, target, num_classes=2).value == 1.0
    assert mcc(1 - target, target, num_classes=2).value == -1.0
    assert mcc(torch.zeros_like(target), target, num_classes=2).value == 0.0


@given(labelled())
def test_torchmetrics_agrees_where_definitions_coincide(rows: tuple[Codes, Codes, int]) -> None:
    target, preds, num_classes = rows
    if num_classes < 2 or (preds < 0).any():
        return
    t, p = torch.tensor(target), torch.tensor(preds)
    pairs = [(f1_macro, tm.multiclass_f1_score), (precision_macro, tm.multiclass_precision)]
    for ours, theirs in [*pairs, (recall_macro, tm.multiclass_recall)]:
        expected = float(theirs(p, t, num_classes=num_classes, average="macro"))
        assert ours(p, t, num_classes=num_classes, labels="union").value == pytest.approx(expected, abs=1e-6)
    expected = float(tm.multiclass_accuracy(p, t, num_classes=num_classes, average="micro"))
    assert accuracy(p, t, num_classes=num_classes).value == pytest.approx(expected, abs=1e-6)
    if len(np.unique(target)) > 1 and len(np.unique(preds)) > 1:
        expected = float(tm.multiclass_cohen_kappa(p, t, num_classes=num_classes))
        assert cohen_kappa(p, t, num_classes=num_classes).value == pytest.approx(expected, abs=1e-6)
        expected = float(tm.multiclass_matthews_corrcoef(p, t, num_classes=num_classes))
        assert mcc(p, t, num_classes=num_classes).value == pytest.approx(expected, abs=1e-6)
