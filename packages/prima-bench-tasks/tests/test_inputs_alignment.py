"""Names and labels handed in beside predictions: a pandas Series is matched by its index, never by its order alone."""

from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.tasks.errors import PredictionError
from prima_bench.tasks.inputs.columns import in_row_order


def ordered(values: Any, *rows: Any) -> Any:
    return list(in_row_order(values, rows, "ids", PredictionError))


@given(order=st.permutations(range(6)), shard=st.permutations(range(4)))
def test_a_series_follows_the_names_of_the_rows(order: list[int], shard: list[int]) -> None:
    series = pd.Series([f"value{i}" for i in order], index=[f"row{i}" for i in order])
    names = [f"row{i}" for i in shard]
    expected = [f"value{i}" for i in shard]
    assert ordered(series, names) == expected
    assert ordered(series, None, np.array(names, dtype=object)) == expected
    assert ordered(series, pd.Index(["other"] * 4), names) == expected
    assert ordered(series.astype("category"), names) == expected
    numbered = pd.Series(series.to_numpy(), index=[10 * i for i in order])
    assert ordered(numbered, [str(10 * i) for i in shard]) == expected


def test_the_default_index_goes_by_position() -> None:
    assert ordered(pd.Series(["x", "y"]), ["b", "a"]) == ["x", "y"]
    assert ordered(pd.Series(["x", "y"], index=pd.RangeIndex(5, 7)), ["b", "a"]) == ["x", "y"]
    assert ordered(pd.Series(["x", "y"]), ["0", "1"]) == ["x", "y"]


def test_rows_without_names_leave_nothing_to_match() -> None:
    assert ordered(pd.Series(["x", "y"], index=["q", "r"]), None) == ["x", "y"]


def test_an_index_that_equals_the_rows_may_repeat_names() -> None:
    assert ordered(pd.Series(["x", "y", "x"], index=["a", "b", "a"]), pd.Index(["a", "b", "a"])) == ["x", "y", "x"]
    assert ordered(pd.Series(["x", "y", "x"], index=["a", "b", "a"]), ["a", "b", "a"]) == ["x", "y", "x"]


@pytest.mark.parametrize(
    ("index", "rows", "seen", "hint"),
    [
        (["a", "c"], ["a", "b"], "not that of the rows: it lacks 'b'", "to_numpy()"),
        ([3, 4], ["a", "b"], "not that of the rows: it lacks 'a', 'b'", "by its index"),
        ([0.5, 1.5], ["a", "b"], "not that of the rows", "by its index"),
        (pd.MultiIndex.from_tuples([("a", 1), ("b", 2)]), ["a", "b"], "not that of the rows", "by its index"),
        (pd.RangeIndex(3), ["a", "b"], "not that of the rows", "by its index"),
        (["a", "b", "b"], ["b", "a"], "names 1 row more than once: 'b'", "one value"),
        (pd.RangeIndex(2), ["1", "0"], "in more than one way", "to_numpy()"),
    ],
)
def test_a_series_that_cannot_be_matched(index: Any, rows: list[str], seen: str, hint: str) -> None:
    series = pd.Series([f"v{i}" for i in range(len(index))], index=index)
    with pytest.raises(PredictionError) as caught:
        ordered(series, rows)
    assert seen in caught.value.message
    assert hint in caught.value.hint


def test_perturbations_as_a_series(screen: Any, refused: Any) -> None:
    cells, labels = screen.predictions, screen.predictions.obs["target"]
    bare = anndata.AnnData(cells.X, obs=cells.obs[[]], var=cells.var)
    rest = cells.X.toarray()[9:]
    by_position = labels.reset_index(drop=True)
    for first, second in (
        (labels, labels.sample(frac=1, random_state=1)),  # by name, whatever else they hold
        (by_position[:9], by_position[9:]),
    ):
        run = screen.evaluation()
        run.update(bare[:9], perturbation=first)
        run.update(rest, ids=cells.obs_names[9:], perturbation=second)
        assert run.compute().result_digest == screen.result().result_digest
    error = refused(screen, bare, perturbation=labels.rename(str.upper))
    assert "it lacks 'pred0', 'pred1', 'pred2' and 14 more" in error.message


@pytest.mark.parametrize("form", ["series", "frame", "anndata"])
def test_ids_as_a_series(labelled: Any, refused: Any, form: str) -> None:
    truth = labelled.predictions
    mine = pd.Series(truth.to_numpy(), index=[f"mine{i}" for i in range(24)])
    rows = {"series": mine, "frame": mine.to_frame("type"), "anndata": anndata.AnnData(obs=mine.to_frame("type"))}
    ids = pd.Series(truth.index, index=mine.index)
    for series in (ids, ids[::-1], ids.reset_index(drop=True)):
        run = labelled.evaluation()
        run.update(rows[form], ids=series)
        assert run.compute().result_digest == labelled.result().result_digest
    error = refused(labelled, rows[form], ids=ids.set_axis([i + 1 for i in range(24)]))
    assert "ids are a Series whose index is not that of the rows" in error.message
    assert "to_numpy()" in error.hint
