"""Opening a solution of labels."""

from typing import Any

import anndata
import pandas as pd
import pytest

from prima_bench.tasks.errors import DataError, PredictionError, UsageError
from prima_bench.tasks.evaluation import Evaluation


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"label_key": None}, "label_key= must be given"),
        ({"label_key": "typ"}, "no column 'typ'"),
        ({"classes": ["B cell", "NK"]}, "labels that classes= lacks: 'CD4\\+/CD25 T'"),
        ({"classes": ["B cell", "B cell ", "CD4+/CD25 T", "NK"]}, "a class more than once"),
        ({"classes": "NK"}, "is one string"),
        ({"scores": "raw"}, "scores cannot be 'raw'"),
        ({"control": "x"}, "unknown option 'control'"),
        ({"solution": [1, 2]}, "must be an AnnData, a DataFrame or the path of one"),
    ],
)
def test_wrong_options(labelled: Any, options: dict[str, Any], seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        labelled.evaluation(**options)


def test_files_whose_only_column_is_taken_for_names(labelled: Any, tmp_path: Any) -> None:
    only = tmp_path / "only.csv"
    labelled.solution.obs[["type"]].to_csv(only, index=False)
    with pytest.raises(UsageError, match="no column 'type'") as caught:
        labelled.evaluation(solution=only)
    assert "first column of a file" in caught.value.hint
    with pytest.raises(PredictionError, match="no columns beside the names of its rows"):
        labelled.result(only)


def test_solutions_that_cannot_be_used(labelled: Any) -> None:
    truth = labelled.solution.obs["type"].astype(object)
    with pytest.raises(DataError, match="1 row without a class label: 'c02'"):
        labelled.evaluation(solution=truth.where(truth.index != "c02", None).to_frame())
    with pytest.raises(DataError, match="names 1 row more than once: 'c00'"):
        labelled.evaluation(solution=truth.rename({"c01": "c00"}).to_frame())
    with pytest.raises(DataError, match="class labels are of type int, not names"):
        labelled.evaluation(solution=pd.DataFrame({"type": [1, 2]}, index=["a", "b"]), classes=None)


def test_the_digest_of_a_solution_is_over_its_content(labelled: Any, tmp_path: Any) -> None:
    base = labelled.result()
    frame = labelled.solution.obs[::-1]
    frame.to_csv(tmp_path / "s.csv")
    labelled.solution.write_h5ad(tmp_path / "s.h5ad")
    for same in (frame, tmp_path / "s.csv", tmp_path / "s.h5ad", anndata.AnnData(obs=frame.astype("category"))):
        assert labelled.result(solution=same).result_digest == base.result_digest
    others = [
        labelled.result(classes=[*labelled.options["classes"], "other"]),
        labelled.result(solution=frame.assign(type=frame["type"].to_numpy()[::-1])),
    ]
    assert len({r.dataset.solution_digest for r in [base, *others]}) == 3


def test_units_are_the_classes_that_the_solution_holds(labelled: Any) -> None:
    result = labelled.result()
    assert result.units.kind == "class"
    assert result.units.ids == ["B cell", "CD4+/CD25 T", "NK"]
    assert sum(result.units.n_obs) == 24
    assert result.predictions.n_units == 3
    assert result.scores["f1_macro"].n_units == 3
    assert result.scores["accuracy"].n_units is None
    assert list(result.per_unit.columns) == ["n_obs", "f1_macro"]


def test_the_number_of_units_is_that_of_the_mean(labelled: Any) -> None:
    from sklearn.metrics import f1_score

    stray = labelled.predictions.copy()
    stray.iloc[0] = "Treg"  # which the solution lacks
    metrics = ["f1_macro", "f1_macro(labels=union)", "recall_macro(labels=union)"]
    result = labelled.result(stray, metrics=metrics)
    assert [result.scores[m].n_units for m in metrics] == [3, 4, 4]
    assert [result.scores[m].n_undefined for m in metrics] == [0, 0, 0]
    union = result.scores["f1_macro(labels=union)"]
    assert union.value == pytest.approx(f1_score(labelled.solution.obs["type"], stray, average="macro"), abs=1e-12)
    listed = result.per_unit["f1_macro(labels=union)"]
    assert union.value * union.n_units == pytest.approx(listed.sum(), abs=1e-12)  # the stray class adds a zero
    assert labelled.result(metrics=metrics).scores["f1_macro(labels=union)"].n_units == 3


def test_classes_are_those_that_occur_unless_they_are_given(labelled: Any) -> None:
    run = labelled.evaluation(classes=None)
    run.update(labelled.predictions)
    assert run.compute().scores["accuracy"].value == labelled.result().scores["accuracy"].value


def test_the_registered_dataset_brings_its_classes() -> None:
    from prima_bench.tasks.baselines import run_baseline

    predictions = run_baseline("cell_type_annotation", "nearest_centroid")
    run = Evaluation("cell_type_annotation", metrics=["accuracy", "log_loss"], device="cpu", model="centroid")
    run.update(predictions)
    result = run.compute()
    assert result.dataset.key == "pbmc68k@1.0.0"
    assert len(result.units.ids) == 10
    assert result.scores["log_loss"].status == "ok"
