"""``prima-bench evaluate``: predictions and a solution in, a result file and a table of scores out."""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from prima_bench.cli.commands.merge import STATE
from prima_bench.cli.options import Dataset, Json, Task, complete_panel, output_file
from prima_bench.cli.own_data import check_options, errors_name_options, given_options
from prima_bench.cli.ranks import place
from prima_bench.cli.render import Steps, on_terminal, remark, width, write, write_json
from prima_bench.cli.shards import files_named
from prima_bench.tasks.errors import UsageError
from prima_bench.tasks.registry import get_dataset, resolve_metrics
from prima_bench.tasks.results.text import result_text


def evaluate(
    task: Task,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Result file, ending in .json; or .pbstate, for merge to score later. Its folder is made if missing.",
        ),
    ],
    predictions: Annotated[
        list[str] | None,
        typer.Option(
            "--predictions",
            "-p",
            metavar="FILE|PATTERN",
            help='Predictions, some of their shards, or a pattern in quotes: "shards/*.h5ad".',
        ),
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="More shards, as *.h5ad gives."),
    ] = None,
    dataset: Dataset = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            "-m",
            metavar="NAMES|PRESET",
            help="Metrics separated by commas, as name or name(param=value), or a preset of the task.",
            autocompletion=complete_panel,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Name of the model, for rankings.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1; left out: a GPU when there is one."),
    ] = None,
    solution: Annotated[
        Path | None,
        typer.Option(
            "--solution",
            metavar="FILE",
            help="Score against this file instead of a dataset.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    perturbation_key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Own solution: column of obs that names the perturbation.")
    ] = None,
    control: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Own solution: what that column says of control cells.")
    ] = None,
    scale: Annotated[
        Literal["counts", "log1p_cp10k"] | None, typer.Option(help="Own solution: what its values are.")
    ] = None,
    target_map: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|labels|measured_labels|none",
            help="Own solution: CSV of perturbation and target gene; labels: the labels say it; none: compounds.",
        ),
    ] = None,
    target_separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Own solution: what stands between the genes of a combination; '+' if not given."
        ),
    ] = None,
    context_key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Own solution: column of obs with the context (a cell type, a donor) to score perturbations in.",
        ),
    ] = None,
    label_key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Own solution: column of obs with the true label.")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAMES",
            help="Own solution: all classes in order, a line each or separated by commas; else those that occur.",
        ),
    ] = None,
    scores: Annotated[
        Literal["probability", "logit"] | None,
        typer.Option(help="What predicted class scores are; probability when left out."),
    ] = None,
    anchors: Annotated[
        bool,
        typer.Option(
            "--anchors", help="Own solution: score naive models and a replicate too, which gives every score a skill."
        ),
    ] = False,
    buffer: Annotated[
        Literal["auto", "memory", "disk"],
        typer.Option(help="Where predictions are kept until scored; auto: on disk above a quarter of free memory."),
    ] = "auto",
    as_json: Json = False,
) -> None:
    """Score predictions; writes the result as JSON and prints the scores.

    Predictions in several files are shards: name them all, in any order; they are read one at a time. The result file
    appears at the end and in one piece; when the predictions cannot be scored, what lies there already is left alone.
    Under torchrun the processes share the files among them, and the first one writes.

    \b
    Examples:
      prima-bench evaluate --task cell_type_annotation \\
          --predictions preds.h5ad --model my-model --output result.json
      prima-bench evaluate --task cell_type_annotation \\
          --predictions "shards/*.h5ad" --metrics f1_macro --output result.json
      prima-bench evaluate --task perturbation_prediction \\
          --solution held_out.h5ad --perturbation-key target_gene \\
          --control non-targeting --scale log1p_cp10k \\
          --predictions preds.h5ad --output result.json
      torchrun --nproc-per-node 4 -m prima_bench.cli evaluate \\
          --task cell_type_annotation \\
          --predictions "shards/*.h5ad" --output result.json

    \b
    What predictions look like: prima-bench show task TASK
    Exit codes: 0 scored, 3 unknown name, 4 data unavailable, 5 bad predictions
    """
    files = [*files_named(predictions or (), "--predictions"), *files_named(more or (), "FILE")]
    if not files:
        raise UsageError("no predictions are named", hint="Add --predictions FILE.")
    here = place()
    if output.suffix == STATE and here.world > 1:
        raise UsageError(
            f"--output {output}: a state is written by one process, and there are {here.world}",
            hint="Name a .json file, or start each process by itself, as an array job does.",
        )
    own = given_options(
        {
            "perturbation_key": perturbation_key,
            "control": control,
            "scale": scale,
            "target_map": target_map,
            "target_separator": target_separator,
            "context_key": context_key,
            "label_key": label_key,
            "classes": classes,
            "scores": scores,
        }
    )
    check_options(task, dataset, solution, own)
    resolve_metrics(task, metrics)
    if solution is None:
        get_dataset(dataset, task=task)
    written = output_file(output, suffix=".json", others=(STATE,)) if here.first else nullcontext()
    with written, Steps(quiet=not here.first) as steps, errors_name_options():
        steps("loading torch")
        from prima_bench.tasks.evaluation import Evaluation
        from prima_bench.tasks.launch import joined, local_device

        with joined(here.world):
            steps("loading the solution")
            run = Evaluation(
                *(task, dataset, metrics, local_device(device, here.world), model),
                solution=solution,
                anchors=anchors,
                sync_to="rank0",
                buffer=buffer,
                **own,
            )
            share = here.own(files)
            for number, file in enumerate(share, start=1):
                steps(f"reading {file} ({number} of {len(share)})")
                run.update(predictions=file)
            result = None
            if output.suffix == STATE:
                run.save(output)
            else:
                steps("computing the scores")
                result = run.compute()
                if here.first:
                    result.save(output)
    if not here.first:
        return
    if result is None:
        remark(f"wrote {output}; prima-bench merge scores it with the other parts")
        return
    if as_json:
        write_json(result.model_dump())
    else:
        write(result_text(result, width() if on_terminal() else None))
    remark(f"wrote {output}{'' if model else '; --model NAME would name the model in rankings'}")
