"""What is done element by element keeps the order, and says the same as the plain loop."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.elements import add_in_order, repeat_each, row_of_each


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 4)), max_size=30))
def test_each_is_repeated_as_torch_repeats_it(pairs: list[tuple[int, int]]) -> None:
    x, counts = (torch.tensor([p[i] for p in pairs], dtype=torch.int64) for i in range(2))
    assert torch.equal(repeat_each(x, counts), torch.repeat_interleave(x, counts))
    assert torch.equal(row_of_each(counts), torch.repeat_interleave(torch.arange(len(pairs)), counts))


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("places", [1, 7, 40_000])
def test_what_falls_on_one_place_is_added_in_the_order_given(threads: int, places: int) -> None:
    random = np.random.default_rng(places)
    # Over nine decades, so that any other order would show.
    value = random.normal(size=300_000) * 10.0 ** random.integers(-4, 5, 300_000)
    place = random.integers(0, places, len(value))
    expected = random.normal(size=places)
    sums = torch.from_numpy(expected.copy())
    np.add.at(expected, place, value)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        add_in_order(sums, torch.from_numpy(place), torch.from_numpy(value))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(sums, torch.from_numpy(expected))
