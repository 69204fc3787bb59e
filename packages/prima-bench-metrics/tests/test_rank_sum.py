"""Rank-sum tests are scipy's: U exactly and p to 1e-12, on every kind of value and in every layout."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics import RowMatrix, SparseRows, rank_sum_test
from prima_bench.metrics.differential import keys
from prima_bench.metrics.differential.spans import Nonzeros
from prima_bench.metrics.differential.ties import MOST_CELLS

LEAST = 1e-290  # below it, scipy's p-values lose their digits


def _spread(rng, shape):
    return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-4.5, 4.5, shape)


KINDS = {
    "continuous": lambda rng, shape: rng.normal(size=shape).astype(np.float32),
    "continuous double": lambda rng, shape: rng.normal(size=shape),
    "half": lambda rng, shape: rng.normal(size=shape).astype(np.float16),
    "sparse": lambda rng, shape: rng.normal(size=shape) * (rng.random(shape) < 0.3),
    "log counts": lambda rng, shape: np.log1p(rng.poisson(0.5, shape) * 0.7).astype(np.float32),
    "counts": lambda rng, shape: rng.poisson(0.5, shape),
    "small integers": lambda rng, shape: rng.integers(-2, 3, shape).astype(np.int8),
    "large integers": lambda rng, shape: rng.integers(-(2**53), 2**53, shape),
    "negative": lambda rng, shape: -rng.integers(1, 4, shape).astype(np.float32),
    "mostly tied": lambda rng, shape: (rng.random(shape) < 0.05).astype(np.float32) * 2.5,
    "zero": lambda rng, shape: np.zeros(shape),
    "constant": lambda rng, shape: np.full(shape, -1.5),
    "signed zero": lambda rng, shape: rng.choice([-0.0, 0.0, 1.0, -1.0], shape),
    "denormal": lambda rng, shape: rng.integers(-3, 4, shape) * 5e-324,
    "denormal single": lambda rng, shape: rng.integers(-3, 4, shape).astype(np.float32) * np.float32(1e-45),
    "nine decades": _spread,
    "enormous": lambda rng, shape: rng.choice([-1.0, 1.0, 0.0], shape) * 10.0 ** rng.uniform(-300, 300, shape),
    "hardly apart": lambda rng, shape: np.where(
        rng.random(shape) < 0.9, 1 + rng.integers(0, 5, shape) * 2.0**-52, -1e9
    ),
}


def _mixed(x, rng):
    """The same rows as a view over shuffled chunks of both layouts, one row shown by a chunk of its own."""
    n = len(x)
    order = rng.permutation(n)
    x = x if x.dtype.itemsize > 2 and x.dtype != torch.int8 else x.double()
    first, second = x[order[: n // 2]], x[order[n // 2 :]]
    return RowMatrix([SparseRows.from_dense(first), second], torch.from_numpy(np.argsort(order)))


def _untidy(x, rng):
    """Sparse rows with stored zeros, and columns in no order."""
    n, w = x.shape
    column = np.stack([rng.permutation(w) for _ in range(n)]) if n else np.zeros((0, w), np.int64)
    values = torch.from_numpy(np.take_along_axis(x.numpy(), column, axis=1)).flatten()
    return SparseRows(values, torch.from_numpy(column).flatten(), torch.full((n,), w), w)


LAYOUTS = {
    "dense": lambda x, rng: x,
    "transposed": lambda x, rng: x.T.contiguous().T,
    "cut out": lambda x, rng: torch.nn.functional.pad(x, (3, 2))[:, 3:-2],
    "sparse": lambda x, rng: SparseRows.from_dense(x),
    "untidy": _untidy,
    "mixed": _mixed,
}


def check(result, x, group, n_groups):
    """Compare with scipy gene by gene; ``x`` is what is to be ranked."""
    control = x[group == 0]
    for code in range(1, n_groups):
        own = x[group == code]
        u, z, p = (t[code - 1].numpy() for t in (result.u, result.z, result.p_value))
        if not len(own) or not len(control):
            assert not u.any()
            assert not z.any()
            assert (p == 1).all()
            continue
        expected = scipy.stats.mannwhitneyu(own, control, method="asymptotic", use_continuity=True)
        both = np.concatenate([own, control])
        varies = (both != both[:1]).any(axis=0)
        assert np.array_equal(u, expected.statistic)
        assert np.array_equal(p[~varies], np.ones(sum(~varies)))
        assert np.array_equal(z[~varies], np.zeros(sum(~varies)))
        np.testing.assert_allclose(p[varies], expected.pvalue[varies], rtol=1e-12, atol=LEAST)
        assert np.array_equal(
            np.sign(z[varies]), np.sign((np.abs(t := u - len(own) * len(control) / 2) > 0.5) * t)[varies]
        )


@given(
    kind=st.sampled_from(sorted(KINDS)),
    layout=st.sampled_from(sorted(LAYOUTS)),
    cells=st.integers(0, 80),
    genes=st.integers(1, 5),
    n_groups=st.integers(1, 6),
    lowest=st.sampled_from([-1, 0]),
    seed=st.integers(0, 999),
)
def test_every_kind_of_value_in_every_layout_is_tested_as_scipy_does(
    kind, layout, cells, genes, n_groups, lowest, seed
):
    rng = np.random.default_rng(seed)
    x = KINDS[kind](rng, (cells, genes))
    group = rng.integers(lowest, n_groups, cells)
    result = rank_sum_test(LAYOUTS[layout](torch.from_numpy(x), rng), torch.from_numpy(group), n_groups)
    assert result.n_cells.tolist() == [int((group == code).sum()) for code in range(n_groups)]
    assert all(t.dtype == torch.float64 for t in (result.u, result.z, result.p_value, result.mean))
    x = x.astype(np.float64)
    check(result, x, group, n_groups)
    for code in range(n_groups):
        for gene in range(genes):
            own, mean = x[group == code, gene].tolist(), float(result.mean[code, gene])
            exact = math.fsum(own) / len(own) if own else 0.0
            largest = np.abs(x[group >= 0, gene]).max(initial=0.0)
            assert abs(mean - exact) <= 2 * np.spacing(abs(exact)) + largest * 2.0**-75


@given(n=st.integers(1, 40), seed=st.integers(0, 999), kind=st.sampled_from(["counts", "nine decades", "denormal"]))
def test_divided_values_are_ranked_and_averaged_as_quotients_in_float64(n, seed, kind):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(KINDS[kind](rng, (n, 4)))
    group = torch.from_numpy(rng.integers(0, 3, n))
    total = torch.from_numpy(rng.choice([0.1, 1 / 3, 1.0, 7.3, 1e300], n))
    quotient = x.double() / total[:, None]
    expected = rank_sum_test(quotient, group, 3)
    check(expected, quotient.numpy(), group.numpy(), 3)
    for layout in (x, SparseRows.from_dense(x)):
        result = rank_sum_test(layout, group, 3, total=total)
        for name in ("u", "z", "p_value", "mean"):
            assert torch.equal(getattr(result, name), getattr(expected, name))


def test_quotients_equal_in_float32_and_different_in_float64_are_not_tied():
    x = torch.ones(4, 1)
    total = torch.tensor([1.0, 1 + 2.0**-40, 1.0, 1 + 2.0**-40], dtype=torch.float64)
    result = rank_sum_test(x, torch.tensor([0, 0, 1, 1]), 2, total=total)
    assert float(result.u) == 0.5 + 1 + 0.5
    assert float(rank_sum_test(x, torch.tensor([0, 1, 1, 0]), 2, total=total).u) == 0.5 + 1 + 0.5
    assert float(rank_sum_test(x, torch.tensor([0, 1, 0, 1]), 2, total=total).u) == 0


@given(n=st.integers(2, 60), seed=st.integers(0, 999))
def test_means_are_of_expm1_when_asked_for_and_ranks_do_not_change(n, seed):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(n, 3)) * (rng.random((n, 3)) < 0.5))
    group = torch.from_numpy(rng.integers(0, 2, n))
    result, plain = rank_sum_test(x, group, 2, linear="expm1"), rank_sum_test(x, group, 2)
    assert torch.equal(result.u, plain.u)
    assert torch.equal(result.p_value, plain.p_value)
    for code in range(2):
        own = np.expm1(x[group == code].numpy())
        bound = 1e-15 * np.abs(own).sum(axis=0) / max(1, len(own))
        assert (np.abs(result.mean[code].numpy() - own.sum(axis=0) / max(1, len(own))) <= bound).all()


def test_control_of_its_own_takes_the_place_of_the_cells_of_group_zero():
    rng = np.random.default_rng(0)
    x, control = (torch.from_numpy(rng.poisson(1.0, (n, 5)).astype(np.float32)) for n in (30, 12))
    group = torch.from_numpy(rng.integers(-1, 3, 30))
    total, control_total = (torch.from_numpy(rng.uniform(0.5, 2, n)) for n in (30, 12))
    kept = group != 0
    expected = rank_sum_test(
        torch.cat([control, x[kept]]),
        torch.cat([torch.zeros(12, dtype=torch.int64), group[kept]]),
        3,
        total=torch.cat([control_total, total[kept]]),
    )
    for theirs in (control, SparseRows.from_dense(control), RowMatrix([control])):
        result = rank_sum_test(x, group, 3, control=theirs, total=total, control_total=control_total)
        for name in ("u", "z", "p_value", "mean", "n_cells"):
            assert torch.equal(getattr(result, name), getattr(expected, name))


def test_rows_that_a_view_shows_again_are_cells_of_their_own():
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0], [3.0, 3.0]])
    order = torch.tensor([2, 0, 0, 1, 2])
    group = torch.tensor([1, 0, 1, 0, 1])
    for chunks in ([x], [x[:1], SparseRows.from_dense(x[1:])], [SparseRows.from_dense(x)]):
        result = rank_sum_test(RowMatrix(chunks, order), group, 2)
        expected = rank_sum_test(x[order], group, 2)
        assert torch.equal(result.u, expected.u)
        assert torch.equal(result.mean, expected.mean)
        assert result.n_cells.tolist() == [2, 3]


def test_p_values_of_clear_differences_agree_relatively():
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(size=(700, 40)), rng.normal(size=(700, 40)) + np.linspace(0, 3, 40)])
    group = np.repeat([0, 1], 700)
    result = rank_sum_test(torch.from_numpy(x), torch.from_numpy(group), 2)
    assert float(result.p_value.min()) < 1e-200
    check(result, x, group, 2)


def test_u_beyond_the_whole_numbers_of_float32_is_exact():
    n = 20_000
    x = torch.arange(2 * n, dtype=torch.float32)[:, None] // 3
    group = torch.arange(2 * n) % 2
    result = rank_sum_test(x, group, 2)
    check(result, x.double().numpy(), group.numpy(), 2)
    assert float(result.u) > 2**24
    assert float(result.u) % 1 == 0.5 or float(rank_sum_test(x[1:], group[1:], 2).u) % 1 == 0.5


@pytest.mark.parametrize("ones", [0, 1, MOST_CELLS // 2, MOST_CELLS - 1, MOST_CELLS])
def test_tie_term_is_exact_up_to_the_most_cells(ones):
    n, n0 = MOST_CELLS, 1_000_003
    x = torch.zeros((n, 1))
    x[:ones] = 1.0
    group = (torch.arange(n) % n >= n0).to(torch.int64)
    result = rank_sum_test(x, group, 2)
    own = max(0, ones - n0)
    above, equal = own * (n0 - min(ones, n0)), own * min(ones, n0) + (n - n0 - own) * (n0 - min(ones, n0))
    assert float(result.u) == above + equal / 2
    ties = sum(t**3 - t for t in (ones, n - ones))
    variance = n0 * (n - n0) * (n**3 - n - ties) / (12 * n * (n - 1))  # whole numbers to the last division
    distance = above + equal / 2 - n0 * (n - n0) / 2
    if variance == 0:
        assert (float(result.z), float(result.p_value)) == (0.0, 1.0)
    else:
        expected = math.copysign(max(0.0, abs(distance) - 0.5), distance) / math.sqrt(variance)
        assert math.isclose(float(result.z), expected, rel_tol=1e-14)


def test_most_cells_are_the_most_whose_ties_int64_holds():
    assert MOST_CELLS**3 - MOST_CELLS < 2**63 <= (MOST_CELLS + 1) ** 3 - (MOST_CELLS + 1)


@pytest.mark.parametrize("n", [1, 2, 1000])
def test_means_of_the_largest_floats_do_not_overflow(n):
    largest = float(np.finfo(np.float64).max)
    x = torch.full((n, 1), largest, dtype=torch.float64)
    assert float(rank_sum_test(x, torch.zeros(n, dtype=torch.int64), 1).mean) == largest
    assert float(rank_sum_test(-x, torch.zeros(n, dtype=torch.int64), 1).mean) == -largest


def test_values_whose_leading_bits_fill_the_key_are_ordered():
    # Three positions leave 61 bits for values whose bits, 1 and 2^62, lie just so far apart.
    x = torch.tensor([[5e-324], [2.0], [1.0]], dtype=torch.float64)
    assert float(rank_sum_test(x, torch.tensor([0, 1, 0]), 2).u) == 2
    assert float(rank_sum_test(x, torch.tensor([1, 0, 0]), 2).u) == 0


def test_values_that_share_their_leading_bits_are_put_right():
    rng = np.random.default_rng(0)
    value = 1 + rng.integers(1, 200, 20_000) * 2.0**-52
    value[:2] = -1e300, 1e300
    gene, group = rng.integers(0, 9, 20_000), rng.integers(0, 5, 20_000)
    stored = Nonzeros(*(torch.from_numpy(a) for a in (gene.astype(np.int32), value, group.astype(np.int32))))
    ordered = keys.order([stored], 9, 3)
    found, values = ordered.block(slice(None))
    expected = np.lexsort((group, value, gene))
    assert isinstance(ordered, keys.WideOrder)
    assert ordered.edges.tolist() == [0, *np.bincount(gene).cumsum()]
    assert np.array_equal(values.numpy(), value[expected])
    assert np.array_equal(found.numpy() & 7, group[expected])
    same = (np.diff(gene[expected]) == 0) & (np.diff(value[expected]) == 0)
    assert np.array_equal(np.diff(found.numpy() >> 3) == 0, same)
