"""``prima-bench merge``: the parts of an array job in, one result out."""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

from pathlib import Path
from typing import Annotated, Literal

import typer

from prima_bench.cli.options import Json, output_file
from prima_bench.cli.own_data import CALLS_OF_MERGE, errors_name_options
from prima_bench.cli.render import Steps, on_terminal, remark, width, write, write_json
from prima_bench.cli.shards import files_named
from prima_bench.tasks.errors import counted
from prima_bench.tasks.results.text import result_text

STATE = ".pbstate"


def merge(
    parts: Annotated[
        list[str],
        typer.Argument(metavar="STATE", help='States that evaluate wrote, or a pattern: "part-*.pbstate".'),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Result file, ending in .json; or .pbstate to merge further later."
        ),
    ],
    solution: Annotated[
        Path | None,
        typer.Option(
            "--solution",
            metavar="FILE",
            help="The solution of your own that the parts were scored against.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    target_map: Annotated[
        str | None, typer.Option(metavar="FILE", help="Own solution: the table of targets, where there was one.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1; left out: a GPU when there is one."),
    ] = None,
    buffer: Annotated[
        Literal["auto", "memory", "disk"],
        typer.Option(help="Where predictions are kept until scored; auto: on disk above a quarter of free memory."),
    ] = "auto",
    as_json: Json = False,
) -> None:
    """Score what several jobs predicted, each of which wrote what it had to a state.

    The result is that of one evaluation of all predictions. Task, dataset, metrics and model are those of the states,
    which must agree; only a solution of your own must be given again.

    \b
    Examples:
      prima-bench evaluate --task cell_type_annotation \\
          --predictions shard-3.h5ad --output part-3.pbstate
      prima-bench merge part-*.pbstate --output result.json
      prima-bench merge part-*.pbstate --solution held_out.h5ad --output result.json

    \b
    Exit codes: 0 scored, 4 a state is damaged, 5 bad predictions, 6 states that do not go together
    """
    files = files_named(parts, "STATE")
    with output_file(output, suffix=".json", others=(STATE,)), Steps() as steps, errors_name_options(CALLS_OF_MERGE):
        steps("loading torch")
        from prima_bench.tasks.evaluation import Evaluation

        steps(f"reading {counted(len(files), 'state')}")
        options = {} if target_map is None else {"target_map": target_map}
        run = Evaluation.merge(files, solution=solution, device=device, buffer=buffer, **options)
        if output.suffix == STATE:
            run.save(output)
            result = None
        else:
            steps("computing the scores")
            result = run.compute()
            result.save(output)
    if result is not None and as_json:
        write_json(result.model_dump())
    elif result is not None:
        write(result_text(result, width() if on_terminal() else None))
    remark(f"wrote {output}")
