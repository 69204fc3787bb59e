"""Cards: complete, true, runnable, linked, and stale the moment that a spec says something else."""

import posixpath
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from prima_bench.cli.cards import markdown as md
from prima_bench.cli.cards import scores
from prima_bench.cli.cards.scores import Results
from prima_bench.cli.cards.writer import changes, render_cards, write_cards
from prima_bench.metrics.catalog import list_specs
from prima_bench.tasks import registry

Cli = Callable[..., Any]
LINK = re.compile(r"\]\((?!https?://)([^)#]+)\)")

METRIC = """
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="plugin_metric", version=1, inputs="classification", implementation="Plugin", title="A | B",
        summary="SUMMARY", formula="x", direction="max", range=(0.0, None), perfect=1.0, chance=None,
        level="global", unit=None, undefined="Never.", references=(),
    ),
)
"""


@pytest.fixture(scope="module")
def cards(results: Results) -> dict[str, str]:
    """All pages."""
    return render_cards(results)


@pytest.fixture
def build(cli: Cli, results: Results, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Run ``docs build`` into a folder of its own; the baselines' results are computed once for all tests."""
    monkeypatch.setattr(scores, "baseline_results", lambda say: results)
    return lambda *flags: cli("docs", "build", "--output", tmp_path / "docs", *flags)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_committed_cards_are_up_to_date(cards: dict[str, str], repository: Path) -> None:
    assert changes(cards, repository / "docs" / "cards") == []


def test_everything_registered_has_a_card_and_nothing_else_has(cards: dict[str, str]) -> None:
    wanted = {
        *(f"tasks/{name}.md" for name in (*registry.list_tasks(), "index")),
        *(f"datasets/{key}.md" for key in (*registry.list_datasets(), "index")),
        *(f"metrics/{spec.name}.md" for spec in list_specs()),
        *("metrics/index.md", "index.md", "SUMMARY.md"),
    }
    assert set(cards) == wanted


def test_cards_say_what_the_specs_say(cards: dict[str, str]) -> None:
    for spec in list_specs():
        page = cards[f"metrics/{spec.name}.md"]
        for fact in (spec.title, spec.summary, spec.undefined, *spec.references):
            assert fact.strip() in page
        assert " ".join(spec.formula.split()) in " ".join(page.split())
        assert all(f"`{p.name}`" in page for p in spec.params)
    for key in registry.list_datasets():
        dataset = registry.get_dataset(key).spec
        page = cards[f"datasets/{key}.md"]
        for fact in (dataset.title, dataset.source, dataset.licence, dataset.citation, dataset.split, dataset.digest):
            assert fact.strip() in page
        assert all(a.sha256 in page and a.uri in page for a in dataset.artifacts)
        assert all(f"{count:,}" in page for count in dataset.counts.values())
    for name in registry.list_tasks():
        task = registry.get_task(name).spec
        page = cards[f"tasks/{name}.md"]
        for fact in (task.title, task.question, task.prediction, task.example, task.digest):
            assert fact.strip() in page
        assert all(f"({md_path})" in page for md_path in (f"../metrics/{m}.md" for m in task.presets["default"]))
        assert f"../datasets/{task.default_dataset}.md" in page


def test_cards_show_the_scores_that_evaluation_gives(cards: dict[str, str], results: Results) -> None:
    assert set(results) == set(registry.list_datasets())
    for key, of_dataset in results.items():
        task = registry.get_task(registry.get_dataset(key).spec.task).spec
        assert list(of_dataset) == [b.name for b in task.baselines]
        page = cards[f"datasets/{key}.md"]
        for result in of_dataset.values():
            assert result.result_digest in page
            for name, score in result.scores.items():
                row = next(line for line in page.splitlines() if line.startswith(f"| [{name}]"))
                assert f" {md.score(score.value)} " in row


def test_every_link_between_cards_leads_somewhere(cards: dict[str, str]) -> None:
    for name, page in cards.items():
        for target in LINK.findall(page):
            assert posixpath.normpath(f"{PurePosixPath(name).parent}/{target}") in cards, (name, target)


@pytest.mark.parametrize("task", registry.list_tasks())
def test_the_example_of_a_task_card_runs_as_it_stands(cards: dict[str, str], task: str) -> None:
    block = re.search(r"```python\n(.*?)```", cards[f"tasks/{task}.md"], re.DOTALL)
    assert block is not None
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", block[1]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(metric in done.stdout for metric in registry.get_task(task).spec.primary)


def test_build_then_check_then_build_again(build: Cli, tmp_path: Path) -> None:
    first = build()
    assert first.code == 0
    written = contents(tmp_path / "docs" / "cards")
    assert len(first.out.splitlines()) == len(written) > 10
    assert (build("--check").code, build("--check").out) == (0, "")
    assert (build().code, build().out) == (0, "")
    assert contents(tmp_path / "docs" / "cards") == written


def test_a_changed_spec_makes_its_card_stale(build: Cli, tmp_path: Path, plugin: Callable[..., Path]) -> None:
    plugin("prima_bench.metrics", "metric_plugin", METRIC.replace("SUMMARY", "What it was."))
    build()
    card = tmp_path / "docs" / "cards" / "metrics" / "plugin_metric.md"
    assert "What it was." in card.read_text(encoding="utf-8")
    before = contents(tmp_path / "docs")

    plugin("prima_bench.metrics", "metric_plugin", METRIC.replace("SUMMARY", "What it is."))
    answer = build("--check")
    assert answer.code == 6
    assert answer.out.splitlines() == [str(card)]
    assert "docs build" in answer.err
    assert contents(tmp_path / "docs") == before

    assert build().out.splitlines() == [str(card)]
    assert "What it is." in card.read_text(encoding="utf-8")
    assert build("--check").code == 0


def test_a_card_of_nothing_is_removed_and_a_page_by_hand_is_kept(
    build: Cli, tmp_path: Path, plugin: Callable[..., Path]
) -> None:
    file = plugin("prima_bench.metrics", "metric_plugin", METRIC)
    build()
    folder = tmp_path / "docs" / "cards" / "metrics"
    (folder / "own.md").write_text("# Mine\n", encoding="utf-8")
    file.write_text("SPECS = ()\n", encoding="utf-8")
    registry.registry.cache_clear()
    from prima_bench.metrics.catalog import catalog

    catalog.cache_clear()
    assert str(folder / "plugin_metric.md") in build("--check").out
    assert (folder / "plugin_metric.md").exists()
    build()
    assert not (folder / "plugin_metric.md").exists()
    assert (folder / "own.md").read_text(encoding="utf-8") == "# Mine\n"
    assert build("--check").code == 0


def test_a_digest_of_another_machine_is_not_stale(cards: dict[str, str], tmp_path: Path) -> None:
    write_cards(cards, tmp_path, cards)
    name = f"datasets/{registry.list_datasets()[0]}.md"
    page = tmp_path / name
    elsewhere, count = re.subn(r"(result digest `sha256:)[0-9a-f]{64}", r"\g<1>" + "0" * 64, cards[name])
    assert count > 0
    page.write_text(elsewhere, encoding="utf-8")
    assert changes(cards, tmp_path) == []
    page.write_text(elsewhere.replace("| 0.", "| 9.", 1), encoding="utf-8")
    assert changes(cards, tmp_path) == [name]


def test_text_cannot_break_a_table() -> None:
    cell = md.table(["a"], [["x | y\nz"]]).splitlines()[-1]
    assert cell == "| x &#124; y z |"
    assert md.code("```\n").startswith("````")
