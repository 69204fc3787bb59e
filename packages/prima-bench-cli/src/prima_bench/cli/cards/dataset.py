"""The card of a dataset version."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prima_bench.cli.cards import markdown as md
from prima_bench.cli.cards.task import score_table
from prima_bench.cli.words import size
from prima_bench.tasks.anchors import uncalibrated as uncalibrated_metrics
from prima_bench.tasks.artifacts import stored_anchors
from prima_bench.tasks.registry import resolve_metrics
from prima_bench.tasks.specs import DatasetSpec, TaskSpec

if TYPE_CHECKING:
    from prima_bench.tasks.results.schema import EvalResult


def dataset_card(spec: DatasetSpec, *, task: TaskSpec, module: str, results: "Mapping[str, EvalResult]") -> str:
    """The page of one dataset version.

    Args:
        spec: The dataset.
        task: The task that it belongs to.
        module: Dotted name of the module that holds its recipe.
        results: The baselines' results on it.
    """
    default = " It is the task's default dataset." if task.default_dataset == spec.key else ""
    return md.page(
        f"# {spec.title}",
        f"{md.tick(spec.key)}, a dataset of {md.link(task.name, f'../tasks/{task.name}.md')}. {spec.summary}{default}",
        md.facts(
            [
                ("organism", spec.organism),
                ("modality", spec.modality),
                ("licence", md.link(spec.licence, spec.licence_url) if spec.licence_url else spec.licence),
                ("digest", md.tick(spec.digest)),
            ]
        ),
        "## Source",
        spec.source,
        "## Split",
        spec.split,
        md.table(["what", "count"], [(what.replace("_", " "), f"{n:,}") for what, n in spec.counts.items()], right=[1]),
        "## Load",
        load_example(spec, task),
        *_options(spec),
        "## Files",
        md.table(
            ["artifact", "contents", "size"], [(md.tick(a.role), a.contents, size(a.size)) for a in spec.artifacts]
        ),
        md.table(
            ["artifact", "address and sha256"],
            [(md.tick(a.role), f"{md.tick(a.uri)}<br>{md.tick(a.sha256)}") for a in spec.artifacts],
        ),
        f"The recipe in {md.tick(module)} makes these bytes from the source:",
        md.code(f"prima-bench recipes build {spec.key} --output folder", "console"),
        *(["## What naive models score", score_table(task, results)] if results else []),
        *_anchors(spec, task),
        *(["## Notes", spec.notes] if spec.notes else []),
        "## Citation",
        spec.citation,
    )


def load_example(spec: DatasetSpec, task: TaskSpec) -> str:
    """How training and test data are loaded, as a block of Python."""
    named = f'task="{task.name}"' + ("" if task.default_dataset == spec.key else f', dataset="{spec.key}"')
    return md.code(
        "import prima_bench as pb\n\n"
        f"train_path, test_path = pb.fetch_data({named})\n"
        f'train = pb.load(train_path, task="{task.name}", split="train")\n'
        f'test = pb.load(test_path, task="{task.name}", split="test")',
        "python",
    )


def _anchors(spec: DatasetSpec, task: TaskSpec) -> list[str]:
    anchors = stored_anchors(spec)
    if anchors is None:
        return []
    refs = [ref for ref in resolve_metrics(task.name) if anchors.of(ref) is not None]
    uncalibrated = set(uncalibrated_metrics(anchors, refs))
    rows = []
    for ref in refs:
        anchor = anchors.metrics[str(ref)]
        values = (*anchor.baselines.values(), anchor.replicate, anchor.dynamic_range, anchor.discrimination)
        shown = ("" if value is None else f"{value:.4g}" for value in values)
        note = "uncalibrated on this panel" if str(ref) in uncalibrated else ""
        rows.append((md.link(str(ref), f"../metrics/{ref.name}.md"), *shown, note))
    named = [md.tick(name) for name in next(iter(anchors.metrics.values())).baselines]
    header = ["metric", *named, "replicate", "dynamic range", "discrimination", ""]
    about = (
        "A replicate is one half of the real cells of each perturbation as a prediction of the other, the mean of "
        f"{anchors.splits} random splits. Skill is 0 for the best of the trivial models here and 1 for the replicate. "
        f"Dynamic range is the share of the way from {md.tick(anchors.null)} to a perfect score that the replicate "
        f"gets; discrimination is the share of units in which it beats {md.tick(anchors.null)}."
    )
    return ["## Anchors", about, md.table(header, rows, right=range(1, len(header) - 1))]


def _options(spec: DatasetSpec) -> list[str]:
    rows = [(md.tick(name), md.tick(str(value))) for name, value in spec.options.items()]
    return ["The task reads it with these options:", md.table(["option", "value"], rows)] if rows else []
