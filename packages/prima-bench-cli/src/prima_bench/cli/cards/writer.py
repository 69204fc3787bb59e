"""Gathers all cards and their indexes, and compares them with those on disk.

Digests of results are left out of the comparison: another build of torch or of a BLAS may move the twelfth digit of a
baseline's score, which makes no card wrong. A card that differs in nothing else is left as it is, digests included.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from prima_bench.cli.cards import markdown as md
from prima_bench.cli.cards.dataset import dataset_card
from prima_bench.cli.cards.metric import metric_card
from prima_bench.cli.cards.scores import Results
from prima_bench.cli.cards.task import task_card
from prima_bench.cli.words import better, span
from prima_bench.metrics.catalog import catalog, get_spec
from prima_bench.tasks import registry
from prima_bench.tasks.errors import DataError
from prima_bench.tasks.results.files import write_atomically

_KINDS = {
    "tasks": ("Tasks", "A task is a question with a contract: what a model predicts, and how that is scored."),
    "datasets": ("Datasets", "A dataset is one version of pinned files for one task; other bytes are another version."),
    "metrics": ("Metrics", "A metric compares predictions with the solution; all arithmetic is exact and order-free."),
}
_RESULT_DIGEST = re.compile(r"(result digest `sha256:)[0-9a-f]{64}`")


def render_cards(results: Results) -> dict[str, str]:
    """All pages by their path below ``cards/``.

    Args:
        results: The baselines' results.
    """
    tasks = [registry.get_task(name).spec for name in registry.list_tasks()]
    datasets = [registry.get_dataset(key) for key in registry.list_datasets()]
    metrics = catalog()[0]
    cards = {}
    for task in tasks:
        cards[f"tasks/{task.name}.md"] = task_card(
            task,
            panel=[(ref, get_spec(ref.name)) for ref in registry.resolve_metrics(task.name)],
            offered=registry.list_metrics(task.name),
            datasets=[d.spec for d in datasets if d.spec.task == task.name],
            results=results.get(task.default_dataset, {}),
        )
    for entry in datasets:
        owner = registry.get_task(entry.spec.task).spec
        cards[f"datasets/{entry.spec.key}.md"] = dataset_card(
            entry.spec, task=owner, module=entry.module_name, results=results.get(entry.spec.key, {})
        )
    for name, metric in metrics.items():
        offering = [task for task in tasks if task.problem == metric.spec.inputs]
        cards[f"metrics/{name}.md"] = metric_card(metric.spec, module=metric.module, tasks=offering, results=results)
    cards["tasks/index.md"] = _index("tasks", ["task", "what it asks"], [(_own(t.name), t.summary) for t in tasks])
    cards["datasets/index.md"] = _index(
        "datasets",
        ["dataset", "task", "licence"],
        [(_own(d.spec.key), d.spec.task, d.spec.licence) for d in datasets],
    )
    cards["metrics/index.md"] = _index(
        "metrics",
        ["metric", "what it is", "better", "range"],
        [(_own(n), m.spec.title, better(m.spec.direction), span(m.spec.range)) for n, m in metrics.items()],
    )
    cards["index.md"] = _overview(cards)
    cards["SUMMARY.md"] = _summary(cards)
    return cards


def changes(cards: Mapping[str, str], folder: Path) -> list[str]:
    """Paths of pages that are missing, differ, or belong to nothing that is registered any more; sorted."""
    stale = [name for name, text in cards.items() if _comparable(text) != _comparable(_read(folder / name))]
    return sorted([*stale, *_orphans(cards, folder)])


def write_cards(cards: Mapping[str, str], folder: Path, names: Iterable[str]) -> None:
    """Write the named pages, and remove those that are named and no longer rendered.

    Raises:
        DataError: If a page cannot be written.
    """
    for name in names:
        path = folder / name
        try:
            if name in cards:
                path.parent.mkdir(parents=True, exist_ok=True)
            else:
                path.unlink()
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror}") from error
        if name in cards:
            write_atomically(path, cards[name])


def _orphans(cards: Mapping[str, str], folder: Path) -> list[str]:
    # Only pages that bear the mark: what somebody wrote by hand is theirs.
    found = [p for kind in _KINDS for p in (folder / kind).glob("*.md") if _read(p).startswith(md.MARK)]
    return [name for name in (p.relative_to(folder).as_posix() for p in found) if name not in cards]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _comparable(text: str) -> str:
    return _RESULT_DIGEST.sub(r"\1`", text)


def _own(name: str) -> str:
    return md.link(name, f"{name}.md")


def _index(kind: str, header: list[str], rows: list[tuple[str, ...]]) -> str:
    title, sentence = _KINDS[kind]
    return md.page(f"# {title}", sentence, md.table(header, rows))


def _overview(cards: Mapping[str, str]) -> str:
    rows = [
        (md.link(title, f"{kind}/index.md"), str(len(_pages(cards, kind))), sentence)
        for kind, (title, sentence) in _KINDS.items()
    ]
    return md.page(
        "# Cards",
        "One page for everything that is registered, written from its spec by `prima-bench docs build`. "
        "`prima-bench list` and `prima-bench show` say the same in a terminal.",
        md.table(["kind", "cards", "what it is"], rows, right=[1]),
    )


def _summary(cards: Mapping[str, str]) -> str:
    lines = ["- [Overview](index.md)"]
    for kind, (title, _) in _KINDS.items():
        lines.append(f"- [{title}]({kind}/index.md)")
        lines += [f"    - [{name.removesuffix('.md')}]({kind}/{name})" for name in _pages(cards, kind)]
    return "---\nsearch:\n  exclude: true\n---\n\n" + md.page("\n".join(lines))


def _pages(cards: Mapping[str, str], kind: str) -> list[str]:
    names = (name.partition("/") for name in cards)
    return sorted(page for folder, _, page in names if folder == kind and page != "index.md")
