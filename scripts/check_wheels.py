"""Install the built wheels into fresh environments and see that each part stands alone.

``python scripts/check_wheels.py FOLDER`` where FOLDER holds the five wheels. Third-party packages come in the locked
versions. It checks what an editable workspace cannot show: that every part imports with its own dependencies only, that
parts can be added later, and that removing one leaves the others whole.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = os.environ.get("UV") or shutil.which("uv") or "uv"

METRICS = """
import torch, prima_bench, prima_bench.metrics
from prima_bench.metrics import F1Macro
metric = F1Macro(num_classes=2)
metric.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
assert metric.compute().item() == 1.0
assert getattr(prima_bench, '__file__', None) is None, 'only the facade owns prima_bench/__init__.py'
"""
STORAGE = """
import hashlib, pathlib, tempfile
from prima_bench.storage import Cache, Credentials, fetch
path = pathlib.Path(tempfile.mkdtemp(), 'a')
path.write_bytes(b'abc')
assert fetch(path.as_uri(), sha256=hashlib.sha256(b'abc').hexdigest(), size=3) == path
from prima_bench.storage.client import object_client
"""
TASKS = """
from prima_bench.tasks.artifacts import fetch_data, load
from prima_bench.tasks.registry import list_tasks
for task in list_tasks():
    train, test = fetch_data(task=task)
    assert load(train, task=task, split='train').n_obs > 0
"""
COMMAND = """
from prima_bench.cli.main import main
assert main(['list', 'tasks']) == 0
"""
FACADE = """
import prima_bench as pb
assert all(getattr(pb, name) is not None for name in pb.__all__)
assert pb.list_tasks() and pb.list_metrics()
"""
REST = ("cli", "storage", "tasks")


class Environment:
    """A fresh virtual environment."""

    def __init__(self, folder: Path, wheels: Path, constraints: Path) -> None:
        self.python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self._wheels = wheels
        self._constraints = constraints
        _run([UV, "venv", "--quiet", "--python", sys.executable, str(folder)])

    def install(self, *distributions: str) -> None:
        """Install these wheels, and from the index what else they declare."""
        found = [
            str(path) for name in distributions for path in self._wheels.glob(f"{name.replace('-', '_')}-[0-9]*.whl")
        ]
        if len(found) != len(distributions):
            raise SystemExit(f"{self._wheels} does not hold one wheel each of {', '.join(distributions)}")
        _run([*self._pip("install"), "--constraint", str(self._constraints), *found])

    def uninstall(self, *distributions: str) -> None:
        """Remove distributions."""
        _run([*self._pip("uninstall"), *distributions])

    def passes(self, code: str) -> None:
        """Run code, alone and from nowhere."""
        _run([str(self.python), "-I", "-c", code], cwd=self.python.parent)

    def lacks(self, *modules: str) -> None:
        """Check that modules cannot be found."""
        self.passes(
            "from importlib.util import find_spec\n"
            f"present = [name for name in {modules!r} if find_spec(name)]\n"
            "assert not present, present"
        )

    def _pip(self, command: str) -> list[str]:
        return [UV, "pip", command, "--quiet", "--python", str(self.python)]


def main(wheels: Path) -> None:
    """Run every check.

    Raises:
        SystemExit: If one fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        constraints = folder / "constraints.txt"
        exported = ["export", "--quiet", "--locked", "--all-packages", "--no-emit-workspace", "--no-hashes"]
        _run([UV, *exported, "--output-file", str(constraints)], cwd=ROOT, stdout=subprocess.DEVNULL)
        for check in (storage_alone, metrics_alone_then_the_rest, tasks_then_command):
            start = time.monotonic()
            check(Environment(folder / check.__name__, wheels, constraints))
            shutil.rmtree(folder / check.__name__)
            print(f"{check.__name__}: {time.monotonic() - start:.0f} s", flush=True)


def storage_alone(environment: Environment) -> None:
    """Storage needs no torch and nothing else of ours."""
    environment.install("prima-bench-storage")
    environment.passes(STORAGE)
    environment.lacks("torch", "numpy", "pandas", "anndata", "typer", "prima_bench.metrics", "prima_bench.tasks")


def metrics_alone_then_the_rest(environment: Environment) -> None:
    """Metrics need torch and torchmetrics; the other parts can come later and go again."""
    environment.install("prima-bench-metrics")
    environment.passes(METRICS)
    environment.lacks("boto3", "anndata", "typer", "pandas", "pydantic", *(f"prima_bench.{part}" for part in REST))
    environment.install("prima-bench", *(f"prima-bench-{part}" for part in ("metrics", *REST)))
    for code in (METRICS.rsplit("assert", 1)[0], STORAGE, TASKS, COMMAND, FACADE):
        environment.passes(code)
    _run([str(environment.python), "-I", "-m", "prima_bench", "list", "tasks"], stdout=subprocess.DEVNULL)
    _run([str(environment.python.parent / "prima-bench"), "--help"], stdout=subprocess.DEVNULL)
    environment.uninstall("prima-bench-storage")
    environment.passes(METRICS.rsplit("assert", 1)[0])
    environment.uninstall("prima-bench")
    environment.passes(METRICS)
    environment.passes("import prima_bench.tasks, prima_bench.cli")


def tasks_then_command(environment: Environment) -> None:
    """Tasks evaluate without the command line, and the command line runs without the facade."""
    environment.install("prima-bench-metrics", "prima-bench-storage", "prima-bench-tasks")
    environment.passes(TASKS)
    environment.lacks("typer", "prima_bench.cli")
    environment.install("prima-bench-cli", "prima-bench-metrics", "prima-bench-storage", "prima-bench-tasks")
    environment.passes(COMMAND)


def _run(command: Sequence[str], **options: object) -> None:
    done = subprocess.run(command, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"failed with {done.returncode}: {' '.join(command)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
