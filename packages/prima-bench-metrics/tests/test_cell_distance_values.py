"""Metrics of single cells against a few lines of numpy and scipy in float64, pair by pair."""

import runpy
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from prima_bench.metrics.base import Score
from prima_bench.metrics.catalog import load_metric, parse_ref
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.cells.edistance import edistance_pearson
from prima_bench.metrics.perturbation.cells.energy import energy_ratio
from prima_bench.metrics.perturbation.cells.latent import latent_space
from prima_bench.metrics.perturbation.cells.metric import evenly, median_distance
from prima_bench.metrics.perturbation.cells.mmd import mmd_rbf
from prima_bench.metrics.perturbation.cells.sinkhorn import AT_MOST, UPDATES, sinkhorn
from prima_bench.metrics.perturbation.cells.variance import variance_ratio

SPACE = runpy.run_path(str(Path(__file__).with_name("test_cell_distance_space.py")))
comparable, reference_of = SPACE["comparable"], SPACE["reference_of"]
Array = np.ndarray

REFS = (
    "energy_ratio",
    "energy_ratio(min_effect=0)",
    "edistance_pearson",
    "edistance_pearson(control_source=prediction)",
    "mmd_rbf",
    "sinkhorn",
    "variance_ratio",
)


class Data(NamedTuple):
    """A solution and a prediction, as plain arrays; group 0 is the control."""

    x: Array
    group: Array
    y: Array
    predicted: Array
    scale: str


@st.composite
def problems(draw: st.DrawFn) -> Data:
    """Few genes, so that the space is all of them; single cells, cells that are alike, cells without counts."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    p, genes = draw(st.integers(2, 4)), draw(st.integers(2, 9))
    scale = draw(st.sampled_from(("counts", "log1p_cp10k")))

    def cells(control: int) -> tuple[Array, Array]:
        sizes = np.concatenate([[control], rng.integers(1, 7, p)])
        group = rng.permutation(np.repeat(np.arange(p + 1), sizes))
        level = rng.lognormal(1.5, 0.7, (p + 1, genes))
        x = rng.poisson(level[group]).astype(np.float64)
        if scale == "log1p_cp10k":
            x = np.log1p(x * rng.lognormal(0, 0.2, x.shape))
        if draw(st.booleans()):
            x[rng.integers(len(x), size=3)] = x[rng.integers(len(x))]
        if draw(st.booleans()):
            x[rng.integers(len(x))] = 0.0
        return x, group

    (x, group), (y, predicted) = cells(int(rng.integers(12, 20))), cells(int(rng.integers(1, 7)))
    return Data(x, group, y, predicted, scale)


def mean_of_different(x: Array) -> float:
    pairs = [float(np.linalg.norm(a - b)) for a, b in combinations(x, 2)]
    return float(np.mean(pairs)) if pairs else 0.0


def energy(x: Array, y: Array) -> float:
    """``2 E|x - y| - U(x) - U(y)``, where U(y) may exceed the mean over all pairs by no more than U(x) / n."""
    between = np.mean([[np.linalg.norm(a - b) for b in y] for a in x])
    all_pairs = np.mean([[np.linalg.norm(a - b) for b in y] for a in y])
    lacking = min(mean_of_different(y) - all_pairs, mean_of_different(x) / len(x))
    return float(2 * between - mean_of_different(x) - all_pairs - lacking)


def chance(control: Array, n: int) -> float:
    """Standard deviation of the energy distance of n cells from control under no effect, by U-centred distances."""
    d, c = cdist(control, control), len(control)
    centred = d - d.sum(0) / (c - 2) - d.sum(1)[:, None] / (c - 2) + d.sum() / ((c - 1) * (c - 2))
    variance = sum(centred[i, j] ** 2 for i in range(c) for j in range(c) if i != j) / (c * (c - 3))
    return (1 / n + 1 / c) * float(np.sqrt(2 * variance))


def ratio(x: Array, y: Array, control: Array, min_effect: float) -> float:
    if len(x) < 2:
        return np.nan
    effect = energy(x, control)
    return energy(x, y) / effect if effect > min_effect * chance(control, len(x)) else np.nan


def mmd(x: Array, y: Array, bandwidth: float) -> float:
    def mean(a: Array, b: Array) -> float:
        return float(np.mean([[np.exp(-(np.linalg.norm(u - v) ** 2) / (2 * bandwidth**2)) for v in b] for u in a]))

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def divergence(x: Array, y: Array, scale: float, updates: int = UPDATES) -> float:
    def soft_minimum(a: Array, axis: int) -> Array:
        least = a.min(axis=axis, keepdims=True)
        return least.squeeze(axis) - 0.5 * np.log(np.exp((least - a) / 0.5).mean(axis=axis))

    def transport(a: Array, b: Array) -> float:
        cost = cdist(a - a.mean(0), b - b.mean(0)) ** 2 / scale**2
        f = np.zeros(len(a))
        for _ in range(updates):
            g = soft_minimum(cost - f[:, None], 0)
            f = soft_minimum(cost - g, 1)
        return float(f.mean() + g.mean())

    shift = float(((x.mean(0) - y.mean(0)) ** 2).sum()) / scale**2
    return shift + transport(x, y) - transport(x, x) / 2 - transport(y, y) / 2


def variance(x: Array, y: Array) -> float:
    true = x.var(axis=0, ddof=1) if len(x) > 1 else np.zeros(x.shape[1])
    pred = y.var(axis=0, ddof=1) if len(y) > 1 else np.zeros(y.shape[1])
    # Cells of other depth and the same composition differ by rounding.
    counted = true > 1e-24 * np.abs(x).max(axis=0) ** 2
    if not counted.any():
        return np.nan
    pred = np.where(pred > 1e-24 * np.abs(y).max(axis=0) ** 2, pred, 0.0)
    with np.errstate(divide="ignore"):
        return float(np.median(np.minimum(np.abs(np.log(pred[counted] / true[counted])), np.log(1000))))


def edistance(x: Array, control: Array) -> float:
    return 2 * cdist(x, control).mean() - cdist(x, x).mean() - cdist(control, control).mean()


def median_apart(x: Array) -> float:
    apart = [d for d in (np.linalg.norm(a - b) for a, b in combinations(x, 2)) if d > 1e-12 * np.abs(x).max()]
    return float(np.median(apart))


def results(data: Data, refs: tuple[str, ...] = REFS) -> dict[str, Score]:
    reference = reference_of(data.x, data.group, data.scale)
    panel = Panel({r: load_metric(parse_ref(r).name)(reference, **parse_ref(r).params) for r in refs})
    panel.update(x=torch.from_numpy(data.y), group=torch.from_numpy(data.predicted))
    return panel.results()


@given(data=problems())
def test_values_equal_numpy(data: Data) -> None:
    x, y = (comparable(a, data.scale) for a in (data.x, data.y))
    space = latent_space(reference_of(data.x, data.group, data.scale))
    assume(len(space.basis) == x.shape[1])  # a rotation: distances are those between the genes themselves
    true, pred = ([a[codes == p] for p in range(max(codes) + 1)] for a, codes in ((x, data.group), (y, data.predicted)))
    scale = median_apart(x)
    pairs = list(zip(true[1:], pred[1:], strict=True))
    expected = {
        "energy_ratio": [ratio(a, b, true[0], 3.0) for a, b in pairs],
        "energy_ratio(min_effect=0)": [ratio(a, b, true[0], 0.0) for a, b in pairs],
        "mmd_rbf": [mmd(a, b, scale) for a, b in pairs],
        "sinkhorn": [divergence(a, b, scale) for a, b in pairs],
        "variance_ratio": [variance(a, b) for a, b in pairs],
    }
    scores = results(data)
    for name, values in expected.items():
        np.testing.assert_allclose(scores[name].units.numpy(), values, rtol=1e-9, atol=1e-9, err_msg=name)
        if np.isfinite(values).any():
            assert scores[name].value == pytest.approx(np.nanmean(values), rel=1e-9, abs=1e-9), name
        else:
            assert scores[name].value is None
    own = [edistance(a, true[0]) for a in true[1:]]
    for name, control in (("edistance_pearson", true[0]), ("edistance_pearson(control_source=prediction)", pred[0])):
        distances = np.array([edistance(b, control) for b in pred[1:]])
        same = np.ptp(distances) <= 1e-9 * np.abs(distances).max()
        theirs = 0.0 if same else scipy.stats.pearsonr(own, distances)[0]
        assert scores[name].value == pytest.approx(theirs, abs=1e-5), name


@given(data=problems(), d=st.integers(1, 3))
def test_functions_equal_the_metrics(data: Data, d: int) -> None:
    x, y = (torch.from_numpy(comparable(a, data.scale)) for a in (data.x, data.y))
    target, pred, control = x[data.group == 1], y[data.predicted == 1], x[data.group == 0]
    np.testing.assert_allclose(
        float(energy_ratio(pred, target, control)) if len(target) > 1 else np.nan,
        ratio(target.numpy(), pred.numpy(), control.numpy(), 3.0),
        rtol=1e-9,
        atol=1e-9,
    )
    assert float(mmd_rbf(pred, target, bandwidth=d)) == pytest.approx(mmd(target.numpy(), pred.numpy(), d), abs=1e-12)
    whole = sinkhorn([pred, pred, target], [target, x, target], scale=d)
    one_by_one = [divergence(a.numpy(), b.numpy(), d) for a, b in ((target, pred), (x, pred), (target, target))]
    np.testing.assert_allclose(whole.numpy(), one_by_one, rtol=1e-9, atol=1e-9)
    assert whole[2] == 0.0
    assert torch.equal(sinkhorn([pred], [target], scale=d), whole[:1])


def test_the_energy_distance_is_the_textbook_one_for_as_many_cells_of_the_same_spread() -> None:
    rng = np.random.default_rng(0)
    x, c = rng.normal(size=(40, 5)) + 1.0, rng.normal(size=(50, 5))
    y = x + 0.5 * rng.permutation(c)[:40]  # wider than x, so that the correction is capped
    for other, capped in ((0.9 * x[::-1] + 0.3, False), (y, True)):
        textbook = 2 * cdist(x, other).mean() - mean_of_different(x) - mean_of_different(other)
        ours = float(energy_ratio(*map(torch.from_numpy, (np.ascontiguousarray(other), x, c))))
        assert (abs(ours * energy(x, c) - textbook) > 1e-6) == capped
        assert ours * energy(x, c) >= textbook - 1e-12


def test_chance_is_what_halves_of_the_control_show() -> None:
    rng = np.random.default_rng(1)
    cells = rng.normal(size=(400, 20)) * rng.lognormal(0, 0.5, 20)
    seen = []
    for _ in range(200):
        moved = rng.permutation(400)
        a, b = cells[moved[:100]], cells[moved[100:]]
        between = 2 * cdist(a, b).mean()
        within = [cdist(z, z).sum() / (len(z) * (len(z) - 1)) for z in (a, b)]
        seen.append(between - sum(within))
    assert chance(cells[:300], 100) == pytest.approx(np.std(seen), rel=0.2)
    assert abs(np.mean(seen)) < 0.3 * np.std(seen)


def test_transport_has_settled_for_clouds_of_cells() -> None:
    rng = np.random.default_rng(2)
    x, y = (
        rng.normal(size=(100, 30)),
        0.2 * rng.normal(size=30) + rng.normal(size=(100, 30)) * rng.lognormal(0, 0.3, 30),
    )
    scale = median_apart(x)
    (ours,) = sinkhorn([torch.from_numpy(y)], [torch.from_numpy(x)], scale=scale).tolist()
    assert ours == pytest.approx(divergence(x, y, scale, updates=1000), rel=1e-6)


def test_more_cells_than_are_transported_are_thinned_evenly() -> None:
    rng = np.random.default_rng(3)
    sizes = np.array([20, 450, 90])
    group = np.repeat(np.arange(3), sizes)
    x, y = (np.abs(rng.normal(size=(560, 6)) + 3 + group[:, None]) for _ in range(2))
    space = latent_space(reference_of(x, group, "log1p_cp10k"))
    score = results(Data(x, group, y, group, "log1p_cp10k"), ("sinkhorn",))["sinkhorn"]
    z = (y @ space.basis.numpy().T)[group == 1]
    taken = np.array([i * 450 // AT_MOST for i in range(AT_MOST)])
    assert evenly(450, AT_MOST).tolist() == taken.tolist()
    scale = median_apart(x[[i * 560 // 560 for i in range(560)]])
    expected = divergence(space.cells.numpy()[group == 1][taken], z[taken], scale)
    assert float(score.units[0]) == pytest.approx(expected, rel=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_the_median_distance_leaves_cells_that_are_alike_out(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 3, (n, 2)).astype(np.float64)
    apart = [d for d in (np.linalg.norm(a - b) for a, b in combinations(x, 2)) if d > 0]
    assert median_distance(torch.from_numpy(x)) == pytest.approx(np.median(apart) if apart else 0.0, rel=1e-14)


@given(st.integers(0, 2**32 - 1))
def test_the_median_over_genes_is_numpys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, pred = rng.lognormal(0, 2, (2, 4, 9))
    target[rng.random(target.shape) < 0.3] = 0.0
    keep = rng.random(target.shape) < 0.8
    ours = variance_ratio(torch.from_numpy(pred), torch.from_numpy(target), keep=torch.from_numpy(keep)).numpy()
    for row, value in enumerate(ours):
        genes = keep[row] & (target[row] > 0)
        logs = np.minimum(np.abs(np.log(pred[row, genes] / target[row, genes])), np.log(1000))
        assert np.isnan(value) if not genes.any() else value == pytest.approx(np.median(logs), rel=1e-12)


def test_equal_distances_from_control_correlate_with_nothing() -> None:
    d = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    same = torch.tensor([3.0, 3.0 + 1e-12, 3.0], dtype=torch.float64)
    assert edistance_pearson(same, d) == 0.0
    assert edistance_pearson(d, same).isnan()
    assert edistance_pearson(same, same).isnan()


def test_predictions_outside_the_space_are_seen_from_within() -> None:
    # 60 genes and 20 cells: what a prediction does beyond the 19 dimensions of the solution does not count.
    rng = np.random.default_rng(4)
    group = np.arange(20) % 4
    x = rng.normal(size=(20, 60)) + 5
    reference = reference_of(x, group, "log1p_cp10k")
    space = latent_space(reference)
    away = rng.normal(size=60)
    away -= space.basis.numpy().T @ (space.basis.numpy() @ away)
    before, after = (results(Data(x, group, x + s * away, group, "log1p_cp10k"), ("mmd_rbf",)) for s in (0.0, 9.0))
    np.testing.assert_allclose(after["mmd_rbf"].units.numpy(), before["mmd_rbf"].units.numpy(), atol=1e-9)
