"""No bit of a rank-sum test depends on the order of cells, chunks, layout, blocks, threads or the way to sort."""

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics import RowMatrix, SparseRows, primitives, rank_sum_test
from prima_bench.metrics.differential import rank_sum, spans
from prima_bench.metrics.threads import Workers

N_GROUPS = 7


def _data(n: int, genes: int, seed: int, kind: str):
    """Values over nine decades, so that any change of the order of a sum shows, and ties, zeros and negatives."""
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, 1.0], (n, genes)) * 10.0 ** rng.uniform(-4.5, 4.5, (n, genes))
    x = np.where(rng.random((n, genes)) < 0.3, rng.choice(x.ravel()[:20], (n, genes)), x)
    x *= rng.random((n, genes)) < rng.random(genes)
    x = x.astype(np.float32) if kind == "single" else x
    return torch.from_numpy(x), torch.from_numpy(rng.integers(-1, N_GROUPS, n))


def _bits(result) -> dict[str, bytes]:
    return {f.name: getattr(result, f.name).numpy().tobytes() for f in fields(result)}


@pytest.fixture(params=["single", "double"])
def data(request):
    return _data(1_500, 40, 0, request.param)


@given(n=st.integers(1, 200), seed=st.integers(0, 999), kind=st.sampled_from(["single", "double"]), cuts=st.data())
def test_any_order_and_any_sharding_give_the_same_bits(n, seed, kind, cuts):
    x, group = _data(n, 6, seed, kind)
    expected = _bits(rank_sum_test(x, group, N_GROUPS))
    rng = np.random.default_rng(seed)
    order = torch.from_numpy(rng.permutation(n))
    assert _bits(rank_sum_test(x[order], group[order], N_GROUPS)) == expected
    edges = sorted(cuts.draw(st.lists(st.integers(0, n), max_size=5)))
    chunks = torch.tensor_split(x[order], edges)
    chunks = [SparseRows.from_dense(c) if rng.random() < 0.5 else c for c in chunks]
    assert _bits(rank_sum_test(RowMatrix(chunks), group[order], N_GROUPS)) == expected
    assert _bits(rank_sum_test(RowMatrix(chunks, torch.argsort(order)), group, N_GROUPS)) == expected
    kept = (group >= 0).nonzero().flatten()
    assert _bits(rank_sum_test(RowMatrix([x], kept), group[kept], N_GROUPS)) == expected


def test_any_layout_gives_the_same_bits(data):
    x, group = data
    expected = _bits(rank_sum_test(x, group, N_GROUPS))
    everyone = group.clamp(min=0)
    expected_of_all = _bits(rank_sum_test(x, everyone, N_GROUPS))
    for layout in (x.T.contiguous().T, torch.nn.functional.pad(x, (1, 0))[:, 1:], SparseRows.from_dense(x), x.double()):
        assert _bits(rank_sum_test(layout, group, N_GROUPS)) == expected
        assert _bits(rank_sum_test(layout, everyone, N_GROUPS)) == expected_of_all
    assert _bits(rank_sum_test(x, group.to(torch.int32), N_GROUPS)) == expected


def test_means_of_many_large_values_are_exact_and_do_not_depend_on_their_order():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.uniform(0.5, 1.0, (5_000, 3)))
    group = torch.zeros(5_000, dtype=torch.int64)
    mean = rank_sum_test(x, group, 1).mean
    for gene in range(3):
        exact = math.fsum(x[:, gene].tolist()) / 5_000
        assert abs(float(mean[0, gene]) - exact) <= math.ulp(exact)
    for _ in range(5):
        assert torch.equal(rank_sum_test(x[torch.from_numpy(rng.permutation(5_000))], group, 1).mean, mean)
    assert torch.equal(rank_sum_test(x, group, 1, linear="expm1").mean, rank_sum_test(x.expm1(), group, 1).mean)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("size", [1, 100, 5_000, 1 << 30])
def test_any_size_of_blocks_gives_the_same_bits(data, sparse, size, monkeypatch):
    x, group = data
    total = torch.from_numpy(np.random.default_rng(1).uniform(0.5, 2.0, len(group)))
    expected = _bits(rank_sum_test(x, group, N_GROUPS, total=total))
    x = SparseRows.from_dense(x) if sparse else x
    for module, name in ((rank_sum, "_SPAN"), (rank_sum, "_BLOCK"), (spans, "_TAKEN"), (spans, "_SEARCHED")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, size)
            assert _bits(rank_sum_test(x, group, N_GROUPS, total=total)) == expected
    monkeypatch.setattr(spans, "_SAMPLED_ROWS", 1)
    assert _bits(rank_sum_test(x, group, N_GROUPS, total=total)) == expected


@pytest.mark.parametrize("sparse", [False, True])
def test_any_number_of_threads_gives_the_same_bits_and_is_left_as_it_was(data, sparse, monkeypatch):
    x, group = data
    x = SparseRows.from_dense(x) if sparse else x
    monkeypatch.setattr(rank_sum, "_SPAN", 2_000)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(_bits(rank_sum_test(x, group, N_GROUPS, linear="identity")))
            assert torch.get_num_threads() == threads
        assert found[1:] == found[:1] * 2
        with pytest.raises(ValueError, match="genes"):
            rank_sum_test(torch.full((3, 2), torch.nan), torch.tensor([0, 1, 1]), 2)
        assert torch.get_num_threads() == 5
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("sparse", [False, True])
def test_torch_alone_gives_the_same_bits_and_never_fetches_the_matrix(data, sparse, monkeypatch):
    x, group = data
    expected = _bits(rank_sum_test(x, group, N_GROUPS))
    x = SparseRows.from_dense(x) if sparse else x
    small = 1 + max(x.shape[1], N_GROUPS)

    def guarded(name):
        original = getattr(torch.Tensor, name)

        def call(self, *args, **kwargs):
            assert self.numel() <= small, f"{name} of {tuple(self.shape)}"
            return original(self, *args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(primitives, "_NUMPY_DEVICES", frozenset())
        for name in ("cpu", "numpy", "tolist", "item"):
            patched.setattr(torch.Tensor, name, guarded(name))
        result = rank_sum_test(x, group, N_GROUPS)
    assert _bits(result) == expected


@pytest.mark.parametrize("devices", [frozenset({"cpu"}), frozenset()])
def test_places_are_those_of_what_is_not_zero(devices, monkeypatch):
    monkeypatch.setattr(primitives, "_NUMPY_DEVICES", devices)
    mask = torch.zeros((12, 8), dtype=torch.bool)
    rng = np.random.default_rng(0)
    for rows, columns, share in ((4, 5, 0.05), (10, 5, 0.05), (10, 5, 0.9), (3, 5, 0.0), (10, 5, 0.3)):
        x = torch.from_numpy(
            rng.choice([0.0, -0.0, 1.0], (rows, columns), p=[0.9 * (1 - share), 0.1 * (1 - share), share])
        )
        for values in (x, x.bfloat16(), x.to(torch.int16), x.T.contiguous().T):
            row, column = values.nonzero(as_tuple=True)
            assert torch.equal(primitives.nonzero_places(values, mask), row * 8 + column)


def test_gradients_are_neither_asked_for_nor_kept():
    x = torch.rand(6, 2, requires_grad=True)
    total = torch.rand(6, dtype=torch.float64, requires_grad=True)
    for rows in (x, SparseRows.from_dense(x)):
        result = rank_sum_test(rows, torch.tensor([0, 0, 0, 1, 1, 1]), 2, total=total)
        assert not any(getattr(result, f.name).requires_grad for f in fields(result))


def test_work_is_done_once_for_each_item_and_the_first_error_is_raised():
    before = torch.get_num_threads()
    done, seen = [], []

    def fail(i):
        if i in (3, 7):
            raise ValueError(f"item {i}")

    try:
        torch.set_num_threads(3)
        with Workers(torch.device("cpu")) as workers:
            assert torch.get_num_threads() == 1
            workers.for_each(done.append, range(100))
            workers.for_each(lambda _: seen.append(torch.get_num_threads()), range(10))
        assert sorted(done) == list(range(100))
        assert set(seen) == {1}
        with pytest.raises(ValueError, match="item 3"), Workers(torch.device("cpu")) as workers:
            workers.for_each(fail, range(10))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("room", [1_500, 5_000])
def test_a_device_that_runs_out_of_memory_takes_fewer_genes_at_a_time(data, room, monkeypatch):
    x, group = data
    expected = _bits(rank_sum_test(x, group, N_GROUPS))
    monkeypatch.setattr(rank_sum, "_SPAN", 1 << 20)
    monkeypatch.setattr(rank_sum, "_LEAST_SPAN", 1)
    tried = []
    order = rank_sum.order

    def crowded(stored, *rest):
        tried.append(sum(len(part.value) for part in stored))
        if tried[-1] > room:
            raise torch.OutOfMemoryError("as CUDA says it")
        return order(stored, *rest)

    monkeypatch.setattr(rank_sum, "order", crowded)
    assert _bits(rank_sum_test(x, group, N_GROUPS)) == expected
    assert max(tried) > room
    monkeypatch.setattr(rank_sum, "_LEAST_SPAN", 1 << 20)
    with pytest.raises(torch.OutOfMemoryError):
        rank_sum_test(x, group, N_GROUPS)
