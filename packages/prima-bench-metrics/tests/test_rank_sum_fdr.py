"""False discovery rates are scipy's, over what was tested."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics import InputError, benjamini_hochberg
from prima_bench.metrics.differential import fdr


def _p_values(rng, shape):
    p = rng.random(shape) ** rng.choice([1, 8, 200])
    return np.where(rng.random(shape) < 0.3, rng.choice([0.0, 1.0, 0.05, 1e-300], shape), p)


@given(rows=st.integers(0, 4), tests=st.integers(1, 30), seed=st.integers(0, 999))
def test_rates_are_those_of_scipy_over_the_tested(rows, tests, seed):
    rng = np.random.default_rng(seed)
    p, tested = _p_values(rng, (rows, tests)), rng.random((rows, tests)) < 0.7
    everything = benjamini_hochberg(torch.from_numpy(p)).numpy()
    some = benjamini_hochberg(torch.from_numpy(p), torch.from_numpy(tested)).numpy()
    assert everything.shape == some.shape == p.shape
    for i in range(rows):
        np.testing.assert_allclose(everything[i], scipy.stats.false_discovery_control(p[i]), rtol=1e-14)
        np.testing.assert_array_equal(some[i][~tested[i]], 1.0)
        if tested[i].any():
            expected = scipy.stats.false_discovery_control(p[i][tested[i]])
            np.testing.assert_allclose(some[i][tested[i]], expected, rtol=1e-14)


def test_what_was_not_tested_may_hold_anything():
    p = torch.tensor([torch.nan, 0.02, 7.0, 0.04], dtype=torch.float64)
    rates = benjamini_hochberg(p, torch.tensor([False, True, False, True]))
    assert rates.tolist() == [1.0, 0.04, 1.0, 0.04]


def test_ten_million_tests_are_counted_exactly():
    p = torch.full((1, 20_000_001), 0.5)
    p[0, 0] = 1e-9
    assert float(benjamini_hochberg(p)[0, 0]) == float(p[0, 0].double() * 20_000_001)


def test_one_mask_serves_all_rows_and_leading_dimensions_are_kept():
    p = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.tensor([True, False, True, True, False])
    rates = benjamini_hochberg(p, mask)
    assert torch.equal(rates, benjamini_hochberg(p, mask.expand(2, 3, 5)))
    assert torch.equal(rates[1, 2], benjamini_hochberg(p[1, 2], mask))
    assert torch.equal(benjamini_hochberg(p[0].T), benjamini_hochberg(p[0].T.contiguous()))
    assert benjamini_hochberg(torch.rand(3, 0)).shape == (3, 0)


def test_blocks_and_threads_change_nothing(monkeypatch):
    p = torch.from_numpy(_p_values(np.random.default_rng(0), (9, 50)))
    expected = benjamini_hochberg(p)
    before = torch.get_num_threads()
    try:
        for threads, block in ((1, 1), (2, 60), (3, 200)):
            torch.set_num_threads(threads)
            monkeypatch.setattr(fdr, "_BLOCK_ELEMENTS", block)
            assert torch.equal(benjamini_hochberg(p), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("p", "tested", "message"),
    [
        (torch.tensor([0, 1]), None, "floating point"),
        (torch.tensor(0.5), None, "at least one dimension"),
        (torch.tensor([0.5, 1.1]), None, "p-value 1.1"),
        (torch.tensor([0.5, torch.nan]), None, "p-value nan"),
        (torch.tensor([0.5, -0.1]), torch.tensor([True, True]), "p-value -0.1"),
        (torch.tensor([0.5, 0.1]), torch.tensor([1, 0]), "bool mask"),
        (torch.tensor([0.5, 0.1]), torch.ones(3, dtype=torch.bool), "broadcasts"),
        (torch.tensor([0.5, 0.1]), torch.ones(2, 2, dtype=torch.bool), "broadcasts"),
    ],
)
def test_what_is_no_p_value_is_refused(p, tested, message):
    with pytest.raises(InputError, match=message):
        benjamini_hochberg(p, tested)
