"""What metrics of single cells promise: anchors, penalties, no gain by tricks, reasons, and the same bits."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from prima_bench.metrics.base import Score
from prima_bench.metrics.catalog import load_metric, parse_ref
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.anchors import other_perturbations, pasted_control, split_half
from prima_bench.metrics.perturbation.base import ABSENT, ALONE, NO_CONTROL, NO_GENES
from prima_bench.metrics.perturbation.cells import pairwise
from prima_bench.metrics.perturbation.cells.edistance import SAME_DISTANCE, EDistancePearson
from prima_bench.metrics.perturbation.cells.energy import FEW_CONTROL, NOISE, EnergyRatio, energy_ratio
from prima_bench.metrics.perturbation.cells.metric import ALIKE, ONE_CELL
from prima_bench.metrics.perturbation.cells.mmd import MMDRBF
from prima_bench.metrics.perturbation.cells.sinkhorn import Sinkhorn
from prima_bench.metrics.perturbation.cells.variance import LIMIT, VarianceRatio
from prima_bench.metrics.perturbation.reference import PerturbationReference, Scale
from prima_bench.metrics.rows import SparseRows

SPACE = runpy.run_path(str(Path(__file__).with_name("test_cell_distance_space.py")))
reference_of = SPACE["reference_of"]
UNITS = ("energy_ratio", "mmd_rbf", "sinkhorn", "variance_ratio")
ALL = (*UNITS, "edistance_pearson")
P = 6


def screen(seed: int = 0, *, cells: int = 40, genes: int = 60, strength: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Counts of a control and six perturbations, each with an effect of its own and the noise of single cells."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(P + 1), cells)
    level = np.random.default_rng(7).lognormal(1.5, 1.0, genes)
    effects = strength * np.random.default_rng(8).normal(0, 0.5, (P + 1, genes))
    effects[0] = 0
    depth = rng.lognormal(0, 0.3, (len(group), 1))
    x = rng.poisson(level * np.exp(effects[group]) * depth * rng.gamma(4, 0.25, (len(group), genes)))
    x[:, 0] += 1
    return x.astype(np.float32), group


def scores(reference: PerturbationReference, x: object, group: object, refs: tuple[str, ...] = ALL) -> dict[str, Score]:
    panel = Panel({r: load_metric(parse_ref(r).name)(reference, **parse_ref(r).params) for r in refs})
    x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    panel.update(x=x, group=torch.from_numpy(group) if isinstance(group, np.ndarray) else group)
    return panel.results()


def tiled(x: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Every cell is the mean of its perturbation, on the scale of counts per cell."""
    return np.stack([x[group == p].mean(axis=0) for p in range(P + 1)])[group]


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
@pytest.mark.parametrize("layout", ["dense", "sparse", "double"])
def test_the_control_cells_score_exactly_one(scale: Scale, layout: str) -> None:
    x, group = screen(strength=0.3)
    x = x if scale == "counts" else np.log1p(x)
    control = torch.from_numpy(x[group == 0]).repeat(P, 1)
    control = {"dense": control, "sparse": SparseRows.from_dense(control), "double": control.double()}[layout]
    codes = torch.arange(1, P + 1).repeat_interleave(40)
    score = scores(reference_of(x, group, scale), control, codes, ("energy_ratio", "energy_ratio(min_effect=0)"))
    for units in (s.units for s in score.values()):
        assert not units.isnan().all()
        assert set(units[~units.isnan()].tolist()) == {1.0}


def test_true_cells_score_below_a_replicate_which_scores_zero_on_average() -> None:
    x, group = screen(cells=60)
    reference = reference_of(x, group)
    seen = np.array(
        [scores(reference, *screen(s, cells=60), ("energy_ratio",))["energy_ratio"].units for s in range(1, 9)]
    )
    assert abs(seen.mean()) < 3 * seen.std() / math.sqrt(seen.size)
    assert seen.std() < 0.1
    truth = scores(reference, x, group)
    assert (truth["energy_ratio"].units < 0).all()
    assert (truth["energy_ratio"].units.numpy() < seen.min(axis=0)).all()
    for name in ("mmd_rbf", "sinkhorn", "variance_ratio"):
        assert truth[name].units.tolist() == [0.0] * P
    assert truth["edistance_pearson"].value == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", UNITS)
def test_a_tiled_mean_is_clearly_worse_than_a_replicate(name: str) -> None:
    # Cells enough for the biased ones: their floor, the noise of a sample, falls with the number of cells.
    x, group = screen(cells=120)
    reference = reference_of(x, group)
    replicate = scores(reference, *screen(1, cells=120), (name,))[name].units
    mean = scores(reference, tiled(x, group), group, (name,))[name].units
    factor = {"energy_ratio": 5.0, "mmd_rbf": 3.0, "sinkhorn": 1.2, "variance_ratio": 5.0}[name]
    assert (mean > factor * replicate.clamp(min=0.0)).all()
    if name == "energy_ratio":
        assert (mean > replicate + 0.5).all()


def test_anchors_stand_in_order() -> None:
    reference = reference_of(*screen(cells=80))
    panel = {name: load_metric(name) for name in ALL}
    values = {
        make.__name__: {
            n: s.value for n, s in Panel({n: c(a.reference) for n, c in panel.items()}).score_all(a.batch).items()
        }
        for make in (split_half, other_perturbations, pasted_control)
        for a in [make(reference)]
    }
    for name in ("energy_ratio", "mmd_rbf", "sinkhorn"):
        assert values["split_half"][name] < 0.6 * values["other_perturbations"][name], name
        assert values["split_half"][name] < 0.6 * values["pasted_control"][name], name
    assert values["split_half"]["edistance_pearson"] > max(0.6, values["pasted_control"]["edistance_pearson"] + 0.2)
    assert values["pasted_control"]["energy_ratio"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("m", [2, 3, 5])
def test_few_cells_far_apart_gain_nothing(m: int) -> None:
    # Uncorrected, the statistic of two cells on either side of the truth falls without end as they move apart.
    rng = np.random.default_rng(0)
    x, control = (torch.from_numpy(rng.normal(size=(50, 40))) for _ in range(2))
    control += 0.6
    middle = x.mean(dim=0)
    corners = torch.zeros(m, 40, dtype=torch.float64)
    corners[torch.arange(m), torch.arange(m)] = 1.0
    corners -= corners.mean(dim=0)
    replicate = float(energy_ratio(torch.from_numpy(rng.normal(size=(50, 40))), x, control))
    for size in (0.1, 1.0, 3.0, 6.0, 10.0, 100.0, 1e4):
        assert float(energy_ratio(middle + size * corners, x, control)) > replicate + 0.2


def test_a_single_predicted_cell_and_cells_that_are_alike_are_scored_and_bad() -> None:
    x, group = screen()
    reference = reference_of(x, group)
    first = np.array([int(np.flatnonzero(group == p)[0]) for p in range(P + 1)])
    one = scores(reference, x[first], group[first])
    many = scores(reference, x[first].repeat(5, axis=0), group[first].repeat(5))
    for name in UNITS:
        np.testing.assert_allclose(one[name].units.numpy(), many[name].units.numpy(), rtol=1e-10)
        assert not one[name].undefined
    replicate = scores(reference, *screen(1))
    for name in ("energy_ratio", "mmd_rbf", "sinkhorn", "variance_ratio"):
        assert (one[name].units > 2 * replicate[name].units).all()
    assert one["variance_ratio"].units.tolist() == [LIMIT] * P


def test_too_little_and_too_much_variance_cost_the_same() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(3), 50)
    x = rng.normal(size=(150, 20)) + 5
    middle = np.stack([x[group == p].mean(axis=0) for p in range(3)])[group]
    reference = reference_of(x, group, "log1p_cp10k")
    for factor in (0.25, 0.5, 2.0, 4.0):
        score = scores(reference, middle + factor * (x - middle), group, ("variance_ratio",))["variance_ratio"]
        assert score.value == pytest.approx(2 * abs(math.log(factor)), rel=1e-9)
    assert scores(reference, middle, group, ("variance_ratio",))["variance_ratio"].value == LIMIT
    assert scores(reference, middle + 1e6 * (x - middle), group, ("variance_ratio",))["variance_ratio"].value == LIMIT
    # Genes with too much cannot make up for genes with too little.
    mixed = middle + np.where(np.arange(20) % 2, 4.0, 0.25) * (x - middle)
    assert scores(reference, mixed, group, ("variance_ratio",))["variance_ratio"].value == pytest.approx(math.log(16))


def test_strength_is_seen_direction_is_not() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(5), 30)
    effects = np.outer([0, 1, 2, 3, 4], rng.normal(size=25))[group]
    noise = rng.normal(size=(150, 25))
    reference = reference_of(noise + effects, group, "log1p_cp10k")

    def value(x: np.ndarray, **params: object) -> float:
        metric = EDistancePearson(reference, **params)
        metric.update(torch.from_numpy(x), perturbation=torch.from_numpy(group))
        return float(metric.compute())

    assert value(noise[::-1].copy() - effects) > 0.99
    assert value(noise + effects[::-1]) < -0.9
    assert value(noise * 0 + 1) == 0.0
    # Moving the predicted control along with all predictions is seen only where that control counts.
    assert value(noise + effects + 50, control_source="prediction") == pytest.approx(1.0, abs=1e-12)
    assert value(noise + effects + np.where(group == 0, 50.0, 0.0)[:, None]) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("ref", [*ALL, "edistance_pearson(control_source=prediction)"])
def test_large_inputs_have_the_same_bits_in_any_order_layout_and_number_of_threads(ref: str) -> None:
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(4), [300, 90, 40, 1])
    x, y = (rng.poisson(rng.lognormal(0, 1, (4, 900))[group]).astype(np.float32) for _ in range(2))
    x[:, 0] += 1
    y = y * rng.choice([1.0, 1 / 3], y.shape).astype(np.float32)
    metric, params = load_metric(parse_ref(ref).name), dict(parse_ref(ref).params)
    ids = torch.from_numpy(rng.permutation(len(group)))
    before, answers = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        order = torch.arange(len(group)) if threads == 1 else torch.from_numpy(rng.permutation(len(group)))
        rows, codes = torch.from_numpy(x)[order], torch.from_numpy(group)[order]
        reference = PerturbationReference.from_cells(
            rows if threads == 1 else SparseRows.from_dense(rows),
            codes,
            num_perturbations=3,
            scale="counts",
            index=order,
        )
        scored = metric(reference, **params)
        for part in torch.tensor_split(order, 1 if threads == 1 else 5):
            chunk = torch.from_numpy(y)[part]
            scored.update(
                chunk if threads == 1 else SparseRows.from_dense(chunk),
                perturbation=torch.from_numpy(group)[part],
                index=ids[part],
            )
        score = scored.result()
        answers.append((score.value, None if score.units is None else score.units.numpy().tobytes()))
    torch.set_num_threads(before)
    assert answers[0][0] is not None
    assert answers[0] == answers[1]


def test_a_sum_over_pairs_does_not_depend_on_company_blocks_or_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    x, y = (torch.from_numpy(rng.lognormal(0, 4, (n, 7))) for n in (301, 5003))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    together = pairwise.row_sums(x, y)
    np.testing.assert_allclose(together.numpy(), cdist(x.numpy(), y.numpy()).sum(axis=1), rtol=1e-13)
    torch.set_num_threads(2)
    assert torch.equal(pairwise.row_sums(x, y), together)
    assert torch.equal(torch.cat([pairwise.row_sums(x[i : i + 1], y) for i in range(0, 301, 50)]), together[::50])
    for pairs in (1, 20_000):
        monkeypatch.setattr(pairwise, "_BLOCK_PAIRS", pairs)
        assert torch.equal(pairwise.row_sums(x[:40], y), together[:40])
    torch.set_num_threads(before)
    like = torch.cat([x, x])
    assert torch.equal(pairwise.distances(like, like), pairwise.distances(like, like).T)
    assert (pairwise.distances(x, like).diagonal() == 0).all()


@given(st.integers(0, 2**32 - 1))
def test_bounds_hold_whatever_is_predicted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(4), [9, 5, 4, 3])
    x = rng.lognormal(0, 1, (len(group), 6)) + group[:, None]
    y = (
        rng.lognormal(0, 1, x.shape)
        * 10.0 ** rng.choice([0, 3, 30, 90], (len(group), 1))
        * rng.choice([-1, 1], x.shape)
    )
    results = scores(reference_of(x, group, "log1p_cp10k"), y, group)
    assert ((results["mmd_rbf"].units >= 0) & (results["mmd_rbf"].units <= 2)).all()
    assert ((results["sinkhorn"].units >= 0) & results["sinkhorn"].units.isfinite()).all()
    assert ((results["variance_ratio"].units >= 0) & (results["variance_ratio"].units <= LIMIT)).all()
    assert -1 <= results["edistance_pearson"].value <= 1
    energies = results["energy_ratio"].units
    assert (energies[~energies.isnan()] > -1).all()


def test_reasons() -> None:
    x, group = screen()
    alone = (group != 2) | (np.cumsum(group == 2) == 1)
    x[group == 4] = screen(5)[0][group == 0]  # no effect
    reference = reference_of(x[alone], group[alone])
    results = scores(reference, x, group)
    assert dict(results["energy_ratio"].undefined) == {1: ONE_CELL, 3: NOISE}
    assert dict(results["variance_ratio"].undefined) == {1: ONE_CELL}
    for name in ("mmd_rbf", "sinkhorn"):
        assert not results[name].undefined
    few = (group > 0) | (np.cumsum(group == 0) < 4)
    score = scores(reference_of(x[few], group[few]), x, group, ("energy_ratio",))["energy_ratio"]
    assert (score.value, score.reason) == (None, FEW_CONTROL)


def test_what_the_solution_leaves_undefined_stays_so_whatever_is_predicted() -> None:
    x, group = screen()
    flat = np.where((group == 2)[:, None], 1.0, x)
    same = np.ones_like(x)
    for value in (0.0, 1.0, 1e90):
        y = np.where((group == 2)[:, None], value, x.astype(np.float64))
        assert dict(scores(reference_of(flat, group), y, group)["variance_ratio"].undefined).keys() == {1}
        results = scores(reference_of(same, group), y, group)
        for name, reason in (("mmd_rbf", ALIKE), ("sinkhorn", ALIKE), ("energy_ratio", NOISE)):
            assert dict(results[name].undefined) == dict.fromkeys(range(P), reason)
        assert (results["edistance_pearson"].value, results["edistance_pearson"].reason) == (None, SAME_DISTANCE)
        assert results["variance_ratio"].value is None


def test_cells_that_differ_by_depth_alone_are_alike() -> None:
    # Of one composition: what is left between them after normalisation is rounding.
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(3), 20)
    x = np.outer(rng.integers(1, 50, 60), [3.0, 7.0, 11.0, 29.0])
    results = scores(reference_of(x, group), rng.poisson(9, x.shape) + 1.0, group)
    for name, reason in (("mmd_rbf", ALIKE), ("sinkhorn", ALIKE), ("energy_ratio", NOISE)):
        assert dict(results[name].undefined) == dict.fromkeys(range(2), reason)
    assert results["variance_ratio"].value is None
    assert results["edistance_pearson"].reason == SAME_DISTANCE


def test_a_single_perturbation_and_no_control() -> None:
    x, group = screen()
    one = group < 2
    results = scores(reference_of(x[one], group[one]), x[one], group[one])
    assert (results["edistance_pearson"].value, results["edistance_pearson"].reason) == (None, ALONE)
    for name in UNITS:
        assert not results[name].undefined
    cells, codes = torch.from_numpy(x[group > 0]), torch.from_numpy(group[group > 0])
    for metric in (MMDRBF, Sinkhorn, VarianceRatio, EnergyRatio, EDistancePearson):
        paired = metric(num_perturbations=P + 1, scale="counts")
        paired.update(cells + 1, cells, perturbation=codes)
        score = paired.result()
        if metric in (EnergyRatio, EDistancePearson):
            assert (score.value, score.reason) == (None, NO_CONTROL)
        else:
            assert dict(score.undefined) == {P: ABSENT}


@pytest.mark.parametrize(
    ("metric", "kwargs", "message"),
    [
        (EnergyRatio, {"min_effect": -1.0}, "min_effect cannot be -1.0"),
        (EnergyRatio, {"min_effect": math.nan}, "min_effect cannot be nan"),
        (EnergyRatio, {"min_effect": math.inf}, "min_effect cannot be inf"),
        (EnergyRatio, {"control_source": "prediction"}, "no use for predicted control"),
        (MMDRBF, {"control_source": "prediction"}, "no use for control"),
        (VarianceRatio, {"control_source": "prediction"}, "no use for control"),
        (Sinkhorn, {"exclude_targets": "own"}, "compares all genes"),
        (EDistancePearson, {"exclude_targets": "panel"}, "compares all genes"),
    ],
)
def test_arguments_without_meaning_are_refused(metric: type, kwargs: dict[str, object], message: str) -> None:
    x, group = screen()
    reference = reference_of(x, group, targets=[[0]] * P)
    with pytest.raises(InputError, match=message) as caught:
        metric(reference, **kwargs)
    assert caught.value.hint


def test_excluded_genes_do_not_vary() -> None:
    x, group = screen()
    reference = reference_of(x, group, targets=[[p] for p in range(P)])
    y = screen(1)[0]
    spiked = np.where((np.arange(60) == (group - 1)[:, None]) & (group > 0)[:, None], 999.0, y)
    # On log scale, where a gene does not change the others' share.
    for exclude, same in (("own", True), ("panel", True), ("none", False)):
        metric = [
            VarianceRatio(
                reference_of(np.log1p(x), group, "log1p_cp10k", targets=reference.targets), exclude_targets=exclude
            )
            for _ in range(2)
        ]
        units = []
        for m, values in zip(metric, (y, spiked), strict=True):
            m.update(torch.from_numpy(np.log1p(values)), perturbation=torch.from_numpy(group))
            units.append(m.result().units)
        assert torch.equal(*units) == same
    everything = reference_of(x, group, targets=[list(range(60))] + [[]] * (P - 1))
    score = VarianceRatio(everything, exclude_targets="own")
    score.update(torch.from_numpy(y), perturbation=torch.from_numpy(group))
    assert dict(score.result().undefined) == {0: NO_GENES}
