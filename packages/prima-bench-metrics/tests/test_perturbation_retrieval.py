"""The distances behind the discrimination scores agree with scipy's and with the scores."""

import numpy as np
import pytest
import scipy.spatial.distance
import torch

from prima_bench.metrics.base import Batch
from prima_bench.metrics.perturbation.base import PerturbationMetric
from prima_bench.metrics.perturbation.profiles.retrieval import retrieve
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.rows import RowMatrix

SCIPY = {"cosine": "cosine", "l1": "cityblock", "l2": "euclidean"}


def cells(seed: int, perturbations: int = 7, genes: int = 25) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(perturbations + 1), 3)
    return torch.from_numpy(rng.lognormal(0, 1, (len(group), genes))), torch.from_numpy(group)


@pytest.mark.parametrize("distance", list(SCIPY))
@pytest.mark.parametrize("exclude", ["none", "own", "own_single", "panel", "panel_single"])
def test_distances_and_scores_agree(distance: str, exclude: str) -> None:
    (x, group), (y, _) = cells(0), cells(1)
    targets = [[p] if p % 2 else [] for p in range(6)] + [[7, 8]]
    reference = PerturbationReference.from_cells(x, group, num_perturbations=7, scale="log1p_cp10k", targets=targets)
    batch = Batch.of(PerturbationMetric.fields, {"x": RowMatrix([y]), "group": group})
    found = retrieve(batch, reference, distance=distance, exclude_targets=exclude)  # type: ignore[arg-type]
    true, pred = ([a[group == p].mean(dim=0).numpy() for p in range(8)] for a in (x, y))
    for p in range(7):
        single = targets[p] if len(targets[p]) == 1 else []
        own_and_panel = {"own": targets[p], "own_single": single, "panel": [1, 3, 5, 7, 8], "panel_single": [1, 3, 5]}
        left_out = own_and_panel.get(exclude, [])
        genes = np.setdiff1d(np.arange(25), left_out)
        row = [
            getattr(scipy.spatial.distance, SCIPY[distance])((pred[p + 1] - true[0])[genes], (t - true[0])[genes])
            for t in true[1:]
        ]
        assert found.distance[p].numpy() == pytest.approx(row, rel=1e-12)
        closer = sum(v < row[p] for v in row)
        assert float(found.score[p]) == pytest.approx(1 - closer / 6)
    assert found.perturbations.tolist() == list(range(7))


def test_a_lone_perturbation_has_a_distance_and_no_score() -> None:
    x, group = cells(0, perturbations=1)
    reference = PerturbationReference.from_cells(x, group, num_perturbations=1, scale="log1p_cp10k")
    found = retrieve(Batch.of(PerturbationMetric.fields, {"x": RowMatrix([x]), "group": group}), reference)
    assert found.distance.tolist() == [[pytest.approx(0.0, abs=1e-12)]]
    assert found.score.isnan().all()
