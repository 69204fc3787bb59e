"""Errors and effects free of sampling noise: against plain numpy, and what they promise about noise."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.base import Score
from prima_bench.metrics.catalog import load_metric
from prima_bench.metrics.errors import InputError, ProfileError
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.anchors import pasted_control, split_half
from prima_bench.metrics.perturbation.base import ABSENT, NO_CONTROL, NO_GENES
from prima_bench.metrics.perturbation.profiles.debiased_error import (
    EffectSizeDebiased,
    MSEDebiased,
    MSEDebiasedRatio,
    mse_debiased_ratio,
)
from prima_bench.metrics.perturbation.profiles.noise import true_noise
from prima_bench.metrics.perturbation.reference import PerturbationReference

NOISE = runpy.run_path(str(Path(__file__).with_name("test_noise.py")))
VALUES = runpy.run_path(str(Path(__file__).with_name("test_perturbation_values.py")))
NAMES = ("mse_debiased", "effect_size_debiased", "mse_debiased_ratio")
Array = np.ndarray


def expected(data, convention: str, exclude: str, target_sum: float) -> tuple[Array, Array]:
    """Debiased errors and effects; ``data`` is one of ``problems`` of the shared tests of values."""
    p, genes = data.perturbations, data.x.shape[1]
    true, pred = VALUES["profiles"](data, target_sum)

    def noise(x: Array, group: Array) -> Array:
        out = np.zeros((p + 1, genes))
        total = target_sum or float(np.median([data.x[data.group == g].sum() for g in range(p + 1)]))
        for code in range(p + 1):
            cells, alone = x[group == code], np.zeros(int((group == code).sum()), dtype=int)
            if data.scale == "counts":
                out[code] = NOISE["jackknife"](cells, alone, total)[0]
            else:
                out[code] = NOISE["variance_of_mean"](cells, alone)[0]
        return out

    v, w = noise(data.x, data.group), noise(data.y, data.predicted)
    kept = VALUES["kept"](data, exclude)
    counted = [np.arange(genes)] * p if convention == "vcc2026" else kept
    c_true = np.array([v[i + 1, g].sum() for i, g in enumerate(counted)])
    c_control = np.array([v[0, g].sum() for g in counted])
    c_pred = np.minimum([w[i + 1, g].sum() for i, g in enumerate(counted)], c_true)
    if convention == "vcc2026":
        claimed = sum(c / len(g) for c, g in zip(c_pred, kept, strict=True))
        held = 0.0
        for gene in range(genes):
            rows = [i for i in range(p) if gene in kept[i]]
            if len(rows) > 1:
                weight = np.array([1 / len(kept[i]) for i in rows])
                q = pred[1:][rows, gene]
                held += (weight * (q - (weight * q).sum() / weight.sum()) ** 2).sum()
        c_pred = c_pred * min(1.0, held / claimed if claimed > 0 else 1.0)
    m, q = true[1:], pred[1:]
    error = [((q[i] - m[i])[g] ** 2).sum() - c_pred[i] - c_true[i] for i, g in enumerate(kept)]
    effect = [((m[i] - true[0])[g] ** 2).sum() - c_true[i] - c_control[i] for i, g in enumerate(kept)]
    size = np.array([len(g) for g in kept])
    return np.array(error) / size, np.array(effect) / size


@given(
    problem=VALUES["problems"](),
    convention=st.sampled_from(("default", "vcc2026")),
    exclude=st.sampled_from(("none", "own", "own_single", "panel", "panel_single")),
    target_sum=st.sampled_from((0.0, 5e4)),
)
def test_values_equal_numpy(problem, convention: str, exclude: str, target_sum: float) -> None:
    target_sum = target_sum if problem.scale == "counts" else 0.0
    error, effect = expected(problem, convention, exclude, target_sum)
    options = {"convention": convention, "exclude_targets": exclude, "target_sum": target_sum}
    scores = scored(VALUES["reference_of"](problem), torch.from_numpy(problem.y), problem.predicted, **options)
    size = 1e-12 * max(1.0, float(np.abs(np.concatenate([error, effect])).max()))
    np.testing.assert_allclose(scores["mse_debiased"].units.numpy(), error, rtol=1e-11, atol=size)
    np.testing.assert_allclose(scores["effect_size_debiased"].units.numpy(), effect, rtol=1e-11, atol=size)
    if abs(effect.sum()) > 1e3 * size:
        ratio, value = error.sum() / effect.sum(), scores["mse_debiased_ratio"].value
        if effect.sum() < 0:
            assert value is None
        else:
            assert value == pytest.approx(ratio if convention == "vcc2026" else max(0.0, ratio), rel=1e-8, abs=1e-8)


def scored(reference: PerturbationReference, x: torch.Tensor, group: object, **options: object) -> dict[str, Score]:
    panel = Panel({name: load_metric(name)(reference, **options) for name in NAMES})
    panel.update(x=x, group=torch.as_tensor(group))
    return panel.results()


def screen(
    seed: int, *, sizes: list[int], genes: int = 60, scale: str = "counts", effect: float = 0.7
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cells of one and the same population, whatever the seed."""
    population, rng = np.random.default_rng(99), np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    effects = effect * population.normal(0, 1, (len(sizes), genes)) * (population.random((len(sizes), genes)) < 0.3)
    effects[0] = 0
    mean = 8 * population.lognormal(0, 1, genes) * np.exp(effects)
    x = rng.poisson(mean[group] * rng.lognormal(0, 0.3, (len(group), 1))).astype(np.float64)
    x[:, 0] += 1
    x = x if scale == "counts" else np.log1p(x / x.sum(axis=1, keepdims=True) * 1e4)
    return torch.from_numpy(x), torch.from_numpy(group)


def reference_of(x: torch.Tensor, group: torch.Tensor, scale: str, **options: object) -> PerturbationReference:
    p = int(group.max())
    given = {"num_perturbations": p, "scale": scale, "targets": [[3 * i % x.shape[1]] for i in range(p)], **options}
    return PerturbationReference.from_cells(x, group, **given)  # type: ignore[arg-type]


def pasted(x: torch.Tensor, group: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All control cells in the place of every perturbation."""
    controls, p = x[group == 0], int(group.max())
    return controls.repeat(p, 1), torch.arange(1, p + 1).repeat_interleave(len(controls))


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
@pytest.mark.parametrize("exclude", ["none", "own", "panel"])
def test_pasted_control_scores_exactly_one(scale: str, exclude: str) -> None:
    # More control cells than of any perturbation: their noise stays below the cap.
    x, group = screen(0, sizes=[150, 20, 30, 25, 40], scale=scale)
    reference = reference_of(x, group, scale)
    scores = scored(reference, *pasted(x, group), exclude_targets=exclude)
    assert scores["mse_debiased_ratio"].value == 1.0
    assert torch.equal(scores["mse_debiased"].units, scores["effect_size_debiased"].units)


def test_pasted_control_with_few_cells_scores_above_one_by_what_the_cap_withholds() -> None:
    x, group = screen(0, sizes=[12, 60, 8, 60, 60])
    reference = reference_of(x, group, "counts")
    noise = true_noise(reference).sum(dim=1)
    effect = scored(reference, *pasted(x, group), exclude_targets="none")["effect_size_debiased"].units * x.shape[1]
    above = (noise[0] - noise[1:]).clamp(min=0.0)
    assert (above > 0).tolist() == [True, False, True, True]
    value = scored(reference, *pasted(x, group), exclude_targets="none")["mse_debiased_ratio"].value
    assert value == pytest.approx(float(1 + above.sum() / effect.sum()), rel=1e-12)
    assert value > 1


def test_pasted_control_has_no_claim_to_noise_where_predictions_must_differ_for_it() -> None:
    x, group = screen(0, sizes=[150, 20, 30, 25, 40])
    reference = reference_of(x, group, "counts")
    scores = scored(reference, *pasted(x, group), convention="vcc2026", exclude_targets="none")
    control, effect = float(true_noise(reference)[0].sum()), float(scores["effect_size_debiased"].units.sum())
    assert scores["mse_debiased_ratio"].value == pytest.approx(1 + 4 * control / x.shape[1] / effect, rel=1e-9)


@pytest.mark.parametrize("convention", ["default", "vcc2026"])
def test_dealt_out_control_cells_score_about_one_and_a_replicate_about_zero(convention: str) -> None:
    x, group = screen(0, sizes=[400, *[40] * 12])
    reference = reference_of(x, group, "counts")
    metric = MSEDebiasedRatio(reference, convention=convention)
    values = [metric.score(stand.batch).value for stand in (pasted_control(reference, seed) for seed in range(8))]
    assert np.mean(values) == pytest.approx(1.0, abs=0.1)
    replicate = [
        MSEDebiasedRatio(s.reference, convention=convention).score(s.batch).value
        for s in (split_half(reference, seed) for seed in range(8))
    ]
    assert np.mean(replicate) == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
def test_other_cells_of_the_same_kind_have_no_error_on_average(scale: str) -> None:
    sizes = [100, *[25] * 40]
    x, group = screen(0, sizes=sizes, scale=scale)
    reference = reference_of(x, group, scale)
    scores = scored(reference, *screen(1, sizes=sizes, scale=scale))
    plain = load_metric("mse")(reference)
    plain.update(screen(1, sizes=sizes, scale=scale)[0], perturbation=group)
    assert abs(scores["mse_debiased"].value) < 0.05 * plain.result().value
    assert (scores["mse_debiased"].units < 0).any()


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
def test_the_solutions_own_cells_are_perfect_and_share_its_noise(scale: str) -> None:
    x, group = screen(0, sizes=[50, 20, 30, 1], scale=scale)
    reference = reference_of(x, group, scale)
    scores = scored(reference, x, group, exclude_targets="none")
    noise = true_noise(reference)[1:].sum(dim=1)
    assert scores["mse_debiased_ratio"].value == 0.0
    torch.testing.assert_close(scores["mse_debiased"].units, -2 * noise / x.shape[1], rtol=1e-12, atol=0.0)
    assert float(noise[2]) == 0.0  # a single cell
    assert scored(reference, x, group, convention="vcc2026")["mse_debiased_ratio"].value < 0


def test_an_overshoot_loses_and_is_worse_than_no_effect() -> None:
    x, group = screen(0, sizes=[100, *[30] * 6], scale="log1p_cp10k")
    reference = reference_of(x, group, "log1p_cp10k")
    control = reference.profiles()[0]
    y = screen(1, sizes=[100, *[30] * 6], scale="log1p_cp10k")[0]
    right, nothing, far = (
        scored(reference, control + f * (y - control), group)["mse_debiased_ratio"].value for f in (1.0, 0.0, 3.0)
    )
    assert right < 0.1 < nothing < far
    assert far > 2.5


def test_scattering_cells_about_one_mean_gains_no_more_than_the_true_noise() -> None:
    x, group = screen(0, sizes=[100, *[30] * 6], scale="log1p_cp10k")
    reference = reference_of(x, group, "log1p_cp10k")
    mean = reference.profiles()[0].expand(len(group), -1)
    noise = true_noise(reference)[1:].sum(dim=1) / x.shape[1]
    sign = torch.where(torch.arange(len(group)) % 2 == 0, 1.0, -1.0).unsqueeze(1)
    still, *scattered = (
        scored(reference, mean + size * sign, group, exclude_targets="none")["mse_debiased"].units
        for size in (0.0, 0.1, 1.0, 30.0, 1e3)
    )
    for units in scattered:
        assert (units <= still).all()
        assert (units >= still - noise - 1e-10).all()
    torch.testing.assert_close(scattered[-1], still - noise, rtol=1e-9, atol=1e-10)
    kept = scored(reference, mean + 30.0 * sign, group, exclude_targets="none", convention="vcc2026")["mse_debiased"]
    torch.testing.assert_close(kept.units, still, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
def test_repeating_predicted_cells_never_gains(scale: str) -> None:
    x, group = screen(0, sizes=[100, *[30] * 6], scale=scale)
    reference = reference_of(x, group, scale)
    y, predicted = screen(1, sizes=[20, *[20] * 6], scale=scale)
    once, twice = scored(reference, y, predicted), scored(reference, y.repeat(2, 1), predicted.repeat(2))
    assert (twice["mse_debiased"].units >= once["mse_debiased"].units).all()
    assert torch.equal(twice["effect_size_debiased"].units, once["effect_size_debiased"].units)
    # So few cells that the cap holds, even for cells that claim to be twice as many.
    few = predicted.clone()
    keep = torch.zeros(len(predicted), dtype=torch.bool)
    for code in range(7):
        keep[(few == code).nonzero().flatten()[:5]] = True
    once, twice = (scored(reference, y[keep].repeat(n, 1), few[keep].repeat(n)) for n in (1, 2))
    torch.testing.assert_close(once["mse_debiased"].units, twice["mse_debiased"].units, rtol=1e-9, atol=1e-12)


def test_one_predicted_cell_claims_no_noise() -> None:
    x, group = screen(0, sizes=[100, *[30] * 3])
    reference = reference_of(x, group, "counts")
    y, predicted = screen(1, sizes=[1, 1, 1, 1])
    scores = scored(reference, y, predicted, exclude_targets="none")
    plain = load_metric("mse")(reference)
    plain.update(y, perturbation=predicted)
    noise = true_noise(reference)[1:].sum(dim=1) / x.shape[1]
    torch.testing.assert_close(scores["mse_debiased"].units, plain.result().units - noise, rtol=1e-12, atol=1e-12)


def test_a_solution_without_effects_beyond_noise_is_undefined_and_says_by_how_much() -> None:
    group = torch.arange(4).repeat_interleave(3)
    x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64).repeat(4).unsqueeze(1).repeat(1, 5)
    reference = PerturbationReference.from_cells(x, group, num_perturbations=3, scale="log1p_cp10k")
    for predicted, errors in ((x, "-2"), (x + 1, "1")):
        score = scored(reference, predicted, group)["mse_debiased_ratio"]
        assert score.value is None
        assert score.reason == f"debiased effect sizes sum to -2, not above zero; errors to {errors}"


def test_effects_are_the_solutions_alone() -> None:
    x, group = screen(0, sizes=[20, 10, 10])
    reference = reference_of(x, group, "counts")
    one, other = scored(reference, x, group), scored(reference, x.flip(0), group)
    assert torch.equal(one["effect_size_debiased"].units, other["effect_size_debiased"].units)


def test_perturbations_without_genes_to_compare_are_left_out() -> None:
    x, group = screen(0, sizes=[30, 20, 20, 20], genes=4)
    y = screen(1, sizes=[30, 20, 20, 20], genes=4)[0]
    for convention in ("default", "vcc2026"):
        reference = reference_of(x, group, "counts", targets=[[0, 1, 2, 3], [1], []])
        scores = scored(reference, y, group, convention=convention)
        for name in ("mse_debiased", "effect_size_debiased"):
            assert scores[name].undefined == {0: NO_GENES}
        sums = [float(scores[name].units[1:].sum()) for name in ("mse_debiased", "effect_size_debiased")]
        value = scores["mse_debiased_ratio"].value
        assert value == pytest.approx(sums[0] / sums[1] if convention == "vcc2026" else max(0.0, sums[0] / sums[1]))
    reference = reference_of(x, group, "counts", targets=[[0, 1, 2, 3]] * 3)
    assert scored(reference, y, group)["mse_debiased_ratio"].reason == NO_GENES


def test_true_cells_without_control_or_perturbations_have_no_ratio() -> None:
    x, group = screen(0, sizes=[0, 5, 5])
    metric = MSEDebiasedRatio(num_perturbations=2, scale="counts")
    metric.update(x, x, perturbation=group)
    assert metric.result().reason == NO_CONTROL
    alone = MSEDebiased(num_perturbations=2, scale="counts")
    alone.update(x, x, perturbation=group)
    assert not alone.result().undefined
    metric = MSEDebiasedRatio(num_perturbations=2, scale="counts")
    metric.update(x, x, perturbation=torch.zeros_like(group))
    assert metric.result().reason == ABSENT


def test_arguments_without_meaning_are_refused() -> None:
    with pytest.raises(InputError, match="convention cannot be 'ours'"):
        MSEDebiased(num_perturbations=2, convention="ours")
    for metric in (MSEDebiasedRatio, EffectSizeDebiased):
        with pytest.raises(InputError, match="solution's control alone"):
            metric(num_perturbations=2, control_source="prediction")


def test_the_ratio_of_sums_counts_what_is_defined() -> None:
    error, effect = torch.tensor([0.5, torch.nan, -1.5]), torch.tensor([1.0, torch.nan, 1.0])
    assert float(mse_debiased_ratio(error, effect)) == 0.0
    assert float(mse_debiased_ratio(error, effect, convention="vcc2026")) == -0.5
    assert mse_debiased_ratio(error, -effect).isnan()


@pytest.mark.parametrize("value", [1e80, 1e101, 1e154, 1e200, 1e308])
def test_cells_of_any_size_are_refused_or_lose(value: float) -> None:
    x, group = screen(0, sizes=[20, 10, 10], scale="log1p_cp10k")
    reference = reference_of(x, group, "log1p_cp10k")
    honest = scored(reference, x, group)
    far, cancelling = x.clone(), x.clone()
    far[group == 1, 5] = value
    cancelling[group == 1, 5] = torch.tensor([value, -value], dtype=torch.float64).repeat(5)
    for y in (far, cancelling):
        try:
            scores = scored(reference, y, group)
        except ProfileError:
            continue
        assert scores["mse_debiased"].units.isfinite().all()
        assert scores["mse_debiased"].units[0] > honest["mse_debiased"].units[0]
        assert scores["mse_debiased"].units[1] == honest["mse_debiased"].units[1]
