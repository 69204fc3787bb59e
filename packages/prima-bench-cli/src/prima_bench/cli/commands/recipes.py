"""``prima-bench recipes``: rebuild a dataset's files from its source, and compare them with what is registered."""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from prima_bench.cli.grammar import Command, Group
from prima_bench.cli.options import complete_dataset, output_file, output_folder
from prima_bench.cli.render import Steps, remark, write
from prima_bench.cli.transfers import transfers
from prima_bench.tasks import registry
from prima_bench.tasks.errors import IncomparableError, UsageError
from prima_bench.tasks.recipes import build_dataset, differences, is_pinned, publish_dataset
from prima_bench.tasks.results.files import write_atomically

Name = Annotated[
    str, typer.Argument(metavar="NAME[@VERSION]", help="Name of a dataset.", autocompletion=complete_dataset)
]

app = typer.Typer(cls=Group, no_args_is_help=True)


@app.callback()
def recipes() -> None:
    """Build datasets from their sources."""


@app.command(cls=Command)
def build(
    name: Name,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Empty folder for the files; made when missing.")
    ],
) -> None:
    """Write a dataset's files anew, by its recipe.

    These are train.h5ad, test.h5ad and solution.h5ad; their digests and sizes are printed. The files are compared with
    what is registered; ends with 6 if one differs, since other bytes are another version.

    \b
    Example:
      prima-bench recipes build perturbsim --output /tmp/perturbsim
    """
    key = registry.get_dataset(name).spec.key
    with output_folder(output), Steps() as steps:
        steps(f"building {key}")
        built = build_dataset(key, output)
    write("\n".join(f"{artifact.sha256}  {artifact.size}  {artifact.path}" for artifact in built.values()))
    if not is_pinned(key):
        raise IncomparableError(
            f"{key} is not pinned yet: its spec holds zeros in the place of digests",
            hint="Copy the digests and sizes that were printed into its artifacts.",
        )
    if differing := differences(key, built):
        raise IncomparableError(
            "\n".join(differing),
            hint="Other releases of anndata or h5py may write other bytes. If the data changed, raise the version.",
        )
    remark(f"{key}: the same bytes as registered")


@app.command(cls=Command)
def anchors(
    name: Name,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The JSON file to write.")],
) -> None:
    """Measure the scores that skill is counted from.

    These are what naive models and a replicate score on the dataset. The file becomes an artifact of the dataset: its
    digest and size, which are printed, go into the dataset's spec.

    \b
    Example:
      prima-bench recipes anchors perturbsim --output anchors.json
    """
    key = registry.get_dataset(name).spec.key
    with output_file(output, suffix=".json"), Steps() as steps:
        from prima_bench.tasks.anchoring import measure_anchors

        text = measure_anchors(key, steps).to_json()
        write_atomically(output, text)
    write(f"{hashlib.sha256(text.encode()).hexdigest()}  {len(text.encode())}  {output}")


@app.command(cls=Command)
def publish(
    name: Name,
    to: Annotated[
        str, typer.Option("--to", metavar="URI", help="Data root: gs://bucket/prefix or s3://bucket/prefix.")
    ],
) -> None:
    """Upload a dataset version for others to fetch.

    Prints what goes into its spec. Its files go to URI/NAME/VERSION/, the manifest that pins them last; each is read
    back and compared. What lies there already is never overwritten: the same bytes are left as they are, other bytes
    end the command with 4.

    \b
    Example:
      prima-bench recipes publish perturbsim@1.0.0 --to gs://my-bucket/benchmarks
    """
    if not to.startswith(("gs://", "s3://")):
        raise UsageError(f"--to {to}: no place to publish to", hint="Write gs://bucket/prefix or s3://bucket/prefix.")
    key = registry.get_dataset(name).spec.key
    with Steps() as steps, transfers(steps):
        published = publish_dataset(key, to, steps)
    write(published.as_source())
    remark(f"{key}: {published.uris[-1]} and the files that it pins are there")
    remark("import ManifestSpec from prima_bench.tasks.specs too, where the lines are put")
