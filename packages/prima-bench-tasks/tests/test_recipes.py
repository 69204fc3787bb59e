"""Recipes: the pinned bytes come out again, and what a recipe needs is verified."""

import dataclasses
import hashlib
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

from prima_bench.tasks import recipes
from prima_bench.tasks import registry as r
from prima_bench.tasks.errors import DataError, UnknownNameError

DIGESTS = Path(__file__).parent / "dataset_digests.txt"


@pytest.mark.parametrize("name", r.list_datasets())
def test_a_recipe_gives_the_pinned_bytes(name: str, tmp_path: Path) -> None:
    built = recipes.build_dataset(name, tmp_path)
    assert recipes.differences(name, built) == []


def test_a_released_version_never_changes() -> None:
    recorded = dict(line.split() for line in DIGESTS.read_text().splitlines())
    found = {key: r.get_dataset(key).spec.digest for key in r.list_datasets()}
    new = [f"{key} {digest}" for key, digest in found.items() if key not in recorded]
    assert not new, f"a new version is recorded once, in {DIGESTS.name}: " + "; ".join(new)
    assert found == recorded, "other bytes or options are another version"


def test_a_changed_artifact_is_another_digest_and_is_told(tmp_path: Path) -> None:
    spec = r.get_dataset("pbmc68k").spec
    train = dataclasses.replace(spec.artifact("train"), sha256="1" * 64)
    assert dataclasses.replace(spec, artifacts=(train, *spec.artifacts[1:])).digest != spec.digest
    built = {role: recipes.BuiltArtifact(tmp_path, a.sha256, a.size) for a in spec.artifacts for role in [a.role]}
    assert recipes.differences("pbmc68k", built) == []  # type: ignore[arg-type]
    built["test"] = dataclasses.replace(built["test"], size=3)
    [told] = recipes.differences("pbmc68k", built)  # type: ignore[arg-type]
    assert "pbmc68k@1.0.0 test" in told
    assert "size 3" in told


def test_a_recipe_wants_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match="is not an empty folder"):
            recipes.build_dataset("pbmc68k", folder)
    with pytest.raises(UnknownNameError):
        recipes.build_dataset("pbmc", tmp_path)


def test_a_raw_source_is_verified() -> None:
    digest = hashlib.sha256(Path(pytest.__file__).read_bytes()).hexdigest()
    assert recipes.installed_file("pytest", "__init__.py", sha256=digest) == Path(pytest.__file__)
    with pytest.raises(DataError, match=f"has sha256 {digest}, not 0"):
        recipes.installed_file("pytest", "__init__.py", sha256="0")
    with pytest.raises(DataError, match="is missing"):
        recipes.installed_file("pytest", "none.h5ad", sha256="0")
    with pytest.raises(DataError, match="not installed"):
        recipes.installed_file("no_such_package", "a", sha256="0")


def test_an_artifact_is_written_the_same_from_any_form(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(4)]
    x = csr_matrix(np.arange(12, dtype=np.float32).reshape(4, 3))
    digests = set()
    for i, dtype in enumerate((object, "str")):
        obs = pd.DataFrame({"k": pd.Categorical(["a", "b", "a", "é/"])}, index=pd.Index(names, dtype=dtype))
        var = pd.DataFrame(index=pd.Index(["x", "y", "z"], dtype=dtype))
        path = tmp_path / f"{i}.h5ad"
        recipes.write_artifact(anndata.AnnData(X=x, obs=obs, var=var, uns={"note": "text"}), path)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1
    read = anndata.read_h5ad(tmp_path / "0.h5ad")
    assert read.obs["k"].tolist() == ["a", "b", "a", "é/"]
    assert (x != read.X).nnz == 0
    assert read.uns["note"] == "text"
