"""Law 1: how predictions are handed in never changes a result, not in its digest and not in its last bit.

For every registered metric of both tasks, with every parameter that has a choice, on data of one's own and on the
embedded datasets: any sharding, any order of shards and rows, repeats as samplers pad, any layout and threads.
"""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.tasks.baselines import run_baseline
from prima_bench.tasks.evaluation import Evaluation

SPEC = importlib.util.spec_from_file_location("laws_data", Path(__file__).parent / "laws_data.py")
assert SPEC is not None
assert SPEC.loader is not None
laws = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(laws)

TASKS = ("perturbation_prediction", "cell_type_annotation")


@st.composite
def plans(draw: st.DrawFn, n: int, most: int = 6) -> list[tuple[Any, str]]:
    """Shards of ``n`` rows with some rows repeated in later shards: which rows, and in which layout."""
    order = draw(st.permutations(range(n)))
    cuts = sorted(draw(st.lists(st.integers(1, n - 1), max_size=most, unique=True)))
    parts = [part.tolist() for part in np.split(np.array(order), cuts)]
    for row in draw(st.lists(st.sampled_from(order), max_size=4, unique=True)):
        home = next(i for i, part in enumerate(parts) if row in part)
        parts.insert(draw(st.integers(0, len(parts))), [row])
        assert row in parts[home] or row in parts[home + 1]
    return [(np.array(part), draw(st.sampled_from(["dense", "csr", "csc"]))) for part in parts]


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def handed_in(run: Evaluation, rows: Any, plan: list[tuple[Any, str]]) -> dict[str, Any]:
    run.reset()
    for which, layout in plan:
        run.update(laws.take(rows, which, layout))
    result = run.compute()
    assert result.predictions.duplicates_dropped == sum(len(which) for which, _ in plan) - len(rows)
    return dict(laws.lasting(json.loads(result.to_json())))


@pytest.fixture(scope="module", params=laws.CASES)
def own(request: pytest.FixtureRequest) -> tuple[Evaluation, Any, dict[str, Any]]:
    run, rows = laws.evaluation(request.param), laws.predictions(request.param)
    run.update(rows)
    return run, rows, laws.lasting(json.loads(run.compute().to_json()))


@given(data=st.data())
def test_own_data(own: tuple[Evaluation, Any, dict[str, Any]], data: st.DataObject) -> None:
    run, rows, once = own
    assert handed_in(run, rows, data.draw(plans(len(rows)))) == once


def test_threads(own: tuple[Evaluation, Any, dict[str, Any]], threads: None) -> None:
    run, rows, once = own
    everything = np.arange(len(rows))
    assert handed_in(run, rows, [(everything[::-1], "csr")]) == once
    assert handed_in(run, rows, [(everything[::2], "dense"), (everything[1::2], "csr")]) == once


@pytest.fixture(scope="module", params=TASKS)
def registered(request: pytest.FixtureRequest) -> tuple[Evaluation, Any, dict[str, Any]]:
    name = {"perturbation_prediction": "paste_control", "cell_type_annotation": "nearest_centroid"}[request.param]
    rows = run_baseline(request.param, name)
    # The cells to predict hold no control cells, which these would be measured from.
    metrics = [m for m in laws.every_metric(request.param) if "control_source" not in m and "cell_eval" not in m]
    run = Evaluation(request.param, metrics=metrics, device="cpu")
    run.update(rows)
    return run, rows, laws.lasting(json.loads(run.compute().to_json()))


@pytest.mark.parametrize("seed", range(3))
def test_embedded_datasets(registered: tuple[Evaluation, Any, dict[str, Any]], seed: int) -> None:
    run, rows, once = registered
    random = np.random.default_rng(seed)
    order = random.permutation(len(rows))
    parts = np.split(order, np.sort(random.choice(len(rows), 5, replace=False)))
    plan = [(part, "csr") for part in [*parts, order[:7]] if len(part)]
    run.reset()
    for which, _ in plan:
        run.update(rows[which])
    result = run.compute()
    assert result.predictions.duplicates_dropped == 7
    assert laws.lasting(json.loads(result.to_json())) == once


@pytest.mark.parametrize("task", TASKS)
def test_every_registered_metric_is_held_to_the_law(task: str) -> None:
    from prima_bench.tasks.registry import list_metrics

    names = {ref.partition("(")[0] for ref in laws.every_metric(task)}
    assert names == set(list_metrics(task))
    assert any("control_source=prediction" in ref for ref in laws.every_metric(TASKS[0]))


class Unsorted:
    """torch, but for a sort that leaves rows as they came."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def sort(self, x: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return x, torch.arange(len(x))


def test_the_law_would_notice_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the canonical order scores do change: the data are hard enough for the tests above."""
    from prima_bench.metrics import batch

    run, rows = laws.evaluation("perturbation, log"), laws.predictions("perturbation, log")
    monkeypatch.setattr(batch, "torch", Unsorted())
    everything = np.arange(len(rows))
    forth = handed_in(run, rows, [(everything, "dense")])
    back = handed_in(run, rows, [(np.random.default_rng(0).permutation(everything), "dense")])
    assert forth["scores"] != back["scores"]
