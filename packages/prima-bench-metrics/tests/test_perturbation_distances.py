"""Counting closer true effects: equal to brute force, and never decided by rounding."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.perturbation.profiles.distances import Distance, closer_and_tied

DISTANCES: tuple[Distance, ...] = ("cosine", "l1", "l2")


def brute_force(e: np.ndarray, d: np.ndarray, distance: Distance, keep: np.ndarray | None = None) -> np.ndarray:
    out = []
    for p in range(len(e)):
        genes = slice(None) if keep is None else keep[p]
        a, b = e[p, genes].astype(np.longdouble), d[:, genes].astype(np.longdouble)
        if distance == "l1":
            value = np.abs(a - b).sum(axis=1)
        elif distance == "l2":
            value = np.sqrt(((a - b) ** 2).sum(axis=1))
        else:
            norms = np.sqrt((a**2).sum() * (b**2).sum(axis=1))
            value = np.where(norms > 0, 1 - (b @ a) / np.where(norms > 0, norms, 1), 1)
        size = 1.0 if distance == "cosine" else float(value.max()) + float(np.abs(a).max())
        gap = np.where(np.abs(value - value[p]) <= 1e-12 * size, 0, value - value[p])
        out.append(np.sum(gap < 0) + 0.5 * (np.sum(gap == 0) - 1))
    return np.array(out, dtype=np.float64)


@pytest.mark.parametrize("distance", DISTANCES)
@given(data=st.data())
def test_counts_equal_brute_force(distance: Distance, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    n, genes = data.draw(st.integers(2, 90)), data.draw(st.sampled_from((1, 2, 7, 270)))
    spread = data.draw(st.sampled_from((0.0, 3.0)))
    d = rng.normal(size=(n, genes)) * rng.lognormal(0, spread, genes)
    e = d[rng.permutation(n)] + data.draw(st.sampled_from((0.0, 1e-7, 1.0))) * rng.normal(size=(n, genes))
    repeated = data.draw(st.integers(0, n - 1))
    d[rng.integers(0, n, repeated)] = d[rng.integers(0, n)]  # exact ties
    d[rng.random(n) < data.draw(st.sampled_from((0.0, 0.2)))] = 0.0
    keep = (rng.random((n, genes)) < 0.9) | (np.arange(genes) == 0) if data.draw(st.booleans()) else None
    mask = None if keep is None else torch.from_numpy(keep)
    ours = closer_and_tied(torch.from_numpy(e), torch.from_numpy(d), distance, mask)
    np.testing.assert_array_equal(ours.numpy(), brute_force(e, d, distance, keep))


@pytest.mark.parametrize("distance", DISTANCES)
@given(seed=st.integers(0, 2**32 - 1), gap=st.sampled_from((1e-9, 1e-7, 1e-5)))
def test_neighbours_too_close_for_the_estimate_are_told_apart(distance: Distance, seed: int, gap: float) -> None:
    # The own effect is off by more than the others, by less than the estimate's error.
    rng = np.random.default_rng(seed)
    e = np.repeat(rng.normal(size=(1, 600)), 8, axis=0)
    noise = rng.normal(size=e.shape)
    order = rng.permutation(8)
    d = e + (1.0 + gap * order[:, None]) * np.abs(noise[:1]) * np.sign(noise[:1])
    ours = closer_and_tied(torch.from_numpy(e), torch.from_numpy(d), distance)
    np.testing.assert_array_equal(ours.numpy(), brute_force(e, d, distance))
    if distance != "cosine":
        np.testing.assert_array_equal(ours.numpy(), order)


@pytest.mark.parametrize("distance", DISTANCES)
def test_excluded_genes_that_dwarf_the_rest_do_not_blur_it(distance: Distance) -> None:
    # What is left of the estimate after the large gene is taken out again is rounding.
    rng = np.random.default_rng(4)
    d = rng.normal(size=(40, 30))
    e = d + rng.normal(size=d.shape)
    keep = np.ones(d.shape, dtype=bool)
    keep[:, 7] = False
    wide = d.copy()
    wide[:, 7] = 1e9 * rng.lognormal(size=40)
    ours = closer_and_tied(torch.from_numpy(e), torch.from_numpy(wide), distance, torch.from_numpy(keep))
    np.testing.assert_array_equal(ours.numpy(), brute_force(e, d, distance, keep))


@pytest.mark.parametrize("distance", DISTANCES)
def test_true_ties_are_ties_wherever_they_stand(distance: Distance) -> None:
    rng = np.random.default_rng(3)
    row = rng.lognormal(0, 4, 201)
    d = np.vstack([row] * 70)
    e = rng.lognormal(0, 4, d.shape)
    ours = closer_and_tied(torch.from_numpy(e), torch.from_numpy(d), distance)
    assert ours.tolist() == [69 / 2] * 70


@pytest.mark.parametrize("distance", DISTANCES)
def test_gene_order_cannot_break_a_tie(distance: Distance) -> None:
    # Two true effects that mirror each other about the prediction: equally far, in any order of the genes.
    e = np.full((2, 2), 0.7)
    d = np.array([[0.1, 0.3], [0.3, 0.1]])
    for tiles in (1, 7, 31):
        wide = [np.tile(a, tiles) for a in (e, d)]
        assert closer_and_tied(*map(torch.from_numpy, wide), distance).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("distance", DISTANCES)
def test_threads_and_layout_change_nothing(distance: Distance) -> None:
    rng = np.random.default_rng(5)
    e, d = (torch.from_numpy(rng.lognormal(0, 3, (70, 300))) for _ in range(2))
    d[50:] = d[3]
    before = torch.get_num_threads()
    answers = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        answers.append(closer_and_tied(e, d, distance))
        answers.append(closer_and_tied(e.T.contiguous().T, d.T.contiguous().T, distance))
    torch.set_num_threads(before)
    assert all(torch.equal(a, answers[0]) for a in answers)
