"""Tables of differential expression equal those that scipy and numpy make, under each convention."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control, mannwhitneyu

from prima_bench.metrics.batch import Batch
from prima_bench.metrics.errors import InputError, ProfileError, ReferenceDataError
from prima_bench.metrics.fields import Field
from prima_bench.metrics.perturbation.de.convention import CONVENTIONS, DEConvention, convention_of
from prima_bench.metrics.perturbation.de.table import DETable, fold_change, predicted_table, true_table
from prima_bench.metrics.perturbation.params import DE_TABLE
from prima_bench.metrics.perturbation.reference import PerturbationReference, Scale
from prima_bench.metrics.rows import SparseRows

FIELDS = (Field("x", "real", "rows"), Field("group", "integer", "scalar"))


def reference_of(x: np.ndarray, group: np.ndarray, scale: Scale) -> PerturbationReference:
    return PerturbationReference.from_cells(
        torch.from_numpy(x), torch.from_numpy(group), num_perturbations=int(group.max()), scale=scale
    )


def batch_of(x: torch.Tensor | SparseRows, group: torch.Tensor) -> Batch:
    return Batch(FIELDS, [{"x": x, "group": group, "index": torch.arange(len(group))}], torch.device("cpu"))


def linear(x: np.ndarray, scale: Scale, target_sum: float) -> np.ndarray:
    if scale != "counts":
        return np.expm1(x.astype(np.float64))
    total = x.sum(axis=1, dtype=np.float64, keepdims=True)
    return np.where(total > 0, x * target_sum / np.where(total > 0, total, 1), 0.0)


def means(values: np.ndarray, convention: DEConvention) -> np.ndarray:
    if convention.mean == "geometric":
        return np.expm1(np.log1p(values).mean(axis=0))
    return values.mean(axis=0)


def expected(
    true: tuple[np.ndarray, np.ndarray], pred: tuple[np.ndarray, np.ndarray], scale: Scale, convention: DEConvention
) -> dict[str, np.ndarray]:
    """The table of ``pred`` against the control of ``true``, or its own; one gene and perturbation at a time."""
    values = {side: linear(x, scale, convention.target_sum) for side, (x, _) in (("true", true), ("pred", pred))}
    # Ranks of the values as they are: of shares, which a total of 1 gives, and of logs.
    ranked = {
        side: linear(x, scale, 1.0) if scale == "counts" else x for side, (x, _) in (("true", true), ("pred", pred))
    }
    control_side = "pred" if convention.control_source == "prediction" else "true"
    codes = {"true": true[1], "pred": pred[1]}
    control = values[control_side][codes[control_side] == 0]
    ranked_control = ranked[control_side][codes[control_side] == 0].astype(np.float64)
    solution = values["true"][true[1] == 0]
    tested = (solution > 0).mean(axis=0) >= convention.min_control_fraction
    if scale == "counts":
        tested &= solution.mean(axis=0) * 1e6 / convention.target_sum > convention.min_control_cpm
    eps = convention.pseudocount
    if eps is None:
        least = [row[row > 0].min() for row in solution if (row > 0).any()]
        eps = np.median(least) / len(solution) if least else 1.0
    p, fdr, lfc = [], [], []
    for code in range(1, int(true[1].max()) + 1):
        cells = ranked["pred"][pred[1] == code].astype(np.float64)
        own = np.array([_p_value(cells[:, g], ranked_control[:, g]) for g in range(cells.shape[1])])
        adjusted = np.ones_like(own)
        if tested.any():
            adjusted[tested] = false_discovery_control(own[tested])
        mean, origin = (means(v, convention) for v in (values["pred"][pred[1] == code], control))
        with np.errstate(divide="ignore", invalid="ignore"):
            change = np.log2((mean + eps) / (origin + eps))
        change[np.isclose(mean + eps, origin + eps, rtol=1e-12, atol=0)] = 0.0
        p.append(own)
        fdr.append(adjusted)
        lfc.append(change)
    return {"p_value": np.array(p), "fdr": np.array(fdr), "log_fold_change": np.array(lfc), "tested": tested}


def _p_value(x: np.ndarray, y: np.ndarray) -> float:
    if len(np.unique(np.concatenate([x, y]))) == 1:
        return 1.0  # where scipy divides by no variance
    return float(mannwhitneyu(x, y, method="asymptotic").pvalue)


def assert_equal(table: DETable, numbers: dict[str, np.ndarray]) -> None:
    for name in ("p_value", "fdr", "log_fold_change"):
        np.testing.assert_allclose(getattr(table, name).numpy(), numbers[name], rtol=1e-10, atol=1e-12, err_msg=name)
    assert (table.tested.numpy() == numbers["tested"]).all()


def cells(rng: np.random.Generator, scale: Scale, group: np.ndarray, genes: int) -> np.ndarray:
    level = rng.lognormal(0, 1.5, genes) * rng.integers(0, 2, genes)  # all-zero genes among them
    effects = np.vstack([np.zeros(genes), rng.normal(0, 1.5, (group.max(), genes))])
    x = rng.poisson(level * np.exp(effects[group])).astype(np.float32)
    x[rng.random(len(group)) < 0.1] = 0  # and cells
    if scale == "counts":
        return x
    return np.log1p(linear(x, "counts", 1e4)).astype(np.float32)


@given(data=st.data(), name=st.sampled_from(list(CONVENTIONS)), scale=st.sampled_from(("counts", "log1p_cp10k")))
def test_tables_equal_scipy(data: st.DataObject, name: str, scale: Scale) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=2, max_size=4))
    group = np.repeat(np.arange(len(sizes)), sizes)
    pred_group = np.repeat(np.arange(len(sizes)), rng.permutation(sizes))
    genes = data.draw(st.integers(1, 9))
    true, pred = (cells(rng, scale, g, genes) for g in (group, pred_group))
    convention = convention_of(name)
    reference = reference_of(true, group, scale)
    assert_equal(true_table(reference, convention), expected((true, group), (true, group), scale, convention))
    for x in (torch.from_numpy(pred), SparseRows.from_dense(torch.from_numpy(pred))):
        table = predicted_table(batch_of(x, torch.from_numpy(pred_group)), reference, convention)
        assert_equal(table, expected((true, group), (pred, pred_group), scale, convention))


def test_the_statistic_is_the_signed_z_of_the_p_value() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1], [30, 20])
    x = rng.poisson(np.where(group[:, None] == 1, [[1, 9, 3, 3]], [[9, 1, 3, 3]])).astype(np.float32)
    table = true_table(reference_of(x, group, "counts"), convention_of("default"))
    p = torch.special.erfc(table.statistic.abs() / 2**0.5)
    np.testing.assert_allclose(p.numpy(), table.p_value.numpy(), rtol=1e-12)
    assert table.statistic[0, 0] < -4
    assert table.statistic[0, 1] > 4


def test_cells_with_the_same_share_are_tied_whatever_their_totals() -> None:
    # In float64, 3 * (1 / 7) and 9 * (1 / 21) differ, as do many counts that are scaled by a factor.
    totals = np.arange(3, 60)
    x = np.stack([totals, 9 * totals], axis=1).astype(np.float32)  # a tenth of every cell's total
    group = (np.arange(len(totals)) % 2).astype(np.int64)
    table = true_table(reference_of(x, group, "counts"), convention_of("vcc2026"))
    assert table.p_value.tolist() == [[1.0, 1.0]]
    assert table.log_fold_change.tolist() == [[0.0, 0.0]]


def test_the_floor_of_fold_changes_is_one_count_in_one_control_cell_of_median_depth() -> None:
    x = np.zeros((4, 3), dtype=np.float32)
    x[:3] = [[1, 99, 0], [1, 199, 0], [1, 399, 0]]  # depths 100, 200, 400
    x[3] = [0, 50, 50]
    group = np.array([0, 0, 0, 1])
    floor = 1e4 / 200 / 3
    expected_lfc = np.log2((5000 + floor) / floor)
    for scale in ("counts", "log1p_cp10k"):
        values = x if scale == "counts" else np.log1p(linear(x, "counts", 1e4))
        table = true_table(reference_of(values, group, scale), convention_of("default"))
        assert table.log_fold_change[0, 2] == pytest.approx(expected_lfc, rel=1e-12)


def test_a_floor_reads_the_solutions_control_alone() -> None:
    rng = np.random.default_rng(1)
    group = np.repeat([0, 1, 2], [300, 20, 20])
    x = rng.poisson(2.0, (340, 6)).astype(np.float32)
    x[:300, :2] = 0
    x[:2, 0] = 1  # in less than one control cell in a hundred
    x[:3, 1] = 1  # in just as many
    x[group == 0, 2] = 0
    reference = reference_of(x, group, "counts")
    table = true_table(reference, convention_of("default"))
    assert table.tested.tolist() == [[False, True, False, True, True, True]] * 2
    assert (table.fdr[:, 0] == 1).all()
    flooded = torch.from_numpy(x).clone()
    flooded[:, [0, 2]] = 50
    assert predicted_table(
        batch_of(flooded, torch.from_numpy(group)), reference, convention_of("default")
    ).tested.equal(table.tested)


def test_a_table_is_made_once_for_solution_and_convention_and_goes_with_the_solution() -> None:
    rng = np.random.default_rng(2)
    group = np.repeat([0, 1], [20, 20])
    reference = reference_of(cells(rng, "counts", group, 5), group, "counts")
    table = true_table(reference, convention_of("default"))
    assert true_table(reference, convention_of("default")) is table
    assert true_table(reference, convention_of("vcc2026")) is not table
    batch = batch_of(torch.from_numpy(cells(rng, "counts", group, 5)), torch.from_numpy(group))
    assert predicted_table(batch, reference, convention_of("default")) is predicted_table(
        batch, reference, convention_of("default")
    )
    gone = weakref.ref(reference)
    del reference, batch
    gc.collect()
    assert gone() is None


def test_counts_that_are_no_whole_numbers_have_totals_that_no_layout_moves() -> None:
    rng = np.random.default_rng(3)
    group = np.repeat([0, 1], [20, 20])
    reference = reference_of(cells(rng, "counts", group, 30), group, "counts")
    x = torch.from_numpy(rng.lognormal(0, 4, (40, 30)) * (rng.random((40, 30)) < 0.7)).float()
    dense = predicted_table(batch_of(x, torch.from_numpy(group)), reference, convention_of("default"))
    sparse = predicted_table(
        batch_of(SparseRows.from_dense(x), torch.from_numpy(group)), reference, convention_of("default")
    )
    for name in ("p_value", "fdr", "log_fold_change", "statistic"):
        assert getattr(dense, name).equal(getattr(sparse, name)), name


def test_fold_changes_of_zero_negative_and_equal_means() -> None:
    mean = torch.tensor([[0.0, 0.0, -1.0, 0.3, 2.0]], dtype=torch.float64)
    control = torch.tensor([0.0, 1.0, 1.0, 0.1 + 0.2, 0.0], dtype=torch.float64)
    assert fold_change(mean, control, 0.0).tolist() == [[0.0, -np.inf, -np.inf, 0.0, np.inf]]
    assert fold_change(mean, control, 1.0).tolist() == [[0.0, -1.0, -1.0, 0.0, np.log2(3.0)]]


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
def test_what_is_too_large_is_refused_by_group(scale: Scale) -> None:
    group = np.repeat([0, 1, 2], 4)
    x = np.random.default_rng(4).poisson(3.0, (12, 5)).astype(np.float64)
    huge = x.copy()
    huge[9, 1] = 1e150
    with pytest.raises(ReferenceDataError, match="too large to be tested in group 2"):
        true_table(reference_of(huge, group, scale), convention_of("default"))
    reference = reference_of(x, group, scale)
    with pytest.raises(ProfileError, match="group 2") as caught:
        predicted_table(batch_of(torch.from_numpy(huge), torch.from_numpy(group)), reference, convention_of("default"))
    assert caught.value.groups == (2,)
    huge[9, 1], huge[0, 0] = 1.0, 1e150  # a predicted control cell, which has a say under one convention alone
    batch = batch_of(torch.from_numpy(huge), torch.from_numpy(group))
    assert predicted_table(batch, reference, convention_of("default")).p_value.isfinite().all()
    with pytest.raises(ProfileError, match="group 0"):
        predicted_table(batch, reference, convention_of("cell_eval"))


def test_an_unknown_convention_is_refused() -> None:
    assert DE_TABLE.choices == tuple(CONVENTIONS)
    with pytest.raises(InputError, match="table cannot be 'wilcoxon'"):
        convention_of("wilcoxon")
