"""The embedded datasets: small, censored, and as their cards say."""

import importlib.util
import json
from pathlib import Path

import anndata
import h5py
import numpy as np
import pytest

from prima_bench.tasks import registry as r
from prima_bench.tasks.artifacts import fetch_data, solution_path
from prima_bench.tasks.datasets import perturbsim

KEYS = r.list_datasets()


def _open(key: str) -> tuple[anndata.AnnData, anndata.AnnData, anndata.AnnData]:
    spec = r.get_dataset(key).spec
    paths = (*fetch_data(spec.task, key), solution_path(spec))
    train, test, solution = (anndata.read_h5ad(path) for path in paths)
    return train, test, solution


def _is_bare(cells: anndata.AnnData) -> bool:
    """Nothing beside X, obs, names and uns, where something about the truth could hide."""
    parts = (cells.obsm, cells.varm, cells.obsp, cells.varp, [name for name in cells.layers if name is not None])
    return cells.raw is None and not len(cells.var.columns) and not any(len(part) for part in parts)


def test_all_together_stay_small() -> None:
    folder = Path(r.__file__).parent / "data"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 6_000_000
    pinned = {a.uri.rpartition("/data/")[2] for key in KEYS for a in r.get_dataset(key).spec.artifacts}
    assert {
        path.relative_to(folder).as_posix() for path in folder.rglob("*.*") if path.suffix in (".h5ad", ".json")
    } == pinned


@pytest.mark.parametrize("key", KEYS)
def test_train_test_and_solution_fit_together(key: str) -> None:
    train, test, solution = _open(key)
    for cells in (train, test, solution):
        assert cells.obs_names.is_unique
        assert cells.var_names.is_unique
        assert cells.uns["dataset"] == key
    assert set(train.obs_names).isdisjoint(test.obs_names)
    assert test.obs_names.equals(solution.obs_names)
    assert train.var_names.equals(test.var_names)
    counts = r.get_dataset(key).spec.counts
    assert (counts["train_cells"], counts["test_cells"], counts["genes"]) == (train.n_obs, test.n_obs, test.n_vars)
    assert counts["cells"] == train.n_obs + test.n_obs


@pytest.mark.parametrize("key", KEYS)
def test_artifacts_are_read_by_any_anndata(key: str) -> None:
    spec = r.get_dataset(key).spec
    for path in (*fetch_data(spec.task, key), solution_path(spec)):
        encodings: set[str] = set()
        with h5py.File(path) as file:
            file.visititems(lambda _, item: encodings.add(str(item.attrs.get("encoding-type", ""))))  # noqa: B023
        assert encodings <= {"", "array", "categorical", "csr_matrix", "dataframe", "dict", "string", "string-array"}


def test_pbmc68k_is_censored_and_covers_every_class() -> None:
    train, test, solution = _open("pbmc68k@1.0.0")
    spec = r.get_dataset("pbmc68k").spec
    assert list(train.obs) == ["cell_type"]
    assert list(test.obs) == []
    for cells in (train, test):
        assert list(cells.uns) == ["dataset", "split"]
        assert _is_bare(cells)
    assert solution.n_vars == 0
    classes = list(solution.uns["classes"])
    assert classes == sorted(classes)
    assert len(classes) == spec.counts["classes"]
    for labels in (train.obs["cell_type"], solution.obs["cell_type"]):
        assert labels.value_counts().min() >= 2
        assert sorted(labels.unique()) == classes
    share = solution.obs["cell_type"].value_counts() / train.obs["cell_type"].value_counts()
    assert share.between(0.5, 0.8).all()
    assert list(test.obs_names) == sorted(test.obs_names), "the order of cells tells nothing of their type"


def test_pbmc68k_is_the_source_unchanged() -> None:
    found = importlib.util.find_spec("scanpy")
    assert found is not None
    source = anndata.read_h5ad(Path(str(found.origin)).parent / "datasets/10x_pbmc68k_reduced.h5ad")
    train, test, solution = _open("pbmc68k@1.0.0")
    for cells, labels in ((train, train.obs["cell_type"]), (test, solution.obs["cell_type"])):
        same = source[cells.obs_names]
        assert np.array_equal(same.raw.X.toarray(), cells.X.toarray())
        assert same.obs["bulk_labels"].astype(str).tolist() == labels.astype(str).tolist()
    assert source.raw.var_names.equals(test.var_names)
    assert source.n_obs == train.n_obs + test.n_obs
    totals = np.expm1(test.X.astype(np.float64)).sum(axis=1)
    assert totals.max() <= 10_000


def test_perturbsim_is_censored() -> None:
    train, test, solution = _open("perturbsim@1.0.0")
    seen, asked = set(train.obs["perturbation"]), set(test.obs["perturbation"])
    assert seen & asked == {"control"}
    assert set(train.obs["perturbation"].cat.categories) == seen
    to_predict = test.obs["to_predict"].to_numpy()
    assert test[to_predict].X.nnz == 0
    assert (test.obs["perturbation"] == "control").to_numpy().tolist() == (~to_predict).tolist()
    assert (test[~to_predict].X != solution[~to_predict].X).nnz == 0
    assert solution[to_predict].X.sum(axis=1).min() > 0
    assert test.obs.equals(solution.obs)
    assert list(train.obs) == ["perturbation", "batch", "context"]
    for cells in (train, test, solution):
        assert sorted(cells.uns) == ["dataset", "perturbation_targets", "split"]
        assert _is_bare(cells)


def test_perturbsim_names_and_counts() -> None:
    train, test, solution = _open("perturbsim@1.0.0")
    labels = (set(train.obs["perturbation"]) | set(solution.obs["perturbation"])) - {"control"}
    spec = r.get_dataset("perturbsim").spec
    assert sum("+" not in label for label in labels) == spec.counts["single_perturbations"] == 60
    assert sum("+" in label for label in labels) == spec.counts["double_perturbations"] == 20
    assert spec.counts["cells_to_predict"] == test.obs["to_predict"].sum()
    for cells in (train, test, solution):
        targets = json.loads(cells.uns["perturbation_targets"])
        assert {k: k.split("+") for k in set(cells.obs["perturbation"]) - {"control"}} == targets
        assert {gene for genes in targets.values() for gene in genes} <= set(cells.var_names)
        x = cells.X.data
        assert np.array_equal(x, np.rint(x))
        assert x.min() > 0
    assert solution.obs["perturbation"].value_counts().min() >= 35
    singles = {label for label in set(train.obs["perturbation"]) if "+" not in label}
    kinds = [sum(g in singles for g in label.split("+")) for label in set(test.obs["perturbation"]) if "+" in label]
    assert [kinds.count(n) for n in (2, 1, 0)] == [8, 5, 2]


def test_perturbsim_cells_follow_the_stated_truth() -> None:
    _, _, solution = _open("perturbsim@1.0.0")
    truth = perturbsim.simulate_truth(np.random.RandomState(perturbsim._SEED))
    assert truth.held_out == set(solution.obs["perturbation"]) - {"control"}
    x = solution.X.toarray().astype(np.float64)
    labels = solution.obs["perturbation"].astype(str).to_numpy()

    def profile(label: str) -> np.ndarray:
        total = x[labels == label].sum(axis=0)
        return np.asarray(np.log((total + 0.5) / total.sum()))

    correlations = []
    for row, label in enumerate(truth.targets):
        if label in truth.held_out:
            change = profile(label) - profile("control")
            correlations.append(np.corrcoef(change, truth.effects[row])[0, 1])
            for gene in truth.targets[label]:
                assert change[truth.genes.index(gene)] < -0.7, "a knock-down shows in its own target"
    assert min(correlations) > 0.7
    assert np.mean(correlations) > 0.85


def test_perturbsim_doubles_are_nearly_sums_and_programs_couple_genes() -> None:
    truth = perturbsim.simulate_truth(np.random.RandomState(perturbsim._SEED))
    rows = {label: row for row, label in enumerate(truth.targets)}
    doubles = [label for label in rows if "+" in label]
    fits = [
        np.corrcoef(truth.effects[rows[d]], sum(truth.effects[rows[s]] for s in d.split("+")))[0, 1] for d in doubles
    ]
    assert 0.85 < np.mean(fits) < 0.99
    assert (truth.loadings != 0).sum(axis=0)[[truth.genes.index(g) for g in rows if "+" not in g]].min() >= 2
