"""Metrics of class scores against scikit-learn, torchmetrics and plain loops."""

import math
import warnings
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import sklearn.metrics as sk
import torch
import torchmetrics.functional.classification as tm
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prima_bench.metrics.classification.calibration import Binning, ece
from prima_bench.metrics.classification.checks import SUM_TOLERANCE
from prima_bench.metrics.classification.probability import LogLoss, brier, log_loss
from prima_bench.metrics.classification.ranking import auprc_macro, auroc_macro
from prima_bench.metrics.classification.top_k import top_k_accuracy
from prima_bench.metrics.errors import InputError

Array = npt.NDArray[np.float64]
Kind = Literal["continuous", "float32", "ties", "one class each", "constant"]
KINDS: tuple[Kind, ...] = ("continuous", "float32", "ties", "one class each", "constant")


def _close(expected: float) -> Any:
    return pytest.approx(expected, rel=1e-12, abs=1e-12)


def _rows(seed: int, n: int, num_classes: int, kind: Kind) -> tuple[Tensor, Tensor]:
    """Probabilities over several decades, and true classes of which some may be absent."""
    rng = np.random.default_rng(seed)
    target = rng.choice(rng.choice(num_classes, rng.integers(1, num_classes + 1), replace=False), n)
    if kind == "ties":
        raw = rng.integers(1, 4, (n, num_classes)).astype(float)
    elif kind == "one class each":
        raw = np.eye(num_classes)[rng.integers(0, num_classes, n)]
    elif kind == "constant":
        raw = np.tile(rng.integers(1, 4, num_classes).astype(float), (n, 1))
    else:
        raw = 10 ** rng.uniform(-6, 3, (n, num_classes))
    p = torch.tensor(raw / raw.sum(axis=1, keepdims=True))
    return (p.float() if kind == "float32" else p), torch.tensor(target)


rows = st.builds(_rows, st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(2, 7), st.sampled_from(KINDS))


def _numpy(p: Tensor) -> Array:
    return p.double().numpy()


@given(rows)
def test_each_class_ranks_as_in_scikit_learn(pair: tuple[Tensor, Tensor]) -> None:
    p, target = pair
    num_classes = p.shape[1]
    auroc, auprc = (metric(p, target, num_classes=num_classes) for metric in (auroc_macro, auprc_macro))
    present = np.unique(target.numpy())
    if len(present) < 2:
        for score in (auroc, auprc):
            assert (score.value, score.reason) == (None, "one class only in the solution")
        return
    assert auroc.units is not None
    assert auprc.units is not None
    for units, theirs in ((auroc.units, sk.roc_auc_score), (auprc.units, sk.average_precision_score)):
        each = [theirs(target.numpy() == c, _numpy(p)[:, c]) for c in present]
        np.testing.assert_allclose(units.numpy()[present], each, rtol=1e-12, atol=1e-12)
    assert auroc.value == _close(np.mean(auroc.units.numpy()[present]))
    assert auprc.value == _close(np.mean(auprc.units.numpy()[present]))
    absent = dict.fromkeys(sorted(set(range(num_classes)) - set(present.tolist())), "class absent from the solution")
    assert auroc.undefined == auprc.undefined == absent


def test_macro_equals_scikit_learn_when_all_classes_occur() -> None:
    p, target = _rows(1, 500, 6, "continuous")
    target[:6] = torch.arange(6)
    ovr = sk.roc_auc_score(target.numpy(), _numpy(p), multi_class="ovr", average="macro")
    assert auroc_macro(p, target, num_classes=6).value == _close(ovr)
    average_precision = sk.average_precision_score(np.eye(6)[target.numpy()], _numpy(p), average="macro")
    assert auprc_macro(p, target, num_classes=6).value == _close(average_precision)
    assert float(tm.multiclass_auroc(p, target, num_classes=6)) == pytest.approx(ovr, abs=1e-6)
    theirs = float(tm.multiclass_average_precision(p, target, num_classes=6))
    assert theirs == pytest.approx(average_precision, abs=1e-6)


@given(rows)
def test_log_loss_equals_scikit_learn_in_float64(pair: tuple[Tensor, Tensor]) -> None:
    p, target = pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # float32 rows sum to 1 only to 1e-7
        expected = sk.log_loss(target.numpy(), _numpy(p), labels=range(p.shape[1]))
    assert log_loss(p, target, num_classes=p.shape[1]).value == _close(expected)


@given(rows.filter(lambda pair: pair[0].shape[1] > 2))
def test_brier_equals_scikit_learn_for_three_classes_or_more(pair: tuple[Tensor, Tensor]) -> None:
    p, target = pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # float32 rows sum to 1 only to 1e-7
        expected = sk.brier_score_loss(target.numpy(), _numpy(p), labels=list(range(p.shape[1])))
    assert brier(p, target, num_classes=p.shape[1]).value == _close(expected)


def test_brier_of_two_classes_is_twice_scikit_learn() -> None:
    p, target = _rows(5, 200, 2, "continuous")
    half = sk.brier_score_loss(target.numpy(), _numpy(p)[:, 1], pos_label=1)
    assert brier(p, target, num_classes=2).value == _close(2 * half)


@given(rows, st.integers(1, 8))
def test_top_k_shares_ties(pair: tuple[Tensor, Tensor], k: int) -> None:
    p, target = pair
    earned = 0.0
    for row, c in zip(p.tolist(), target.tolist(), strict=True):
        above = sum(x > row[c] for x in row)
        equal = sum(x == row[c] for x in row)
        earned += sum(above + place < k for place in range(equal)) / equal
    expected = earned / len(p)
    assert top_k_accuracy(p, target, num_classes=p.shape[1], k=k).value == _close(expected)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k_equals_scikit_learn_and_torchmetrics_without_ties(k: int) -> None:
    p, target = _rows(2, 400, 7, "continuous")
    ours = top_k_accuracy(p, target, num_classes=7, k=k).value
    assert ours == _close(sk.top_k_accuracy_score(target.numpy(), _numpy(p), k=k, labels=range(7)))
    theirs = tm.multiclass_accuracy(p, target, num_classes=7, average="micro", top_k=k)
    assert ours == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.parametrize(("num_classes", "k"), [(4, 3), (10, 3), (3, 2)])
def test_top_k_of_a_constant_prediction_is_chance(num_classes: int, k: int) -> None:
    target = torch.arange(num_classes)
    constant = torch.full((num_classes, num_classes), 1 / num_classes)
    assert top_k_accuracy(constant, target, num_classes=num_classes, k=k).value == pytest.approx(k / num_classes)


def _ece_by_loop(p: Tensor, target: Tensor, bins: int, binning: Binning) -> float:
    sure = [max(row) for row in p.double().tolist()]
    right = [row.index(max(row)) == c for row, c in zip(p.tolist(), target.tolist(), strict=True)]
    n = len(sure)
    members: dict[int, list[int]] = {}
    for i, s in enumerate(sure):
        if binning == "equal_width":
            b = min(math.floor(s * bins), bins - 1)
        else:
            b = bins * (sum(x < s for x in sure) + sum(x <= s for x in sure)) // (2 * n)
        members.setdefault(b, []).append(i)
    gaps = [abs(sum(right[i] for i in m) - math.fsum(sure[i] for i in m)) for m in members.values()]
    return math.fsum(gaps) / n


@given(rows, st.integers(1, 20), st.sampled_from(["equal_mass", "equal_width"]))
def test_ece_equals_a_plain_loop(pair: tuple[Tensor, Tensor], bins: int, binning: Binning) -> None:
    p, target = pair
    ours = ece(p, target, num_classes=p.shape[1], bins=bins, binning=binning).value
    assert ours == _close(_ece_by_loop(p, target, bins, binning))


def test_equal_width_bins_equal_torchmetrics() -> None:
    p, target = _rows(3, 2000, 5, "continuous")
    theirs = float(tm.multiclass_calibration_error(p, target, num_classes=5, n_bins=15, norm="l1"))
    assert ece(p, target, num_classes=5, binning="equal_width").value == pytest.approx(theirs, abs=1e-6)


def test_certainty_belongs_to_the_last_bin_of_equal_width() -> None:
    p = torch.tensor([[1.0, 0.0], [0.95, 0.05]], dtype=torch.float64)
    score = ece(p, torch.tensor([1, 0]), num_classes=2, bins=10, binning="equal_width")
    assert score.value == _close(abs(1 - 1.95) / 2)


def test_equal_mass_bins_hold_equally_many_rows() -> None:
    sure = torch.linspace(0.5, 1, 150, dtype=torch.float64)
    p, target = torch.stack([sure, 1 - sure], dim=1), torch.zeros(150, dtype=torch.int64)
    chunks = [10 - float(block.sum()) for block in torch.split(sure, 10)]
    assert ece(p, target, num_classes=2).value == _close(math.fsum(map(abs, chunks)) / 150)


@pytest.mark.parametrize("metric", [auroc_macro, auprc_macro, log_loss, brier, ece, top_k_accuracy])
@pytest.mark.parametrize("shift", [0.0, 500.0])
def test_logits_score_as_their_softmax(metric: type, shift: float) -> None:
    rng = np.random.default_rng(4)
    logits = torch.tensor(rng.normal(scale=3, size=(300, 4)))
    target = torch.tensor(rng.integers(0, 4, 300))
    shifted = logits + shift * torch.tensor(rng.integers(-1, 2, (300, 1)))
    expected = metric(torch.softmax(logits, dim=1), target, num_classes=4)
    ours = metric(shifted, target, num_classes=4, scores="logit")
    assert ours.value == pytest.approx(expected.value, rel=1e-10)


def test_a_certain_mistake_costs_a_finite_loss() -> None:
    certain = torch.tensor([[1.0, 0.0]])
    eps = np.finfo(np.float64).eps
    assert log_loss(certain, torch.tensor([1]), num_classes=2).value == _close(-math.log(eps))
    assert brier(certain, torch.tensor([1]), num_classes=2).value == 2.0


def test_what_rounding_to_bfloat16_does_to_a_sum_is_undone() -> None:
    exact = torch.rand(200, 7, generator=torch.Generator().manual_seed(3)).softmax(dim=1)
    target = torch.arange(200) % 7
    rounded = exact.bfloat16()
    total = rounded.double().sum(dim=1, keepdim=True)
    assert ((total - 1).abs() > SUM_TOLERANCE).any()
    with pytest.raises(InputError, match="must sum to 1"):
        log_loss(rounded.float(), target, num_classes=7)
    metric = LogLoss(num_classes=7)
    metric.update(rounded[:90], target[:90])
    metric.update(rounded[90:], target[90:])
    value = log_loss(rounded, target, num_classes=7).value
    assert metric.result().value == value
    divided = torch.where((total - 1).abs() > SUM_TOLERANCE, rounded.double() / total, rounded.double())
    assert value == pytest.approx(log_loss(divided, target, num_classes=7).value, rel=1e-6)
    for wrong in (exact * 1.02, torch.eye(7)[target] * 1.01, exact - 0.2):
        with pytest.raises(InputError):
            log_loss(wrong.bfloat16(), target, num_classes=7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_dtypes_score_as_their_values(dtype: torch.dtype) -> None:
    p = (torch.tensor([[4, 2, 1, 1], [1, 1, 4, 2], [2, 4, 1, 1]]) / 8).to(dtype)
    target = torch.tensor([0, 2, 2])
    for metric in (auroc_macro, auprc_macro, log_loss, brier, ece, top_k_accuracy):
        assert metric(p, target, num_classes=4).value == metric(p.double(), target, num_classes=4).value
