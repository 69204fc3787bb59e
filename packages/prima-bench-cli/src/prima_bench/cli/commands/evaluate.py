"""``prima-bench evaluate``: predictions and a solution in, a result file and a table of scores out."""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

from pathlib import Path
from typing import Annotated, Literal

import typer

from prima_bench.cli.options import Dataset, Json, Task, check_output, complete_panel
from prima_bench.cli.render import Steps, remark, write
from prima_bench.tasks.errors import UsageError
from prima_bench.tasks.registry import resolve_metrics


def evaluate(
    task: Task,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Result file; ends in .json.")],
    predictions: Annotated[
        list[Path] | None,
        typer.Option(
            "--predictions",
            "-p",
            metavar="FILE",
            help="Predictions; every file is one update.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="More predictions, as *.h5ad gives.", exists=True, dir_okay=False),
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
            metavar="FILE|labels", help="Own solution: CSV of perturbation and target gene; labels: the labels say it."
        ),
    ] = None,
    label_key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Own solution: column of obs with the true label.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score predictions; writes the result as JSON and prints the scores.

    Predictions in several files are shards: name them all, in any order. The result file appears at the end and in one
    piece; when the predictions cannot be scored, what lies there already is left alone.

    \b
    Examples:
      prima-bench evaluate --task cell_type_annotation \\
          --predictions preds.h5ad --model my-model --output result.json
      prima-bench evaluate --task cell_type_annotation \\
          --predictions shards/*.h5ad --metrics f1_macro,mcc --output result.json
      prima-bench evaluate --task perturbation_prediction \\
          --solution held_out.h5ad --perturbation-key target_gene \\
          --control non-targeting --scale log1p_cp10k \\
          --predictions preds.h5ad --output result.json

    \b
    What predictions look like: prima-bench show task TASK
    Exit codes: 0 scored, 3 unknown name, 4 data unavailable, 5 bad predictions
    """
    files = [*(predictions or ()), *(more or ())]
    options = {
        "perturbation_key": perturbation_key,
        "control": control,
        "scale": scale,
        "target_map": target_map,
        "label_key": label_key,
    }
    own = {name: value for name, value in options.items() if value is not None}
    _check(files, dataset, solution, own)
    check_output(output, suffix=".json")
    resolve_metrics(task, metrics)
    with Steps() as steps:
        steps("loading the solution")
        from prima_bench.tasks.evaluation import Evaluation

        run = Evaluation(
            task=task, dataset=dataset, metrics=metrics, device=device, model=model, solution=solution, **own
        )
        for number, file in enumerate(files, start=1):
            steps(f"reading {file} ({number} of {len(files)})")
            run.update(predictions=file)
        steps("computing the scores")
        result = run.compute()
        result.save(output)
    write(result.to_json().rstrip("\n") if as_json else result.to_text())
    remark(f"wrote {output}")


def _check(files: list[Path], dataset: str | None, solution: Path | None, own: dict[str, str]) -> None:
    if not files:
        raise UsageError("no predictions are named", hint="Add --predictions FILE.")
    if solution is not None and dataset is not None:
        raise UsageError("--solution and --dataset exclude each other", hint="A dataset brings its own solution.")
    if solution is None and own:
        flags = ", ".join("--" + name.replace("_", "-") for name in own)
        raise UsageError(f"{flags} describe a solution of your own", hint="Add --solution FILE, or leave them out.")
