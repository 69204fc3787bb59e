"""What metrics of differential expression accept, what they refuse, and what they leave undefined and why."""

import math
import pickle

import pytest
import torch

from prima_bench.metrics.base import Score
from prima_bench.metrics.catalog import list_specs, load_metric, parse_ref
from prima_bench.metrics.errors import InputError, ProfileError
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.base import ABSENT, NO_CONTROL, NO_GENES
from prima_bench.metrics.perturbation.de.fold_change import CONSTANT, FEW, ONE_COUNT
from prima_bench.metrics.perturbation.de.metric import NONE_CALLED
from prima_bench.metrics.perturbation.de.ranking import ALL_CALLED
from prima_bench.metrics.perturbation.reference import PerturbationReference

NAMES = [s.name for s in list_specs("perturbation") if s.name.startswith("de_")]
UNITS = [s.name for s in list_specs("perturbation") if s.name.startswith("de_") and s.level == "unit"]
TABLES = ("default", "vcc2026", "cell_eval")
SCALES = ("counts", "log1p_cp10k")


def cells(responding: tuple[int, ...] = (8, 0), genes: int = 60, n: int = 20, seed: int = 0):
    """For each perturbation, so many genes that are several times as high or as low as in the control."""
    generator = torch.Generator().manual_seed(seed)
    group = torch.arange(1 + len(responding)).repeat_interleave(n)
    rate = torch.full((1 + len(responding), genes), 5.0)
    for p, k in enumerate(responding, start=1):
        rate[p, :k] = torch.tensor([20.0, 0.5]).repeat(genes)[:k]
    return torch.poisson(rate[group], generator=generator), group


def reference_of(x: torch.Tensor, group: torch.Tensor, scale: str = "counts", **kwargs: object):
    x = x if scale == "counts" else torch.log1p(x)
    return PerturbationReference.from_cells(x, group, num_perturbations=int(group.max()), scale=scale, **kwargs)


def scored(ref: str, reference: PerturbationReference, x: torch.Tensor, group: torch.Tensor) -> Score:
    parsed = parse_ref(ref)
    metric = load_metric(parsed.name)(reference, **parsed.params)
    metric.update(x if reference.scale == "counts" else torch.log1p(x), perturbation=group)
    return metric.result()


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ({"table": "wilcoxon"}, "table cannot be 'wilcoxon'"),
        ({"exclude_targets": "all"}, "exclude_targets cannot be 'all'"),
        ({"exclude_targets": "panel"}, "known to a reference alone"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_arguments_without_meaning_are_refused(name: str, ref: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_metric(name)(num_perturbations=2, **ref)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("de_overlap_at_n", {"k": -1}, "k must not be negative"),
        ("de_precision_at_n", {"k": -1}, "k must not be negative"),
        ("de_lfc_nmae", {"min_genes": 0}, "min_genes must be at least 1"),
        ("de_auroc", {"score": "p"}, "score cannot be 'p'"),
    ],
)
def test_arguments_of_single_metrics_are_refused(name: str, kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_metric(name)(num_perturbations=2, **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_a_panel_is_checked_when_it_is_scored(name: str) -> None:
    x, group = cells()
    for pred, codes, message in (
        (x[:, :3], group, "3 genes, the true ones 60"),
        (x, group + 1, "group 3 is outside 0 to 2"),
        (x[group < 2], group[group < 2], "no predicted cells of group 2"),
    ):
        panel = Panel({name: load_metric(name)(reference_of(x, group))})
        panel.update(x=pred, group=codes)
        with pytest.raises(InputError, match=message):
            panel.compute()


def test_predicted_controls_are_needed_where_predictions_have_their_own() -> None:
    x, group = cells()
    reference = reference_of(x, group)
    assert scored("de_recall", reference, x[group > 0], group[group > 0]).value == 1.0
    with pytest.raises(InputError, match="no predicted cells of group 0"):
        scored("de_recall(table=cell_eval)", reference, x[group > 0], group[group > 0])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_expression_beyond_all_bounds_is_refused_by_group(name: str, scale: str) -> None:
    x, group = cells((8, 8, 8))
    reference = reference_of(x, group, scale)
    huge = x.double() if scale == "counts" else torch.log1p(x).double()
    huge[group == 1, 0] = 1e308
    huge[group == 3, 1] = 1e308
    metric = load_metric(name)(reference)
    metric.update(huge, perturbation=group)
    with pytest.raises(ProfileError, match="too large to be scored in group 1, 3") as caught:
        metric.result()
    assert caught.value.groups == (1, 3)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", UNITS)
def test_a_perturbation_without_true_calls_is_undefined_whatever_is_predicted(name: str, table: str) -> None:
    x, group = cells()
    reference = reference_of(x, group)
    loud, silent = cells((8, 8))[0], cells((0, 0), seed=3)[0]
    for pred in (x, loud, silent):
        score = scored(f"{name}(table={table})", reference, pred, group)
        if table == "vcc2026" and name in ("de_sig_jaccard", "de_direction_fidelity"):
            continue
        assert score.undefined[1] == NONE_CALLED
        assert name == "de_lfc_nmae" or 0 not in score.undefined


def test_cell_eval2_gives_perturbations_without_true_calls_a_value() -> None:
    x, group = cells()
    reference = reference_of(x, group)
    loud = cells((8, 8))[0]
    jaccard, fidelity = "de_sig_jaccard(table=vcc2026)", "de_direction_fidelity(table=vcc2026)"
    assert scored(jaccard, reference, x, group).units.tolist() == [1.0, 1.0]
    assert scored(jaccard, reference, loud, group).units[1] == 0.0
    assert dict(scored(fidelity, reference, x, group).undefined) == {1: NONE_CALLED}
    assert 0.0 <= scored(fidelity, reference, loud, group).units[1] <= 1.0


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", NAMES)
def test_no_calls_anywhere_is_a_reason_and_never_a_number(name: str, table: str, scale: str) -> None:
    x, group = cells((0, 0))
    one_each = torch.arange(3)
    for true, codes in ((x, group), (x[:3], one_each), (x * 0, group)):
        score = scored(f"{name}(table={table})", reference_of(true, codes, scale), cells((8, 8))[0], group)
        if table == "vcc2026" and name in ("de_sig_jaccard", "de_direction_fidelity"):
            assert score.value is None or 0.0 <= score.value <= 1.0
        else:
            assert (score.value, score.reason) == (None, NONE_CALLED)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("ref", [f"{name}(table={table})" for name in NAMES for table in TABLES])
def test_degenerate_predictions_have_a_value(ref: str, scale: str) -> None:
    x, group = cells((14, 20))
    reference = reference_of(x, group, scale)
    one_each = torch.arange(3)
    for pred, codes in ((x * 0, group), (x * 0 + 3, group), (x[:3], one_each), (x * 0, one_each[[0, 1, 2]])):
        score = scored(ref, reference, pred[: len(codes)], codes)
        assert not score.undefined
        assert score.value is not None
        assert math.isfinite(score.value)


def test_reasons_say_what_the_solution_lacks() -> None:
    few, group = cells((1, 8))
    reference = reference_of(few, group, "log1p_cp10k")  # where one gene's counts do not move the shares of others
    assert scored("de_lfc_nmae", reference, few, group).undefined == {0: FEW, 1: FEW}
    assert scored("de_lfc_nmae(min_genes=8)", reference, few, group).undefined == {0: FEW}
    assert scored("de_lfc_spearman", reference, few, group).undefined == {0: CONSTANT}
    every, group = cells((12, 8), genes=12)
    reference = reference_of(every, group, "log1p_cp10k")
    for name in ("de_auroc", "de_auprc", "de_auprc_signed"):
        assert scored(name, reference, every, group).undefined == {0: ALL_CALLED}
    assert "every tested gene" in scored("de_sig_mcc", reference, every, group).undefined[0]
    same, group = cells((8, 8))
    same[group == 2] = same[group == 1]
    assert scored("de_count_spearman", reference_of(same, group, "log1p_cp10k"), same, group).reason == ONE_COUNT


def test_exclusion_can_leave_nothing() -> None:
    x, group = cells((8, 8))
    reference = reference_of(x, group, targets=[list(range(60)), []])
    assert dict(scored("de_recall", reference, x, group).undefined) == {0: NO_GENES}
    assert scored("de_recall(exclude_targets=panel)", reference, x, group).reason == NO_GENES
    assert scored("de_count_spearman(exclude_targets=panel)", reference, x, group).reason == NO_GENES
    assert scored("de_recall(exclude_targets=none)", reference, x, group).value == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_without_a_reference_the_truth_comes_along(name: str) -> None:
    x, group = cells((14, 12, 20))
    group = torch.where(group == 2, 0, group)
    metric = load_metric(name)(num_perturbations=3, scale="counts")
    metric.update(x, x, perturbation=group)
    score = metric.result()
    assert score.value == pytest.approx(0.0 if name == "de_lfc_nmae" else 1.0)
    if score.units is not None:
        assert dict(score.undefined) == {1: ABSENT}
    metric = load_metric(name)(num_perturbations=3, scale="counts")
    metric.update(x[group > 0], x[group > 0], perturbation=group[group > 0])
    assert metric.result().reason == NO_CONTROL


def test_a_training_loop_can_save_copy_and_resume() -> None:
    x, group = cells((8, 8))
    metric = load_metric("de_auprc_signed")(reference_of(x, group), table="vcc2026")
    metric.update(x[:30] + 1, perturbation=group[:30])
    resumed = pickle.loads(pickle.dumps(metric))  # noqa: S301
    for m in (metric, resumed, metric.clone()):
        m.update(x[30:] + 1, perturbation=group[30:])
    assert resumed.compute().equal(metric.compute())
