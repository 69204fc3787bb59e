"""What importing and listing load: never torch, pandas, anndata or boto3. Each check runs in a process of its own."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import prima_bench as pb

HEAVY = (
    "anndata",
    "boto3",
    "botocore",
    "h5py",
    "numpy",
    "pandas",
    "pydantic",
    "scipy",
    "sklearn",
    "torch",
    "torchmetrics",
)
# The command line is built on typer, which brings pydantic; nothing heavier.
HEAVY_COMMAND = tuple(name for name in HEAVY if name != "pydantic")


def loaded_by(code: str, heavy: tuple[str, ...]) -> str:
    """Which of the heavy modules are loaded after ``code`` has run."""
    program = f"{code}\nimport sys\nprint('LOADED', *sorted({set(heavy)!r} & set(sys.modules)))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.rsplit("LOADED", 1)[1].strip()


@pytest.mark.parametrize(
    "code",
    [
        "import prima_bench",
        "import prima_bench as pb; dir(pb), pb.__version__, pb.PrimaBenchError",
        "import prima_bench.cli, prima_bench.metrics, prima_bench.storage, prima_bench.tasks",
        "from prima_bench.storage import fetch, Cache, Credentials, StorageError",
        "import prima_bench as pb; pb.list_tasks(), pb.list_datasets(), pb.list_metrics()",
    ],
)
def test_importing_and_listing_load_nothing_heavy(code: str) -> None:
    assert loaded_by(code, HEAVY) == ""


def test_looking_around_loads_nothing_heavy() -> None:
    commands = [
        ["--help"],
        ["--version"],
        ["list", "tasks"],
        ["list", "datasets", "--task", "cell_type_annotation"],
        ["list", "metrics", "--json"],
        ["show", "task", "perturbation_prediction"],
        ["show", "metric", "pearson_delta"],
        ["show", "dataset", "pbmc68k@1.0.0"],
        ["evaluate", "--help"],
    ]
    code = f"from prima_bench.cli.main import main\nfor each in {commands!r}: assert main(each) == 0, each"
    assert loaded_by(code, HEAVY_COMMAND) == ""


def test_the_module_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prima_bench", "list", "tasks"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == pb.list_tasks()


def test_everything_the_facade_names_is_there() -> None:
    for name in pb.__all__:
        assert getattr(pb, name) is not None
    assert dir(pb) == sorted(pb.__all__)
    assert {"Evaluation", "EvalResult", "fetch_data", "load", "leaderboard", "list_tasks"} <= set(pb.__all__)


def test_the_facade_exports_every_error() -> None:
    from prima_bench.tasks import errors

    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert tree <= set(pb.__all__)


def test_a_typo_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Evalution'"):
        pb.Evalution  # noqa: B018


def test_the_facade_shows_type_checkers_what_it_loads() -> None:
    text = Path(str(pb.__file__)).read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert text.splitlines()[0] == '__path__ = __import__("pkgutil").extend_path(__path__, __name__)'
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    shown = {a.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert shown == pb._HOMES
    assert sorted([*shown, "__version__"]) == pb.__all__
