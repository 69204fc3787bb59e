"""A matrix of rows reads the same whatever its chunks, layouts, dtypes and order."""

import runpy
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics import rows as module
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.rows import RowMatrix, SparseRows

TOYS = runpy.run_path(str(Path(__file__).with_name("kernel_toys.py")))
some, LAYOUTS = TOYS["some"], TOYS["LAYOUTS"]


@st.composite
def matrices(draw) -> tuple[RowMatrix, torch.Tensor]:
    """A view over random chunks, and the same rows as one dense float64 matrix."""
    n, width = draw(st.integers(1, 30)), draw(st.integers(1, 12))
    fields = TOYS["data"](n, width, draw(st.integers(0, 999)), density=draw(st.sampled_from([0.0, 0.3, 1.0])))
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(draw(st.integers(0, 999))))
    chunks = rows.split(draw(st.integers(1, n)))
    layouts = draw(st.lists(st.sampled_from(LAYOUTS), min_size=len(chunks), max_size=len(chunks)))
    order = torch.argsort(rows) if draw(st.booleans()) else None
    matrix = RowMatrix([some(c, fields, k)["x"] for c, k in zip(chunks, layouts, strict=True)], order)
    return matrix, fields["x"].double() if order is not None else fields["x"][rows].double()


@given(matrices(), st.data())
def test_take_is_indexing(drawn, data):
    matrix, dense = drawn
    assert matrix.shape == dense.shape
    positions = torch.tensor(data.draw(st.lists(st.integers(0, len(dense) - 1), max_size=40)), dtype=torch.int64)
    taken = matrix.take(positions)
    assert taken.dtype == matrix.dtype
    assert torch.equal(taken.double(), dense[positions])


@given(matrices(), st.integers(1, 9))
def test_canonical_blocks_are_the_nonzeros_row_by_row(drawn, rows_per_block):
    matrix, dense = drawn
    blocks = list(matrix.canonical_blocks(rows_per_block))
    lengths, columns, values = (torch.cat([b[i] for b in blocks]) for i in range(3))
    assert (lengths.dtype, columns.dtype, values.dtype) == (torch.int64, torch.int32, torch.float64)
    assert torch.equal(lengths, (dense != 0).sum(1))
    assert torch.equal(columns.long(), dense.nonzero()[:, 1])
    assert torch.equal(values, dense[dense != 0])


@given(matrices(), st.integers(1, 40))
def test_equal_rows_compares_values_not_storage(drawn, elements):
    matrix, dense = drawn
    a = torch.arange(len(dense)).repeat_interleave(len(dense))
    b = torch.arange(len(dense)).repeat(len(dense))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_ELEMENTS", elements)
        assert torch.equal(matrix.equal_rows(a, b), (dense[a] == dense[b]).all(1))
    assert matrix.equal_rows(a[:0], b[:0]).shape == (0,)


@given(st.integers(0, 999), st.sampled_from([torch.int16, torch.int32, torch.int64]))
def test_any_csr_becomes_canonical(seed, dtype):
    rng = torch.Generator().manual_seed(seed)
    dense = torch.randint(-1, 2, (6, 7), generator=rng).float()
    kept = (dense != 0) | (torch.rand(6, 7, generator=rng) < 0.3)  # some zeros are stored
    row, column = kept.nonzero().unbind(1)
    shuffled = torch.randperm(len(row), generator=rng)
    shuffled = shuffled[torch.argsort(row[shuffled], stable=True)]
    messy = SparseRows(dense[row, column][shuffled], column[shuffled].to(dtype), kept.sum(1).to(dtype), 7)
    clean, expected = messy.canonical(), SparseRows.from_dense(dense)
    assert clean.columns.dtype == torch.int32
    assert clean.lengths.dtype == torch.int64
    for part in ("values", "columns", "lengths"):
        assert torch.equal(getattr(clean, part), getattr(expected, part))


def test_a_canonical_matrix_is_not_copied():
    rows = SparseRows.from_dense(torch.eye(3))
    assert rows.canonical().values is rows.values


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_torch_csr_is_read_as_it_is():
    dense = torch.tensor([[0.0, 2.0], [0.0, 0.0], [1.0, 0.0]])
    rows = SparseRows.from_csr(dense.to_sparse_csr())
    assert (rows.shape, rows.dtype, rows.device) == ((3, 2), torch.float32, torch.device("cpu"))
    assert torch.equal(RowMatrix([rows]).take(torch.arange(3)), dense)


@pytest.mark.parametrize(
    ("values", "columns", "lengths", "words"),
    [
        ([1.0, 2.0], [0, 0], [2], "row 0 holds column 0 twice"),
        ([1.0, 2.0, 3.0], [2, 1, 2], [0, 3], "row 1 holds column 2 twice"),
        ([1.0], [3], [1], "column 3 is outside 0 to 2"),
        ([1.0], [-1], [1], "column -1 is outside"),
        ([1.0], [0], [2], "sum to the 1 stored values"),
        ([1.0], [0], [2, -1], "non-negative"),
        ([1.0], [0, 1], [1], "equally long"),
        ([1.0], [0.0], [1], "must be integers"),
        ([[1.0]], [[0]], [1], "1-d"),
    ],
)
def test_a_malformed_sparse_matrix_is_refused(values, columns, lengths, words):
    with pytest.raises(InputError, match=words):
        SparseRows(torch.tensor(values), torch.tensor(columns), torch.tensor(lengths), 3).canonical()


@pytest.mark.parametrize("chunks", [[], [torch.ones(1, 2), torch.ones(1, 3)]])
def test_chunks_need_one_width(chunks):
    with pytest.raises(InputError, match="one width"):
        RowMatrix(chunks)


def test_integers_stay_integers():
    big = 2**53 + 1
    matrix = RowMatrix([torch.tensor([[big, 1]]), torch.tensor([[big - 1, 1]])])
    assert matrix.take(torch.tensor([1, 0])).tolist() == [[big - 1, 1], [big, 1]]
    assert matrix.equal_rows(torch.tensor([0, 0]), torch.tensor([0, 1])).tolist() == [True, False]
