"""Brings a dataset's artifacts to this machine and opens them.

Where the bytes come from, and how they are verified, is the storage package's business; what an artifact means is the
task's. Nothing here looks at predictions.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from prima_bench.storage import HostedDataset, StorageError, fetch
from prima_bench.tasks.errors import DataError, UsageError, raised_as
from prima_bench.tasks.registry import get_dataset, get_task
from prima_bench.tasks.specs import DatasetSpec

if TYPE_CHECKING:
    from anndata import AnnData

    from prima_bench.tasks.anchors import Anchors

SPLITS = ("train", "test")


def fetch_data(task: str, dataset: str | None = None) -> tuple[Path, Path]:
    """The verified ``train`` and ``test`` artifacts of a dataset, fetched if they are not on this machine yet.

    Args:
        task: Name of the task.
        dataset: ``name`` or ``name@version``; the task's default when None.

    Returns:
        Paths of the two files. Treat them as read-only.

    Raises:
        UnknownNameError: If there is no such task or dataset.
        UsageError: If the dataset belongs to another task.
        DataError: If an artifact cannot be had, or is not the pinned one.

    Example:
        >>> train, test = fetch_data("cell_type_annotation")
        >>> train.name, test.name
        ('train.h5ad', 'test.h5ad')
    """
    spec = get_dataset(dataset, task=task).spec
    return artifact_path(spec, "train"), artifact_path(spec, "test")


def solution_path(dataset: DatasetSpec) -> Path:
    """The verified solution of a dataset; evaluation opens it, users need not.

    Raises:
        DataError: If it cannot be had, or is not the pinned one.
    """
    return artifact_path(dataset, "solution")


def stored_anchors(dataset: DatasetSpec) -> "Anchors | None":
    """The anchors that were measured when the dataset was built; None where it has none.

    Raises:
        DataError: If they cannot be had, or are not the pinned ones.
    """
    from prima_bench.tasks.anchors import Anchors

    if all(a.role != "anchors" for a in dataset.artifacts):
        return None
    return Anchors.load(artifact_path(dataset, "anchors"))


def load(path: str | Path, task: str, split: str) -> Any:
    """Open an artifact with the task's own loader.

    Args:
        path: What :func:`fetch_data` returned.
        task: Name of the task.
        split: ``"train"`` or ``"test"``.

    Returns:
        An AnnData, or tensors, by task.

    Raises:
        UnknownNameError: If there is no such task.
        UsageError: If the split is neither, or the file is an artifact of the other split.
        DataError: If the file cannot be read.

    Example:
        >>> train_path, _ = fetch_data("cell_type_annotation")
        >>> load(train_path, task="cell_type_annotation", split="train").n_vars
        765
    """
    module = get_task(task).module
    if split not in SPLITS:
        raise UsageError(f"split {split!r} does not exist", hint="Name train or test.")
    return module.load(Path(path), split)


def read_h5ad(path: Path, split: str) -> "AnnData":
    """Read an ``.h5ad`` artifact into memory; the loaders of AnnData tasks are made of this.

    Args:
        path: The file.
        split: What the file must be, where it says so in ``uns["split"]``.

    Raises:
        DataError: If the file is missing or is no AnnData file.
        UsageError: If the file says that it is another split.
    """
    import anndata

    if not path.is_file():
        raise DataError(f"{path} is not a file", hint="Pass a path that fetch_data returned.")
    try:
        cells = anndata.read_h5ad(path)
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} cannot be read as AnnData: {error}") from error
    if cells.uns.get("split", split) != split:
        raise UsageError(f"{path} is a {cells.uns['split']} artifact, not {split}", hint="Swap the path or the split.")
    return cells


def artifact_path(dataset: DatasetSpec, role: str) -> Path:
    """The verified artifact of that role, fetched if it is not on this machine yet.

    Args:
        dataset: The dataset.
        role: ``"train"``, ``"test"``, ``"solution"`` or ``"anchors"``.

    Raises:
        KeyError: If it has no such artifact.
        DataError: If it cannot be had, or is not the pinned one.
    """
    artifact, manifest = dataset.artifact(role), dataset.manifest
    with raised_as(DataError, StorageError):
        if manifest is None:
            return fetch(artifact.uri, sha256=artifact.sha256, size=artifact.size)
        hosted = HostedDataset(dataset.name, dataset.version, manifest.sha256, manifest.size)
        return hosted.fetch(artifact.uri, sha256=artifact.sha256, size=artifact.size)
