"""Where predictions are kept until they are scored changes nothing but memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from prima_bench.metrics import buffer as buffer_module
from prima_bench.metrics.spill import is_kept
from prima_bench.tasks import memory
from prima_bench.tasks.baselines import run_baseline
from prima_bench.tasks.errors import PredictionError, UsageError
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.inputs import matrix


def kept(run: Evaluation) -> int:
    panel = run._panel
    return sum(is_kept(x) for name in panel._row_states for x in panel._state(name))


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_module, "_SLAB_BYTES", 1 << 16)
    monkeypatch.setattr(buffer_module, "_LEAST_KEPT_BYTES", 1 << 10)


@pytest.mark.usefixtures("_small")
def test_both_datasets_give_the_same_digest_on_disk() -> None:
    for task, name in (("perturbation_prediction", "paste_control"), ("cell_type_annotation", "nearest_centroid")):
        rows = run_baseline(task, name)
        digests = set()
        for choice in ("memory", "disk", "auto"):
            run = Evaluation(task, buffer=choice, device="cpu")
            run.update(rows)
            assert (kept(run) > 0) == (choice == "disk" and task == "perturbation_prediction")
            digests.add(run.compute().result_digest)
        assert len(digests) == 1


def scores(n: int = 4000, classes: int = 40) -> tuple[pd.DataFrame, pd.DataFrame]:
    random = np.random.default_rng(0)
    names = [f"c{i}" for i in range(n)]
    truth = pd.DataFrame({"type": [f"t{i}" for i in random.integers(0, classes, n)]}, index=names)
    drawn = random.dirichlet(np.full(classes, 0.3), n)
    return truth, pd.DataFrame(drawn, index=names, columns=[f"t{i}" for i in range(classes)])


@pytest.mark.usefixtures("_small")
def test_class_scores_go_to_disk_too_and_a_refused_update_leaves_them() -> None:
    truth, predicted = scores()
    results = []
    for choice in ("memory", "disk"):
        run = Evaluation("cell_type_annotation", solution=truth, label_key="type", buffer=choice, device="cpu")
        for part in np.array_split(np.random.default_rng(1).permutation(len(truth)), 7):
            run.update(predicted.iloc[part])
        before = kept(run)
        assert (before > 0) == (choice == "disk")
        broken = predicted.copy()
        broken.iloc[-1, 0] = np.nan
        with pytest.raises(PredictionError):
            run.update(broken)
        assert kept(run) == before
        results.append(run.compute())
    assert results[0].result_digest == results[1].result_digest


@pytest.mark.usefixtures("_small")
def test_reset_and_another_round() -> None:
    truth, predicted = scores()
    run = Evaluation("cell_type_annotation", solution=truth, label_key="type", buffer="disk", device="cpu")
    digests = set()
    for _ in range(2):
        run.update(predicted)
        digests.add(run.compute().result_digest)
        assert kept(run)
        run.reset()
        assert not kept(run)
    assert len(digests) == 1


def test_auto_goes_by_what_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def limits(most: str, used: str) -> None:
        (tmp_path / "memory.max").write_text(most)
        (tmp_path / "memory.current").write_text(used)

    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    everything = memory.free_memory()
    assert everything > 0
    limits("max\n", "1000\n")
    assert memory.free_memory() > everything / 4
    limits("5000\n", "1000\n")
    assert memory.free_memory() == 4000
    assert memory.rows_in_memory("auto") == 1000
    limits("5000\n", "6000\n")
    assert memory.rows_in_memory("auto") == 0


@pytest.mark.parametrize(
    ("mine", "folder", "names"),
    [
        ("0::/system/job_7/step_0\n", "system/job_7", ("memory.max", "memory.current", "inactive_file")),
        (
            "5:cpu:/other\n4:memory:/slurm/job_7/step_0\n0::/\n",
            "memory/slurm/job_7",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_auto_sees_the_limit_of_a_job(
    mine: str, folder: str, names: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A batch system sets it on a group above that of the process, which is not the root; cached files are no use."""
    (tmp_path / "mine").write_text(mine)
    job = tmp_path / folder
    (job / "step_0").mkdir(parents=True)
    limit, used, cached = names
    for place, most in ((job, "5000"), (job / "step_0", "9223372036854771712")):
        (place / limit).write_text(f"{most}\n")
        (place / used).write_text("4000\n")
        (place / "memory.stat").write_text(f"anon 1000\n{cached} 3000\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(memory, "_MINE", tmp_path / "mine")
    assert memory.free_memory() == 4000


def test_processes_of_one_machine_share_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 8000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memory.rows_in_memory("auto") == 500
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "nonsense")
    assert memory.rows_in_memory("auto") == 2000


@pytest.mark.parametrize("choice", ["Disk", "", None, 1, torch.device("cpu")])
def test_other_choices_are_refused(choice: Any) -> None:
    with pytest.raises(UsageError, match="auto, memory, disk"):
        Evaluation("cell_type_annotation", buffer=choice)


@pytest.mark.usefixtures("_small")
def test_one_update_goes_to_disk_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows one update brings, few of them are in memory at any time."""
    monkeypatch.setattr(matrix, "BLOCK_BYTES", 1 << 14)
    rows = run_baseline("perturbation_prediction", "paste_control")
    run = Evaluation("perturbation_prediction", buffer="disk", device="cpu")
    in_memory: list[int] = []
    join = run._panel._join_loose

    def watched() -> None:
        states = [run._panel._state(name) for name in ("x_chunks", "x_values", "x_columns")]
        in_memory.append(sum(x.nbytes for s in states for x in s if not is_kept(x)))
        join()

    monkeypatch.setattr(run._panel, "_join_loose", watched)
    run.update(rows)
    assert len(in_memory) > 5
    assert max(in_memory) < rows.X.nnz * 8 / 4


def test_a_device_without_room_is_told_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, predicted = scores(200, 4)
    run = Evaluation("cell_type_annotation", solution=truth, label_key="type", device="cpu")
    run.update(predicted)
    expected = run.compute().result_digest

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("as CUDA says it")

    with monkeypatch.context() as patched:
        patched.setattr(run._panel, "score_all", full)
        with pytest.raises(UsageError, match="free memory"):
            run.compute()
    assert run.compute().result_digest == expected
