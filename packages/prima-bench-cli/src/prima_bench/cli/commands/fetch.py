"""``prima-bench fetch``: bring a dataset's training and test data to this machine and say where they lie."""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

from prima_bench.cli.options import Dataset, Json, Task
from prima_bench.cli.render import Steps, write, write_json
from prima_bench.cli.transfers import transfers
from prima_bench.tasks.artifacts import fetch_data
from prima_bench.tasks.registry import get_dataset


def fetch(task: Task, dataset: Dataset = None, as_json: Json = False) -> None:
    """Fetch the training and test data of a task; prints their two paths, train first.

    The files are verified against their sha256 and kept in the cache, so that a second call needs no network. Datasets
    inside the package lie there already. The solution is never among them.

    \b
    Examples:
      prima-bench fetch --task cell_type_annotation
      prima-bench fetch --task perturbation_prediction --dataset perturbsim@1.0.0
    """
    key = get_dataset(dataset, task=task).spec.key
    with Steps() as steps, transfers(steps):
        steps(f"fetching {key}")
        train, test = fetch_data(task=task, dataset=dataset)
    if as_json:
        write_json({"train": str(train), "test": str(test)})
    else:
        write(f"{train}\n{test}")
