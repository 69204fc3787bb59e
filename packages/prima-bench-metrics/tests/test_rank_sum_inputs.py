"""Rank-sum tests refuse what they cannot test, and say what and where."""

import pytest
import torch

from prima_bench.metrics import InputError, RowMatrix, SparseRows, rank_sum_test
from prima_bench.metrics.differential.ties import MOST_CELLS

X = torch.tensor([[0.0, 1.0], [2.0, 0.0], [3.0, 3.0]])
GROUP = torch.tensor([0, 1, 1])


@pytest.mark.parametrize("bad", [torch.nan, -torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_that_are_not_finite_are_refused_with_their_genes(bad, dtype):
    x = X.to(dtype, copy=True)
    x[1, 1] = bad
    for rows in (x, SparseRows.from_dense(x), RowMatrix([x[:1], SparseRows.from_dense(x[1:])])):
        with pytest.raises(InputError, match=r"genes \[1\] hold NaN or infinity"):
            rank_sum_test(rows, GROUP, 2)
        with pytest.raises(InputError, match=r"genes \[1\]"):
            rank_sum_test(X, GROUP, 2, control=rows[1:2] if isinstance(rows, torch.Tensor) else rows)
        left_out = rank_sum_test(rows, torch.tensor([0, -1, 1]), 2)
        assert left_out.n_cells.tolist() == [1, 1]


def test_linear_expression_that_overflows_is_refused():
    assert float(rank_sum_test(X * 300, GROUP, 2).mean.max()) == 750
    with pytest.raises(InputError, match=r"genes \[0, 1\] .*expm1"):
        rank_sum_test(X * 300, GROUP, 2, linear="expm1")


def test_quotients_that_overflow_are_refused():
    total = torch.tensor([1.0, 1e-308, 1.0], dtype=torch.float64)
    with pytest.raises(InputError, match=r"genes \[0\]"):
        rank_sum_test(X, GROUP, 2, total=total)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[0]}, "x must be real"),
        ({"x": X.bool()}, "x must be real"),
        ({"x": X.to(torch.complex64)}, "x must be real"),
        ({"x": X.to_sparse()}, "x is a torch.sparse_coo tensor"),
        ({"x": torch.full((3, 2), 2**53 + 1)}, "beyond 2\\^53"),
        ({"x": torch.full((3, 2), -(2**63))}, "beyond 2\\^53"),
        ({"x": SparseRows(torch.ones(2), torch.tensor([0, 7]), torch.tensor([1, 1, 0]), 2)}, "x: column 7"),
        ({"group": GROUP[:2]}, "3 cells need one integer group each"),
        ({"group": GROUP.float()}, "3 cells need one integer group each"),
        ({"group": GROUP.bool()}, "3 cells need one integer group each"),
        ({"group": GROUP + 1}, "group 2 is outside 0 to 1"),
        ({"n_groups": 0}, "n_groups"),
        ({"linear": "log"}, "linear='log'"),
        ({"total": torch.ones(2, dtype=torch.float64)}, "3 cells need one total each"),
        ({"total": torch.ones(3, dtype=torch.int64)}, "3 cells need one total each"),
        ({"total": torch.tensor([1.0, 0.0, torch.nan])}, r"totals of 2 cells .*\[1, 2\]"),
        ({"control_total": torch.ones(3)}, "control_total needs a control"),
        ({"control": X[:, :1]}, "control must have the genes"),
        ({"control": X, "control_total": torch.ones(2)}, "control: 3 cells need one total each"),
        ({"control": X.bool()}, "control must be real"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {"x": X, "group": GROUP, "n_groups": 2} | change
    with pytest.raises(InputError, match=message):
        rank_sum_test(**arguments)


def test_more_cells_than_the_tie_term_can_hold_are_refused():
    n = MOST_CELLS + 1
    x = SparseRows(torch.zeros(0), torch.zeros(0, dtype=torch.int32), torch.zeros(n, dtype=torch.int64), 1)
    group = torch.zeros(n, dtype=torch.int8)
    group[0] = 1
    with pytest.raises(InputError, match=f"{n} cells together, more than {MOST_CELLS}"):
        rank_sum_test(x, group, 2)
    group[0] = -1
    group[1:9] = 1
    assert rank_sum_test(x, group, 2).n_cells.tolist() == [n - 9, 8]


@pytest.mark.parametrize("n_groups", [1, 2, 4])
def test_no_cells_and_no_genes_are_tested_as_nothing(n_groups):
    for x in (torch.zeros(0, 3), SparseRows.from_dense(torch.zeros(0, 3)), torch.rand(5, 3)):
        result = rank_sum_test(x, torch.full((x.shape[0],), -1), n_groups)
        assert result.u.shape == (n_groups - 1, 3)
        assert (result.p_value == 1).all()
        assert (result.mean == 0).all()
        assert result.n_cells.tolist() == [0] * n_groups
    assert rank_sum_test(torch.zeros(3, 0), torch.zeros(3, dtype=torch.int64), n_groups).u.shape == (n_groups - 1, 0)
