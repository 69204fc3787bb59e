"""Laws that every registered task and dataset keeps, and what importing and listing must not load."""

import subprocess
import sys

import numpy as np
import pytest

import prima_bench.tasks as public
from prima_bench.tasks import registry as r
from prima_bench.tasks.artifacts import fetch_data, load

HEAVY = ("torch", "numpy", "pandas", "anndata", "scipy", "sklearn", "boto3", "pydantic", "h5py")


def _loaded_after(code: str) -> list[str]:
    script = f"{code}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    "code",
    [
        "import prima_bench.tasks",
        "import prima_bench.tasks as t; t.list_tasks(); t.list_datasets(); t.list_metrics(); t.broken_modules()",
        "import prima_bench.tasks as t; t.get_task('perturbation_prediction').module",
        "import prima_bench.tasks as t; t.get_dataset('perturbsim').module; t.get_dataset('pbmc68k').module",
        "import prima_bench.tasks as t; t.fetch_data('cell_type_annotation')",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    assert _loaded_after(code) == []


def test_public_names_are_one_list_and_exist() -> None:
    assert public.__all__ == sorted(public.__all__) == sorted(public._HOME)
    assert all(hasattr(public, name) for name in public.__all__)
    assert set(public.__all__) <= set(dir(public))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = public.nothing


@pytest.mark.parametrize("name", r.list_tasks())
def test_a_task_names_only_what_exists(name: str) -> None:
    entry = r.get_task(name)
    spec = entry.spec
    assert r.get_dataset(spec.default_dataset, task=name).spec.key == spec.default_dataset
    default = {str(ref) for ref in r.resolve_metrics(name)}
    assert set(spec.primary) <= default
    for preset in spec.presets:
        refs = [(str(ref), ref.alias) for ref in r.resolve_metrics(name, preset)]
        assert refs == spec.members(preset)
    assert spec.baselines
    for baseline in spec.baselines:
        assert callable(getattr(entry.module, baseline.function))
    assert callable(entry.module.load)


@pytest.mark.parametrize("name", r.list_tasks())
def test_the_example_on_the_card_runs_and_predicts_what_is_asked(name: str) -> None:
    train_path, test_path = fetch_data(name)
    scope = {"train": load(train_path, name, "train"), "test": load(test_path, name, "test")}
    exec(compile(r.get_task(name).spec.example, f"example of {name}", "exec"), scope)  # noqa: S102  (our own text)
    test, preds = scope["test"], scope["preds"]
    wanted = test[test.obs["to_predict"].to_numpy()] if "to_predict" in test.obs else test
    assert set(preds.obs_names) == set(wanted.obs_names)
    if name == "perturbation_prediction":
        assert np.array_equal(preds.X, np.rint(preds.X))
        assert preds.X.min() >= 0
    else:
        assert preds.obsm["cell_type_scores"].shape == (test.n_obs, len(preds.uns["classes"]))
        assert set(preds.uns["classes"]) == set(scope["train"].obs["cell_type"].cat.categories)


def test_a_digest_depends_on_what_scores_depend_on_and_on_nothing_else() -> None:
    import dataclasses

    spec = r.get_dataset("pbmc68k").spec
    assert dataclasses.replace(spec, notes="other", citation="other").digest == spec.digest
    assert dataclasses.replace(spec, options={"label_key": "other"}).digest != spec.digest
    task = r.get_task("cell_type_annotation").spec
    assert dataclasses.replace(task, summary="other", example="other").digest == task.digest
    assert dataclasses.replace(task, abstain=()).digest != task.digest
