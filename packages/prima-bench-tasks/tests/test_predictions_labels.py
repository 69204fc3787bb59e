"""Predicted labels that cannot be scored are refused by name; what looks odd and is right is scored."""

from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import torch

from prima_bench.tasks.errors import PredictionError, UsageError

CLASSES = ["B cell", "CD4+/CD25 T", "NK", "Treg"]


def changed(series: pd.Series, **labels: Any) -> pd.Series:
    out = series.astype(object)
    for name, label in labels.items():
        out[name] = label
    return out


def test_unknown_label_names_the_nearest(labelled: Any, refused: Any) -> None:
    error = refused(labelled, changed(labelled.predictions, c03="NKT"))
    assert "unknown class 'NKT' (1 row: 'c03')" in error.message
    assert "'NK'" in error.hint


@pytest.mark.parametrize("label", ["b cell", "B_cell", "Bcell"])
def test_near_miss_is_named_and_never_merged(labelled: Any, refused: Any, label: str) -> None:
    error = refused(labelled, changed(labelled.predictions, c03=label))
    assert f"{label!r} differs from 'B cell' only in case, spaces or punctuation" in error.hint


@pytest.mark.parametrize("missing", [None, np.nan, "", " ", pd.NA])
def test_missing_labels(labelled: Any, refused: Any, missing: Any) -> None:
    error = refused(labelled, changed(labelled.predictions, c00=missing, c07=missing))
    assert "2 rows without a class label" in error.message
    assert "'c00', 'c07'" in error.message


def test_numbers_among_labels(labelled: Any, refused: Any) -> None:
    assert "(seen: int): 'c01'" in refused(labelled, changed(labelled.predictions, c01=3)).message


def test_unknown_ids_show_how_known_ones_look(labelled: Any, refused: Any) -> None:
    error = refused(labelled, labelled.predictions.rename(lambda name: name.upper()))
    assert "24 of 24 cells not found in the solution: 'C00', 'C01', 'C02', 'C03', 'C04' and 19 more" in error.message
    assert "'c00'" in error.hint


def test_positions_are_no_ids(labelled: Any, refused: Any) -> None:
    error = refused(labelled, labelled.predictions.reset_index(drop=True))
    assert "'0', '1'" in error.message
    assert "set the index or pass ids=" in error.hint


@pytest.mark.parametrize("values", [["NK"] * 24, np.array(["NK"] * 24), np.full((24, 4), 0.25)])
def test_rows_without_names(labelled: Any, refused: Any, values: Any) -> None:
    assert "without names" in refused(labelled, values).message


def test_missing_ids(labelled: Any, refused: Any) -> None:
    ids = [*labelled.predictions.index[:-2], None, np.nan]
    assert (
        "ids are missing at 2 positions: '22', '23'" in refused(labelled, list(labelled.predictions), ids=ids).message
    )


def test_one_id_for_each_row(labelled: Any, refused: Any) -> None:
    error = refused(labelled, list(labelled.predictions), ids=labelled.predictions.index[:-1])
    assert "23 ids for 24 rows" in error.message


def test_missing_rows_are_named_at_compute(labelled: Any) -> None:
    run = labelled.evaluation()
    run.update(labelled.predictions[:-3])
    with pytest.raises(PredictionError, match="3 of 24 rows not predicted: 'c21', 'c22', 'c23'"):
        run.compute()
    run.update(labelled.predictions[-3:])
    assert run.compute().result_digest == labelled.result().result_digest


def test_empty(labelled: Any, refused: Any) -> None:
    assert "no rows" in refused(labelled, labelled.predictions[:0]).message


def test_conflicting_repeats_within_an_update(labelled: Any, refused: Any) -> None:
    row = labelled.predictions[4:5]
    other = changed(row, c04="NK" if row.iloc[0] != "NK" else "Treg")
    error = refused(labelled, pd.concat([labelled.predictions[5:8], row, other]))
    assert "1 row came more than once with different content: 'c04'" in error.message


def test_conflicting_repeats_across_updates(labelled: Any, refused: Any) -> None:
    flipped = labelled.predictions.map(lambda label: "NK" if label != "NK" else "Treg")
    error = refused(labelled, flipped[:6])
    assert "'c00', 'c01', 'c02', 'c03', 'c04' and 1 more" in error.message


def test_equal_repeats_count_once(labelled: Any) -> None:
    padded = pd.concat([labelled.predictions, labelled.predictions[:2], labelled.predictions[:1]])
    result = labelled.result(padded, labelled.predictions[5:9])
    assert result.predictions.duplicates_dropped == 7
    assert result.result_digest == labelled.result().result_digest


def test_labels_and_scores_do_not_mix(labelled: Any, refused: Any) -> None:
    error = refused(labelled, labelled.others["scores"])
    assert "this update gives scores, earlier ones gave labels" in error.message


def codes_of(labels: pd.Series) -> Any:
    return np.array([CLASSES.index(label) for label in labels])


NUMBERS = {
    "series": lambda s: pd.Series(codes_of(s), index=s.index),
    "unsigned": lambda s: codes_of(s).astype(np.uint8),
    "nullable": lambda s: pd.array(codes_of(s), dtype="Int64"),
    "list": lambda s: codes_of(s).tolist(),
    "objects": lambda s: codes_of(s).astype(object),
    "categories": lambda s: pd.Categorical(codes_of(s)),
    "tensor": lambda s: torch.from_numpy(codes_of(s)),
    "half precision": lambda s: torch.from_numpy(codes_of(s)).bfloat16(),
    "floats": lambda s: codes_of(s).astype(np.float64),
    "booleans": lambda s: codes_of(s) > 0,
    "boolean tensor": lambda s: torch.from_numpy(codes_of(s) > 0),
    "frame": lambda s: pd.DataFrame({"type": codes_of(s)}, index=s.index),
    "boolean frame": lambda s: pd.DataFrame({"cell_type": codes_of(s) > 0}, index=s.index),
    "anndata": lambda s: anndata.AnnData(obs=pd.DataFrame({"type": codes_of(s)}, index=s.index)),
}


@pytest.mark.parametrize("form", NUMBERS)
def test_numbers_are_no_labels(labelled: Any, refused: Any, form: str) -> None:
    error = refused(labelled, NUMBERS[form](labelled.predictions), ids=list(labelled.predictions.index))
    assert "class labels are of type" in error.message
    assert "numpy.asarray(classes)[codes]" in error.hint


def test_numbers_in_files_are_no_labels(labelled: Any, refused: Any, tmp_path: Path) -> None:
    ids = labelled.predictions.index.to_numpy(str)
    np.savez(tmp_path / "p.npz", ids=ids, labels=codes_of(labelled.predictions))
    assert "class labels are of type int" in refused(labelled, tmp_path / "p.npz").message
    pd.DataFrame({"type": codes_of(labelled.predictions)}, index=ids).to_csv(tmp_path / "p.csv")
    error = refused(labelled, tmp_path / "p.csv")
    assert "unknown class" in error.message
    assert "numpy.asarray(classes)[codes]" in error.hint


def test_numbers_beside_scores_are_no_labels(labelled: Any) -> None:
    scores = labelled.others["scores"]
    run = labelled.evaluation()
    with pytest.raises(PredictionError, match="class labels are of type int"):
        run.update(scores.assign(type=scores.to_numpy().argmax(axis=1)))
    assert "0 rows" in repr(run)


def test_classes_may_be_named_by_numbers(labelled: Any) -> None:
    truth = pd.Series([str(10 + i % 3) for i in range(24)], index=labelled.predictions.index)
    arguments = {"solution": truth.to_frame("type"), "classes": None}
    assert labelled.result(truth, **arguments).scores["accuracy"].value == 1
    with pytest.raises(PredictionError, match="of type int"):
        labelled.result(truth.astype(int), **arguments)


@pytest.mark.parametrize(
    "wrong", [pd.DataFrame({"other": ["NK"]}, index=["c00"]), anndata.AnnData(obs=pd.DataFrame(index=["c00"]))]
)
def test_nothing_predicted(labelled: Any, refused: Any, wrong: Any) -> None:
    assert "'type'" in refused(labelled, wrong).hint


@pytest.mark.parametrize("wrong", [np.zeros(24), np.zeros((24, 4), dtype=int), np.zeros(24, dtype=bool), 3.0, object()])
def test_things_that_are_no_labels(labelled: Any, refused: Any, wrong: Any) -> None:
    assert refused(labelled, wrong, ids=labelled.predictions.index).message


def test_perturbation_labels_are_another_tasks(labelled: Any) -> None:
    with pytest.raises(UsageError, match="no meaning for this task"):
        labelled.evaluation().update(labelled.predictions, perturbation=["x"] * 24)


LABELS = {
    "series": lambda s: s,
    "shuffled": lambda s: s.sample(frac=1, random_state=0),
    "categorical": lambda s: s.astype("category"),
    "unused categories": lambda s: s.astype(pd.CategoricalDtype(["zzz", *CLASSES[::-1]])),
    "object": lambda s: s.astype(object),
    "frame": lambda s: s.to_frame().assign(confidence=0.5),
    "frame under the default name": lambda s: s.to_frame("cell_type"),
    "anndata": lambda s: anndata.AnnData(np.ones((24, 2)), obs=s.to_frame()),
    "anndata with categories": lambda s: anndata.AnnData(obs=s.astype("category").to_frame()),
    "padded": lambda s: "  " + s + "\n",
    "one-cell shards": lambda s: [s[i : i + 1] for i in range(len(s))],
}


@pytest.mark.parametrize("form", LABELS)
def test_forms_that_are_the_same_labels(labelled: Any, form: str) -> None:
    given = LABELS[form](labelled.predictions)
    result = labelled.result(*given) if isinstance(given, list) else labelled.result(given)
    assert result.result_digest == labelled.result().result_digest


ARRAYS = {
    "list": list,
    "tuple": tuple,
    "fixed width": lambda s: s.to_numpy(dtype=str),
    "numpy strings": lambda s: s.to_numpy(dtype=object).astype(np.dtypes.StringDType()),
    "index": pd.Index,
    "pandas categorical": pd.Categorical,
    "nullable strings": lambda s: pd.array(s, dtype="string"),
}


@pytest.mark.parametrize("form", ARRAYS)
def test_arrays_with_names(labelled: Any, form: str) -> None:
    run = labelled.evaluation()
    run.update(ARRAYS[form](labelled.predictions), ids=labelled.predictions.index.to_numpy())
    assert run.compute().result_digest == labelled.result().result_digest


def test_abstaining(labelled: Any) -> None:
    some = labelled.predictions.where(np.arange(24) % 4 > 0, "unknown")
    result = labelled.result(some)
    assert result.scores["unknown_rate"].value == 0.25
    assert result.scores["f1_macro"].value < labelled.result().scores["f1_macro"].value
