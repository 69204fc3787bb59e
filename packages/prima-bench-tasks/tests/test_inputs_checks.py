"""The small parts of reading: ids, vocabularies, scales, row digests, targets."""

from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.rows import RowMatrix
from prima_bench.tasks.errors import DataError, PredictionError, UsageError
from prima_bench.tasks.inputs.expression import joined, ranks, row_hashes
from prima_bench.tasks.inputs.genes import GeneSpace
from prima_bench.tasks.inputs.ids import as_ids
from prima_bench.tasks.inputs.ledger import Ledger, RowDigest, Rows
from prima_bench.tasks.inputs.scale import ScaleCheck, as_scale
from prima_bench.tasks.inputs.targets import columns_of, named_targets
from prima_bench.tasks.inputs.vocabulary import Vocabulary, normalise

FLOATS = st.floats(-1e9, 1e9, width=32)


@pytest.mark.parametrize("values", [b"abc", "abc", 3, [["a"]], np.zeros((2, 2))])
def test_ids_are_a_list(values: Any) -> None:
    with pytest.raises(PredictionError, match="ids"):
        as_ids(values)


def test_ids_of_other_kinds() -> None:
    assert as_ids(np.array([3, 14])).tolist() == ["3", "14"]
    assert as_ids(np.array([b"AA", b"C"])).tolist() == ["AA", "C"]
    with pytest.raises(PredictionError, match="ids must be strings, not of type float"):
        as_ids([0.5, 1.5])


def test_labels_are_equal_after_composition_and_stripping() -> None:
    ids = as_ids(["a", "b"])
    vocabulary = Vocabulary([normalise("Pré-B")], "cell type")
    assert vocabulary.encode(["Pré-B", "Pré-B "], ids).tolist() == [0, 0]


def test_more_unknown_labels_than_fit_a_message() -> None:
    with pytest.raises(PredictionError) as caught:
        Vocabulary(["A"], "class").encode([f"x{i}" for i in range(5)], as_ids(range(5)))
    assert "and 2 more labels" in caught.value.message


@pytest.mark.parametrize("sparse", [False, True])
@given(x=hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.just(5)), elements=FLOATS), data=st.data())
def test_row_digests_tell_rows_apart(sparse: bool, x: Any, data: st.DataObject) -> None:
    digest = RowDigest(5)
    other = sp.csr_matrix(x.astype(np.float64)) if sparse else x.astype(np.float64)
    assert digest(other).tolist() == digest(x).tolist()
    row, column = data.draw(st.integers(0, len(x) - 1)), data.draw(st.integers(0, 4))
    changed = x.copy()
    changed[row, column] = data.draw(FLOATS)
    same = digest(changed) == digest(x)
    assert same.tolist() == (changed == x).all(axis=1).tolist()


@given(x=hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.just(4)), elements=FLOATS))
def test_row_hashes_see_values_and_labels_and_no_layout(x: Any) -> None:
    labels = [f"p{i % 2}" for i in range(len(x))]
    hashes = row_hashes(x, labels)
    assert row_hashes(sp.csr_matrix(x.astype(np.float64)), labels) == hashes
    assert row_hashes(x, ["q", *labels[1:]])[0] != hashes[0]
    assert [hashes[i] for i in np.argsort(ranks(hashes))] == sorted(hashes)


def test_rows_of_counts_are_told_apart() -> None:
    rows = np.unique(np.random.RandomState(0).poisson(2, size=(20_000, 30)), axis=0).astype(np.float32)
    assert len(np.unique(RowDigest(30)(rows))) == len(rows)


def test_ledger_knows_names_and_forgets() -> None:
    ledger = Ledger("hint")
    rows = Rows(as_ids(["a", "b"]), np.array([7, -3]), np.array([1, 2]), "cells")
    ledger.check(rows)
    ledger.add(rows)
    assert ledger.names_of([-3, 7, 9]) == ["b", "a", "row 9 of another rank"]
    other = Rows(as_ids(["b"]), np.array([-3]), np.array([5]), "cells")
    with pytest.raises(PredictionError, match="'b'"):
        ledger.check(other)
    ledger.clear()
    ledger.check(other)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("scale", "row", "fine"),
    [
        ("counts", [0, 0, 0], True),
        ("counts", [16777216, 1, 0], True),
        ("counts", [0.5, 1, 0], False),
        ("counts", [1e-30], False),
        ("counts", [1e300], False),
        ("log1p_cp10k", [0, 0, 0], True),
        ("log1p_cp10k", [2.0, 1.0], True),  # rounded to one decimal
        ("log1p_cp10k", [1, 1, 1, 1], True),
        ("log1p_cp10k", [1, 1, 1, 1, 1], False),
        ("log1p_cp10k", [0, 1, 0, 2, 0, 1, 3, 1], False),
        ("log1p_cp10k", [1.1, 2, 2, 2, 2, 2], True),
        ("log1p_cp10k", [9.21034, 0, 0], True),
        ("log1p_cp10k", [9.3, 9.3, 0], False),
        ("log1p_cp10k", [40], False),
        ("log1p_cp10k", [1e30, 0.5, 0], False),
    ],
)
def test_scales(scale: Any, row: list[float], fine: bool, sparse: bool) -> None:
    block = np.zeros((3, 8), dtype=np.float64 if max(row) > 1e38 else np.float32)
    block[1, : len(row)], block[2, 1] = row, 1
    check = ScaleCheck(scale, "predictions", PredictionError, 0.0)
    arguments = (sp.csr_matrix(block) if sparse else block, as_ids(["a", "bad", "c"]), as_ids(list("stuvwxyz")))
    if fine:
        check.check(*arguments)
    else:
        with pytest.raises(PredictionError, match="'bad'"):
            check.check(*arguments)


def test_a_scale_is_declared() -> None:
    with pytest.raises(UsageError, match="scale cannot be 'log'"):
        as_scale("log")


GENE_SPACE = GeneSpace(["KLF1", "AHR", "TP53"])


def resolved(target_map: Any, perturbations: list[str], separator: str = "+") -> list[list[int]]:
    return columns_of(named_targets(target_map, perturbations, GENE_SPACE, separator), GENE_SPACE)


@pytest.mark.parametrize(
    ("target_map", "columns"),
    [
        ({"A": "AHR", "B": ["KLF1", "TP53"]}, [[1], [0, 2]]),
        ({"A": "AHR+KLF1", "B": []}, [[0, 1], []]),
        ({"A": "", "B": "NOT1", "other": "AHR"}, [[], []]),
        ({" A": "AHR ", "B ": ("AHR",)}, [[1], [1]]),
    ],
)
def test_target_maps(target_map: Any, columns: Any) -> None:
    assert resolved(target_map, ["A", "B"]) == columns


@pytest.mark.parametrize(
    ("target_map", "seen"),
    [
        ({"A": "AHR"}, "no entry for 1 perturbations: 'B'"),
        ({"A": 3, "B": "AHR"}, "must be gene names"),
        ({"A": "ahr", "B": []}, "'AHR' is"),
        (7, "cannot be a int"),
        ("symbols", "neither a .csv or .tsv file nor one of 'labels'"),
        ("labels", "2 of 2 labels name no gene"),
    ],
)
def test_wrong_target_maps(target_map: Any, seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        resolved(target_map, ["A", "B"])


def test_target_table(tmp_path: Any) -> None:
    (tmp_path / "t.csv").write_text("label,genes\nA,AHR\nB,KLF1+TP53\nA,TP53\n")
    assert resolved(tmp_path / "t.csv", ["A", "B"]) == [[1, 2], [0, 2]]
    (tmp_path / "t.tsv").write_text("label\tgenes\textra\nA\tAHR\t1\n")
    with pytest.raises(DataError, match="needs two columns"):
        resolved(tmp_path / "t.tsv", ["A"])
    with pytest.raises(DataError, match="no file"):
        resolved(tmp_path / "no.csv", ["A"])


def test_labels_as_targets_split_combinations() -> None:
    assert resolved("labels", ["AHR", "AHR+KLF1"]) == [[1], [0, 1]]


def test_labels_may_name_genes_that_were_not_measured_when_told_so() -> None:
    assert resolved("measured_labels", ["AHR", "AHR+XYZ", "XYZ"]) == [[1], [1], []]
    with pytest.raises(UsageError, match="'Ahr'"):
        resolved("measured_labels", ["Ahr"])


def test_compounds_have_no_targets_and_that_is_known() -> None:
    assert resolved("none", ["aspirin", "AHR"]) == [[], []]


def test_a_separator_is_what_it_is_said_to_be(tmp_path: Any) -> None:
    assert resolved("labels", ["AHR_KLF1"], "_") == [[0, 1]]
    assert resolved({"a": "AHR;KLF1"}, ["a"], ";") == [[0, 1]]
    (tmp_path / "t.csv").write_text("label,gene\na,AHR|KLF1\n")
    assert resolved(tmp_path / "t.csv", ["a"], "|") == [[0, 1]]
    with pytest.raises(UsageError, match="target_separator cannot be ''"):
        resolved("labels", ["AHR"], "")


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_blocks_are_joined_in_their_order_and_let_go(form) -> None:
    random = np.random.RandomState(0)
    dense = [random.poisson(0.7, (n, 6)).astype(dtype) for n, dtype in ((3, "f4"), (0, "f4"), (5, "f8"), (1, "f4"))]
    parts = [form(part) for part in dense]
    whole = joined(parts, torch.device("cpu"))
    assert parts == []
    assert whole.dtype == torch.float64
    matrix = whole if isinstance(whole, torch.Tensor) else RowMatrix([whole.canonical("x")]).take(torch.arange(9))
    assert torch.equal(matrix, torch.from_numpy(np.concatenate(dense)))
