"""``prima-bench show``: all the facts of one task, dataset or metric, from its spec alone."""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from prima_bench.cli.grammar import Command, Group
from prima_bench.cli.options import Json, complete_dataset, complete_metric, complete_task
from prima_bench.cli.render import facts, heading, prose, table, write, write_json
from prima_bench.cli.words import averaged, better, chance, number, param, size, span
from prima_bench.metrics.catalog import get_spec, list_specs
from prima_bench.metrics.spec import MetricSpec
from prima_bench.tasks import registry
from prima_bench.tasks.results import text
from prima_bench.tasks.specs import DatasetSpec, TaskSpec


class Kinds(Group):
    """The kinds of things that can be shown; a name without its kind is answered with the command that was meant."""

    def meant_by(self, word: str, ctx: Any) -> str:
        """The command that shows what has this name, or one most like it."""
        kinds = {
            **dict.fromkeys((spec.name for spec in list_specs()), "metric"),
            **dict.fromkeys((key for d in registry.list_datasets() for key in (d, d.partition("@")[0])), "dataset"),
            **dict.fromkeys(registry.list_tasks(), "task"),
        }
        near = get_close_matches(word, [*self.commands, *kinds], n=1, cutoff=0.7)
        if not near or near[0] in self.commands:
            return super().meant_by(word, ctx)
        return f"Say what it is: {ctx.command_path} {kinds[near[0]]} {near[0]}"


app = typer.Typer(cls=Kinds, no_args_is_help=True)


@app.callback()
def show() -> None:
    """Show the facts of one task, dataset or metric."""


@app.command(cls=Command, short_help="What a task asks, wants and is scored by.")
def task(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a task.", autocompletion=complete_task)],
    as_json: Json = False,
) -> None:
    """Show a task: its question, what predictions look like, how it is scored.

    \b
    Example:
      prima-bench show task perturbation_prediction
    """
    spec = registry.get_task(name).spec
    if as_json:
        write_json({**plain(spec), "digest": spec.digest, "datasets": registry.list_datasets(name)})
    else:
        write("\n\n".join(_task_blocks(spec)))


@app.command(cls=Command, short_help="Source, licence, sizes, split and digests.")
def dataset(
    name: Annotated[
        str, typer.Argument(metavar="NAME[@VERSION]", help="Name of a dataset.", autocompletion=complete_dataset)
    ],
    as_json: Json = False,
) -> None:
    """Show a dataset: source, licence, sizes, split, digests. Without a version: the newest one.

    \b
    Example:
      prima-bench show dataset pbmc68k
    """
    spec = registry.get_dataset(name).spec
    if as_json:
        write_json({**plain(spec), "key": spec.key, "digest": spec.digest})
    else:
        write("\n\n".join(_dataset_blocks(spec)))


@app.command(cls=Command, short_help="Formula, direction, range, parameters.")
def metric(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a metric.", autocompletion=complete_metric)],
    as_json: Json = False,
) -> None:
    """Show a metric: formula, direction, range, parameters, when it is undefined.

    \b
    Example:
      prima-bench show metric pds_cosine
    """
    spec = get_spec(name)
    if as_json:
        write_json(plain(spec))
    else:
        write("\n\n".join(_metric_blocks(spec)))


def plain(value: Any) -> Any:
    """A spec as what JSON can say: dataclasses and mappings become objects, tuples arrays.

    >>> from prima_bench.tasks.specs import BaselineSpec
    >>> plain(BaselineSpec(name="a", function="f", summary="s"))
    {'name': 'a', 'function': 'f', 'summary': 's', 'trivial': True}
    """
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return value


def _task_blocks(spec: TaskSpec) -> list[str]:
    datasets = [f"{k} (default)" if k == spec.default_dataset else k for k in registry.list_datasets(spec.name)]
    known = [
        ("loads as", spec.artifact),
        ("unit", spec.unit),
        ("ranked by", ", then ".join(spec.primary)),
        ("datasets", "\n".join(datasets)),
        ("presets", "\n".join(f"{name}: {len(refs)} metrics" for name, refs in spec.presets.items())),
    ]
    panel = [(ref, get_spec(ref.name)) for ref in registry.resolve_metrics(spec.name)]
    rows = [(str(ref), text.ARROWS[known.direction], span(known.range), known.title) for ref, known in panel]
    return [
        heading(f"{spec.title}  {spec.name}@{spec.version}"),
        prose(spec.question),
        facts(known),
        _section("Predictions", prose(spec.prediction)),
        _section("Example", spec.example.strip()),
        _section("Default panel", table(["metric", "", "range", "what it is"], rows)),
        _section("Baselines", facts((b.name, b.summary) for b in spec.baselines)),
    ]


def _dataset_blocks(spec: DatasetSpec) -> list[str]:
    known = [
        ("task", spec.task),
        ("organism", spec.organism),
        ("modality", spec.modality),
        ("counts", "\n".join(f"{what.replace('_', ' ')}: {n:,}" for what, n in spec.counts.items())),
        ("split", spec.split),
        ("source", spec.source),
        ("licence", f"{spec.licence}\n{spec.licence_url}"),
        ("citation", spec.citation),
        ("options", "\n".join(f"{k} = {v}" for k, v in spec.options.items())),
        ("digest", spec.digest),
    ]
    artifacts = [(a.role, f"{a.contents}\n{a.uri}, {size(a.size)}\n{a.sha256}") for a in spec.artifacts]
    return [
        heading(f"{spec.title}  {spec.key}"),
        prose(spec.summary),
        facts(known),
        _section("Artifacts", facts(artifacts)),
        *([_section("Notes", prose(spec.notes))] if spec.notes else []),
    ]


def _metric_blocks(spec: MetricSpec) -> list[str]:
    known = [
        ("better", better(spec.direction)),
        ("range", span(spec.range)),
        ("perfect", number(spec.perfect)),
        ("no skill", chance(spec)),
        ("value", averaged(spec)),
        ("undefined", spec.undefined),
        ("tasks", "\n".join(t for t in registry.list_tasks() if spec.name in registry.list_metrics(t))),
        ("references", "\n".join(spec.references)),
    ]
    return [
        heading(f"{spec.title}  {spec.name}, version {spec.version}"),
        prose(spec.summary),
        prose(spec.formula),
        facts(known),
        *([_section("Parameters", facts((p.name, param(p)) for p in spec.params))] if spec.params else []),
        *([_section("Notes", prose(spec.notes))] if spec.notes else []),
    ]


def _section(title: str, body: str) -> str:
    return f"{heading(title)}\n{body}"
