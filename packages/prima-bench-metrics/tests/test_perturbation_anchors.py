"""Stand-in predictions made of the solution's own cells: which cells they hold, and what they score."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from prima_bench.metrics.base import Score
from prima_bench.metrics.catalog import load_metric
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.anchors import StandIn, other_perturbations, pasted_control, split_half
from prima_bench.metrics.perturbation.contexts import StratifiedReference
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.rows import RowMatrix, SparseRows

PERTURBATIONS, GENES = 6, 80
KINDS: dict[str, Callable[..., StandIn]] = {
    "split_half": split_half,
    "pasted_control": pasted_control,
    "other_perturbations": other_perturbations,
}


def cells(cells_of_each: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts whose first column names the cell; perturbation 6 has one cell alone."""
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(PERTURBATIONS + 1), cells_of_each)[: -cells_of_each + 1]
    shared = rng.normal(0, 0.5, GENES)
    effects = shared + rng.normal(0, 0.8, (PERTURBATIONS + 1, GENES))
    effects[0] = 0
    x = rng.poisson(30 * rng.lognormal(0, 1, GENES) * np.exp(effects[group])).astype(np.float32)
    x[:, 0] = np.arange(1, len(x) + 1)
    return torch.from_numpy(x), torch.from_numpy(group)


def plain(sparse: bool = False) -> PerturbationReference:
    x, group = cells()
    return PerturbationReference.from_cells(
        SparseRows.from_dense(x) if sparse else x, group, num_perturbations=PERTURBATIONS, scale="counts"
    )


def stratified() -> StratifiedReference:
    x, group = cells()
    context = torch.arange(len(x)) % 2
    keep = (group < PERTURBATIONS) | (context == 0)
    return StratifiedReference.from_cells(
        x[keep], group[keep], context[keep], num_perturbations=PERTURBATIONS, num_contexts=2, scale="counts"
    )


def names(matrix: RowMatrix) -> list[int]:
    return matrix.take(torch.arange(matrix.shape[0]))[:, 0].int().tolist()


def scored(stand_in: StandIn, *refs: str) -> dict[str, Score]:
    return Panel({r: load_metric(r)(stand_in.reference) for r in refs}).score_all(stand_in.batch)


def test_the_halves_share_control_and_nothing_else() -> None:
    halves = split_half(plain())
    assert isinstance(halves.reference, PerturbationReference)
    codes = halves.batch.tensor("group")
    truth, predicted = names(halves.reference.cells), names(halves.batch.rows("x"))
    assert set(truth) & set(predicted) == set(range(1, 13))
    assert len(truth) + len(predicted) == 12 + 12 + 60
    assert torch.bincount(codes).tolist() == [12, 6, 6, 6, 6, 6]
    assert halves.reference.cells_per_group.tolist() == [12, 6, 6, 6, 6, 6, 0]


def test_pasted_control_holds_control_cells_alone() -> None:
    pasted = pasted_control(plain())
    assert set(names(pasted.batch.rows("x"))) == set(range(1, 13))
    assert torch.bincount(pasted.batch.tensor("group")).tolist() == [12, 12, 12, 12, 12, 12, 1]
    assert scored(pasted, "cosine_delta")["cosine_delta"].units[:5].tolist() == [0.0] * 5


def test_other_perturbations_hold_no_cell_of_their_own() -> None:
    shared = other_perturbations(plain())
    x, group = cells()
    own = dict(zip(x[:, 0].int().tolist(), group.tolist(), strict=True))
    for name, code in zip(names(shared.batch.rows("x")), shared.batch.tensor("group").tolist(), strict=True):
        assert own[name] == 0 if code == 0 else own[name] not in (0, code)


@pytest.mark.parametrize("metric", ["mae", "pearson_delta", "pds_cosine"])
def test_a_replicate_beats_the_naive(metric: str) -> None:
    better = load_metric(metric).higher_is_better
    values = {kind: scored(make(plain()), metric)[metric].value for kind, make in KINDS.items()}
    best = (max if better else min)(values, key=lambda k: values[k])
    assert best == "split_half"


@pytest.mark.parametrize("kind", list(KINDS))
def test_layout_and_contexts_do_not_matter(kind: str) -> None:
    make = KINDS[kind]
    ours, sparse = scored(make(plain()), "mse")["mse"], scored(make(plain(sparse=True)), "mse")["mse"]
    assert torch.equal(ours.units.nan_to_num(-1.0), sparse.units.nan_to_num(-1.0))
    whole = make(stratified())
    assert isinstance(whole.reference, StratifiedReference)
    together = scored(whole, "mse")["mse"]
    for number, part in enumerate(whole.reference.parts):
        alone = Panel({"mse": load_metric("mse")(part)}).score_all(_without_context(whole, number))["mse"]
        chosen = slice(number * PERTURBATIONS, (number + 1) * PERTURBATIONS)
        assert torch.equal(together.units[chosen].nan_to_num(-1.0), alone.units.nan_to_num(-1.0))


def _without_context(stand_in: StandIn, number: int) -> object:
    from prima_bench.metrics.batch import Batch
    from prima_bench.metrics.perturbation.base import PerturbationMetric

    part = stand_in.batch.part("context", number)
    return Batch.of(PerturbationMetric.fields, {"x": part.rows("x"), "group": part.tensor("group")})


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_seed_decides(kind: str) -> None:
    once, again, other = (names(KINDS[kind](plain(), seed).batch.rows("x")) for seed in (0, 0, 1))
    assert once == again
    assert once != other


def test_views_over_different_chunks_are_not_stacked() -> None:
    a, b = (RowMatrix([torch.ones(2, 3)]) for _ in range(2))
    assert RowMatrix.stacked([a.select(torch.tensor([1])), a]).shape == (3, 3)
    with pytest.raises(ValueError, match="same chunks"):
        RowMatrix.stacked([a, b])
