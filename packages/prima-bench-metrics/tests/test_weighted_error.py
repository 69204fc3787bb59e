"""Errors weighted by what sets a perturbation apart: against scipy's t test and plain numpy."""

import runpy
from pathlib import Path

import numpy as np
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.base import Score
from prima_bench.metrics.catalog import load_metric
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.base import ALONE, NO_GENES
from prima_bench.metrics.perturbation.profiles.gene_weights import against_rest, gene_weights, t_statistic
from prima_bench.metrics.perturbation.profiles.weighted_error import FEW_CELLS
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.rows import SparseRows

VALUES = runpy.run_path(str(Path(__file__).with_name("test_perturbation_values.py")))
NAMES = ("wmse", "weighted_r2_delta_pertmean")
Array = np.ndarray


def statistics(data) -> Array:
    x = data.x
    if data.scale == "counts":
        x = np.log1p(1e4 * x / np.maximum(x.sum(axis=1, keepdims=True), 1))
    out = np.full((data.perturbations, x.shape[1]), np.nan)
    for p in range(data.perturbations):
        own, rest = x[data.group == p + 1], x[(data.group != p + 1) & (data.group > 0)]
        if len(own) > 1 and len(rest) > 1:
            out[p] = scipy.stats.ttest_ind_from_stats(
                *(own.mean(axis=0), own.std(axis=0, ddof=1), len(own)),
                *(rest.mean(axis=0), rest.std(axis=0, ddof=1), len(own)),
                equal_var=False,
            ).statistic
    return np.where(np.isnan(out) & ~np.isnan(out).all(axis=1, keepdims=True), 0.0, out)


def expected(data, exclude: str, target_sum: float, leave_one_out: bool) -> dict[str, Array]:
    true, pred = VALUES["profiles"](data, target_sum)
    wmse, r2 = [], []
    for p, (t, genes) in enumerate(zip(statistics(data), VALUES["kept"](data, exclude), strict=True)):
        size = np.abs(t[genes])
        w = ((size - size.min()) / (size.max() - size.min())) ** 2
        w = w / w.sum()
        m, q = true[p + 1][genes], pred[p + 1][genes]
        others = np.delete(true[1:], p, axis=0) if leave_one_out else true[1:]
        o = others.mean(axis=0)[genes]
        wmse.append((w * (q - m) ** 2).sum())
        r2.append(1 - (w * (q - m) ** 2).sum() / (w * (m - o) ** 2).sum())
    return {"wmse": np.array(wmse), "weighted_r2_delta_pertmean": np.array(r2)}


def scored(reference: PerturbationReference, x: torch.Tensor, group: object, **options: object) -> dict[str, Score]:
    panel = Panel({n: load_metric(n)(reference, **options) for n in NAMES})
    panel.update(x=x, group=torch.as_tensor(group))
    return panel.results()


@given(
    problem=VALUES["problems"](),
    exclude=st.sampled_from(("none", "own", "own_single", "panel", "panel_single")),
    target_sum=st.sampled_from((0.0, 5e4)),
    leave_one_out=st.booleans(),
)
def test_values_equal_numpy(problem, exclude: str, target_sum: float, leave_one_out: bool) -> None:
    target_sum = target_sum if problem.scale == "counts" else 0.0
    expect = expected(problem, exclude, target_sum, leave_one_out)
    reference = VALUES["reference_of"](problem)
    metrics = {n: load_metric(n)(reference, exclude_targets=exclude, target_sum=target_sum) for n in NAMES}
    metrics[NAMES[1]].leave_one_out = leave_one_out
    panel = Panel(metrics)
    panel.update(x=torch.from_numpy(problem.y), group=torch.from_numpy(problem.predicted))
    for name, score in panel.results().items():
        np.testing.assert_allclose(score.units.numpy(), expect[name], rtol=1e-9, atol=1e-9, err_msg=name)
        assert set(score.undefined.values()) <= {FEW_CELLS}
        assert list(score.undefined) == np.flatnonzero(np.isnan(expect[name])).tolist()


@given(problem=VALUES["problems"]())
def test_the_statistic_equals_scipy(problem) -> None:
    np.testing.assert_allclose(
        t_statistic(VALUES["reference_of"](problem)).numpy(), statistics(problem), rtol=1e-9, atol=1e-12
    )


def screen(seed: int, *, perturbations: int = 6, cells: int = 20, genes: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    population, rng = np.random.default_rng(7), np.random.default_rng(seed)
    group = np.repeat(np.arange(perturbations + 1), cells)
    effects = population.normal(0, 1, (perturbations + 1, genes)) * (
        population.random((perturbations + 1, genes)) < 0.1
    )
    shared = np.where(np.arange(perturbations + 1)[:, None] > 0, population.normal(0, 0.5, genes), 0.0)
    mean = 5 * population.lognormal(0, 1, genes) * np.exp(effects + shared)
    x = rng.poisson(mean[group]).astype(np.float64)
    x[:, 0] += 1
    return torch.from_numpy(x), torch.from_numpy(group)


def log_of(x: torch.Tensor) -> torch.Tensor:
    return torch.log1p(x / x.sum(dim=1, keepdim=True) * 1e4)


def reference_of(x: torch.Tensor, group: torch.Tensor, scale: str = "counts", **more: object) -> PerturbationReference:
    return PerturbationReference.from_cells(x, group, num_perturbations=int(group.max()), scale=scale, **more)  # type: ignore[arg-type]


def test_weights_of_counts_are_those_of_their_logarithms() -> None:
    x, group = screen(0)
    counts, logs = (t_statistic(reference_of(y, group, s)) for y, s in ((x, "counts"), (log_of(x), "log1p_cp10k")))
    torch.testing.assert_close(counts, logs, rtol=1e-9, atol=1e-12)


def test_the_mean_of_the_other_perturbations_scores_exactly_nothing() -> None:
    x, group = screen(0)
    logs = log_of(x)
    reference = reference_of(logs, group, "log1p_cp10k")
    profiles = reference.profiles()[1:]
    others = (profiles.sum(dim=0) - profiles) / (len(profiles) - 1)
    units = scored(reference, others, torch.arange(1, 7))["weighted_r2_delta_pertmean"].units
    torch.testing.assert_close(units, torch.zeros(6, dtype=torch.float64), rtol=0.0, atol=1e-12)


def test_truth_replicate_others_and_overshoot_are_in_order() -> None:
    x, group = screen(0)
    logs, again = log_of(x), log_of(screen(1)[0])
    reference = reference_of(logs, group, "log1p_cp10k")
    mean = reference.profiles()[1:].mean(dim=0)
    far = reference.profiles()[0] + 3 * (again - reference.profiles()[0])
    right, replicate, shared, tripled = (scored(reference, y, group) for y in (logs, again, mean.expand_as(logs), far))
    assert right["wmse"].value == 0.0
    assert right["weighted_r2_delta_pertmean"].value == 1.0
    for name, sign in (("wmse", 1), ("weighted_r2_delta_pertmean", -1)):
        values = [sign * s[name].value for s in (right, replicate, shared, tripled)]
        assert values == sorted(values)


def test_what_no_gene_can_weigh_is_undefined() -> None:
    x, group = screen(0, perturbations=4)
    x[group == 2] = x[group == 1]  # alike, but apart from the others
    reference = reference_of(x, group)
    assert not scored(reference, x, group)["wmse"].undefined
    rows = torch.arange(3.0, dtype=torch.float64).repeat(4).unsqueeze(1).repeat(1, 5)
    reference = reference_of(rows, torch.arange(4).repeat_interleave(3), "log1p_cp10k")
    for y in (rows, rows * 0, rows + 1e90):
        for score in scored(reference, y, torch.arange(4).repeat_interleave(3)).values():
            assert score.value is None
            assert set(score.undefined.values()) == {"no gene sets this perturbation apart from the others"}


def test_a_single_cell_has_no_statistic() -> None:
    x, group = screen(0, perturbations=3, cells=4)
    keep = (group != 2) | (torch.cumsum(group == 2, 0) == 1)
    reference = reference_of(x[keep], group[keep])
    for score in scored(reference, x, group).values():
        assert score.undefined == {1: FEW_CELLS}
        assert score.value is not None
    pair = (group < 2) | (keep & (group == 2))
    for score in scored(reference_of(x[pair], group[pair]), x, group.clamp(max=2)).values():
        assert score.undefined == {0: FEW_CELLS, 1: FEW_CELLS}
    for score in scored(reference_of(x[group < 2], group[group < 2]), x[group < 2], group[group < 2]).values():
        assert score.undefined == {0: ALONE}
    targets = [list(range(50)), [], []]
    for score in scored(reference_of(x, group, targets=targets), x, group, exclude_targets="own").values():
        assert score.undefined == {0: NO_GENES}


def test_genes_that_separate_without_variance_take_all_the_weight() -> None:
    group = torch.arange(4).repeat_interleave(3)
    x = torch.rand((12, 6), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 2] = torch.where(group == 1, 0.7, 0.1)
    x[:, 3] = 0.1 + 0.2  # the same for all, whatever sums make of it
    t = t_statistic(reference_of(x, group, "log1p_cp10k"))
    assert t[0, 2] == torch.inf
    assert (t[:, 3] == 0).all()
    assert (t[1:, 2] < 0).all()
    assert gene_weights(t)[0].tolist() == [0, 0, 1, 0, 0, 0]


def test_genes_that_do_not_count_scale_no_weights() -> None:
    t = torch.tensor([[0.5, -1.0, 2.0, 9.0, 0.1], [1.0, 1.0, -1.0, 4.0, 0.0]], dtype=torch.float64)
    keep = torch.tensor([True, True, True, False, False]).expand(2, -1)
    weights = gene_weights(t, keep)
    assert torch.equal(weights[:, :3], gene_weights(t[:, :3]))
    assert (weights[:, 3:] == 0).all()
    np.testing.assert_allclose(weights[0, :3].numpy(), np.array([0, 1 / 9, 1]) / (10 / 9), rtol=1e-15)
    assert weights[1, :3].tolist() == [1 / 3] * 3  # all equally far from the others


@given(seed=st.integers(0, 2**32 - 1))
def test_layout_and_order_of_files_change_no_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, group = screen(0, perturbations=3, cells=30, genes=400)
    x = x * torch.from_numpy(rng.lognormal(0, 3, (len(group), 1)))
    ids, order = torch.from_numpy(rng.permutation(len(group))), rng.permutation(len(group))
    expect = t_statistic(reference_of(x, group, index=ids))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    moved = reference_of(SparseRows.from_dense(x[order]), group[order], index=ids[order])
    assert torch.equal(t_statistic(moved), expect)
    torch.set_num_threads(threads)


def test_the_rest_of_a_large_group_keeps_its_digits() -> None:
    # One perturbation of nearly all cells, with nearly all of the variance.
    rng = np.random.default_rng(3)
    cells = [rng.normal(50, 9, (5000, 3)), rng.normal(1, 1e-3, (4, 3)), rng.normal(2, 1e-3, (3, 3))]
    means = torch.from_numpy(np.array([c.mean(axis=0) for c in cells]))
    squares = torch.from_numpy(np.array([((c - c.mean(axis=0)) ** 2).sum(axis=0) for c in cells]))
    ours = against_rest(means, squares, torch.tensor([5000, 4, 3])).numpy()
    for p in range(3):
        own, rest = cells[p], np.concatenate([c for q, c in enumerate(cells) if q != p])
        spread = (own.var(axis=0, ddof=1) + rest.var(axis=0, ddof=1)) / len(own)
        np.testing.assert_allclose(ours[p], (own.mean(axis=0) - rest.mean(axis=0)) / np.sqrt(spread), rtol=1e-7)
