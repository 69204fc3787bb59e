"""What must hold for every metric of differential expression: perfection, invariances, penalties, the same bits."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.base import Score
from prima_bench.metrics.catalog import list_specs, load_metric, parse_ref
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.contexts import StratifiedReference
from prima_bench.metrics.perturbation.reference import PerturbationReference, Scale
from prima_bench.metrics.rows import SparseRows

SPECS = {s.name: s for s in list_specs("perturbation") if s.name.startswith("de_")}
TABLES = ("default", "vcc2026", "cell_eval")
VARIANTS = (
    *SPECS,
    *(f"{name}(table={table})" for name in SPECS for table in TABLES[1:]),
    *(f"{name}(score=fdr)" for name in ("de_auroc", "de_auprc", "de_auprc_signed")),
    "de_overlap_at_n(k=5)",
    "de_precision_at_n(k=5, table=cell_eval)",
    "de_auroc(exclude_targets=none)",
    "de_sig_mcc(exclude_targets=panel)",
)
SEES_SIGN = (
    "de_direction_match",
    "de_direction_fidelity",
    "de_direction_reach",
    "de_lfc_spearman",
    "de_lfc_nmae",
    "de_auprc_signed",
)
SEES_EVIDENCE = ("de_auroc", "de_auprc", "de_auprc_signed")
GENES, PERTURBATIONS = 120, 3
SIZES = (60, 25, 25, 25)


class Cells(NamedTuple):
    """Expression with the code of each cell."""

    x: torch.Tensor
    group: torch.Tensor


def screen(seed: int = 0, *, scale: Scale = "counts", factor: float = 1.0, sizes: tuple[int, ...] = SIZES) -> Cells:
    """Twenty genes of 120 respond to each perturbation, others to others; ``factor`` scales all responses."""
    genes = np.random.default_rng(99)
    level = genes.lognormal(1.0, 0.5, GENES)
    effects = np.zeros((len(sizes), GENES))
    for p in range(1, len(sizes)):
        effects[p, genes.permutation(GENES)[:20]] = genes.choice([-1.6, -1.2, 1.2, 1.6], 20)
    group = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(seed)
    x = rng.poisson(level * np.exp(factor * effects[group])).astype(np.float32)
    x[:, 0] += 1
    if scale != "counts":
        x = np.log1p(1e4 * x / x.sum(axis=1, keepdims=True)).astype(np.float32)
    return Cells(torch.from_numpy(x), torch.from_numpy(group))


def reference_of(cells: Cells, scale: Scale = "counts", targets: list[list[int]] | None = None):
    targets = [[3], [], [5, 6]] if targets is None else targets
    return PerturbationReference.from_cells(*cells, num_perturbations=len(targets), scale=scale, targets=targets)


def panel_of(reference: PerturbationReference | StratifiedReference, refs: tuple[str, ...] = VARIANTS) -> Panel:
    return Panel({r: load_metric(parse_ref(r).name)(reference, **parse_ref(r).params) for r in refs})


def scores(reference: PerturbationReference, x: torch.Tensor | SparseRows, group: torch.Tensor) -> dict[str, Score]:
    panel = panel_of(reference)
    panel.update(x=x, group=group)
    return panel.results()


def assert_alike(ours: dict[str, Score], theirs: dict[str, Score], order: list[int] | None = None) -> None:
    for name, score in ours.items():
        assert score.value == pytest.approx(theirs[name].value, rel=1e-11), name
        if score.units is not None:
            units = score.units if order is None else score.units[order]
            np.testing.assert_allclose(units, theirs[name].units, rtol=1e-11, atol=1e-11, err_msg=name)


def assert_same_bits(ours: dict[str, Score], theirs: dict[str, Score]) -> None:
    for name, score in ours.items():
        assert score.value == theirs[name].value, name
        if score.units is not None:
            assert score.units.numpy().tobytes() == theirs[name].units.numpy().tobytes(), name


def loss(name: str, score: Score) -> float:
    spec = SPECS[parse_ref(name).name]
    return (spec.perfect - score.value) * (1 if spec.direction == "max" else -1)


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
def test_the_truth_as_prediction_is_perfect(scale: Scale) -> None:
    cells = screen(scale=scale)
    for name, score in scores(reference_of(cells, scale), *cells).items():
        assert score.value == pytest.approx(SPECS[parse_ref(name).name].perfect, abs=1e-12), name
        assert not score.undefined


def test_a_replicate_is_good_and_a_null_model_is_not() -> None:
    cells, replicate, null = screen(0), screen(1), screen(2, factor=0.0)
    reference = reference_of(cells)
    good, bad = scores(reference, *replicate), scores(reference, *null)
    for name in VARIANTS:
        if "de_count_spearman" not in name:  # three numbers, or none
            assert loss(name, good[name]) < loss(name, bad[name]) - 0.2, name


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
def test_a_flipped_effect_hurts_where_the_sign_is_seen(scale: Scale) -> None:
    cells = screen(scale=scale)
    reference = reference_of(cells, scale)
    right, flipped = (scores(reference, *screen(1, scale=scale, factor=f)) for f in (1.0, -1.0))
    for name in VARIANTS:
        if parse_ref(name).name in SEES_SIGN:
            assert loss(name, flipped[name]) > loss(name, right[name]) + 0.4, name


def test_silence_has_the_worst_value_or_that_of_no_skill() -> None:
    cells = screen()
    reference = reference_of(cells)
    control = cells.x[cells.group == 0]
    # Exactly the control, as every prediction: nothing is called, nothing changes.
    results = scores(reference, control.repeat(4, 1), torch.arange(4).repeat_interleave(len(control)))
    for name in VARIANTS:
        spec = SPECS[parse_ref(name).name]
        score = results[name]
        assert not score.undefined
        if spec.name in ("de_lfc_nmae", "de_auroc", "de_sig_mcc", "de_lfc_spearman", "de_count_spearman"):
            assert score.value == spec.chance, name
        elif spec.name not in SEES_EVIDENCE:
            assert score.value == 0.0, name
        else:
            assert score.value < 0.5, name


def test_a_flood_of_calls_does_not_win() -> None:
    # Tiled means: without spread between cells every difference is significant.
    cells = screen()
    reference = reference_of(cells)
    rng = np.random.default_rng(5)
    mean = cells.x[cells.group == 0].mean(dim=0)
    tile = torch.poisson(mean, generator=torch.Generator().manual_seed(3)) + 1
    tiled = torch.cat([cells.x[cells.group == 0], *(tile[rng.permutation(GENES)].expand(25, -1) for _ in range(3))])
    flood, honest = scores(reference, tiled, cells.group), scores(reference, *screen(1))
    assert flood["de_recall"].value > 0.7
    assert flood["de_sig_mcc"].value < 0.2
    assert flood["de_direction_fidelity"].value < 0.6
    for name in ("de_sig_mcc", "de_direction_fidelity", "de_sig_jaccard", "de_auprc_signed"):
        assert flood[name].value < honest[name].value - 0.2, name


def test_an_overshoot_costs_where_size_is_seen() -> None:
    cells = screen()
    reference = reference_of(cells)
    right, far = (scores(reference, *screen(1, factor=f)) for f in (1.0, 2.5))
    for table in TABLES:
        name = f"de_lfc_nmae(table={table})" if table != "default" else "de_lfc_nmae"
        assert right[name].value < far[name].value - 0.2, name


def test_order_of_cells_changes_nothing() -> None:
    cells, pred = screen(0), screen(1)
    shuffled = torch.from_numpy(np.random.default_rng(2).permutation(len(pred.group)))
    reference, again = reference_of(cells), reference_of(Cells(cells.x.flip(0), cells.group.flip(0)))
    ours = scores(reference, *pred)
    # Whole numbers have one sum in any order; cell_eval's means of logarithms are as the pseudobulks are.
    exact = {name: score for name, score in ours.items() if "cell_eval" not in name}
    assert_same_bits(exact, scores(reference, pred.x[shuffled], pred.group[shuffled]))
    assert_same_bits(exact, scores(again, *pred))
    assert_alike(ours, scores(again, pred.x[shuffled], pred.group[shuffled]))


def test_order_of_genes_moves_rounding_at_most() -> None:
    cells, pred = screen(0), screen(1)
    order = np.random.default_rng(2).permutation(GENES)
    moved = [[int(np.flatnonzero(order == g)[0]) for g in genes] for genes in ([3], [], [5, 6])]
    permuted = reference_of(Cells(cells.x[:, order], cells.group), targets=moved)
    assert_alike(scores(reference_of(cells), *pred), scores(permuted, pred.x[:, order], pred.group))


def test_numbering_of_perturbations_moves_rounding_at_most() -> None:
    cells, pred = screen(0), screen(1)
    code = torch.tensor([0, 3, 1, 2])
    permuted = reference_of(Cells(cells.x, code[cells.group]), targets=[[], [5, 6], [3]])
    ours = scores(permuted, pred.x, code[pred.group])
    assert_alike(ours, scores(reference_of(cells), *pred), order=(code[1:] - 1).tolist())


def test_predicted_control_cells_are_ignored_unless_asked_for() -> None:
    cells, pred = screen(0), screen(1)
    reference = reference_of(cells)
    edited = torch.where((pred.group == 0)[:, None], 7.0, pred.x)
    before, after = scores(reference, *pred), scores(reference, edited, pred.group)
    asked = {name for name in VARIANTS if "cell_eval" in name}
    kept = {name: score for name, score in before.items() if name not in asked}
    assert_same_bits(kept, after)
    without = panel_of(reference, tuple(kept))
    without.update(x=pred.x[pred.group > 0], group=pred.group[pred.group > 0])
    assert_same_bits(kept, without.results())
    assert before["de_recall(table=cell_eval)"].value != after["de_recall(table=cell_eval)"].value
    for name in VARIANTS:
        metric = load_metric(parse_ref(name).name)(reference, **parse_ref(name).params)
        assert metric.uses_predicted_control == (name in asked)


def test_own_targets_are_left_out_unless_the_convention_keeps_them() -> None:
    cells, pred = screen(0), screen(1)
    reference = reference_of(cells)
    spiked = pred.x.clone()
    for p, genes in enumerate([[3], [], [5, 6]], start=1):
        for g in genes:
            spiked[(pred.group == p), g] = 0.0
    # The other counts keep their shares, so that nothing but the targets moves.
    logs = [torch.log1p(1e4 * x / pred.x.sum(dim=1, keepdim=True)) for x in (pred.x, spiked)]
    log_reference = PerturbationReference.from_cells(
        torch.log1p(1e4 * cells.x / cells.x.sum(dim=1, keepdim=True)),
        cells.group,
        num_perturbations=3,
        scale="log1p_cp10k",
        targets=[[3], [], [5, 6]],
    )
    before, after = (scores(log_reference, x, pred.group) for x in logs)
    # The false discovery rates of the other genes read the p-values of all that are tested.
    by_statistic = ("de_auroc", "de_auprc", "de_auprc_signed", "de_direction_match", "de_lfc_nmae", "de_lfc_spearman")
    for name in by_statistic:
        assert_same_bits({name: before[name]}, after)
    assert before["de_auroc(exclude_targets=none)"].value != after["de_auroc(exclude_targets=none)"].value
    default = load_metric("de_recall")
    assert default(reference).exclude_targets == "own"
    assert default(reference, table="vcc2026").exclude_targets == "own_single"
    assert default(reference, table="cell_eval").exclude_targets == "none"
    assert default(reference, table="cell_eval", exclude_targets="own").exclude_targets == "own"


@pytest.mark.parametrize("ref", VARIANTS)
def test_alone_and_in_a_panel_give_the_same_bits(ref: str) -> None:
    cells, pred = screen(0), screen(1)
    reference = reference_of(cells)
    parsed = parse_ref(ref)
    alone = load_metric(parsed.name)(reference, **parsed.params)
    alone.update(pred.x, perturbation=pred.group)
    assert alone.higher_is_better == (SPECS[parsed.name].direction == "max")
    assert_same_bits({ref: alone.result()}, scores(reference, *pred))


def _piece(x: torch.Tensor, layout: int) -> torch.Tensor | SparseRows:
    if layout == 0:
        return x
    if layout == 1:
        return SparseRows.from_dense(x)
    return x.double() if layout == 2 else x.T.contiguous().T


@given(data=st.data(), scale=st.sampled_from(("counts", "log1p_cp10k")))
def test_shards_order_padding_layout_and_threads_give_the_same_bits(data: st.DataObject, scale: Scale) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    cells, pred = (screen(int(rng.integers(1000)), scale=scale) for _ in range(2))
    if data.draw(st.booleans()):  # decades, whose sums are not exact; as counts no whole numbers
        x = (pred.x.numpy() * rng.lognormal(-3, 2, (len(pred.x), 1)).clip(max=20)).astype(np.float32)
        pred = Cells(torch.from_numpy(x), pred.group)
    ids = torch.from_numpy(rng.permutation(10 * len(pred.x))[: len(pred.x)])
    one_shot = panel_of(reference_of(cells, scale))
    one_shot.update(ids, x=pred.x, group=pred.group)

    order = rng.permutation(len(pred.x))
    padded = np.concatenate([order, rng.choice(order, 5)])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(padded)), max_size=4)))
    moved = torch.from_numpy(rng.permutation(len(cells.group)))
    reference = PerturbationReference.from_cells(
        _piece(cells.x[moved], data.draw(st.integers(0, 2))),
        cells.group[moved],
        num_perturbations=PERTURBATIONS,
        scale=scale,
        targets=[[3], [], [5, 6]],
        index=moved,
    )
    streamed = panel_of(reference)
    for rows in np.split(padded, cuts):
        streamed.update(ids[rows], x=_piece(pred.x[rows], data.draw(st.integers(0, 3))), group=pred.group[rows])
    threads = torch.get_num_threads()
    torch.set_num_threads(data.draw(st.sampled_from((1, 2))))
    results = streamed.results()
    torch.set_num_threads(threads)
    assert_same_bits(results, one_shot.results())


def test_contexts_are_tested_each_against_its_own_control() -> None:
    first, second = screen(0), screen(1)
    pred = [screen(2), screen(3)]
    stratified = StratifiedReference.from_cells(
        torch.cat([first.x, second.x]),
        torch.cat([first.group, second.group]),
        torch.arange(2).repeat_interleave(len(first.group)),
        num_perturbations=3,
        num_contexts=2,
        scale="counts",
        targets=[[3], [], [5, 6]],
    )
    refs = tuple(name for name in VARIANTS if "cell_eval" not in name)
    panel = panel_of(stratified, refs)
    panel.update(
        x=torch.cat([p.x for p in pred]),
        group=torch.cat([p.group for p in pred]),
        context=torch.arange(2).repeat_interleave(len(first.group)),
    )
    parts = [scores(reference_of(true), *p) for true, p in zip((first, second), pred, strict=True)]
    for name, score in panel.results().items():
        if score.units is None:
            assert score.value == pytest.approx(np.mean([part[name].value for part in parts])), name
        else:
            assert score.units.equal(torch.cat([part[name].units for part in parts])), name
