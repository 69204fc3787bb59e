"""Finds tasks and datasets by name. Importing this module, and listing, imports no task, no dataset and nothing heavy.

Built-in tasks are the files of ``definitions/``, built-in datasets the files of ``datasets/``: adding one file with a
``SPEC`` is all that a curator does. Other packages add theirs through the entry-point groups ``prima_bench.tasks`` and
``prima_bench.datasets``, whose entries name a module, or a package whose modules are searched. What cannot be read is
kept in :func:`broken_modules` with the reason and hides nothing else. Metrics come from the metrics package's own
catalog.
"""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from prima_bench.metrics.catalog import BrokenModule, catalog, list_specs, named_modules, not_read
from prima_bench.metrics.errors import MetricError
from prima_bench.metrics.spec import MetricRef
from prima_bench.metrics.specfiles import modules_under, read_constant
from prima_bench.tasks.errors import UnknownNameError, UsageError, raised_as
from prima_bench.tasks.names import MetricSelection, select_metrics, version_order
from prima_bench.tasks.specs import ArtifactSpec, BaselineSpec, DatasetSpec, ManifestSpec, TaskSpec

TASK_GROUP = "prima_bench.tasks"
DATASET_GROUP = "prima_bench.datasets"
_BUILT_IN_TASKS = "prima_bench.tasks.definitions"
_BUILT_IN_DATASETS = "prima_bench.tasks.datasets"
_CONSTRUCTORS = {cls.__name__: cls for cls in (ArtifactSpec, BaselineSpec, DatasetSpec, ManifestSpec, TaskSpec)}


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """A registered task.

    Attributes:
        spec: Its contract.
        module_name: Dotted name of the module that holds its loader and baselines.
    """

    spec: TaskSpec
    module_name: str

    @property
    def module(self) -> ModuleType:
        """The task's module, imported when first asked for."""
        return importlib.import_module(self.module_name)


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """A registered dataset version.

    Attributes:
        spec: Its facts.
        module_name: Dotted name of the module that holds its recipe.
    """

    spec: DatasetSpec
    module_name: str

    @property
    def module(self) -> ModuleType:
        """The dataset's module, imported when first asked for."""
        return importlib.import_module(self.module_name)


@dataclass(frozen=True, slots=True)
class Registry:
    """Everything that was found.

    Attributes:
        tasks: By name, sorted.
        datasets: By ``name@version``, sorted.
        broken: Modules that were meant to hold a task or dataset and cannot be used.
    """

    tasks: dict[str, TaskEntry]
    datasets: dict[str, DatasetEntry]
    broken: tuple[BrokenModule, ...]


def list_tasks() -> list[str]:
    """Names of all tasks, sorted.

    >>> list_tasks()
    ['cell_type_annotation', 'perturbation_prediction']
    """
    return list(registry().tasks)


def get_task(name: str) -> TaskEntry:
    """The task of that name.

    Raises:
        UnknownNameError: If there is none.
    """
    tasks = registry().tasks
    if name not in tasks:
        raise _unknown("task", name, tasks)
    return tasks[name]


def list_datasets(task: str | None = None) -> list[str]:
    """``name@version`` of all datasets, or of one task's, sorted.

    Raises:
        UnknownNameError: If there is no such task.

    Example:
        >>> list_datasets("cell_type_annotation")
        ['pbmc68k@1.0.0']
    """
    if task is not None:
        get_task(task)
    return [key for key, entry in registry().datasets.items() if task in (None, entry.spec.task)]


def get_dataset(name: str | None = None, *, task: str | None = None) -> DatasetEntry:
    """The dataset of that name.

    Args:
        name: ``name@version``, or ``name`` for its newest version; None for the task's default.
        task: The task it must belong to.

    Raises:
        UnknownNameError: If there is no such task or dataset.
        UsageError: If the dataset belongs to another task, or neither name nor task is given.

    Example:
        >>> get_dataset("pbmc68k").spec.key
        'pbmc68k@1.0.0'
    """
    wanted = get_task(task).spec if task is not None else None
    if name is None:
        if wanted is None:
            raise UsageError("neither a dataset nor a task is named")
        name = wanted.default_dataset
    datasets = registry().datasets
    entry = datasets.get(name) or _newest(name, datasets)
    if entry is None:
        of_task = [d for d in datasets.values() if task in (None, d.spec.task)]
        raise _unknown("dataset", name, [d.spec.key if "@" in name else d.spec.name for d in of_task])
    if wanted is not None and entry.spec.task != wanted.name:
        raise UsageError(
            f"dataset {entry.spec.key} belongs to task {entry.spec.task}, not to {wanted.name}",
            hint=f"Datasets of {wanted.name}: {', '.join(list_datasets(wanted.name)) or 'none'}.",
        )
    return entry


def list_metrics(task: str | None = None) -> list[str]:
    """Names of all metrics, or of those that score one task, sorted.

    Raises:
        UnknownNameError: If there is no such task.

    Example:
        >>> "f1_macro" in list_metrics("cell_type_annotation")
        True
    """
    return [spec.name for spec in list_specs(None if task is None else get_task(task).spec.problem)]


def resolve_metrics(task: str, metrics: MetricSelection | None = None) -> list[MetricRef]:
    """The checked references that a selection stands for, in its order, each once.

    Args:
        task: Name of the task.
        metrics: A preset's name; references separated by commas; a list of presets and references; or None for the
            preset ``"default"``.

    Raises:
        UnknownNameError: If the task, a metric, a preset or a parameter does not exist, or a value is none of its
            choices or of another type.
        UsageError: If nothing is selected, a metric does not score this task's predictions, or a number is out of
            range.

    Example:
        >>> [str(ref) for ref in resolve_metrics("perturbation_prediction", "mae, pds_l1(exclude_targets=own)")]
        ['mae', 'pds_l1(exclude_targets=own)']
    """
    try:
        with raised_as(UsageError, MetricError):
            return select_metrics(get_task(task).spec, "default" if metrics is None else metrics)
    except UnknownNameError as error:
        if type(error) is UnknownNameError:
            error.hint += not_read(str(metrics), catalog()[1])
        raise


def broken_modules() -> tuple[BrokenModule, ...]:
    """Modules that were meant to hold a task, a dataset or metrics and cannot be used, with the reason."""
    return registry().broken + catalog()[1]


@cache
def registry() -> Registry:
    """All tasks and datasets. Kept for the life of the process; ``registry.cache_clear()`` forgets it."""
    broken: list[BrokenModule] = []
    tasks: dict[str, TaskEntry] = {}
    for module, spec in _specs(_BUILT_IN_TASKS, TASK_GROUP, TaskSpec, broken):
        if spec.name in tasks:
            broken.append(
                BrokenModule(module, f"task {spec.name} is already defined by {tasks[spec.name].module_name}")
            )
        else:
            tasks[spec.name] = TaskEntry(spec, module)
    datasets: dict[str, DatasetEntry] = {}
    for module, dataset in _specs(_BUILT_IN_DATASETS, DATASET_GROUP, DatasetSpec, broken):
        if dataset.key in datasets:
            owner = datasets[dataset.key].module_name
            broken.append(BrokenModule(module, f"dataset {dataset.key} is already defined by {owner}"))
        elif dataset.task not in tasks:
            broken.append(BrokenModule(module, f"dataset {dataset.key} belongs to an unknown task {dataset.task!r}"))
        else:
            datasets[dataset.key] = DatasetEntry(dataset, module)
    return Registry(dict(sorted(tasks.items())), dict(sorted(datasets.items())), tuple(broken))


def _specs[S: TaskSpec | DatasetSpec](
    built_in: str, group: str, kind: type[S], broken: list[BrokenModule]
) -> list[tuple[str, S]]:
    """The specs of one kind with their modules, built-in ones first; what cannot be read goes to ``broken``."""
    named = named_modules(group, "SPEC", broken)
    found: list[tuple[str, S]] = []
    for module, path in _files((built_in, *named), broken).items():
        try:
            spec = read_constant(path, "SPEC", _CONSTRUCTORS)
        except (ValueError, TypeError, AttributeError, SyntaxError, OSError, RecursionError) as error:
            broken.append(BrokenModule(module, f"{type(error).__name__}: {error}"))
            continue
        if isinstance(spec, kind):
            found.append((module, spec))
        elif spec is not None or module in named:
            broken.append(BrokenModule(module, f"holds no SPEC = {kind.__name__}(...)"))
    return found


def _files(roots: Iterable[str], broken: list[BrokenModule]) -> dict[str, Path]:
    """The file of every module that the roots stand for, each module once."""
    files: dict[str, Path] = {}
    for root in roots:
        try:
            files |= {module: path for module, path in modules_under(root) if module not in files}
        except (ImportError, ValueError) as error:
            broken.append(BrokenModule(root, f"{type(error).__name__}: {error}"))
    return files


def _unknown(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    error = UnknownNameError(kind, name, known)
    error.hint += not_read(name, registry().broken)
    return error


def _newest(name: str, datasets: dict[str, DatasetEntry]) -> DatasetEntry | None:
    versions = [entry for entry in datasets.values() if entry.spec.name == name]
    return max(versions, key=lambda entry: version_order(entry.spec.version), default=None)
