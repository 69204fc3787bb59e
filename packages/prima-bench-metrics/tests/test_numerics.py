"""Sums have the bits of one fixed tree, whatever the threads, layouts and blocks; ranks are those of scipy."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics import numerics
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.numerics import average_ranks, group_sums, tree_mean, tree_sum
from prima_bench.metrics.rows import RowMatrix

TOYS = runpy.run_path(str(Path(__file__).with_name("kernel_toys.py")))
some, LAYOUTS = TOYS["some"], TOYS["LAYOUTS"]


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def spread(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-4.5, 4.5, shape))


def tree(values: list[float]) -> float:
    """The tree by its definition: neighbours are added, the odd one out is carried up."""
    while len(values) > 1:
        pairs = [a + b for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0] if values else 0.0


@given(st.integers(0, 300), st.integers(0, 999))
def test_tree_sum_is_the_tree_by_definition_and_close_to_exact(n, seed):
    x = spread(n, seed=seed)
    value = float(tree_sum(x))
    assert value == tree(x.tolist())
    assert math.isclose(value, math.fsum(x.tolist()), rel_tol=0, abs_tol=1e-14 * float(x.abs().sum()))


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_tree_sum_over_any_dimension(dim):
    x = spread(5, 6, 7)
    expected = np.apply_along_axis(lambda v: tree(v.tolist()), dim, x.numpy())
    assert np.array_equal(tree_sum(x, dim).numpy(), expected)
    assert np.array_equal(tree_mean(x, dim).numpy(), expected / x.shape[dim])


def test_tree_sum_takes_integers_and_booleans_and_nothing():
    assert float(tree_sum(torch.tensor([2**24, 1], dtype=torch.int32))) == 2**24 + 1
    assert float(tree_sum(torch.tensor([True, True]))) == 2.0
    assert torch.equal(tree_sum(torch.zeros(0, 2)), torch.zeros(2, dtype=torch.float64))
    assert not torch.signbit(tree_sum(torch.tensor([-0.0])))
    with pytest.raises(InputError, match="mean of nothing"):
        tree_mean(torch.zeros(0))


def test_tree_sum_does_not_write_to_its_input():
    x = spread(7)
    before = x.clone()
    tree_sum(x)
    assert torch.equal(x, before)


def by_definition(x: torch.Tensor, groups: torch.Tensor, n_groups: int) -> np.ndarray:
    return np.stack([[tree(c) for c in x[groups == g].double().t().tolist()] for g in range(n_groups)])


@given(st.data())
def test_group_sums_are_the_tree_of_each_group(data):
    n, width, n_groups = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    groups = torch.tensor(data.draw(st.lists(st.integers(-1, n_groups - 1), min_size=n, max_size=n)))
    fields = TOYS["data"](n, width, data.draw(st.integers(0, 999)))
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 999))))
    layouts = data.draw(st.lists(st.sampled_from(LAYOUTS), min_size=2, max_size=2))
    chunks = [some(c, fields, k)["x"] for c, k in zip(rows.tensor_split(2), layouts, strict=True)]
    sums = group_sums(RowMatrix(chunks, torch.argsort(rows)), groups, n_groups)
    assert sums.dtype == torch.float64
    assert np.array_equal(sums.numpy(), by_definition(fields["x"], groups, n_groups))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_group_sums_across_block_borders(threads, layout):
    sizes = [0, 1, 255, 256, 257, 511, 512, 513, 1025, 3]
    groups = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(0))]
    fields = TOYS["data"](len(groups), 3, seed=5)
    sums = group_sums(RowMatrix([some(torch.arange(len(groups)), fields, layout)["x"]]), groups, len(sizes))
    assert np.array_equal(sums.numpy(), by_definition(fields["x"], groups, len(sizes)))


def test_more_rows_than_blocks_of_blocks():
    x = spread(256 * 256 + 300, 1, seed=1)
    assert torch.equal(group_sums(x.float(), torch.zeros(len(x), dtype=torch.int64), 1)[0], tree_sum(x.float()))


@pytest.mark.parametrize("elements", [1 << 6, 1 << 12, 1 << 25])
def test_group_sums_do_not_depend_on_how_much_is_held_at_once(monkeypatch, elements):
    x, groups = spread(1200, 90, seed=2).float(), torch.arange(1200) % 7
    expected = group_sums(x, groups, 7)
    monkeypatch.setattr(numerics, "_BLOCK_ELEMENTS", elements)
    assert torch.equal(group_sums(x, groups, 7), expected)


def test_bits_do_not_depend_on_threads_layout_or_alignment():
    x = spread(400, 500, seed=3)
    misaligned = torch.empty(400 * 500 + 1, dtype=torch.float64)[1:].view(400, 500).copy_(x)
    forms = {"plain": x, "transposed": x.t().contiguous().t(), "strided": x.repeat(1, 2)[:, :500], "odd": misaligned}
    groups = torch.arange(400) % 3
    seen: dict[str, set[bytes]] = {}
    before = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        for form in forms.values():
            results = {
                "sum 0": tree_sum(form),
                "sum 1": tree_sum(form, 1),
                "groups": group_sums(form, groups, 3),
                "ranks": average_ranks(form),
            }
            for name, value in results.items():
                seen.setdefault(name, set()).add(value.numpy().tobytes())
    torch.set_num_threads(before)
    assert {name: len(values) for name, values in seen.items()} == dict.fromkeys(seen, 1)


def test_group_codes_are_checked():
    with pytest.raises(InputError, match="group 2 is outside 0 to 1"):
        group_sums(torch.ones(2, 1), torch.tensor([0, 2]), 2)
    with pytest.raises(InputError, match="one group each"):
        group_sums(torch.ones(2, 1), torch.tensor([0]), 2)


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 999), st.booleans())
def test_ranks_are_scipys(n, width, seed, masked):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(-3, 4, (n, width), generator=rng).float()
    mask = torch.rand(n, width, generator=rng) < 0.6 if masked else torch.ones(n, width, dtype=torch.bool)
    ranks = average_ranks(x, mask if masked else None)
    for row, own, kept in zip(x, ranks, mask, strict=True):
        assert own[kept].tolist() == scipy.stats.rankdata(row[kept]).tolist()
        assert own[~kept].eq(0).all()
