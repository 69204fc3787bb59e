"""Predictions in many files: patterns, one process or several, parts of an array job; always the result of one file."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest

from prima_bench.cli.main import main
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.results.schema import EvalResult

Cli = Callable[..., Any]
LABELS = "cell_type_annotation"
N = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``whole.h5ad`` and its shards ``shards/deep/*.h5ad``, and the result of the whole."""
    folder = tmp_path_factory.mktemp("shards")
    (folder / "shards" / "deep").mkdir(parents=True)
    assert main(["baseline", "-t", LABELS, "-n", "nearest_centroid", "-o", str(folder / "whole.h5ad")]) == 0
    cells = anndata.read_h5ad(folder / "whole.h5ad")
    order = np.random.default_rng(0).permutation(cells.n_obs)
    for number, rows in enumerate(np.array_split(order, N)):
        cells[rows].copy().write_h5ad(folder / "shards" / "deep" / f"{number}.h5ad")
    whole = ["evaluate", "-t", LABELS, "-p", str(folder / "whole.h5ad"), "-o", str(folder / "whole.json"), "--model=m"]
    assert main(whole) == 0
    return folder


def digest(path: Path) -> str:
    return EvalResult.load(path).result_digest


@pytest.mark.parametrize(
    "named", [["shards/*/*.h5ad"], ["shards/**/*.h5ad"], ["shards/deep/[01].h5ad", "shards/deep/[!01].h5ad"]]
)
def test_patterns_are_read_one_file_at_a_time(cli: Cli, folder: Path, tmp_path: Path, named: list[str]) -> None:
    words = [word for pattern in named for word in ("-p", folder / pattern)]
    answer = cli("evaluate", "-t", LABELS, *words, "-o", tmp_path / "r.json", "--model", "m")
    assert answer.code == 0, answer.err
    assert answer.err.index(f"(1 of {N})") < answer.err.index(f"({N} of {N})")
    assert digest(tmp_path / "r.json") == digest(folder / "whole.json")


@pytest.mark.parametrize(
    ("named", "seen"),
    [("shards/*.csv", "no file matches"), ("shards/deep", "is a folder"), ("absent.h5ad", "there is no such file")],
)
def test_names_of_no_file_are_refused(cli: Cli, folder: Path, tmp_path: Path, named: str, seen: str) -> None:
    answer = cli("evaluate", "-t", LABELS, "-p", folder / named, "-o", tmp_path / "r.json")
    assert (answer.code, answer.out) == (2, "")
    assert seen in answer.err
    assert "hint: " in answer.err


def test_a_file_whose_name_looks_like_a_pattern_is_itself(cli: Cli, folder: Path, tmp_path: Path) -> None:
    odd = tmp_path / "[ab]*.h5ad"
    odd.write_bytes((folder / "whole.h5ad").read_bytes())
    (tmp_path / "a.h5ad").write_text("not to be read")
    assert cli("evaluate", "-t", LABELS, "-p", odd, "-o", tmp_path / "r.json").code == 0


def test_parts_of_an_array_job_are_merged(cli: Cli, folder: Path, tmp_path: Path) -> None:
    for number in range(N):
        shard = folder / "shards" / "deep" / f"{number}.h5ad"
        answer = cli("evaluate", "-t", LABELS, "-p", shard, "-o", tmp_path / f"part-{number}.pbstate", "--model", "m")
        assert answer.code == 0, answer.err
        assert answer.out == ""
    pattern, output = tmp_path / "part-*.pbstate", tmp_path / "r.json"
    answer = cli("merge", pattern, "-o", output)
    assert answer.code == 0, answer.err
    assert "accuracy" in answer.out
    assert digest(output) == digest(folder / "whole.json")
    # In two steps, and from a part that is named twice.
    halves = [[tmp_path / f"part-{i}.pbstate" for i in half] for half in ((0, 1, 2), (2, 3, 4))]
    for number, half in enumerate(halves):
        assert cli("merge", *half, "-o", tmp_path / f"half-{number}.pbstate").code == 0
    assert cli("merge", tmp_path / "half-*.pbstate", "-o", output, "--buffer", "disk", "--json").code == 0
    assert digest(output) == digest(folder / "whole.json")
    Evaluation(LABELS, model="m").save(tmp_path / "empty.pbstate")
    before = output.read_bytes()
    for parts, code, named in (
        ([tmp_path / "part-0.pbstate"], 5, "must be predicted; name the states of all parts."),
        ([tmp_path / "empty.pbstate"], 5, "Name states of runs that were handed some."),
        ([folder / "whole.json"], 4, "cannot be read as a prima-bench state"),
        ([tmp_path / "none-*.pbstate"], 2, "no file matches"),
        ([pattern, "--solution", folder / "whole.h5ad"], 2, "Leave out --solution"),
    ):
        answer = cli("merge", *parts, "-o", output)
        assert (answer.code, named in answer.err, answer.out) == (code, True, ""), answer.err
    assert output.read_bytes() == before


def test_parts_against_a_solution_of_ones_own(cli: Cli, tmp_path: Path) -> None:
    labels = np.repeat(["ctrl", "g0", "g1"], 6)
    for name, seed in (("truth", 1), ("guess", 2)):
        counts = np.random.default_rng(seed).poisson(5, (18, 6)).astype("float32")
        obs = pd.DataFrame({"target": labels}, index=[f"c{i}" for i in range(18)])
        cells = anndata.AnnData(counts, obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(6)]))
        cells.write_h5ad(tmp_path / f"{name}.h5ad")
    for number, rows in enumerate((slice(0, 9), slice(9, 18))):
        cells[rows].copy().write_h5ad(tmp_path / f"guess{number}.h5ad")
    (tmp_path / "targets.csv").write_text("label,gene\ng0,g0\ng1,g1\n")
    own = ["evaluate", "-t", "perturbation_prediction", "--solution", tmp_path / "truth.h5ad", "-m", "mae,pds_cosine"]
    own += ["--perturbation-key=target", "--control=ctrl", "--scale=counts", "--target-map", tmp_path / "targets.csv"]
    assert cli(*own, "-p", tmp_path / "guess.h5ad", "-o", tmp_path / "whole.json").code == 0
    for number in range(2):
        assert cli(*own, "-p", tmp_path / f"guess{number}.h5ad", "-o", tmp_path / f"{number}.pbstate").code == 0
    merge = ["merge", tmp_path / "?.pbstate", "-o", tmp_path / "r.json"]
    answer = cli(*merge)
    assert (answer.code, "Add --solution" in answer.err) == (2, True), answer.err
    answer = cli(*merge, "--solution", tmp_path / "truth.h5ad")
    assert (answer.code, "--target-map must be given again" in answer.err) == (2, True), answer.err
    answer = cli(*merge, "--solution", tmp_path / "guess.h5ad", "--target-map", tmp_path / "targets.csv")
    assert (answer.code, "another solution" in answer.err) == (6, True), answer.err
    answer = cli(*merge, "--solution", tmp_path / "truth.h5ad", "--target-map", tmp_path / "targets.csv")
    assert answer.code == 0, answer.err
    assert digest(tmp_path / "r.json") == digest(tmp_path / "whole.json")


def torchrun(processes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    return subprocess.run(
        [*launcher, "-m", "prima_bench.cli", *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def test_torchrun_shares_the_files_and_one_process_writes(folder: Path, tmp_path: Path) -> None:
    """More processes than files: one of them has nothing to read."""
    words = ["evaluate", "-t", LABELS, "-p", folder / "shards" / "deep" / "[0-1].h5ad"]
    words += ["-p", folder / "whole.h5ad", "-o", tmp_path / "r.json", "--model", "m"]
    done = torchrun(4, *words)
    assert done.returncode == 0, done.stderr
    assert digest(tmp_path / "r.json") == digest(folder / "whole.json")
    assert EvalResult.load(tmp_path / "r.json").provenance.world_size == 4
    assert done.stdout.count("pbmc68k@1.0.0: m") == 1
    assert done.stderr.count("wrote ") == 1
    assert "reading" in done.stderr


def test_a_shard_that_is_refused_ends_all_processes_with_its_name(folder: Path, tmp_path: Path) -> None:
    strange = anndata.read_h5ad(folder / "shards" / "deep" / "1.h5ad")
    strange.obs_names = [f"{name}?" for name in strange.obs_names]
    strange.write_h5ad(tmp_path / "strange.h5ad")
    shards = [folder / "shards" / "deep" / "0.h5ad", tmp_path / "strange.h5ad"]
    done = torchrun(2, "evaluate", "-t", LABELS, *shards, "-o", tmp_path / "r.json")
    assert done.returncode != 0
    assert "rank 1: error: " in done.stderr
    assert "not found in the solution" in done.stderr
    assert not (tmp_path / "r.json").exists()


def test_a_state_is_written_by_one_process(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    answer = cli("evaluate", "-t", LABELS, folder / "whole.h5ad", "-o", tmp_path / "part.pbstate")
    assert (answer.code, answer.out) == (2, "")
    assert "rank 1: error: --output" in answer.err
    assert "one process, and there are 2" in answer.err
