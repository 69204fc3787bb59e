"""The examples run as they stand, and say what one process says."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from prima_bench.tasks.baselines import run_baseline
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.results.schema import EvalResult

TASK = "cell_type_annotation"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def run(*words: object, cwd: Path, **environment: str) -> str:
    """What a command prints."""
    here = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd, env=os.environ | here | environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``shards/*.h5ad``, five parts of one prediction."""
    folder = tmp_path_factory.mktemp("predictions")
    (folder / "shards").mkdir()
    cells = run_baseline(TASK, "nearest_centroid")
    for number, rows in enumerate(np.array_split(np.random.default_rng(1).permutation(cells.n_obs), 5)):
        cells[rows].copy().write_h5ad(folder / "shards" / f"{number}.h5ad")
    return folder


@pytest.fixture(scope="module")
def alone(shards: Path) -> str:
    """The digest of one process."""
    once = Evaluation(TASK, model="my model", device="cpu")
    for file in sorted((shards / "shards").iterdir()):
        once.update(predictions=file)
    return once.compute().result_digest


def test_the_training_loop_says_the_same_on_one_process_and_on_two(repository: Path, tmp_path: Path) -> None:
    loop = [repository / "examples" / "training_loop.py", "--epochs", 2, "--cells", 200]
    said = run(sys.executable, *loop, cwd=tmp_path)
    assert said.count("f1_macro 0.") == 2
    assert run(*TORCHRUN, "--nproc-per-node=2", *loop, cwd=tmp_path) == said


def test_ranks_of_torchrun_go_on_from_their_checkpoints(
    repository: Path, shards: Path, alone: str, tmp_path: Path
) -> None:
    """One rank has a checkpoint of a run before, and one has no files."""
    before = Evaluation(TASK, model="my model", device="cpu")
    before.update(predictions=shards / "shards" / "0.h5ad")
    (tmp_path / "checkpoints").mkdir()
    before.save(tmp_path / "checkpoints" / "0-of-3.pbstate")
    example = repository / "examples" / "torchrun_evaluation.py"
    cells = run_baseline(TASK, "nearest_centroid")
    for number, rows in enumerate(np.array_split(np.arange(cells.n_obs), 2)):
        cells[rows].copy().write_h5ad(tmp_path / f"{number}.h5ad")
    said = run(*TORCHRUN, "--nproc-per-node=3", example, tmp_path / "*.h5ad", cwd=tmp_path)
    assert said.count("my model") == 1
    result = EvalResult.load(tmp_path / "result.json")
    assert result.result_digest == alone
    assert result.predictions.duplicates_dropped > 0
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_the_tasks_of_an_array_are_merged(repository: Path, shards: Path, alone: str, tmp_path: Path) -> None:
    script = repository / "examples" / "slurm_array.sh"
    (tmp_path / "parts").mkdir()
    for task in range(2):
        of = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": "2"}
        run("bash", script, "score", shards / "shards" / "*.h5ad", cwd=tmp_path, **of)
    assert "my model" in run("bash", script, "merge", cwd=tmp_path)
    assert EvalResult.load(tmp_path / "result.json").result_digest == alone


def test_a_lightning_module_on_two_devices(repository: Path, tmp_path: Path) -> None:
    """Lightning pads the test cells of each device; a cell that comes twice counts once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own imports warn
        pytest.importorskip("lightning")
    example = repository / "examples" / "lightning_module.py"
    said = run(sys.executable, example, "--epochs", 1, "--devices", 2, cwd=tmp_path)
    assert len(re.findall(r"^accuracy ", said, re.MULTILINE)) == 1
    result = EvalResult.load(tmp_path / "lightning.json")
    assert result.provenance.world_size == 2
    assert result.scores["accuracy"].value > 0.3  # one class in ten by chance


def test_all_examples_are_listed(repository: Path) -> None:
    listed = re.findall(r"\]\(([\w.]+)\)", (repository / "examples" / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(p.name for p in (repository / "examples").iterdir() if p.suffix in (".py", ".sh"))
