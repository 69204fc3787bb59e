"""Discrimination by position in a list, as another tool counts it, against brute force."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.perturbation.profiles.discrimination import PDSCosine, pds
from prima_bench.metrics.perturbation.profiles.distances import Distance

DISTANCES: dict[Distance, str] = {"cosine": "cosine", "l1": "cityblock", "l2": "euclidean"}


def by_position(e: np.ndarray, d: np.ndarray, metric: str, keep: np.ndarray) -> np.ndarray:
    out = []
    for p in range(len(d)):
        distance = cdist(e[p : p + 1, keep[p]], d[:, keep[p]], metric)[0]
        # Equal up to rounding is equal; the order of the perturbations decides.
        distance = np.where(np.isclose(distance, distance[p], rtol=1e-11, atol=0), distance[p], distance)
        out.append(1 - np.flatnonzero(np.argsort(distance, kind="stable") == p)[0] / len(d))
    return np.array(out)


@pytest.mark.parametrize("distance", DISTANCES)
@given(data=st.data())
def test_positions_equal_brute_force(distance: Distance, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    n, genes = data.draw(st.integers(2, 40)), data.draw(st.integers(2, 30))
    d = rng.normal(size=(n, genes))
    e = d[rng.permutation(n)] + data.draw(st.sampled_from((0.0, 1.0))) * rng.normal(size=(n, genes))
    d[rng.integers(0, n, data.draw(st.integers(0, n)))] = d[rng.integers(0, n)]  # exact ties
    control = rng.normal(size=genes)
    keep = (rng.random((n, genes)) < 0.8) | (np.arange(genes) < 2)
    ours = pds(
        *(torch.from_numpy(x + control) for x in (e, d)),
        torch.from_numpy(control),
        distance=distance,
        keep=torch.from_numpy(keep),
        ranking="position",
    )
    e, d = (e + control) - control, (d + control) - control
    np.testing.assert_allclose(ours.numpy(), by_position(e, d, DISTANCES[distance], keep), rtol=0, atol=1e-15)


def test_one_prediction_for_all_is_scored_by_the_order_of_the_perturbations() -> None:
    target = torch.eye(5, dtype=torch.float64)
    nothing = pds(torch.zeros_like(target), target, torch.zeros(5), ranking="position")
    torch.testing.assert_close(nothing, 1 - torch.arange(5.0, dtype=torch.float64) / 5)
    assert pds(torch.zeros_like(target), target, torch.zeros(5)).tolist() == [0.5] * 5


def test_a_zero_true_effect_stays_undefined_and_other_rankings_are_refused() -> None:
    target = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert pds(target, target, torch.zeros(2), ranking="position").isnan().tolist() == [True, False, False]
    with pytest.raises(InputError, match="ranking cannot be 'best'"):
        PDSCosine(num_perturbations=3, ranking="best")
