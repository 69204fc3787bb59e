"""What the tests of the command line share: a way to call it, and the results that the cards show."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from prima_bench.cli.cards.scores import Results, baseline_results
from prima_bench.cli.main import main
from prima_bench.metrics.catalog import catalog
from prima_bench.tasks.registry import registry


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run a command in this process, without a terminal."""

    def call(*arguments: str | Path) -> Answer:
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def results() -> Results:
    """The baselines' results on the embedded datasets, computed once."""
    return baseline_results(lambda step: None)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str, str], Path]]:
    """Install a distribution that registers one module: ``plugin(group, module name, source)`` gives its file."""

    def install(group: str, name: str, source: str) -> Path:
        site = tmp_path / "site-packages"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}\n", encoding="utf-8")
        (site / f"{name}.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(site)
        forget()
        return site / f"{name}.py"

    yield install
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Make the registries look again."""
    registry.cache_clear()
    catalog.cache_clear()
