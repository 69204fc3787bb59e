"""Sampling noise of pseudobulks against loops that leave out one cell at a time, in extended precision."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.base import Batch
from prima_bench.metrics.numerics import group_sums
from prima_bench.metrics.perturbation.base import PerturbationMetric
from prima_bench.metrics.perturbation.profiles.jackknife import log_sum_noise
from prima_bench.metrics.perturbation.profiles.noise import mean_noise, predicted_noise, true_noise
from prima_bench.metrics.perturbation.pseudobulk import mean_profiles
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.rows import RowMatrix, SparseRows

Array = np.ndarray
GROUPS = 4


def jackknife(x: Array, group: Array, target_sum: float) -> Array:
    out = np.zeros((GROUPS, x.shape[1]))
    for code in range(GROUPS):
        cells = x[group == code].astype(np.longdouble)
        n = len(cells)
        if n < 2:
            continue
        left_out = []
        for i in range(n):
            sums = np.delete(cells, i, axis=0).sum(axis=0)
            total = sums.sum()
            left_out.append(np.log1p(target_sum * sums / total) if total > 0 else 0 * sums)
        v = np.array(left_out)
        out[code] = (n - 1) / n * ((v - v.mean(axis=0)) ** 2).sum(axis=0)
    return out


def variance_of_mean(x: Array, group: Array) -> Array:
    out = np.zeros((GROUPS, x.shape[1]))
    for code in range(GROUPS):
        cells = x[group == code]
        if len(cells) > 1:
            out[code] = cells.var(axis=0, ddof=1) / len(cells)
    return out


@st.composite
def screens(draw: st.DrawFn) -> tuple[Array, Array]:
    """Counts of groups of one to many cells, some without any; cells of all depths, genes that nothing expresses."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = [draw(st.sampled_from((0, 1, 2, 3, 9, 10, 70))) for _ in range(GROUPS)]
    group = rng.permutation(np.repeat(np.arange(GROUPS), sizes))
    level = rng.lognormal(draw(st.sampled_from((-2.0, 1.0))), 2.0, draw(st.integers(1, 25)))
    depth = rng.lognormal(0.0, draw(st.sampled_from((0.2, 3.0))), (len(group), 1))
    x = rng.poisson(level * depth).astype(np.float64)
    x[rng.random(len(group)) < draw(st.sampled_from((0.0, 0.2)))] = 0
    x[:, rng.random(x.shape[1]) < 0.1] = 0
    if draw(st.booleans()):
        x *= rng.random(x.shape)
    return x, group


def sums_of(x: Array, group: Array) -> torch.Tensor:
    return group_sums(torch.from_numpy(x), torch.from_numpy(group), GROUPS)


@given(screen=screens(), target_sum=st.sampled_from((1e-3, 1.0, 1e4, 5e4, 1e9, 1e15)))
def test_the_jackknife_equals_leaving_out_each_cell(screen: tuple[Array, Array], target_sum: float) -> None:
    x, group = screen
    ours = log_sum_noise(RowMatrix([torch.from_numpy(x)]), torch.from_numpy(group), sums_of(x, group), target_sum)
    expected = jackknife(x, group, target_sum)
    # What does not stray at all is zero up to rounding of what it strays from.
    zero = 1e-15 * np.log1p(target_sum) ** 2
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-8, atol=zero + 1e-13 * expected.max(initial=0))
    # Taking one cell out of a sum is exact with whole counts alone.
    exact = 1e-12 if (x == np.floor(x)).all() else 1e-8
    np.testing.assert_allclose(ours.sum(dim=1).numpy(), expected.sum(axis=1), rtol=exact, atol=zero)


@given(screen=screens())
def test_noise_of_means_equals_numpy(screen: tuple[Array, Array]) -> None:
    x, group = np.log1p(screen[0]), screen[1]
    n = torch.bincount(torch.from_numpy(group), minlength=GROUPS)
    means = mean_profiles(sums_of(x, group), n)
    ours = mean_noise(RowMatrix([torch.from_numpy(x)]), torch.from_numpy(group), means)
    expected = variance_of_mean(x, group)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-12, atol=1e-28 * max(1.0, float(x.max(initial=0)) ** 2))


def test_a_cell_that_holds_all_counts_leaves_an_empty_profile_behind() -> None:
    x, group = np.array([[0.0, 6.0, 2.0], [0, 0, 0], [0, 0, 0]]), np.zeros(3, dtype=int)
    ours = log_sum_noise(RowMatrix([torch.from_numpy(x)]), torch.from_numpy(group), sums_of(x, group), 8.0)
    np.testing.assert_allclose(ours[0].numpy(), 4 / 9 * np.log1p([0, 6, 2]) ** 2, rtol=1e-14)


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
def test_cells_that_are_all_alike_have_no_noise(scale: str) -> None:
    row = np.random.default_rng(0).poisson(3.0, 40).astype(np.float64)
    x, group = torch.from_numpy(np.tile(row, (30, 1))), torch.arange(2).repeat_interleave(15)
    reference = PerturbationReference.from_cells(x, group, num_perturbations=1, scale=scale)
    assert float(true_noise(reference).sum()) < 1e-14


def test_noise_falls_with_the_number_of_cells() -> None:
    rng = np.random.default_rng(1)
    x = rng.poisson(rng.lognormal(3, 1, 50), (800, 50)).astype(np.float64)
    group = np.repeat([0, 1], [400, 400])
    group[:390] = 2
    totals = log_sum_noise(RowMatrix([torch.from_numpy(x)]), torch.from_numpy(group), sums_of(x, group), 1e4).sum(dim=1)
    assert 30 < float(totals[0] / totals[1]) < 60  # 10 cells against 400


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
@pytest.mark.parametrize("seed", range(4))
def test_layout_chunks_and_threads_give_the_same_bits(scale: str, seed: int) -> None:
    # Enough values for torch to split one operation between threads.
    rng = np.random.default_rng(seed)
    genes, group = 700, np.repeat(np.arange(6), [1, 2, 60, 9, 300, 80])
    x = rng.poisson(rng.lognormal(-1, 2, genes), (len(group), genes)) * rng.lognormal(0, 3, (len(group), 1))
    x = torch.from_numpy(x.astype(np.float32) if seed % 2 else x)
    order = rng.permutation(len(group))
    ids = torch.from_numpy(rng.permutation(10 * len(group))[: len(group)])

    def noise(x: torch.Tensor | SparseRows, rows: Array) -> torch.Tensor:
        reference = PerturbationReference.from_cells(
            x, torch.from_numpy(group[rows]), num_perturbations=5, scale=scale, index=ids[rows]
        )
        return true_noise(reference)

    expected = noise(x, np.arange(len(group)))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    assert torch.equal(noise(SparseRows.from_dense(x[order]), order), expected)
    assert torch.equal(noise(x[order].T.contiguous().T, order), expected)
    chunks = [SparseRows.from_dense(part) if i % 2 else part for i, part in enumerate(torch.tensor_split(x, 5))]
    codes, sorted_rows = torch.from_numpy(group), torch.argsort(ids)
    batch = Batch.of(PerturbationMetric.fields, {"x": RowMatrix(chunks, sorted_rows), "group": codes[sorted_rows]})
    reference = PerturbationReference.from_cells(x, codes, num_perturbations=5, scale=scale, index=ids)
    assert torch.equal(predicted_noise(batch, reference)[1:], expected[1:])
    torch.set_num_threads(threads)


def test_predicted_control_cells_have_no_say() -> None:
    x, group = torch.rand(20, 5), torch.arange(20) % 4
    reference = PerturbationReference.from_cells(x, group, num_perturbations=3, scale="log1p_cp10k")
    before = predicted_noise(Batch.of(PerturbationMetric.fields, {"x": RowMatrix([x]), "group": group}), reference)
    x = torch.where((group == 0).unsqueeze(1), 50.0 * x, x)
    after = predicted_noise(Batch.of(PerturbationMetric.fields, {"x": RowMatrix([x]), "group": group}), reference)
    assert torch.equal(before, after)
    assert float(before[0].sum()) == 0.0


def test_a_solution_is_gone_through_once_for_a_total() -> None:
    x, group = torch.arange(24.0).reshape(6, 4), torch.arange(6) % 3
    reference = PerturbationReference.from_cells(x, group, num_perturbations=2, scale="counts")
    assert true_noise(reference) is true_noise(reference)
    assert not torch.equal(true_noise(reference), true_noise(reference, 10.0))
