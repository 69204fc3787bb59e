"""Runs a task's naive baselines and saves predictions. The baselines themselves stand in the task's file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from prima_bench.tasks.artifacts import fetch_data, load
from prima_bench.tasks.errors import UnknownNameError, UsageError
from prima_bench.tasks.registry import get_dataset, get_task

if TYPE_CHECKING:
    from anndata import AnnData


def list_baselines(task: str) -> list[str]:
    """Names of a task's baselines, in the task's order.

    Raises:
        UnknownNameError: If there is no such task.

    Example:
        >>> list_baselines("perturbation_prediction")
        ['mean_response', 'mean_response_tiled', 'linear', 'paste_control']
    """
    return [baseline.name for baseline in get_task(task).spec.baselines]


def run_baseline(task: str, name: str, dataset: str | None = None) -> "AnnData":
    """Fit a baseline on a dataset's training artifact and predict its test artifact.

    Args:
        task: Name of the task.
        name: Name of the baseline.
        dataset: ``name`` or ``name@version``; the task's default when None.

    Returns:
        Predictions, ready for ``Evaluation.update``. The same call gives the same predictions.

    Raises:
        UnknownNameError: If there is no such task, baseline or dataset.
        UsageError: If the dataset belongs to another task.
        DataError: If the data cannot be had.

    Example:
        >>> run_baseline("cell_type_annotation", "majority_class").obs["cell_type"].unique().tolist()
        ['Dendritic']
    """
    entry = get_task(task)
    functions = {baseline.name: baseline.function for baseline in entry.spec.baselines}
    if name not in functions:
        raise UnknownNameError(f"baseline of {task}", name, functions)
    options: dict[str, Any] = dict(get_dataset(dataset, task=task).spec.options)
    train_path, test_path = fetch_data(task, dataset)
    train, test = load(train_path, task, "train"), load(test_path, task, "test")
    predictions: AnnData = getattr(entry.module, functions[name])(train, test, **options)
    return predictions


def save_predictions(predictions: "AnnData", path: str | Path) -> Path:
    """Write predictions to an ``.h5ad`` file, which ``Evaluation.update`` takes by its path.

    Raises:
        UsageError: If the name does not end in ``.h5ad`` or its folder does not exist.
    """
    path = Path(path)
    if path.suffix != ".h5ad":
        raise UsageError(f"predictions are saved as .h5ad, not as {path.name!r}")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}")
    predictions.write_h5ad(path, compression="gzip")
    return path
