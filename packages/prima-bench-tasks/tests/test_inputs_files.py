"""Predictions from files: the same result as from memory; nothing but data is ever read."""

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from prima_bench.tasks.errors import PredictionError
from prima_bench.tasks.inputs import files, matrix


def saved_h5ad(cells: anndata.AnnData, path: Path) -> Path:
    cells.write_h5ad(path)
    return path


@pytest.fixture(params=["csr", "csc", "dense", "csr int"])
def stored(request: pytest.FixtureRequest, screen: Any) -> anndata.AnnData:
    cells = screen.predictions.copy()
    x = cells.X
    cells.X = {"csr": x, "csc": x.tocsc(), "dense": x.toarray(), "csr int": x.astype(np.int32)}[request.param]
    return cells


@pytest.mark.parametrize("block_bytes", [1, 200, 1 << 25])
def test_h5ad(
    screen: Any, stored: anndata.AnnData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(matrix, "BLOCK_BYTES", block_bytes)
    path = saved_h5ad(stored[:, ::-1].copy(), tmp_path / "predictions.h5ad")
    assert screen.result(path).result_digest == screen.result().result_digest
    assert screen.result(str(path)).result_digest == screen.result().result_digest
    backed = anndata.read_h5ad(path, backed="r")
    try:
        assert screen.result(backed).result_digest == screen.result().result_digest
        halves = screen.result(backed[:8], backed[8:])
        assert halves.result_digest == screen.result().result_digest
        assert backed.isbacked
        assert backed.file.is_open
    finally:
        backed.file.close()


def test_the_solution_as_a_file_is_the_same_solution(screen: Any, tmp_path: Path) -> None:
    expected = screen.result()
    for name, x in (
        ("csr", screen.solution.X),
        ("dense", screen.solution.X.toarray()),
        ("csc", screen.solution.X.tocsc()),
    ):
        cells = screen.solution[::-1].copy()
        cells.X = x[::-1].astype(np.float64)
        path = saved_h5ad(cells, tmp_path / f"{name}.h5ad")
        assert screen.result(solution=path).result_digest == expected.result_digest


def test_the_file_is_closed_after_an_error(screen: Any, tmp_path: Path) -> None:
    path = saved_h5ad(screen.predictions[:, :-1].copy(), tmp_path / "predictions.h5ad")
    with pytest.raises(PredictionError, match="lack 1"):
        screen.evaluation().update(path)
    saved_h5ad(screen.predictions, path)  # h5py refuses to write a file that is open
    assert screen.result(path).predictions.n_rows == 17


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_tables_of_cells(screen: Any, tmp_path: Path, suffix: str) -> None:
    table = screen.predictions.to_df().assign(target=screen.predictions.obs["target"])
    path = tmp_path / f"predictions{suffix}"
    table.to_csv(path, sep="," if suffix == ".csv" else "\t")
    assert screen.result(path).result_digest == screen.result().result_digest


def test_tables_keep_every_digit(log_screen: Any, tmp_path: Path) -> None:
    cells = log_screen.predictions
    table = pd.DataFrame(cells.X.toarray().astype(np.float64) * 0.1, index=cells.obs_names, columns=cells.var_names)
    table = table.assign(target=cells.obs["target"])
    table.to_csv(tmp_path / "p.csv")
    assert log_screen.result(tmp_path / "p.csv").result_digest == log_screen.result(table).result_digest


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_tables_of_labels_and_scores(labelled: Any, tmp_path: Path, suffix: str) -> None:
    separator = "," if suffix == ".csv" else "\t"
    labelled.predictions.to_frame().to_csv(tmp_path / f"labels{suffix}", sep=separator, index_label="cell")
    assert labelled.result(tmp_path / f"labels{suffix}").result_digest == labelled.result().result_digest
    scores = labelled.others["scores"].astype(np.float64)  # text holds a float32 as another number
    scores.to_csv(tmp_path / f"scores{suffix}", sep=separator)
    expected = labelled.result(scores, metrics="log_loss")
    assert labelled.result(tmp_path / f"scores{suffix}", metrics="log_loss").result_digest == expected.result_digest


def test_ids_in_tables_stay_text(labelled: Any, tmp_path: Path) -> None:
    ids = [f"{i:03d}" for i in range(24)]
    labelled.solution.obs_names = ids
    labelled.predictions.set_axis(ids).to_csv(tmp_path / "labels.csv")
    assert labelled.result(tmp_path / "labels.csv").predictions.n_rows == 24


def test_a_label_called_na_is_a_label_and_an_empty_one_is_none(labelled: Any, tmp_path: Path) -> None:
    labelled.solution.obs["type"] = ["NA" if t == "NK" else t for t in labelled.solution.obs["type"]]
    run = labelled.evaluation(classes=None)
    guess = labelled.predictions.replace({"NK": "NA"})
    guess.to_csv(tmp_path / "labels.csv")
    run.update(tmp_path / "labels.csv")
    assert run.compute().predictions.n_rows == 24
    guess.where(guess.index != "c05", "").to_csv(tmp_path / "labels.csv")
    with pytest.raises(PredictionError, match="1 row without a class label: 'c05'"):
        run.update(tmp_path / "labels.csv")


def test_npz(screen: Any, labelled: Any, tmp_path: Path) -> None:
    cells = screen.predictions
    path = tmp_path / "p.npz"
    names = {"ids": cells.obs_names.to_numpy(str), "perturbation": cells.obs["target"].to_numpy(str)}
    np.savez(path, x=cells.X.toarray()[:, ::-1], genes=cells.var_names.to_numpy(str)[::-1], **names)
    assert screen.result(path).result_digest == screen.result().result_digest
    np.savez_compressed(path, x=cells.X.toarray(), **names)
    assert screen.result(path).result_digest == screen.result().result_digest

    ids = labelled.predictions.index.to_numpy(str)
    np.savez(path, ids=ids, labels=labelled.predictions.to_numpy(str))
    assert labelled.result(path).result_digest == labelled.result().result_digest
    scores = labelled.others["scores"]
    expected = labelled.result(scores, metrics="log_loss").result_digest
    np.savez(path, ids=ids, scores=scores.to_numpy())
    assert labelled.result(path, metrics="log_loss").result_digest == expected
    np.savez(path, ids=ids, scores=scores.to_numpy()[:, ::-1], classes=scores.columns.to_numpy(str)[::-1])
    assert labelled.result(path, metrics="log_loss").result_digest == expected


@pytest.mark.parametrize(
    ("arrays", "seen"),
    [
        ({"labels": ["NK"]}, "without names"),
        ({"ids": ["c00"]}, "holds 'ids'"),
        ({"ids": ["c00"], "labels": ["NK"], "scores": [[0.5]]}, "holds 'ids', 'labels', 'scores'"),
        ({"ids": ["c00"], "labels": ["NK"], "weights": [1.0]}, "'weights'"),
        ({"ids": ["c00"], "scores": ["NK"]}, "scores must be"),
    ],
)
def test_npz_of_other_arrays(labelled: Any, tmp_path: Path, arrays: dict[str, Any], seen: str) -> None:
    np.savez(tmp_path / "p.npz", **{name: np.array(a) for name, a in arrays.items()})
    with pytest.raises(PredictionError, match=seen):
        labelled.evaluation().update(tmp_path / "p.npz")


def test_npz_of_cells_names_strange_and_missing_arrays(screen: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", x=np.zeros((1, 12)), ids=np.array(["a"]), y=np.zeros(1))
    with pytest.raises(PredictionError, match="holds 'y'"):
        screen.evaluation().update(tmp_path / "p.npz")
    np.savez(tmp_path / "p.npz", ids=np.array(["a"]))
    with pytest.raises(PredictionError, match="no array 'x'"):
        screen.evaluation().update(tmp_path / "p.npz")


def test_no_pickle_is_ever_loaded(labelled: Any, tmp_path: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "p.npz", ids=np.array(["c00"]), labels=objects)
    with pytest.raises(PredictionError, match="cannot be read as npz"):
        labelled.evaluation().update(tmp_path / "p.npz")
    (tmp_path / "q.npz").write_bytes(pickle.dumps(objects))
    with pytest.raises(PredictionError, match="cannot be read as npz"):
        labelled.evaluation().update(tmp_path / "q.npz")


def test_files_are_bounded(labelled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_TABLE_BYTES", 100)
    monkeypatch.setattr(files, "MAX_ARRAY_BYTES", 10_000)
    labelled.predictions.to_csv(tmp_path / "p.csv")
    with pytest.raises(PredictionError, match="hand it in in shards"):
        labelled.evaluation().update(tmp_path / "p.csv")
    np.savez_compressed(tmp_path / "p.npz", ids=np.array(["c00"]), labels=np.zeros(100_000))
    assert (tmp_path / "p.npz").stat().st_size < 10_000
    with pytest.raises(PredictionError, match="hand it in in shards"):
        labelled.evaluation().update(tmp_path / "p.npz")


@pytest.mark.parametrize("suffix", files.FORMATS)
def test_corrupt_files(labelled: Any, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    path.write_bytes(b"\x89\xff\x00garbage\n\xff")
    with pytest.raises(PredictionError) as caught:
        labelled.evaluation().update(path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_empty_files(labelled: Any, tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"p{suffix}").write_bytes(b"")
    with pytest.raises(PredictionError, match="cannot be read"):
        labelled.evaluation().update(tmp_path / f"p{suffix}")


def test_missing_files_and_other_suffixes(labelled: Any, tmp_path: Path) -> None:
    with pytest.raises(PredictionError, match="there is no file"):
        labelled.evaluation().update(tmp_path / "p.csv")
    with pytest.raises(PredictionError, match="none of the suffixes"):
        labelled.evaluation().update(tmp_path / "p.pkl")


def test_columns_named_twice_in_a_table(screen: Any, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("cell,target,AHR,AHR\na,AHR,1,2\n")
    with pytest.raises(PredictionError, match="columns are named more than once: 'AHR'"):
        screen.evaluation().update(tmp_path / "p.csv")


def test_text_among_numbers_names_the_column(screen: Any, tmp_path: Path) -> None:
    table = screen.predictions.to_df().assign(target=screen.predictions.obs["target"]).astype(object)
    table.iloc[2, 4] = "n/a"
    table.to_csv(tmp_path / "p.csv")
    with pytest.raises(PredictionError, match="column 'gene02' is not numeric"):
        screen.evaluation().update(tmp_path / "p.csv")


def test_parquet_without_pyarrow_says_so(labelled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "p.parquet").write_bytes(b"PAR1")
    with pytest.raises(PredictionError, match="needs pyarrow, which is not installed"):
        labelled.evaluation().update(tmp_path / "p.parquet")


def test_parquet(labelled: Any, tmp_path: Path) -> None:
    labelled.predictions.to_frame().to_parquet(tmp_path / "p.parquet")
    assert labelled.result(tmp_path / "p.parquet").result_digest == labelled.result().result_digest
    labelled.predictions.rename_axis("cell").reset_index().to_parquet(tmp_path / "q.parquet")
    assert labelled.result(tmp_path / "q.parquet").result_digest == labelled.result().result_digest


def test_a_matrix_is_read_in_blocks_and_never_made_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    x = sp.random(1000, 50, density=0.1, format="csr", random_state=0, dtype=np.float32)
    monkeypatch.setattr(matrix, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(sp.csr_matrix, "toarray", lambda *_: pytest.fail("made dense"))
    sizes = [len(rows) for rows, block in matrix.open_matrix(x).blocks() if sp.issparse(block)]
    assert sum(sizes) == 1000
    assert max(sizes) < 200
