"""What is refused depends on the rows alone: not on which rows come with them, in which order, block or layout."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prima_bench.tasks.errors import PredictionError
from prima_bench.tasks.inputs import matrix

N = 5
FIXTURES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

CELLS: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "as it is": lambda row: row,
    "zero": lambda row: row * 0,
    "ones": lambda row: row * 0 + 1,
    "four ones": lambda row: np.r_[np.ones(4), np.zeros(len(row) - 4)],
    "rounded": np.rint,
    "rounded to a decimal": lambda row: np.round(row, 1),
    "halved": lambda row: row / 2,
    "log1p": np.log1p,
    "expm1": lambda row: np.expm1(np.minimum(row, 20)),
    "negative": lambda row: -row,
    "one negative": lambda row: np.r_[-1.0, row[1:]],
    "NaN": lambda row: np.r_[row[:-1], np.nan],
    "infinite": lambda row: np.r_[np.inf, row[1:]],
    "2^53": lambda row: np.r_[2.0**53, row[1:]],
    "1e300": lambda row: np.r_[row[:-1], 1e300],
    "at the limit": lambda row: np.r_[np.log1p(11_000), row[1:] * 0],
}

SCORES: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "as it is": lambda row: row,
    "one-hot": lambda row: (row == row.max()).astype(float),
    "zero": lambda row: row * 0,
    "off by 0.00098": lambda row: row * 1.00098,
    "off by 0.00102": lambda row: row * 1.00102,
    "off by 0.007": lambda row: row * 1.007,
    "negative": lambda row: np.r_[-row[0], row[1:]],
    "logits": lambda row: np.log(row),
    "NaN": lambda row: np.r_[np.nan, row[1:]],
    "infinite": lambda row: np.r_[row[1:], np.inf],
}


def is_refused(run: Any, x: Any, **arguments: Any) -> bool:
    run.reset()
    try:
        run.update(x, **arguments)
    except PredictionError:
        assert "0 rows" in repr(run)
        return True
    return False


@pytest.mark.parametrize("name", ["screen", "log_screen"])
@FIXTURES
@given(changes=st.lists(st.sampled_from(sorted(CELLS)), min_size=N, max_size=N), order=st.permutations(range(N)))
def test_cells(request: Any, name: str, changes: list[str], order: list[int]) -> None:
    data = request.getfixturevalue(name)
    run = data.evaluation(metrics="mae")
    dense = data.predictions.X[:N].toarray().astype(np.float64)
    x = np.stack([CELLS[change](row) for change, row in zip(changes, dense, strict=True)])
    ids = data.predictions.obs_names[:N].to_numpy()
    labels = data.predictions.obs["target"].to_numpy()[:N]
    alone = [is_refused(run, x[[i]], ids=ids[[i]], perturbation=labels[[i]]) for i in range(N)]
    for rows in (x, sp.csr_matrix(x)):
        assert is_refused(run, rows, ids=ids, perturbation=labels) == any(alone)
        assert is_refused(run, rows[order], ids=ids[order], perturbation=labels[order]) == any(alone)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matrix, "BLOCK_BYTES", 1)
            assert is_refused(run, rows, ids=ids, perturbation=labels) == any(alone)


@pytest.mark.parametrize("kind", ["float64", "float32", "bfloat16", "frame"])
@FIXTURES
@given(changes=st.lists(st.sampled_from(sorted(SCORES)), min_size=N, max_size=N), order=st.permutations(range(N)))
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_scores(labelled: Any, kind: str, changes: list[str], order: list[int]) -> None:
    run = labelled.evaluation(metrics="accuracy")
    scores = labelled.others["scores"].iloc[:N]
    exact = scores.to_numpy(dtype=np.float64)
    exact = exact / exact.sum(axis=1, keepdims=True)
    rows = np.stack([SCORES[change](row) for change, row in zip(changes, exact, strict=True)])
    x: Any = {
        "float64": lambda: rows,
        "float32": lambda: rows.astype(np.float32),
        "bfloat16": lambda: torch.from_numpy(rows).bfloat16(),
        "frame": lambda: pd.DataFrame(rows.astype(np.float32), columns=scores.columns),
    }[kind]()
    ids = scores.index.to_numpy()

    def part(which: list[int]) -> Any:
        return x.iloc[which] if isinstance(x, pd.DataFrame) else x[which]

    alone = [is_refused(run, part([i]), ids=ids[[i]]) for i in range(N)]
    assert is_refused(run, part(list(range(N))), ids=ids) == any(alone)
    assert is_refused(run, part(order), ids=ids[order]) == any(alone)


@FIXTURES
@given(
    labels=st.lists(
        st.sampled_from(
            ["NK", "B cell ", "unknown", "nk", "", "0", "\ud800", None, 0, 1.0, True, float("nan"), ["NK"]]
        ),
        min_size=N,
        max_size=N,
    ),
    order=st.permutations(range(N)),
)
def test_labels(labelled: Any, labels: list[Any], order: list[int]) -> None:
    run = labelled.evaluation(metrics="accuracy")
    ids = list(labelled.predictions.index[:N])
    alone = [is_refused(run, [label], ids=[name]) for label, name in zip(labels, ids, strict=True)]
    assert is_refused(run, labels, ids=ids) == any(alone)
    assert is_refused(run, [labels[i] for i in order], ids=[ids[i] for i in order]) == any(alone)
