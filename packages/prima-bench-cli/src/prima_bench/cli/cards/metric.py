"""The card of a metric."""

import textwrap
from collections.abc import Sequence

from prima_bench.cli.cards import markdown as md
from prima_bench.cli.cards.scores import Results
from prima_bench.cli.words import averaged, better, bounds, chance, number, span, value
from prima_bench.metrics.spec import MetricSpec, Param
from prima_bench.tasks.specs import TaskSpec


def metric_card(spec: MetricSpec, *, module: str, tasks: Sequence[TaskSpec], results: Results) -> str:
    """The page of one metric.

    Args:
        spec: The metric.
        module: Dotted name of the module that computes it.
        tasks: The tasks that it scores.
        results: The baselines' results on all datasets.
    """
    offered = ", ".join(md.link(task.name, f"../tasks/{task.name}.md") for task in tasks)
    return md.page(
        f"# {spec.title}",
        f"{md.tick(spec.name)}, version {spec.version}. {spec.summary}",
        md.code(_folded(spec.formula), "text"),
        md.facts(
            [
                ("better", better(spec.direction)),
                ("range", span(spec.range)),
                ("perfect prediction", number(spec.perfect)),
                ("no skill", chance(spec)),
                ("value", averaged(spec)),
                ("tasks", offered),
                ("computed by", md.tick(f"{module}.{spec.implementation}")),
            ]
        ),
        "## When it is undefined",
        spec.undefined,
        *_params(spec.params),
        *_use(spec, tasks),
        *_naive(spec, results),
        *(["## Notes", spec.notes] if spec.notes else []),
        *(["## References", md.bullets(spec.references)] if spec.references else []),
    )


def _folded(formula: str) -> str:
    lines = (textwrap.wrap(line, 80, break_long_words=False, break_on_hyphens=False) for line in formula.splitlines())
    return "\n".join("\n".join(folded) for folded in lines)


def _params(params: Sequence[Param]) -> list[str]:
    rows = [
        (
            md.tick(p.name),
            md.tick(value(p.default)),
            ", ".join(md.tick(value(c)) for c in p.choices) or bounds(p),
            p.summary,
        )
        for p in params
    ]
    return ["## Parameters", md.table(["parameter", "default", "allowed", "meaning"], rows)] if rows else []


def _use(spec: MetricSpec, tasks: Sequence[TaskSpec]) -> list[str]:
    if not tasks:
        return []
    refs = [spec.name, *_another(spec)]
    return [
        "## Use",
        md.code(
            f'import prima_bench as pb\n\nrun = pb.Evaluation(task="{tasks[0].name}", metrics={_list(refs)})', "python"
        ),
        md.code(
            f'prima-bench evaluate --task {tasks[0].name} --metrics "{refs[-1]}" \\\n'
            "    --predictions preds.h5ad --output result.json",
            "console",
        ),
    ]


def _another(spec: MetricSpec) -> list[str]:
    """A reference with a parameter that differs from its default, to show the syntax; none where none is certain."""
    for p in spec.params:
        others = [c for c in p.choices if c != p.default]
        if isinstance(p.default, int) and not isinstance(p.default, bool) and not p.choices:
            others = [2 * p.default]
        if others:
            return [f"{spec.name}({p.name}={value(others[-1])})"]
    return []


def _list(refs: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{ref}"' for ref in refs) + "]"


def _naive(spec: MetricSpec, results: Results) -> list[str]:
    rows = [
        (md.link(key, f"../datasets/{key}.md"), md.tick(baseline), md.score(result.scores[spec.name].value))
        for key, of_dataset in results.items()
        for baseline, result in of_dataset.items()
        if spec.name in result.scores
    ]
    return ["## What naive models score", md.table(["dataset", "baseline", "value"], rows, right=[2])] if rows else []
