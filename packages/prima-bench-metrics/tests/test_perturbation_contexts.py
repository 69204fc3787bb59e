"""Perturbations scored within contexts: the same as scoring each context by itself, whatever the order of the rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.base import Score
from prima_bench.metrics.catalog import list_specs, load_metric
from prima_bench.metrics.errors import InputError, ReferenceDataError
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.contexts import StratifiedReference, joined
from prima_bench.metrics.perturbation.reference import PerturbationReference

PERTURBATIONS, GENES = 4, 30
NAMES = [s.name for s in list_specs("perturbation") if not s.name.startswith("de_")]  # those: test_de_laws


def screen(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Expression, codes and contexts; context 1 lacks perturbation 2."""
    rng = np.random.default_rng(seed)
    group = np.tile(np.repeat(np.arange(PERTURBATIONS + 1), 4), 2)
    context = np.repeat([0, 1], len(group) // 2)
    effects = rng.normal(0, 0.6, (2, PERTURBATIONS + 1, GENES))
    effects[:, 0] = 0
    x = rng.lognormal(0, 1, GENES) * np.exp(effects[context, group] + rng.normal(0, 0.1, (len(group), GENES)))
    there = ~((context == 1) & (group == 2))
    return torch.from_numpy(x[there]), torch.from_numpy(group[there]), torch.from_numpy(context[there])


def references(seed: int) -> tuple[StratifiedReference, list[PerturbationReference | None]]:
    x, group, context = screen(seed)
    given = {"num_perturbations": PERTURBATIONS, "scale": "log1p_cp10k", "targets": [[p] for p in range(4)]}
    whole = StratifiedReference.from_cells(x, group, context, num_contexts=2, **given)  # type: ignore[arg-type]
    alone = PerturbationReference.from_cells(x[context == 0], group[context == 0], **given)  # type: ignore[arg-type]
    return whole, [alone, None]


def scores(reference: object, x: torch.Tensor, group: torch.Tensor, **more: torch.Tensor) -> dict[str, Score]:
    panel = Panel({name: load_metric(name)(reference) for name in NAMES})
    panel.update(x=x, group=group, **more)
    return panel.results()


def test_a_context_scores_as_it_does_alone() -> None:
    whole, (alone, _) = references(0)
    x, group, context = screen(1)
    together = scores(whole, x, group, context=context)
    single = scores(alone, x[context == 0], group[context == 0])
    for name in NAMES:
        if single[name].units is not None:
            assert torch.equal(together[name].units[:PERTURBATIONS].nan_to_num(7.0), single[name].units.nan_to_num(7.0))


def test_a_perturbation_that_a_context_lacks_is_undefined_there() -> None:
    whole, _ = references(0)
    x, group, context = screen(1)
    score = scores(whole, x, group, context=context)["mae"]
    assert list(score.undefined) == [PERTURBATIONS + 1]
    assert score.value == pytest.approx(float(score.units[~score.units.isnan()].mean()), rel=1e-14)


@given(st.integers(0, 2**31 - 1))
def test_any_order_of_rows_and_shards_gives_the_same_bits(seed: int) -> None:
    whole, _ = references(0)
    x, group, context = screen(1)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    panel = Panel({name: load_metric(name)(whole) for name in ("mae", "pearson_delta", "pds_cosine")})
    for part in torch.tensor_split(order, 3):
        panel.update(x=x[part], group=group[part], context=context[part], index=part)
    once = scores(whole, x, group, context=context)
    assert {n: s.value for n, s in panel.results().items()} == {n: once[n].value for n in panel.results()}


def test_control_of_one_context_is_not_that_of_another() -> None:
    whole, _ = references(0)
    x, group, context = screen(1)
    x = x.clone()
    before = scores(whole, x, group, context=context)["mae"].units
    x[(context == 1) & (group == 1)] *= 1.5
    after = scores(whole, x, group, context=context)["mae"].units
    assert ((before != after) & ~before.isnan()).nonzero().flatten().tolist() == [PERTURBATIONS]


def test_contexts_that_do_not_fit_are_refused() -> None:
    whole, (alone, _) = references(0)
    x, group, context = screen(1)
    metric = load_metric("mae")(whole)
    with pytest.raises(InputError, match="context is missing"):
        metric.update(x, perturbation=group)
    with pytest.raises(InputError, match="context 2 is outside 0 to 1"):
        metric.update(x, perturbation=group, context=context + 1)
    with pytest.raises(InputError, match="the reference has none"):
        load_metric("mae")(alone).update(x, perturbation=group, context=context)
    assert metric.n_rows == 0


@pytest.mark.parametrize(
    ("drop", "words"), [(0, "no control cells in context 1"), (None, "no perturbed cells in context 1")]
)
def test_a_context_needs_control_and_perturbed_cells(drop: int | None, words: str) -> None:
    x, group, context = screen(0)
    kept = ~((context == 1) & ((group == 0) if drop == 0 else (group > 0)))
    with pytest.raises(ReferenceDataError, match=words):
        StratifiedReference.from_cells(
            x[kept], group[kept], context[kept], num_perturbations=4, num_contexts=2, scale="log1p_cp10k"
        )


def test_scores_without_units_are_averaged_over_contexts() -> None:
    assert joined([Score(2.0), Score(4.0)]).value == 3.0
    assert joined([Score(None, "why"), Score(None, "other")]).reason == "why"
