"""Rows rounded to whole numbers: products are those of exact integers, however they are computed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.perturbation.cells import integer_product
from prima_bench.metrics.perturbation.cells.gene_distances import rounded_distances
from prima_bench.metrics.perturbation.cells.integer_product import LARGEST, RoundedRows, row_products
from prima_bench.metrics.rows import SparseRows


def rows(seed: int, n: int, w: int, density: float, decades: float) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, w)) * 10 ** rng.uniform(-decades, decades, (n, 1)) * (rng.random((n, w)) < density)
    return torch.from_numpy(x)


def rounded(x: torch.Tensor, *, sparse: bool = False) -> RoundedRows:
    largest = x.abs().amax(dim=1) if x.shape[1] else torch.zeros(len(x), dtype=x.dtype)
    return RoundedRows.of(SparseRows.from_dense(x) if sparse else x, largest)


def multiples(x: RoundedRows) -> np.ndarray:
    parts = [d.numpy().astype(object) for d in x.digits]
    return (parts[0] * 256 + parts[1]) * 256 + parts[2]


matrices = st.builds(
    rows,
    st.integers(0, 10**6),
    st.integers(1, 6),
    st.integers(1, 60),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.sampled_from([0.0, 9.0]),
)


@given(x=matrices, seed=st.integers(0, 10**6))
def test_products_are_those_of_whole_numbers_in_both_layouts(x: torch.Tensor, seed: int) -> None:
    y = rows(seed, 4, x.shape[1], 0.5, 3.0)
    a, b = rounded(x), rounded(y)
    p, q = multiples(a), multiples(b)
    assert np.abs(p).max() <= LARGEST
    np.testing.assert_allclose(p.astype(float) * a.unit[:, None].numpy(), x.numpy(), atol=float(a.unit.max()) * 0.51)
    assert np.array_equal(row_products(a, b).numpy().astype(object), p @ q.T)
    assert np.array_equal(a.squares.numpy().astype(object), (p * p).sum(axis=1))
    sparse = rounded(x, sparse=True)
    assert all(torch.equal(s, d) for s, d in zip(sparse.digits, a.digits, strict=True))
    assert torch.equal(sparse.squares, a.squares)


@pytest.fixture(params=["digits", "float64"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(integer_product, "_digits_are_faster", lambda: request.param == "digits")
    return str(request.param)


@pytest.mark.parametrize("width", [1, 127, 128, 255, 40_000])
@pytest.mark.parametrize("density", [0.02, 1.0])
def test_every_way_gives_the_sums_of_python(way: str, width: int, density: float) -> None:
    rng = np.random.default_rng(width)
    x = torch.from_numpy(rng.choice([-1.0, 1.0, 0.7], size=(5, width)))  # the largest sums there can be
    x *= torch.from_numpy(rng.random(x.shape) < density)
    y = rows(width, 3, width, 0.5, 3.0)
    a, b = rounded(x, sparse=density < 1), rounded(y, sparse=True)
    p, q = multiples(a), multiples(b)
    for left, right, expected in ((a, a, p @ p.T), (a, b, p @ q.T), (b, a, q @ p.T)):
        assert np.array_equal(row_products(left, right).numpy().astype(object), expected)
    assert torch.equal(row_products(a, a).diagonal(), a.squares)


@pytest.mark.parametrize(
    ("every", "values", "value", "expected"),
    [(2, 128, 1.0, 512), (2, 129, 1.0, 256), (1, 129, 1.0, 128), (1, 200, 0.5, 512)],
)
def test_no_block_of_sparse_rows_holds_more_than_stays_exact(
    monkeypatch: pytest.MonkeyPatch, every: int, values: int, value: float, expected: int
) -> None:
    monkeypatch.setattr(integer_product, "_digits_are_faster", lambda: False)
    x = torch.zeros(2, 9_000, dtype=torch.float64)
    x[0, 64 : 64 + every * values : every] = torch.tensor([value, -value]).repeat(values)[:values]
    x[0, 8_999] = 1.0
    a, b = rounded(x, sparse=True), rounded(x.flip(0))
    assert a.blocks[0].shape == (2, expected)
    assert all(int(block.values().abs().sum()) <= 128 * LARGEST for block in a.blocks)
    assert np.array_equal(row_products(a, b).numpy().astype(object), multiples(a) @ multiples(b).T)


def test_sparse_products_say_nothing_about_torch(recwarn: pytest.WarningsRecorder) -> None:
    integer_product._expect_sparse_warning.cache_clear()
    x = rounded(rows(3, 9, 300, 0.1, 0.0), sparse=True)
    assert all(part.layout == torch.sparse_csr for part in x.blocks)
    assert not recwarn.list


def test_distances_are_euclidean_and_exactly_zero_between_equal_rows() -> None:
    x = torch.cat([rows(0, 20, 300, 0.3, 0.0), rows(0, 20, 300, 0.3, 0.0)])
    d = rounded_distances(rounded(x), rounded(x, sparse=True))
    assert bool((d.diagonal() == 0).all())
    assert bool((d[:20, 20:].diagonal() == 0).all())
    np.testing.assert_allclose(d.numpy(), torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"), atol=1e-5)
