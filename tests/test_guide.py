"""Runs GUIDE.md: its consumer path as one program, its developer path as an installed package of somebody else."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$", re.M | re.S)
PIN = re.compile(r"^([0-9a-f]{64})\s+(\d+)\s+\S*?(train|test|solution)\.h5ad$", re.M)


def blocks(language: str) -> list[tuple[str | None, str]]:
    text = (ROOT / "GUIDE.md").read_text(encoding="utf-8")
    return [(m["title"], m["code"]) for m in FENCE.finditer(text) if m["language"] == language]


def run(args: list[str], cwd: Path, path: Path | None = None) -> str:
    env = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    done = subprocess.run(args, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def cli(*args: str) -> list[str]:
    return [sys.executable, "-m", "prima_bench", *args]


def test_the_consumer_path_runs_from_top_to_bottom(tmp_path: Path) -> None:
    program = "\n".join(code for title, code in blocks("python") if title is None)
    assert program.count("pb.Evaluation(") >= 4
    out = run([sys.executable, "-W", "error::UserWarning:prima_bench", "-c", program], tmp_path)
    assert "pds_cosine" in out
    assert (tmp_path / "pasted_control.json").is_file()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide's package, installed as pip would: its modules and its entry points on the path."""
    site = tmp_path_factory.mktemp("site")
    files = {title: code for title, code in blocks("python") if title}
    assert sorted(files) == ["my_lab/cell_cycle_phase.py", "my_lab/toycycle.py", "my_lab/worst_class_recall.py"]
    for title, code in files.items():
        (site / title).parent.mkdir(exist_ok=True)
        (site / title).write_text(code, encoding="utf-8")
    (site / "my_lab/__init__.py").touch()
    project = tomllib.loads(next(code for title, code in blocks("toml") if title == "pyproject.toml"))["project"]
    info = site / f"my_lab-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (info / "entry_points.txt").write_text(
        "\n".join(
            f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in entries.items())
            for group, entries in project["entry-points"].items()
        )
    )
    return site


def test_the_developer_path_adds_a_metric_a_task_and_a_dataset_with_its_recipe(package: Path, tmp_path: Path) -> None:
    data = package / "my_lab/data/toycycle-1.0.0"
    built = subprocess.run(
        cli("recipes", "build", "toycycle", "--output", str(data)),
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    pins = {role: (digest, size) for digest, size, role in PIN.findall(built.stdout)}
    assert built.returncode == 6, "the guide's spec is not pinned yet, and the command says so"
    assert "toycycle@1.0.0 is not pinned yet" in built.stderr
    assert sorted(pins) == ["solution", "test", "train"], built.stdout + built.stderr

    spec = package / "my_lab/toycycle.py"
    code = spec.read_text(encoding="utf-8")
    for role in ("train", "test", "solution"):
        digest, size = pins[role]
        code = re.sub(
            rf'(role="{role}".*?sha256=)"0{{64}}", size=0', rf'\g<1>"{digest}", size={size}', code, count=1, flags=re.S
        )
    spec.write_text(code, encoding="utf-8")
    again = tmp_path / "again"
    assert (
        "same bytes"
        in subprocess.run(
            cli("recipes", "build", "toycycle", "--output", str(again)),
            env={**os.environ, "PYTHONPATH": str(package)},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stderr
    )
    shutil.rmtree(again)

    commands = [
        line.split()[1:]
        for _, code in blocks("console")
        for line in code.splitlines()
        if "cell_cycle_phase" in line or "worst_class_recall" in line or "docs build --output" in line
    ]
    assert len(commands) == 5
    out = "\n".join(run(cli(*command), tmp_path, package) for command in commands)
    assert "toycycle@1.0.0" in out
    assert (tmp_path / "all_g1.json").is_file()
    cards = "\n".join(p.as_posix() for p in (tmp_path / "docs/cards").rglob("*.md"))
    for name in ("worst_class_recall", "cell_cycle_phase", "toycycle"):
        assert name in cards
