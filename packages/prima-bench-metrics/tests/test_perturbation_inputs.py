"""What perturbation metrics accept, what they refuse, and what they leave undefined."""

import copy
import math
import pickle

import pytest
import torch

from prima_bench.metrics.base import BufferedMetric
from prima_bench.metrics.catalog import list_specs, load_metric
from prima_bench.metrics.errors import InputError, ReferenceDataError
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.base import ABSENT, ALONE, NO_CONTROL, NO_GENES
from prima_bench.metrics.perturbation.profiles.delta_correlation import PearsonDelta
from prima_bench.metrics.perturbation.profiles.discrimination import PDSL1, PDSCosine, pds
from prima_bench.metrics.perturbation.profiles.error import ProfileMAE
from prima_bench.metrics.perturbation.profiles.top_k_delta import TopKDeltaPearson
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.rows import SparseRows

X = torch.tensor(
    [[1.0, 2.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0], [4.0, 0.0, 1.0, 2.0], [0.0, 3.0, 1.0, 1.0], [2.0, 2.0, 5.0, 1.0]]
)
GROUP = torch.tensor([0, 0, 1, 2, 2])
ABSOLUTE = ("mae", "mse", "rmse", "mae_delta", "mse_delta", "mse_debiased", "effect_size_debiased")
OWN_RULES = ("mse_debiased_ratio", "wmse", "weighted_r2_delta_pertmean")  # test_debiased_error, test_weighted_error
CELL_LEVEL = ("energy_ratio", "edistance_pearson", "mmd_rbf", "sinkhorn", "variance_ratio")  # test_cell_distance_laws
NAMES = [s.name for s in list_specs("perturbation") if not s.name.startswith("de_")]  # those: test_de_inputs


def reference_of(x: torch.Tensor = X, group: torch.Tensor = GROUP, **kwargs: object) -> PerturbationReference:
    return PerturbationReference.from_cells(x, group, **{"num_perturbations": 2, "scale": "log1p_cp10k", **kwargs})


def scored(metric: BufferedMetric, x: torch.Tensor, group: torch.Tensor, target: torch.Tensor | None = None):
    metric.update(x, target, perturbation=group)
    return metric.result()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preds": X[:, :3]}, "3 genes, the true ones 4"),
        ({"preds": X[0]}, r"preds must have shape \[cells, genes\], not \[4\]"),
        ({"preds": X.numpy()}, "preds must be a torch tensor or SparseRows, not ndarray"),
        ({"perturbation": ["A"] * 5}, "perturbation must be an integer tensor of shape .cells., not list"),
        ({"perturbation": GROUP[:, None]}, r"perturbation must be an integer tensor of shape \[cells\], not \["),
        ({"preds": X.index_fill(0, torch.tensor([3]), float("nan"))}, "row 3, column 0 is nan"),
        ({"preds": X / 0}, "row 0, column 0 is inf"),
        ({"preds": X > 0}, "bool"),
        ({"perturbation": GROUP + 1}, "group 3 is outside 0 to 2"),
        ({"perturbation": GROUP - 1}, "group -1 is outside 0 to 2"),
        ({"perturbation": GROUP.float()}, "integers"),
        ({"perturbation": GROUP[:4]}, "same number of rows, not 4 codes of perturbations for"),
        ({"target": X}, "beside a reference"),
    ],
)
def test_a_refused_update_names_the_fault_and_leaves_no_trace(change: dict[str, torch.Tensor], message: str) -> None:
    metric = PearsonDelta(reference_of())
    metric.update(X, perturbation=GROUP)
    before = metric.compute()
    with pytest.raises(InputError, match=message):
        metric.update(**{"preds": X, "perturbation": GROUP, **change})
    assert torch.equal(metric.compute(), before)


@pytest.mark.parametrize("name", NAMES)
def test_a_panel_is_checked_when_it_is_scored(name: str) -> None:
    for x, group, message in (
        (X[:, :3], GROUP, "3 genes, the true ones 4"),
        (X, GROUP + 1, "group 3 is outside 0 to 2"),
        (X[:3], GROUP[:3], "no predicted cells of group 2"),
    ):
        panel = Panel({name: load_metric(name)(reference_of())})
        panel.update(x=x, group=group)
        with pytest.raises(InputError, match=message):
            panel.compute()


def test_negative_counts_are_refused() -> None:
    with pytest.raises(InputError, match="counts cannot be negative: row 0 holds -1"):
        reference_of(X - 1, scale="counts")
    with pytest.raises(InputError, match="counts cannot be negative"):
        scored(ProfileMAE(reference_of(scale="counts")), X - 1, GROUP)


def test_missing_perturbations_are_named_and_nothing_is_scored() -> None:
    x, group = torch.rand(9, 4), torch.arange(9)
    metric = ProfileMAE(reference_of(x, group, num_perturbations=8))
    metric.update(x[:2], perturbation=group[:2])
    with pytest.raises(InputError, match="group 2, 3, 4, 5, 6 and 2 more"):
        metric.compute()


def test_predicted_controls_are_needed_only_when_they_count() -> None:
    assert scored(PearsonDelta(reference_of()), X[2:], GROUP[2:]).value == 1.0
    with pytest.raises(InputError, match="no predicted cells of group 0"):
        scored(PearsonDelta(reference_of(), control_source="prediction"), X[2:], GROUP[2:])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "num_perturbations"),
        ({"num_perturbations": 0}, "num_perturbations"),
        ({"num_perturbations": 2, "scale": "raw"}, "unknown scale"),
        ({"num_perturbations": 2, "control_source": "model"}, "control_source cannot be 'model'"),
        ({"num_perturbations": 2, "exclude_targets": "all"}, "exclude_targets cannot be 'all'"),
        ({"num_perturbations": 2, "exclude_targets": "own"}, "known to a reference alone"),
        ({"num_perturbations": 2, "target_sum": 1e4}, "no meaning on scale log1p_cp10k"),
        ({"num_perturbations": 2, "scale": "counts", "target_sum": -1.0}, "target_sum"),
        ({"num_perturbations": 2, "scale": "counts", "target_sum": math.nan}, "target_sum"),
        ({"reference": reference_of(), "num_perturbations": 3}, "2 perturbations, not 3"),
        ({"reference": reference_of(), "scale": "counts"}, "on scale log1p_cp10k, not counts"),
    ],
)
def test_arguments_without_meaning_are_refused(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PearsonDelta(**kwargs)


def test_arguments_of_single_metrics_are_refused() -> None:
    with pytest.raises(InputError, match="k must be at least 2"):
        TopKDeltaPearson(num_perturbations=2, k=1)
    with pytest.raises(InputError, match="no use for control cells"):
        ProfileMAE(num_perturbations=2, control_source="prediction")
    with pytest.raises(InputError, match="at least two"):
        pds(X[:1], X[:1], X[0])


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"num_perturbations": 3}, ReferenceDataError, "no cells of group 3"),
        ({"group": GROUP.clamp(min=1)}, ReferenceDataError, "no cells of group 0"),
        ({"index": torch.tensor([1, 2, 3, 2, 4])}, ReferenceDataError, "more than one cell with id 2"),
        ({"num_perturbations": 1}, InputError, "group 2 is outside 0 to 1"),
        ({"targets": [[0]]}, InputError, "2 perturbations need one list of targets each, not 1"),
        ({"targets": [[0], [4]]}, InputError, "target genes 4 are outside 0 to 3"),
        ({"scale": "tpm"}, InputError, "unknown scale"),
        ({"x": X * torch.nan}, InputError, "nan"),
    ],
)
def test_a_solution_that_cannot_be_scored_against_is_refused(
    kwargs: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        reference_of(**kwargs)


def test_the_cells_of_a_reference_are_not_copied() -> None:
    x = torch.rand(50, 4)
    reference = reference_of(x, torch.arange(50) % 3)
    assert reference.cells._chunks[0].data_ptr() == x.data_ptr()
    assert copy.deepcopy(reference) is reference
    metric = PearsonDelta(reference)
    assert metric.clone().reference is reference


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_integers_sparse_and_half_precision_are_taken() -> None:
    expected = scored(PearsonDelta(reference_of()), X, GROUP).units
    for x in (X.to(torch.int16), X.half(), X.double(), X.to_sparse_csr(), SparseRows.from_dense(X)):
        assert torch.equal(scored(PearsonDelta(reference_of()), x, GROUP).units, expected)
        assert torch.equal(scored(PearsonDelta(reference_of(x)), X, GROUP).units, expected)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OWN_RULES + CELL_LEVEL])
def test_a_constant_solution_effect_is_undefined_and_never_a_number(name: str) -> None:
    x = torch.cat([X[:2], X[:2].mean(dim=0, keepdim=True), X[3:]])
    score = scored(load_metric(name)(reference_of(x, num_perturbations=2)), X, GROUP)
    if name in (*ABSOLUTE, "pearson_delta_pertmean"):
        assert not score.undefined
    else:
        assert list(score.undefined) == [0]
        assert score.undefined[0].endswith(("solution effect", "chosen genes"))
        assert score.value == float(score.units[1])


def test_an_undefined_unit_cannot_be_moved_by_the_prediction() -> None:
    x = torch.cat([X[:2], X[:2].mean(dim=0, keepdim=True) + 1, X[3:]])
    for pred in (X, X * 0, x):
        assert dict(scored(PearsonDelta(reference_of(x)), pred, GROUP).undefined) == {0: "constant solution effect"}


def test_a_single_perturbation_has_no_others() -> None:
    reference = reference_of(X[:3], GROUP[:3], num_perturbations=1)
    for name in ("pds_cosine", "pds_l1", "pds_l2", "pearson_delta_pertmean"):
        metric = load_metric(name)(reference)
        score = scored(metric, X[:3], GROUP[:3])
        assert (score.value, score.reason, dict(score.undefined)) == (None, ALONE, {0: ALONE})
        assert math.isnan(metric.compute())


def test_exclusion_can_leave_nothing() -> None:
    targets = [[0, 1, 2, 3], []]
    own = scored(ProfileMAE(reference_of(targets=targets), exclude_targets="own"), X + 1, GROUP)
    assert dict(own.undefined) == {0: NO_GENES}
    assert own.value == 1.0
    for metric in (PDSL1, PDSCosine):
        panel = scored(metric(reference_of(targets=targets)), X, GROUP)
        assert (panel.value, panel.reason) == (None, NO_GENES)
        assert dict(scored(metric(reference_of(targets=targets), exclude_targets="own"), X, GROUP).undefined) == {
            0: NO_GENES
        }


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("mse_debiased_ratio", *CELL_LEVEL)])
def test_without_a_reference_perturbations_that_never_came_are_undefined(name: str) -> None:
    x, group = torch.cat([X, X.flip(1)]), torch.tensor([0, 0, 1, 3, 3, 0, 0, 5, 5, 1])
    score = scored(load_metric(name)(num_perturbations=6), x + torch.rand(10, 4), group, x)
    assert dict(score.undefined) == {1: ABSENT, 3: ABSENT, 5: ABSENT}
    assert score.value is not None


def test_without_control_cells_effects_are_undefined() -> None:
    score = scored(PearsonDelta(num_perturbations=2), X[2:], GROUP[2:], X[2:])
    assert (score.value, score.reason) == (None, NO_CONTROL)
    assert scored(ProfileMAE(num_perturbations=2), X[2:] + 1, GROUP[2:], X[2:]).value == 1.0


def test_without_a_reference_the_truth_must_come_along() -> None:
    with pytest.raises(InputError, match="target is missing"):
        PearsonDelta(num_perturbations=2).update(X, perturbation=GROUP)
    with pytest.raises(InputError, match="4 genes, the true ones 3"):
        PearsonDelta(num_perturbations=2).update(X, X[:, :3], perturbation=GROUP)
    panel = Panel({"mae": ProfileMAE(num_perturbations=2)})
    panel.update(x=X, group=GROUP)
    with pytest.raises(InputError, match="target_x is missing"):
        panel.compute()


def test_groups_without_any_counts_have_an_empty_profile() -> None:
    x = torch.cat([X[:2], X[2:3] * 0, X[3:]])
    reference = reference_of(x, scale="counts")
    assert reference.profiles()[1].tolist() == [0.0] * 4
    assert scored(ProfileMAE(reference), X, GROUP).value > 0
    assert scored(ProfileMAE(reference_of(scale="counts")), X * 0, GROUP).value > 0


def test_a_training_loop_can_log_save_copy_and_resume() -> None:
    metric = PearsonDelta(num_perturbations=2)
    noisy = X + torch.linspace(0, 1, 20).view(5, 4)
    assert metric(noisy[:3], X[:3], perturbation=GROUP[:3]).shape == ()
    resumed = pickle.loads(pickle.dumps(metric))  # noqa: S301
    fresh = PearsonDelta(num_perturbations=2)
    fresh.load_state_dict(metric.state_dict())
    for m in (metric, resumed, fresh, metric.clone()):
        m.update(noisy[3:], X[3:], perturbation=GROUP[3:])
    values = [m.compute() for m in (metric, resumed, fresh)]
    assert all(torch.equal(v, values[0]) for v in values)
    metric.reset()
    metric.update(noisy, X, perturbation=GROUP)
    assert torch.equal(metric.compute(), values[0])
