"""What must hold for every perturbation metric, whatever its formula: perfection, invariances, penalties, same bits."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.base import Score
from prima_bench.metrics.catalog import list_specs, load_metric, parse_ref
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.profiles.delta_correlation import cosine_delta, pearson_delta, spearman_delta
from prima_bench.metrics.perturbation.profiles.error import mae, mae_delta, mse, mse_delta, rmse
from prima_bench.metrics.perturbation.profiles.r2_delta import r2_delta
from prima_bench.metrics.perturbation.profiles.top_k_delta import top_k_delta_pearson
from prima_bench.metrics.perturbation.reference import PerturbationReference, Scale
from prima_bench.metrics.rows import SparseRows

# Differential expression needs data with calls: test_de_laws holds the same laws for its metrics.
SPECS = {s.name: s for s in list_specs("perturbation") if not s.name.startswith("de_")}
SEES_SIZE = (
    *("mae", "mse", "rmse", "r2_delta", "mae_delta", "mse_delta", "wmse", "weighted_r2_delta_pertmean"),
    *("mse_debiased", "mse_debiased_ratio"),
)
# What these make of noise that prediction and truth share, or of more cells, is in test_debiased_error.
DEBIASED = ("mse_debiased", "mse_debiased_ratio", "effect_size_debiased")
# Unbiased over cells: true cells are closer to themselves than a replicate is, and more cells are another sample.
UNBIASED = ("energy_ratio", "variance_ratio")  # test_cell_distance_laws
CORRELATIONS = ("pearson_delta", "spearman_delta", "cosine_delta", "pearson_delta_pertmean", "top_k_delta_pearson")
DISCRIMINATION = ("pds_cosine", "pds_l1", "pds_l2")
VARIANTS = (
    *SPECS,
    "mae(exclude_targets=own)",
    "pearson_delta(control_source=prediction)",
    "pearson_delta_pertmean(leave_one_out=false)",
    "spearman_delta(exclude_targets=panel)",
    "top_k_delta_pearson(k=5, exclude_targets=own)",
    "pds_cosine(exclude_targets=own)",
    "pds_l1(exclude_targets=none)",
    "pds_l2(exclude_targets=own)",
    "pds_l1(ranking=position)",
    "mse_delta(control_source=prediction)",
    "mse_debiased(convention=vcc2026, exclude_targets=panel)",
    "mse_debiased_ratio(convention=vcc2026)",
    "weighted_r2_delta_pertmean(leave_one_out=false)",
    "wmse(exclude_targets=own)",
    "energy_ratio(min_effect=0)",
    "edistance_pearson(control_source=prediction)",
    "variance_ratio(exclude_targets=own)",
)


class Cells(NamedTuple):
    """Expression with the code of each cell."""

    x: torch.Tensor
    group: torch.Tensor


def screen(seed: int = 0, *, perturbations: int = 8, genes: int = 60, scale: Scale = "log1p_cp10k") -> Cells:
    rng = np.random.default_rng(seed)
    group = np.concatenate([np.arange(perturbations + 1), rng.integers(0, perturbations + 1, 40)])
    effects = np.vstack([np.zeros(genes), rng.normal(0, 0.5, (perturbations, genes))])
    level = rng.lognormal(0.0, 1.5, genes)
    if scale == "counts":
        x = rng.poisson(20 * level * np.exp(effects[group])).astype(np.float32)
        x[:, 0] += 1
        return Cells(torch.from_numpy(x), torch.from_numpy(group))
    x = level * np.exp(effects[group] + rng.normal(0, 0.1, (len(group), genes)))
    return Cells(torch.from_numpy(x), torch.from_numpy(group))


def targets_of(perturbations: int = 8) -> list[list[int]]:
    return [[3 * p] if p % 3 else [] for p in range(perturbations)]


def reference_of(cells: Cells, scale: Scale = "log1p_cp10k", targets: list[list[int]] | None = None, **kwargs: object):
    p = int(cells.group.max())
    targets = targets_of(p) if targets is None else targets
    return PerturbationReference.from_cells(*cells, num_perturbations=p, scale=scale, targets=targets, **kwargs)


def panel_of(reference: PerturbationReference, refs: tuple[str, ...] = VARIANTS) -> Panel:
    return Panel({r: load_metric(parse_ref(r).name)(reference, **parse_ref(r).params) for r in refs})


def scores(reference: PerturbationReference, x: torch.Tensor, group: torch.Tensor) -> dict[str, Score]:
    panel = panel_of(reference)
    panel.update(x=x, group=group)
    return panel.results()


def values(score: Score) -> torch.Tensor:
    """The units; of a metric without any, its value, NaN where undefined."""
    if score.units is not None:
        return score.units
    return torch.tensor([float("nan") if score.value is None else score.value], dtype=torch.float64)


def assert_alike(ours: dict[str, Score], theirs: dict[str, Score], order: list[int] | None = None) -> None:
    for name, score in ours.items():
        units = values(score) if order is None or score.units is None else score.units[order]
        np.testing.assert_allclose(units.numpy(), values(theirs[name]).numpy(), rtol=1e-11, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
def test_the_truth_as_prediction_is_perfect(scale: Scale) -> None:
    cells = screen(scale=scale)
    results = scores(reference_of(cells, scale), *cells)
    for name, score in results.items():
        if parse_ref(name).name in (*DEBIASED, "energy_ratio"):
            continue
        assert score.value == pytest.approx(SPECS[parse_ref(name).name].perfect, abs=1e-12), name
        assert not score.undefined
    assert results["mse_debiased_ratio"].value == 0.0


def test_order_of_cells_without_ids_moves_rounding_at_most() -> None:
    cells, pred = screen(0), screen(1)
    shuffled = torch.from_numpy(np.random.default_rng(2).permutation(len(pred.group)))
    reference = reference_of(cells)
    assert_alike(scores(reference, *pred), scores(reference, pred.x[shuffled], pred.group[shuffled]))
    again = reference_of(Cells(cells.x.flip(0), cells.group.flip(0)))
    assert_alike(scores(reference, *pred), scores(again, *pred))


def test_order_of_genes_moves_rounding_at_most() -> None:
    cells, pred = screen(0), screen(1)
    order = np.random.default_rng(2).permutation(60)
    moved = [[int(np.flatnonzero(order == g)[0]) for g in genes] for genes in targets_of()]
    permuted = reference_of(Cells(cells.x[:, order], cells.group), targets=moved)
    assert_alike(scores(reference_of(cells), *pred), scores(permuted, pred.x[:, order], pred.group))


def test_numbering_of_perturbations_moves_rounding_at_most() -> None:
    cells, pred = screen(0), screen(1)
    code = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.from_numpy(np.random.default_rng(2).permutation(8))])
    moved: list[list[int]] = [[] for _ in range(8)]
    for p, genes in enumerate(targets_of()):
        moved[int(code[p + 1]) - 1] = genes
    permuted = reference_of(Cells(cells.x, code[cells.group]), targets=moved)
    ours = scores(permuted, pred.x, code[pred.group])
    assert_alike(ours, scores(reference_of(cells), *pred), order=(code[1:] - 1).tolist())


def test_a_flipped_effect_hurts() -> None:
    cells = screen()
    reference = reference_of(cells)
    control = reference.profiles()[0]
    results = scores(reference, 2 * control - cells.x, cells.group)
    for name, spec in SPECS.items():
        if name in ("effect_size_debiased", "edistance_pearson", "variance_ratio"):  # which see no direction
            continue
        assert (spec.perfect - results[name].value) * (1 if spec.direction == "max" else -1) > 0.1, name
    for name in ("pearson_delta", "spearman_delta", "cosine_delta", "top_k_delta_pearson"):
        assert results[name].value == pytest.approx(-1.0, abs=1e-9)


def test_an_overshoot_costs_where_size_is_seen() -> None:
    cells = screen()
    reference = reference_of(cells)
    control = reference.profiles()[0]
    right, far = (scores(reference, control + f * (cells.x - control), cells.group) for f in (1.0, 3.0))
    for name in SEES_SIZE:
        worse = right[name].value - far[name].value
        assert (worse if SPECS[name].direction == "max" else -worse) > 0.1, name
    # Worse than no effect at all, too: three times as far is no better than nothing.
    nothing = scores(reference, control.expand_as(cells.x), cells.group)
    assert far["r2_delta"].value < nothing["r2_delta"].value
    assert far["mse"].value > nothing["mse"].value


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
def test_duplicated_cells_change_nothing(scale: Scale) -> None:
    cells, pred = screen(0, scale=scale), screen(1, scale=scale)
    reference = reference_of(cells, scale)
    tripled = scores(reference, pred.x.repeat(3, 1), pred.group.repeat(3))
    once = {n: s for n, s in scores(reference, *pred).items() if parse_ref(n).name not in DEBIASED + UNBIASED}
    assert_alike(once, tripled)


def test_shifted_labels_give_chance() -> None:
    cells = screen(perturbations=30, genes=400)
    reference = reference_of(cells)
    shifted = torch.where(cells.group == 0, 0, cells.group % 30 + 1)
    results = scores(reference, cells.x, shifted)
    for name in CORRELATIONS:
        assert abs(results[name].value) < 0.35, name
    for name in DISCRIMINATION:
        assert 0.3 < results[name].value < 0.6, name


def test_pasted_controls_have_no_skill() -> None:
    cells = screen()
    reference = reference_of(cells)
    controls = cells.x[cells.group == 0].repeat(9, 1)
    group = torch.arange(9).repeat_interleave(int((cells.group == 0).sum()))
    results = scores(reference, controls.repeat(3, 1), group.repeat(3))
    for name in DISCRIMINATION:
        assert results[name].units.tolist() == [0.5] * 8, name
    for name in ("pearson_delta", "spearman_delta", "cosine_delta", "top_k_delta_pearson"):
        assert results[name].units.tolist() == [0.0] * 8, name


def test_one_prediction_for_all_discriminates_nothing() -> None:
    cells = screen()
    mean = cells.x[cells.group > 0].mean(dim=0)
    results = scores(reference_of(cells), mean.expand(9, -1), torch.arange(9))
    for name in DISCRIMINATION:
        assert results[name].value == pytest.approx(0.5, abs=1e-15), name


def test_predicted_control_cells_are_ignored_unless_asked_for() -> None:
    cells, pred = screen(0), screen(1)
    reference = reference_of(cells)
    edited = torch.where((pred.group == 0)[:, None], 7.0, pred.x)
    before, after, without = (
        scores(reference, *pred),
        scores(reference, edited, pred.group),
        panel_of(reference, tuple(SPECS)),
    )
    without.update(x=pred.x[pred.group > 0], group=pred.group[pred.group > 0])
    for name, score in without.results().items():
        assert torch.equal(values(before[name]), values(after[name])), name
        assert torch.equal(values(before[name]), values(score)), name
    asked = "pearson_delta(control_source=prediction)"
    assert not torch.equal(before[asked].units, after[asked].units)


def test_excluded_genes_are_ignored() -> None:
    cells, pred = screen(0), screen(1)
    reference = reference_of(cells)
    spiked = pred.x.clone()
    for p, genes in enumerate(targets_of()):
        spiked[(pred.group == p + 1).nonzero(), genes] = 50.0
    before, after = scores(reference, *pred), scores(reference, spiked, pred.group)
    excluding = {r for r in VARIANTS if "=own" in r or "=panel" in r or parse_ref(r).name in DEBIASED}
    excluding |= {*DISCRIMINATION, "pds_l1(ranking=position)"}
    excluding -= {r for r in VARIANTS if "vcc2026" in r}  # which counts the noise of excluded genes
    # Ranks and the genes that respond most may not notice one spiked gene; everything else does.
    blind = {"pds_l1(exclude_targets=none)", "top_k_delta_pearson"}
    for name in before:
        if name not in blind:
            assert torch.equal(values(before[name]), values(after[name])) == (name in excluding), name


def _piece(x: torch.Tensor, layout: int) -> torch.Tensor | SparseRows:
    if layout == 0:
        return x
    if layout == 1:
        return SparseRows.from_dense(x)
    return x.double() if layout == 2 else x.T.contiguous().T


@given(data=st.data(), scale=st.sampled_from(("counts", "log1p_cp10k")))
def test_shards_order_padding_layout_and_threads_give_the_same_bits(data: st.DataObject, scale: Scale) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    cells, pred = (screen(int(rng.integers(1000)), perturbations=4, genes=21, scale=scale) for _ in range(2))
    # Nine decades and many zeros: sums on one scale would be exact in any order.
    spread = rng.lognormal(0, 4, (len(pred.group), 1)) if scale != "counts" else 1.0
    x = torch.from_numpy((pred.x.numpy() * spread * (rng.random(pred.x.shape) < 0.8)).astype(np.float32))
    x[:, 0] += 1
    ids = torch.from_numpy(rng.permutation(10 * len(x))[: len(x)])
    one_shot = panel_of(reference_of(Cells(cells.x.float(), cells.group), scale))
    one_shot.update(ids, x=x, group=pred.group)
    expected = one_shot.results()

    order = rng.permutation(len(x))
    padded = np.concatenate([order, rng.choice(order, 5)])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(padded)), max_size=6)))
    moved = torch.from_numpy(rng.permutation(len(cells.group)))
    streamed = panel_of(
        PerturbationReference.from_cells(
            _piece(cells.x.float()[moved], data.draw(st.integers(0, 2))),
            cells.group[moved],
            num_perturbations=4,
            scale=scale,
            targets=targets_of(4),
            index=moved,
        )
    )
    for rows in np.split(padded, cuts):
        layout = data.draw(st.integers(0, 3))
        streamed.update(ids[rows], x=_piece(x[rows], layout), group=pred.group[rows].to(torch.int32))
    threads = torch.get_num_threads()
    torch.set_num_threads(data.draw(st.sampled_from((1, 2))))
    results = streamed.results()
    torch.set_num_threads(threads)
    for name, score in results.items():
        assert values(score).numpy().tobytes() == values(expected[name]).numpy().tobytes(), name
        assert score.value == expected[name].value


FORMULAS = (
    mae,
    mse,
    rmse,
    *(partial(f, control=torch.linspace(0, 1, 70_001)) for f in (pearson_delta, spearman_delta, cosine_delta)),
    *(partial(f, control=torch.linspace(0, 1, 70_001)) for f in (r2_delta, top_k_delta_pearson, mae_delta, mse_delta)),
)


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_value_does_not_depend_on_company_layout_or_threads(formula: Callable[..., torch.Tensor]) -> None:
    # Wide enough for torch to split one sum between threads.
    rng = np.random.default_rng(6)
    pred, target = (torch.from_numpy(rng.lognormal(0, 4, (3, 70_001))) for _ in range(2))
    together = formula(pred, target)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    alone = torch.cat([formula(p[None], t[None]) for p, t in zip(pred, target, strict=True)])
    transposed = formula(pred.T.contiguous().T, target.T.contiguous().T)
    torch.set_num_threads(threads)
    assert torch.equal(alone, together)
    assert torch.equal(transposed, together)


@pytest.mark.parametrize("ref", VARIANTS)
def test_alone_and_in_a_panel_give_the_same_bits(ref: str) -> None:
    cells, pred = screen(0), screen(1)
    reference = reference_of(cells)
    parsed = parse_ref(ref)
    alone = load_metric(parsed.name)(reference, **parsed.params)
    alone.update(pred.x, perturbation=pred.group)
    assert torch.equal(values(alone.result()), values(scores(reference, *pred)[ref]))
    assert alone.higher_is_better == (SPECS[parsed.name].direction == "max")
    assert alone.uses_predicted_control == ("control_source" in ref)


def test_the_mean_of_all_perturbations_is_specific_to_none() -> None:
    cells = screen(3)
    reference = reference_of(cells)
    mean = reference.profiles()[1:].mean(dim=0)
    values = {r: s.value for r, s in scores(reference, mean.expand(9, -1), torch.arange(9)).items()}
    assert values["pearson_delta_pertmean(leave_one_out=false)"] == 0.0
    assert values["pearson_delta_pertmean"] == pytest.approx(1.0)
    assert values["pds_cosine"] == pytest.approx(0.5, abs=0.2)
