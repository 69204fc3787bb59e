"""``prima-bench baseline``: let one of a task's naive models predict, and keep its predictions as a file."""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from prima_bench.cli.options import Dataset, Task, complete_baseline, output_file
from prima_bench.cli.render import Steps, remark
from prima_bench.tasks.baselines import run_baseline, save_predictions


def baseline(
    task: Task,
    name: Annotated[
        str,
        typer.Option("--name", "-n", metavar="NAME", help="Name of the baseline.", autocompletion=complete_baseline),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write; ends in .h5ad. The folder is made if missing."
        ),
    ],
    dataset: Dataset = None,
) -> None:
    """Run a naive model of a task and write its predictions.

    What it writes is what evaluate reads, so it is an example of the expected format too. The names of the baselines:
    prima-bench show task TASK.

    \b
    Example:
      prima-bench baseline --task perturbation_prediction \\
          --name mean_response --output preds.h5ad
      prima-bench evaluate --task perturbation_prediction \\
          --predictions preds.h5ad --output result.json
    """
    with output_file(output, suffix=".h5ad"), Steps() as steps:
        steps(f"running {name}")
        predictions = run_baseline(task=task, name=name, dataset=dataset)
        steps(f"writing {output}")
        # Written beside and moved into place, so that no half-written file ever bears the name.
        with TemporaryDirectory(dir=output.parent, prefix=".prima-bench-") as beside:
            save_predictions(predictions, Path(beside, output.name)).replace(output)
    remark(f"wrote {output}: {predictions.n_obs} rows")
