"""Laws that every classification metric keeps, whatever it computes; new metrics are picked up from the catalog."""

import importlib
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prima_bench.metrics.base import Score
from prima_bench.metrics.catalog import list_specs, load_metric
from prima_bench.metrics.classification import probabilities
from prima_bench.metrics.classification.base import ClassificationMetric
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.panel import Panel

SPECS = {spec.name: spec for spec in list_specs("classification")}
INPUTS = ("label", "probability", "logit")
SCORE_METRICS = ("auprc_macro", "auroc_macro", "brier", "ece", "log_loss", "top_k_accuracy")
NAMES = (
    "accuracy", "auprc_macro", "auroc_macro", "balanced_accuracy", "brier", "cohen_kappa", "coverage_accuracy", "ece",
    "f1_macro", "f1_per_class", "f1_weighted", "log_loss", "mcc", "precision_macro", "recall_macro", "top_k_accuracy",
    "unknown_rate",
)  # fmt: skip
WITH_CHANCE = [spec.name for spec in SPECS.values() if spec.chance is not None]
every_metric = pytest.mark.parametrize("name", SPECS)
every_input = pytest.mark.parametrize("kind", INPUTS)


def _metric(
    name: str, num_classes: int, kind: str = "probability", params: Mapping[str, Any] = MappingProxyType({})
) -> ClassificationMetric:
    build: Any = load_metric(name)
    metric = build(num_classes=num_classes, scores=_scores(kind), **params)
    assert isinstance(metric, ClassificationMetric)
    return metric


def _scores(kind: str) -> str:
    return "logit" if kind == "logit" else "probability"


def _rows(seed: int, n: int, num_classes: int, kind: str) -> tuple[Tensor, Tensor]:
    """Predictions over nine decades, so that no order bug hides in sums that happen to be exact."""
    rng = np.random.default_rng(seed)
    target = torch.tensor(rng.integers(0, max(num_classes - 1, 1), n))
    if kind == "label":
        return torch.tensor(rng.integers(-1, num_classes, n)), target
    raw = 10 ** rng.uniform(-8, 1, (n, num_classes))
    if kind == "logit":
        return torch.tensor(raw * rng.choice([-1.0, 1.0], raw.shape)), target
    return torch.tensor(raw / raw.sum(axis=1, keepdims=True)), target


def _bits(score: Score) -> tuple[object, ...]:
    value = None if score.value is None else struct.pack("<d", score.value)
    units = None if score.units is None else score.units.numpy().tobytes()
    return value, score.reason, units, tuple(score.undefined.items())


def _field(kind: str) -> str:
    return "label" if kind == "label" else "score"


def _at_once(name: str, preds: Tensor, target: Tensor, num_classes: int, kind: str) -> Score:
    metric = _metric(name, num_classes, kind)
    metric.update(preds, target)
    return metric.result()


def _close(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_the_catalog_lists_every_metric() -> None:
    assert tuple(SPECS) == NAMES


@every_metric
def test_spec_and_class_agree(name: str) -> None:
    spec = SPECS[name]
    metric = _metric(name, 3, params={p.name: p.default for p in spec.params})
    assert metric.higher_is_better == (spec.direction == "max")
    assert type(metric).__name__ == spec.implementation
    for param in spec.params:
        assert getattr(_metric(name, 3), param.name) == param.default
        for choice in param.choices:
            assert getattr(_metric(name, 3, params={param.name: choice}), param.name) == choice


@every_metric
def test_parameters_out_of_range_are_refused(name: str) -> None:
    for param in SPECS[name].params:
        for wrong in ("nonsense", 0, True, 1.5):
            with pytest.raises(InputError, match=f"{param.name} (cannot|must)"):
                _metric(name, 3, params={param.name: wrong})


@every_metric
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(INPUTS), n=st.integers(2, 40))
def test_any_sharding_gives_the_same_bits(name: str, seed: int, kind: str, n: int) -> None:
    preds, target = _rows(seed, n, 4, kind)
    rng = np.random.default_rng(seed)
    index = torch.tensor(rng.choice(10 * n, n, replace=False))
    whole = _metric(name, 4, kind)
    whole.update(preds, target, index)
    order = np.concatenate([rng.permutation(n), rng.integers(0, n, 3)])  # the last three are a sampler's padding
    shards = _metric(name, 4, kind)
    for part in np.split(order, np.sort(rng.integers(0, len(order) + 1, 4))):
        shards.update(preds[part], target[part], index[part])
    assert _bits(whole.result()) == _bits(shards.result())


@every_metric
@every_input
def test_alone_and_in_a_panel_the_bits_are_the_same(name: str, kind: str) -> None:
    preds, target = _rows(7, 300, 5, kind)
    panel = Panel({n: _metric(n, 5, kind) for n in SPECS})
    panel.update(target=target, **{_field(kind): preds})
    assert _bits(panel.results()[name]) == _bits(_at_once(name, preds, target, 5, kind))


@every_metric
@every_input
def test_function_and_class_give_the_same_bits(name: str, kind: str) -> None:
    preds, target = _rows(8, 300, 5, kind)
    module = importlib.import_module(load_metric(name).__module__)
    score = getattr(module, name)(preds, target, num_classes=5, scores=_scores(kind))
    assert _bits(score) == _bits(_at_once(name, preds, target, 5, kind))


@pytest.mark.parametrize("name", ["f1_macro", *SCORE_METRICS])
@pytest.mark.parametrize("kind", ["probability", "logit"])
def test_threads_layout_and_blocks_leave_the_bits(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preds, target = _rows(9, 100_003, 6, kind)
    with _threads(1):
        expected = _bits(_at_once(name, preds, target, 6, kind))
    assert _bits(_at_once(name, preds, target, 6, kind)) == expected
    padded = torch.zeros(len(preds), 9, dtype=preds.dtype)
    padded[:, 2:8] = preds
    module = importlib.import_module(load_metric(name).__module__)
    for laid_out in (preds.T.contiguous().T, padded[:, 2:8]):
        assert _bits(getattr(module, name)(laid_out, target, num_classes=6, scores=_scores(kind))) == expected
    monkeypatch.setattr(probabilities, "_ROW_BLOCK_BYTES", 100_000)
    monkeypatch.setattr(probabilities, "_CLASS_BLOCK_BYTES", 100_000)
    assert _bits(_at_once(name, preds, target, 6, kind)) == expected


@every_metric
def test_float32_scores_count_as_their_float64_values(name: str) -> None:
    preds, target = _rows(10, 200, 4, "probability")
    narrow = preds.float()
    expected = _bits(_at_once(name, narrow.double(), target, 4, "probability"))
    assert _bits(_at_once(name, narrow, target, 4, "probability")) == expected
    mixed = _metric(name, 4)
    mixed.update(narrow[:90], target[:90])
    mixed.update(narrow[90:].double(), target[90:])
    assert _bits(mixed.result()) == expected


@every_metric
@every_input
def test_the_truth_is_the_perfect_prediction(name: str, kind: str) -> None:
    target = torch.tensor([0, 0, 1, 2, 2, 2, 4])
    sure = torch.nn.functional.one_hot(target, 5).double()
    preds = {"label": target, "probability": sure, "logit": 100 * sure}[kind]
    score = _at_once(name, preds, target, 5, kind)
    if kind == "label" and name in SCORE_METRICS:
        assert (score.value, score.reason) == (None, "needs class probabilities or scores")
        return
    assert score.value == pytest.approx(SPECS[name].perfect, abs=1e-12)


@every_metric
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(INPUTS))
def test_the_order_of_classes_changes_nothing(name: str, seed: int, kind: str) -> None:
    preds, target = _rows(seed, 50, 5, kind)
    new_code = torch.tensor(np.random.default_rng(seed).permutation(5))
    relabelled = torch.empty_like(preds)
    if kind == "label":
        relabelled = torch.where(preds >= 0, new_code[preds], -1)
    else:
        relabelled[:, new_code] = preds
    a, b = _at_once(name, preds, target, 5, kind), _at_once(name, relabelled, new_code[target], 5, kind)
    assert _close(a.value, b.value)
    if a.units is not None and b.units is not None:
        assert torch.allclose(a.units, b.units[new_code], rtol=1e-12, atol=1e-12, equal_nan=True)


@every_metric
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(INPUTS), n=st.integers(1, 30))
def test_values_stay_in_the_declared_range(name: str, seed: int, kind: str, n: int) -> None:
    score = _at_once(name, *_rows(seed, n, 4, kind), 4, kind)
    low, high = SPECS[name].range
    for value in [score.value, *([] if score.units is None else score.units[~score.units.isnan()].tolist())]:
        if value is not None:
            assert low is None or value >= low
            assert high is None or value <= high


@pytest.mark.parametrize("name", WITH_CHANCE)
@pytest.mark.parametrize("kind", ["label", "probability"])
def test_a_prediction_that_ignores_the_truth_scores_chance(name: str, kind: str) -> None:
    preds, target = _rows(11, 20_000, 5, kind)
    score = _at_once(name, preds, target, 5, kind)
    if score.reason is None:
        assert score.value == pytest.approx(SPECS[name].chance, abs=0.02)


@pytest.mark.parametrize("name", WITH_CHANCE)
def test_a_constant_prediction_scores_exactly_chance(name: str) -> None:
    target = torch.tensor([0, 0, 0, 1, 2])
    constant = torch.tensor([[0.5, 0.25, 0.25]]).repeat(5, 1)
    assert _at_once(name, constant, target, 3, "probability").value == SPECS[name].chance


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "f1_macro", "mcc", "cohen_kappa", "auroc_macro"])
def test_shifted_labels_lose(name: str) -> None:
    target = torch.arange(60) % 5
    shifted = torch.nn.functional.one_hot((target + 1) % 5, 5).double()
    score = _at_once(name, shifted, target, 5, "probability")
    assert score.value is not None
    assert score.value <= (SPECS[name].chance or 0.0)


@every_metric
def test_one_class_in_the_solution(name: str) -> None:
    target = torch.ones(6, dtype=torch.int64)
    preds = _rows(12, 6, 3, "probability")[0]
    score = _at_once(name, preds, target, 3, "probability")
    if name in {"auroc_macro", "auprc_macro", "cohen_kappa", "mcc"}:
        assert (score.value, score.reason) == (None, "one class only in the solution")
    else:
        assert score.value is not None


@every_metric
def test_no_rows_no_value(name: str) -> None:
    module = importlib.import_module(load_metric(name).__module__)
    none = torch.zeros(0, dtype=torch.int64)
    for preds in (none, torch.zeros(0, 3)):
        score = getattr(module, name)(preds, none, num_classes=3)
        assert (score.value, score.reason) == (None, "no rows were given")
    metric = _metric(name, 3)
    metric.update(none, none)
    assert metric.result().reason == "no rows were given"
