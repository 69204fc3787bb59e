"""Fetching and loading: what comes, and what is refused."""

import dataclasses
from pathlib import Path

import pytest

from prima_bench.storage import StorageError
from prima_bench.tasks import artifacts
from prima_bench.tasks import registry as r
from prima_bench.tasks.artifacts import fetch_data, load, solution_path
from prima_bench.tasks.errors import DataError, UnknownNameError, UsageError

TASK = "cell_type_annotation"


def test_the_default_dataset_needs_no_name() -> None:
    assert fetch_data(TASK) == fetch_data(TASK, "pbmc68k") == fetch_data(TASK, "pbmc68k@1.0.0")
    assert [path.name for path in fetch_data(TASK)] == ["train.h5ad", "test.h5ad"]


def test_unknown_and_foreign_datasets_are_refused() -> None:
    with pytest.raises(UnknownNameError):
        fetch_data(TASK, "pbmc")
    with pytest.raises(UnknownNameError):
        fetch_data("cell_type")
    with pytest.raises(UsageError):
        fetch_data(TASK, "perturbsim")


@pytest.mark.parametrize("pin", [{"sha256": "0" * 64}, {"size": 7}, {"uri": "file:///nowhere/train.h5ad"}])
def test_what_is_not_the_pinned_file_is_a_data_error(pin: dict[str, object]) -> None:
    spec = r.get_dataset("pbmc68k").spec
    altered = tuple(dataclasses.replace(a, **pin) for a in spec.artifacts)  # type: ignore[arg-type]
    with pytest.raises(DataError) as caught:
        solution_path(dataclasses.replace(spec, artifacts=altered))
    assert caught.value.exit_code == 4
    assert isinstance(caught.value.__cause__, StorageError)


def test_paths_are_taken_as_text_too() -> None:
    path, _ = fetch_data(TASK)
    assert load(str(path), TASK, "train").shape == load(path, TASK, "train").shape == (420, 765)


def test_a_swapped_split_is_noticed() -> None:
    train, test = fetch_data("perturbation_prediction")
    with pytest.raises(UsageError, match="is a train artifact, not test"):
        load(train, "perturbation_prediction", "test")
    with pytest.raises(UsageError, match="is a test artifact, not train"):
        load(test, "perturbation_prediction", "train")
    with pytest.raises(UsageError, match="'solution' does not exist"):
        load(test, "perturbation_prediction", "solution")
    with pytest.raises(UnknownNameError):
        load(test, "perturbation", "test")


def test_files_that_cannot_be_read_are_data_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a file"):
        load(tmp_path / "none.h5ad", TASK, "train")
    path = tmp_path / "text.h5ad"
    path.write_text("no HDF5")
    with pytest.raises(DataError, match="cannot be read as AnnData"):
        load(path, TASK, "train")
    whole, _ = fetch_data(TASK)
    path.write_bytes(whole.read_bytes()[:50_000])
    with pytest.raises(DataError, match="cannot be read as AnnData"):
        load(path, TASK, "train")


def test_own_files_without_a_split_are_loaded_as_asked(tmp_path: Path) -> None:
    import anndata

    path = tmp_path / "own.h5ad"
    cells = anndata.read_h5ad(fetch_data(TASK)[0])
    del cells.uns["split"]
    cells.write_h5ad(path)
    assert artifacts.read_h5ad(path, "test").n_obs == 420


@pytest.mark.filterwarnings("ignore:.*was written with")
def test_hdf5_that_is_no_anndata_is_a_data_error(tmp_path: Path) -> None:
    import h5py

    path = tmp_path / "other.h5ad"
    for name in ("x", "obs"):
        with h5py.File(path, "w") as file:
            file[name] = [1, 2]
        with pytest.raises(DataError, match="cannot be read as AnnData"):
            load(path, TASK, "train")
