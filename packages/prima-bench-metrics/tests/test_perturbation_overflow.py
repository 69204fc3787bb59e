"""Garbage predictions never gain: what is too large is refused, and only the solution makes a unit undefined."""

import pytest
import torch

from prima_bench.metrics.base import BufferedMetric, Score
from prima_bench.metrics.catalog import list_specs, load_metric
from prima_bench.metrics.errors import InputError, ProfileError, ReferenceDataError
from prima_bench.metrics.perturbation.profiles.distances import Distance, closer_and_tied
from prima_bench.metrics.perturbation.profiles.r2_delta import R2Delta
from prima_bench.metrics.perturbation.pseudobulk import log_profiles
from prima_bench.metrics.perturbation.reference import PerturbationReference

SPECS = [s for s in list_specs("perturbation") if not s.name.startswith("de_")]  # those: test_de_inputs
NAMES = [spec.name for spec in SPECS]
BOUNDED = [spec.name for spec in SPECS if None not in spec.range and spec.level == "unit"]
SCALED = [spec.name for spec in SPECS if "target_sum" in {p.name for p in spec.params}]
ABSOLUTE = ["mae", "mse", "rmse", "mae_delta", "mse_delta", "mse_debiased", "effect_size_debiased"]
OWN_RULES = ["mse_debiased_ratio", "wmse", "weighted_r2_delta_pertmean"]  # test_debiased_error, test_weighted_error
OWN_RULES += ["edistance_pearson", "mmd_rbf", "sinkhorn", "variance_ratio"]  # test_cell_distance_laws
HUGE = [1e101, 1e200, 1e300, 1e304, 1e308]


def counts(seed: int = 0, genes: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    group = torch.arange(6).repeat_interleave(4)
    rate = torch.rand((6, genes), generator=torch.Generator().manual_seed(seed + 9)) * 9
    return torch.poisson(rate[group].double(), generator=torch.Generator().manual_seed(seed)), group


def made(name: str, scale: str, **options: object) -> BufferedMetric:
    x, group = counts()
    x = x if scale == "counts" else x.log1p()
    reference = PerturbationReference.from_cells(x, group, num_perturbations=5, scale=scale)
    return load_metric(name)(reference, **options)


def result(metric: BufferedMetric, x: torch.Tensor, group: torch.Tensor) -> Score:
    metric.update(x, perturbation=group)
    return metric.result()


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
@pytest.mark.parametrize("name", NAMES)
def test_expression_beyond_all_bounds_is_refused_by_group(name: str, scale: str) -> None:
    x, group = counts(1)
    x[group == 3, 0] = 1e308
    x[group == 5, 1] = 1e308
    with pytest.raises(ProfileError, match="too large to be scored in group 3, 5") as caught:
        result(made(name, scale), x, group)
    assert caught.value.groups == (3, 5)
    assert caught.value.hint


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("name", BOUNDED)
def test_huge_values_are_refused_or_lose(name: str, value: float, scale: str) -> None:
    x, group = counts(1)
    honest = result(made(name, scale), x, group).units
    assert honest is not None
    x[group == 2, 0] = value
    x[group == 2, 1] = 0.0 if scale == "counts" else -value
    try:
        score = result(made(name, scale), x, group)
    except ProfileError:
        return
    assert score.units is not None
    assert not score.undefined
    assert score.units[[0, 2, 3, 4]].equal(honest[[0, 2, 3, 4]])


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ABSOLUTE + OWN_RULES])
def test_a_perturbation_that_the_solution_leaves_undefined_stays_so_whatever_is_predicted(name: str) -> None:
    x, group = counts()
    if name == "pearson_delta_pertmean":
        x[group == 1], x[group > 1] = 2.0, 1.0
    else:
        x[group == 1] = x[group == 0]
    reference = PerturbationReference.from_cells(x, group, num_perturbations=5, scale="log1p_cp10k")
    for value in (0.0, 1.0, 1e90):
        predicted = counts(3)[0]
        predicted[group == 1, 0] = value
        score = result(load_metric(name)(reference), predicted, group)
        assert 0 in score.undefined


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(("pds", "pearson_delta", "r2"))])
def test_predicted_control_is_refused_only_where_it_has_a_say(name: str) -> None:
    x, group = counts(1)
    honest = result(made(name, "log1p_cp10k"), x, group).value
    x[group == 0, 0] = 1e307
    assert result(made(name, "log1p_cp10k"), x, group).value == honest
    if name != "pearson_delta_pertmean":
        with pytest.raises(ProfileError, match="group 0"):
            result(made(name, "log1p_cp10k", control_source="prediction"), x, group)


def test_an_error_that_leaves_the_range_of_numbers_is_refused() -> None:
    x = torch.tensor([[0.0, 0.0], [0.0, 1e-200]], dtype=torch.float64)
    reference = PerturbationReference.from_cells(x, torch.tensor([0, 1]), num_perturbations=1, scale="log1p_cp10k")
    with pytest.raises(ProfileError, match="group 1"):
        result(R2Delta(reference), torch.ones(1, 2), torch.tensor([1]))


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
def test_a_solution_beyond_all_bounds_is_the_solutions_fault(scale: str) -> None:
    x, group = counts()
    x[group == 4, :2] = 1e308
    reference = PerturbationReference.from_cells(x, group, num_perturbations=5, scale=scale)
    with pytest.raises(ReferenceDataError, match="group 4"):
        reference.profiles()


@pytest.mark.parametrize("distance", ["cosine", "l1", "l2"])
def test_distances_without_a_number_count_as_closer(distance: Distance) -> None:
    d = torch.eye(3, dtype=torch.float64)
    e = d.clone()
    e[0] = torch.nan
    e[1, 0] = torch.inf
    assert closer_and_tied(e, d, distance).tolist() == [2.0, 2.0, 0.0]


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("total", [-1.0, float("nan"), float("inf"), 1e16, 1e300, 1e-300])
def test_absurd_totals_are_refused(name: str, total: float) -> None:
    with pytest.raises(InputError, match="target_sum cannot be"):
        made(name, "counts", target_sum=total)


def test_the_largest_total_is_fine() -> None:
    x, group = counts(1)
    for name in SCALED:
        assert result(made(name, "counts", target_sum=1e15), x, group).value is not None
    assert log_profiles(torch.full((1, 2), 1e300, dtype=torch.float64), 1e15).isfinite().all()
