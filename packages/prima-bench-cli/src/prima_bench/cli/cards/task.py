"""The card of a task."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from prima_bench.cli.cards import markdown as md
from prima_bench.cli.words import better, number, span
from prima_bench.metrics.spec import MetricRef, MetricSpec
from prima_bench.tasks.specs import DatasetSpec, TaskSpec

if TYPE_CHECKING:
    from prima_bench.tasks.results.schema import EvalResult


def task_card(
    spec: TaskSpec,
    *,
    panel: Sequence[tuple[MetricRef, MetricSpec]],
    offered: Sequence[str],
    datasets: Sequence[DatasetSpec],
    results: "Mapping[str, EvalResult]",
) -> str:
    """The page of one task.

    Args:
        spec: The task.
        panel: The default panel.
        offered: Names of all metrics that score it.
        datasets: All its datasets.
        results: The baselines' results on its default dataset.
    """
    others = [name for name in offered if name not in {ref.name for ref, _ in panel}]
    return md.page(
        f"# {spec.title}",
        f"{md.tick(spec.name)}, version {spec.version}. {spec.summary}",
        "## Question",
        spec.question,
        "## Contract",
        md.facts(
            [
                ("loads as", {"anndata": "AnnData", "tensors": "tensors"}[spec.artifact]),
                ("unit", spec.unit),
                ("ranked by", ", then ".join(_metric_link(name) for name in spec.primary)),
                ("abstains", ", ".join(md.tick(label) for label in spec.abstain)),
                ("digest", md.tick(spec.digest)),
            ]
        ),
        "### Predictions",
        spec.prediction,
        "## Example",
        "From the data to a result, as it stands; only the model in the middle is yours to replace:",
        md.code(usage(spec), "python"),
        "The same from a file of predictions:",
        md.code(
            f"prima-bench evaluate --task {spec.name} --predictions preds.h5ad \\\n"
            "    --model my-model --output result.json",
            "console",
        ),
        "## Panel",
        _panel(panel),
        _presets(spec),
        f"Not in the default panel: {', '.join(_metric_link(name) for name in others)}." if others else "",
        "## Datasets",
        _datasets(spec, datasets),
        "## Baselines",
        _baselines(spec),
        *([score_table(spec, results)] if results else []),
    )


def usage(spec: TaskSpec) -> str:
    """The whole way from the data to a result, around the task's own example; it runs as it is."""
    return (
        "import prima_bench as pb\n\n"
        f'train_path, test_path = pb.fetch_data(task="{spec.name}")\n'
        f'train = pb.load(train_path, task="{spec.name}", split="train")\n'
        f'test = pb.load(test_path, task="{spec.name}", split="test")\n\n'
        f"{spec.example.strip()}\n\n"
        f'run = pb.Evaluation(task="{spec.name}", model="my-model")\n'
        "run.update(predictions=preds)\n"
        "result = run.compute()\n"
        "print(result)"
    )


def score_table(spec: TaskSpec, results: "Mapping[str, EvalResult]") -> str:
    """A row per metric, a column per baseline, and under it what lets anybody check the numbers."""
    names = list(results)
    first = next(iter(results.values()))
    rows = [
        (
            _metric_link(name.partition("(")[0], name),
            "↑" if score.direction == "max" else "↓",
            *(md.score(results[b].scores[name].value) for b in names),
        )
        for name, score in first.scores.items()
    ]
    table = md.table(["metric", "", *map(md.tick, names)], rows, right=range(2, 2 + len(names)))
    digests = md.bullets(f"{md.tick(b)} result digest {md.tick(r.result_digest)}" for b, r in results.items())
    return (
        f"On {md.link(first.dataset.key, f'../datasets/{first.dataset.key}.md')}, whole panel, on a CPU:\n\n"
        f"{table}\n\n"
        f"Comparability key {md.tick(first.comparability_key)}.\n\n{digests}"
    )


def _panel(panel: Sequence[tuple[MetricRef, MetricSpec]]) -> str:
    rows = [
        (
            _metric_link(ref.name, str(ref)),
            better(spec.direction),
            span(spec.range),
            number(spec.perfect),
            "varies" if spec.chance is None else number(spec.chance),
            spec.unit or "all rows",
        )
        for ref, spec in panel
    ]
    return md.table(["metric", "better", "range", "perfect", "no skill", "over"], rows)


def _presets(spec: TaskSpec) -> str:
    def members(preset: str) -> str:
        return ", ".join(_metric_link(ref.partition("(")[0], alias or ref) for ref, alias in spec.members(preset))

    lines = [f"{md.tick(name)}: {members(name)}" for name in spec.presets if name != "default"]
    return f"Presets, for `metrics=` and `--metrics`:\n\n{md.bullets(lines)}" if lines else ""


def _datasets(spec: TaskSpec, datasets: Sequence[DatasetSpec]) -> str:
    rows = [
        (
            md.link(d.key, f"../datasets/{d.key}.md") + (" (default)" if d.key == spec.default_dataset else ""),
            d.title,
            d.licence,
        )
        for d in datasets
    ]
    return md.table(["dataset", "what it is", "licence"], rows)


def _baselines(spec: TaskSpec) -> str:
    rows = [(md.tick(b.name), b.summary) for b in spec.baselines]
    return md.table(["baseline", "what it does"], rows)


def _metric_link(name: str, label: str = "") -> str:
    return md.link(label or name, f"../metrics/{name}.md")
