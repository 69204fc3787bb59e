"""Whatever is handed in, only errors of ours come out, with a hint, and nothing is half taken in."""

import ast
import datetime
import decimal
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from prima_bench.tasks.errors import PrimaBenchError, UsageError
from prima_bench.tasks.evaluation import Evaluation

N = 17
"""As many rows as the screen predicts."""

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:Sparse CSR tensor support")


class Unreadable:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no array")


def annotated(**parts: Any) -> anndata.AnnData:
    cells = anndata.AnnData(np.zeros((N, 12), np.float32))
    cells.obsm["type_scores"] = parts.get("scores", np.zeros((N, 4)))
    cells.uns["classes"] = parts.get("classes", ["a", "b", "c", "d"])
    return cells


def frame(values: Any, *columns: Any) -> pd.DataFrame:
    return pd.DataFrame([values] * N, columns=columns)


SCALARS: dict[str, Callable[[], Any]] = {
    "5": lambda: 5,
    "0.5": lambda: 0.5,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "True": lambda: True,
    "a complex number": lambda: 1j,
    "a number of 400 digits": lambda: 10**400,
    "bytes": lambda: b"abc",
    "an empty string": lambda: "",
    "a string": lambda: "x",
    "a lone surrogate": lambda: "\ud800",
    "NUL": lambda: "a\0b",
    "an object": object,
    "a type": lambda: int,
    "a function": lambda: lambda: 1,
    "a module": lambda: np,
    "an exception": lambda: ValueError("x"),
    "a date": lambda: datetime.date(2020, 1, 1),
    "a decimal": lambda: decimal.Decimal(1),
    "a missing file": lambda: Path("missing.h5ad"),
    "a folder": lambda: Path("/"),
    "a path with NUL": lambda: "a\0b.h5ad",
    "a path with a surrogate": lambda: "\ud800.csv",
    "a path too long": lambda: "x" * 5000 + ".csv",
    "a memoryview": lambda: memoryview(b"abc"),
    "no array": Unreadable,
}

PLAIN: dict[str, Callable[[], Any]] = {
    "an empty list": list,
    "an empty tuple": tuple,
    "a set": lambda: {"a", "b"},
    "an empty set": set,
    "a frozenset": lambda: frozenset("a"),
    "a dict": lambda: {"a": 1},
    "an empty dict": dict,
    "keys": lambda: {"a": 1}.keys(),
    "a generator": lambda: (str(i) for i in range(N)),
    "an iterator": lambda: iter([1]),
    "ragged strings": lambda: [["a"], ["b", "c"]],
    "ragged numbers": lambda: [[0.25] * 4] * (N - 1) + [[0.1]],
    "lists": lambda: [["a", "b"]] * N,
    "Nones": lambda: [None] * N,
    "NaNs": lambda: [float("nan")] * N,
    "integers": lambda: [-1] * N,
    "huge integers": lambda: [10**400] * N,
    "booleans": lambda: [True] * N,
    "mixed": lambda: ["a", 1, 2.0, None] * 4 + ["a"],
    "objects": lambda: [object() for _ in range(N)],
    "dicts": lambda: [{}] * N,
    "tuples": lambda: [("a", "b")] * N,
    "arrays": lambda: [np.zeros(4)] * N,
    "tensors": lambda: [torch.zeros(4)] * N,
    "surrogates": lambda: ["\ud800"] * N,
    "strings with NUL": lambda: [f"a\0{i}" for i in range(N)],
    "byte strings": lambda: [b"a"] * N,
    "strings and NaN": lambda: ["NK", np.nan] * 8 + ["NK"],
    "strings and NA": lambda: ["NK", pd.NA] * 8 + ["NK"],
    "decimals": lambda: [decimal.Decimal(1)] * N,
    "a model with an unknown part": lambda: {"name": "m", "nam": 1},
    "a model with a name of bytes": lambda: {"name": b"m"},
    "a model with keys that are no strings": lambda: {1: 2},
    "a model with nested parameters": lambda: {"params": {"a": {"b": 1}}},
    "a model with NaN": lambda: {"params": {"x": float("nan")}},
    "a model with infinity": lambda: {"params": {"x": float("inf")}},
    "a model with a surrogate": lambda: {"name": "\ud800"},
    "a model with a surrogate as a key": lambda: {"params": {"\ud800": 1}},
}

ARRAYS: dict[str, Callable[[], Any]] = {
    "0-d": lambda: np.array(3),
    "0-d string": lambda: np.array("a"),
    "1-d": lambda: np.zeros(N),
    "2-d objects": lambda: np.zeros((N, 12), object),
    "2-d integers": lambda: np.zeros((N, 4), int),
    "2-d strings": lambda: np.full((N, 4), "a"),
    "3-d": lambda: np.zeros((2, 3, 4)),
    "empty": lambda: np.zeros(0),
    "no rows": lambda: np.zeros((0, 12)),
    "no columns": lambda: np.zeros((N, 0)),
    "ragged array": lambda: np.array([[1], [1, 2]], dtype=object),
    "boolean array": lambda: np.zeros(N, bool),
    "dates": lambda: np.array(["2020-01-01"] * N, dtype="M8[D]"),
    "times": lambda: np.zeros(N, "m8[s]"),
    "complex": lambda: np.zeros((N, 12), complex),
    "structured": lambda: np.zeros(N, dtype=[("a", int), ("b", float)]),
    "records": lambda: np.rec.array([(1, 2.0)] * N),
    "void": lambda: np.zeros(N, "V4"),
    "beyond float64": lambda: np.full((N, 12), np.longdouble("1e4000")),
    "0-d tensor": lambda: torch.tensor(3),
    "1-d tensor": lambda: torch.zeros(N),
    "3-d tensor": lambda: torch.zeros(2, 3, 4),
    "empty tensor": lambda: torch.zeros(0),
    "boolean tensor": lambda: torch.zeros(N, dtype=torch.bool),
    "complex tensor": lambda: torch.zeros(N, 12, dtype=torch.complex64),
    "meta tensor": lambda: torch.zeros(N, 12, device="meta"),
    "1-d meta tensor": lambda: torch.zeros(N, device="meta"),
    "bfloat16 tensor": lambda: torch.zeros(N, dtype=torch.bfloat16),
    "float8 tensor": lambda: torch.zeros(N, 12).to(torch.float8_e4m3fn),
    "1-d sparse tensor": lambda: torch.zeros(N).to_sparse(),
    "quantized tensor": lambda: torch.quantize_per_tensor(torch.zeros(N, 12), 0.1, 0, torch.quint8),
    "tensor with a gradient": lambda: torch.zeros(N, requires_grad=True),
    "empty CSR": lambda: sp.csr_matrix((0, 12)),
    "complex CSR": lambda: sp.csr_matrix((N, 12), dtype=complex),
    "1-d COO": lambda: sp.coo_array(np.zeros(N)),
    "DOK": lambda: sp.dok_matrix((N, 3)),
}

TABLES: dict[str, Callable[[], Any]] = {
    "series of lists": lambda: pd.Series([["a"]] * N),
    "series of sets": lambda: pd.Series([{1}] * N),
    "series of series": lambda: pd.Series([pd.Series([1])] * N),
    "series of NaN": lambda: pd.Series([np.nan] * N),
    "empty series": lambda: pd.Series([], dtype=object),
    "series of dates": lambda: pd.Series(pd.to_datetime(["2020-01-01"] * N)),
    "series of intervals": lambda: pd.Series(pd.interval_range(0, N)),
    "series of complex numbers": lambda: pd.Series(np.zeros(N, complex)),
    "series with missing integers": lambda: pd.Series([1, None] * 8 + [1], dtype="Int64"),
    "series with missing booleans": lambda: pd.Series([True, None] * 8 + [True], dtype="boolean"),
    "series with missing strings": lambda: pd.Series(["a", None] * 8 + ["a"], dtype="string"),
    "series of two levels": lambda: pd.Series("a", index=pd.MultiIndex.from_product([["a"], range(N)])),
    "series with another index": lambda: pd.Series("NK", index=range(1, N + 1)),
    "index of two levels": lambda: pd.MultiIndex.from_product([["a"], range(N)]),
    "index of dates": lambda: pd.date_range("2020", periods=N),
    "integer categories": lambda: pd.Categorical([1] * N),
    "empty frame": pd.DataFrame,
    "frame": lambda: frame([1], "a"),
    "frame with two label columns": lambda: frame(["NK", "NK"], "type", "type"),
    "frame with two target columns": lambda: frame(["AHR", "AHR"], "target", "target"),
    "frame of two levels": lambda: frame([0.5, 0.5], *pd.MultiIndex.from_product([["type", "target"], ["y"]])),
    "frame of lists": lambda: pd.DataFrame({"type": [["a"]] * N, "target": [["a"]] * N}),
    "frame of both labels and lists": lambda: pd.DataFrame({"type": [["a"]] * N, "cell_type": [np.ones(2)] * N}),
    "frame of dates": lambda: pd.DataFrame({"type": pd.to_datetime(["2020"] * N)}),
    "frame of numbered columns": lambda: frame([0.5] * 3, 0, 1, 2),
    "frame with a nameless column": lambda: frame([1.0, "AHR"], None, "target"),
    "frame of complex numbers": lambda: frame([1j, 1j], "B cell", "NK"),
    "frame of objects": lambda: frame([object(), "AHR"], "x", "target"),
    "frame of strings as scores": lambda: frame(["a"], "B cell"),
    "frame of missing scores": lambda: pd.DataFrame({"B cell": pd.array([1.0, None] * 8 + [1.0], dtype="Float64")}),
    "frame of dates as scores": lambda: pd.DataFrame({"B cell": pd.to_datetime(["2020"] * N)}),
    "frame of categories as scores": lambda: pd.DataFrame({"B cell": pd.Categorical([1] * N)}),
    "frame without rows": lambda: pd.DataFrame({"type": [], "target": []}),
    "empty AnnData": anndata.AnnData,
    "AnnData without labels": lambda: anndata.AnnData(np.zeros((N, 12), np.float32)),
    "AnnData without X": lambda: anndata.AnnData(obs=pd.DataFrame({"target": ["AHR"] * N}, index=map(str, range(N)))),
    "AnnData with strings as scores": lambda: annotated(scores=np.full((N, 4), "a")),
    "AnnData with 3-d scores": lambda: annotated(scores=np.zeros((N, 4, 2))),
    "AnnData with classes as a dict": lambda: annotated(classes={"a": 1}),
    "AnnData with classes as a number": lambda: annotated(classes=5),
}

ODD = SCALARS | PLAIN | ARRAYS | TABLES
ARGUMENTS = ("dataset", "metrics", "device", "model", "solution", "anchors", "sync_to", "buffer")
OPTIONS = {
    "perturbation_prediction": (
        "perturbation_key",
        "control",
        "scale",
        "target_map",
        "target_separator",
        "context_key",
    ),
    "cell_type_annotation": ("label_key", "classes", "scores"),
}


def is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except PrimaBenchError as caught:
        error = caught
    else:
        return False
    assert error.hint, error.message
    str(error).encode()
    return True


@pytest.fixture(params=["screen", "labelled"])
def data(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", ODD)
def test_arguments(data: Any, name: str) -> None:
    for argument in (*ARGUMENTS, *OPTIONS[data.task]):
        is_refused(lambda given=argument: data.evaluation(**{given: ODD[name]()}))
    is_refused(lambda: Evaluation(ODD[name]()))
    is_refused(lambda: Evaluation(data.task, ODD[name](), device="cpu"))


@pytest.mark.parametrize("name", [*ODD, "None"])
def test_predictions_names_and_labels(data: Any, name: str) -> None:
    screen = data.task == "perturbation_prediction"
    odd = ODD.get(name, lambda: None)
    rows = data.predictions
    ids = list(rows.obs_names if screen else rows.index)
    labels = {"perturbation": list(rows.obs["target"])} if screen else {}
    bare = rows.X.toarray() if screen else list(rows)
    run = data.evaluation()
    for call in (
        lambda: run.update(odd()),
        lambda: run.update(odd(), ids=ids[:N], **labels),
        lambda: run.update(rows, ids=odd()),
        lambda: run.update(rows, perturbation=odd()),
        lambda: run.update(bare, ids=odd(), **labels),
        lambda: run.update(bare, ids=ids, perturbation=odd()),
        lambda: run.update(rows, context=odd()),
    ):
        if is_refused(call):
            assert "0 rows" in repr(run)
        run.reset()
    run.update(rows)
    assert run.compute().predictions.n_rows == len(ids)


@pytest.mark.parametrize("name", ODD)
def test_contexts(screen: Any, name: str) -> None:
    solution, rows = (
        anndata.AnnData(cells.X, obs=cells.obs.assign(donor="d"), var=cells.var)
        for cells in (screen.solution, screen.predictions)
    )
    run = screen.evaluation(solution=solution, context_key="donor")
    bare = screen.predictions.X.toarray()
    ids, labels = list(rows.obs_names), list(rows.obs["target"])
    for call in (
        lambda: run.update(rows, context=ODD[name]()),
        lambda: run.update(bare, ids=ids, perturbation=labels, context=ODD[name]()),
    ):
        if is_refused(call):
            assert "0 rows" in repr(run)
        run.reset()


def test_what_is_recorded_of_a_model_can_be_saved(labelled: Any, tmp_path: Path) -> None:
    from prima_bench.tasks.results.schema import EvalResult

    for model in ("", "Ä \N{DNA DOUBLE HELIX}", "a\0b", {"params": {"seed": 2**64, "x": 0.5, "y": True, "z": None}}):
        result = labelled.result(model=model)
        loaded = EvalResult.load(result.save(tmp_path / "r.json"))
        assert (loaded.model, loaded.result_digest) == (result.model, result.result_digest)


def test_what_cannot_be_recorded_of_a_model_is_refused(labelled: Any) -> None:
    for model in ("\ud800", {"params": {"x": 10**5000}}, {"params": {"\ud800": 1}}):
        with pytest.raises(UsageError, match="cannot be written to a file"):
            labelled.evaluation(model=model)
    with pytest.raises(UsageError, match=r"'params\.x' is unknown or of the wrong type"):
        labelled.evaluation(model={"params": {"x": float("nan")}})


def test_every_argument_is_tried() -> None:
    from prima_bench.tasks.problems import classification, perturbation_solution

    assert set(inspect.signature(Evaluation).parameters) == {"task", *ARGUMENTS, "options"}
    tried = {"self", "predictions", "ids", "perturbation", "context"}
    assert set(inspect.signature(Evaluation.update).parameters) == tried
    for module, task in ((perturbation_solution, "perturbation_prediction"), (classification, "cell_type_annotation")):
        call = next(
            node
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "take_options"
        )
        taken = [name for argument in call.args[1:] for name in ast.literal_eval(argument)]
        assert set(taken) == set(OPTIONS[task])


def test_wrong_keywords_are_errors_of_python(labelled: Any) -> None:
    with pytest.raises(TypeError):
        labelled.evaluation().update(labelled.predictions, id=["a"])
