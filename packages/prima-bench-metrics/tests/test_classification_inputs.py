"""What classification metrics refuse, and how they say so."""

import pickle

import pytest
import torch
from torch import Tensor

from prima_bench.metrics.classification.accuracy import Accuracy, accuracy
from prima_bench.metrics.classification.f1 import F1Macro
from prima_bench.metrics.classification.probability import LogLoss, log_loss
from prima_bench.metrics.classification.ranking import AurocMacro
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.panel import Panel

TARGET = torch.tensor([0, 1, 2])
GOOD = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]])


def _with(row: int, values: list[float]) -> Tensor:
    preds = GOOD.clone()
    preds[row] = torch.tensor(values)
    return preds


BAD: dict[str, tuple[Tensor, Tensor, str]] = {
    "NaN": (_with(1, [0.5, float("nan"), 0.5]), TARGET, r"NaN or infinite in rows 11\nhint"),
    "infinite": (_with(0, [float("inf"), 0.0, 0.0]), TARGET, r"NaN or infinite in rows 10\nhint"),
    "negative": (_with(2, [-0.5, 0.5, 1.0]), TARGET, r"between 0 and 1; not so in rows 12 \(seen -0.5 to 1\)"),
    "above one": (_with(2, [1.5, 0.0, 0.0]), TARGET, r"between 0 and 1; not so in rows 12 \(seen 0 to 1.5\)"),
    "sum": (_with(1, [0.5, 0.25, 0.2]), TARGET, r"must sum to 1; not so in rows 11 \(seen 0.95\)"),
    "too many columns": (torch.full((3, 4), 0.25), TARGET, r"shape \[n, 3\], not torch.float32 of shape \[3, 4\]"),
    "one-dimensional scores": (torch.tensor([0.5, 0.5, 0.5]), TARGET, "neither labels nor class scores"),
    "integer matrix": (torch.ones(3, 3, dtype=torch.int64), TARGET, "neither labels nor class scores"),
    "bool labels": (torch.tensor([True, False, True]), TARGET, "neither labels nor class scores"),
    "label too high": (torch.tensor([0, 3, 1]), TARGET, r"label codes .* -1 and 2; not so in rows 11 \(seen 0 to 3\)"),
    "label too low": (torch.tensor([0, 1, -2]), TARGET, r"label codes .* -1 and 2; not so in rows 12"),
    "target too high": (GOOD, torch.tensor([0, 1, 3]), r"target codes .* 0 and 2; not so in rows 12"),
    "target missing": (GOOD, torch.tensor([-1, 1, 2]), r"target codes .* 0 and 2; not so in rows 10"),
    "real target": (GOOD, torch.tensor([0.0, 1.0, 2.0]), r"target must be an integer tensor of shape \[n\]"),
    "target matrix": (GOOD, torch.ones(3, 1, dtype=torch.int64), r"target must be an integer tensor of shape \[n\]"),
    "lengths": (GOOD, torch.tensor([0, 1]), "3 predictions need one target each"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_refused_and_earlier_ones_kept(case: str) -> None:
    preds, target, message = BAD[case]
    metric = LogLoss(num_classes=3)
    metric.update(GOOD, TARGET, torch.arange(3))
    before = float(metric.compute())
    with pytest.raises(InputError, match=message) as caught:
        metric.update(preds, target, torch.arange(10, 13))
    assert caught.value.hint
    assert float(metric.compute()) == before
    with pytest.raises(InputError):
        log_loss(preds, target, num_classes=3)


def test_values_that_are_no_probabilities_point_to_logits() -> None:
    with pytest.raises(InputError) as caught:
        log_loss(torch.tensor([[3.0, -1.0]]), torch.tensor([0]), num_classes=2)
    assert 'scores="logit"' in caught.value.hint
    assert log_loss(torch.tensor([[3.0, -1.0]]), torch.tensor([0]), num_classes=2, scores="logit").value is not None


def test_many_bad_rows_are_counted_and_the_first_named() -> None:
    preds = torch.full((100, 2), 0.25)
    with pytest.raises(InputError, match=r"rows 0, 1, 2, 3, 4, \.\.\. \(100 in all\)"):
        log_loss(preds, torch.zeros(100, dtype=torch.int64), num_classes=2)


def test_labels_and_scores_do_not_mix() -> None:
    metric = Accuracy(num_classes=3)
    metric.update(torch.tensor([0, 1, 2]), TARGET)
    with pytest.raises(InputError, match="label"):
        metric.update(GOOD, TARGET)
    panel = Panel({"accuracy": Accuracy(num_classes=3)})
    panel.update(target=TARGET, label=TARGET, score=GOOD)
    with pytest.raises(InputError, match="either a label or class scores"):
        panel.compute()


def test_a_panel_scores_no_row_that_an_update_would_refuse() -> None:
    panel = Panel({"log_loss": LogLoss(num_classes=3), "f1_macro": F1Macro(num_classes=3)})
    panel.update(torch.tensor([7, 5, 6]), target=TARGET, score=_with(0, [3.0, 1.0, 1.0]))
    with pytest.raises(InputError, match="rows 7 "):
        panel.compute()


@pytest.mark.parametrize("num_classes", [0, -1, 2.0, True, None])
def test_the_vocabulary_has_a_size(num_classes: object) -> None:
    with pytest.raises(InputError, match="num_classes must be a positive integer"):
        Accuracy(num_classes=num_classes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="num_classes must be a positive integer"):
        accuracy(TARGET, TARGET, num_classes=num_classes)  # type: ignore[arg-type]


def test_scores_are_declared() -> None:
    with pytest.raises(InputError, match="scores cannot be 'softmax'"):
        AurocMacro(num_classes=3, scores="softmax")  # type: ignore[arg-type]


def test_arrays_are_not_tensors() -> None:
    with pytest.raises(InputError, match="preds must be a torch tensor"):
        accuracy([0, 1], TARGET, num_classes=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_codes_of_any_integer_dtype(dtype: torch.dtype) -> None:
    target = TARGET.to(dtype)
    assert accuracy(target, target, num_classes=3).value == 1.0
    assert log_loss(GOOD, target, num_classes=3).value == log_loss(GOOD, TARGET, num_classes=3).value
    metric = F1Macro(num_classes=3)
    metric.update(target, target)
    assert metric.compute() == 1.0


def test_a_training_step_leaves_its_graph_behind() -> None:
    logits = torch.zeros(3, 3, requires_grad=True)
    metric = AurocMacro(num_classes=3, scores="logit")
    metric.update(logits * 2, TARGET)
    assert not metric.compute().requires_grad
    assert log_loss(logits * 2, TARGET, num_classes=3, scores="logit").value == pytest.approx(1.0986122886681098)


def test_parameters_survive_pickling_and_states_travel() -> None:
    metric = F1Macro(num_classes=3, labels="union")
    metric.update(torch.tensor([0, 2, 2]), torch.tensor([0, 1, 1]))
    copy = pickle.loads(pickle.dumps(metric))  # noqa: S301
    assert copy.compute() == metric.compute()
    fresh = F1Macro(num_classes=3, labels="union")
    fresh.load_state_dict(metric.state_dict())
    assert fresh.compute() == metric.compute()
    fresh.reset()
    assert fresh.n_rows == 0
