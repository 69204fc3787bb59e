"""The kinds of what ``Evaluation`` is called with, before any name is looked up or any file opened."""

from collections.abc import Sequence

import torch

from prima_bench.metrics.spec import MetricRef
from prima_bench.tasks.errors import UsageError
from prima_bench.tasks.memory import BUFFERS

SYNC_TO = ("all", "rank0")
"""Who may hold the rows of all ranks while they are scored."""


def check_arguments(
    task: object, dataset: object, metrics: object, device: object, anchors: object, sync_to: object, buffer: object
) -> None:
    """Refuse arguments of another kind than ``Evaluation`` takes; whether names exist is the registry's business.

    Raises:
        UsageError: Naming the first that is.

    Example:
        >>> check_arguments("cell_type_annotation", None, ["accuracy", "mcc"], "cpu", False, "all", "auto")
    """
    if not isinstance(task, str):
        raise _refused("task", task, "Name a task, one of those that list_tasks() gives.")
    if dataset is not None and not isinstance(dataset, str):
        raise _refused("dataset", dataset, "Name a dataset; data of your own are handed in as solution=.")
    listed = metrics if isinstance(metrics, Sequence) and not isinstance(metrics, str) else [metrics]
    strange = [metric for metric in listed if not isinstance(metric, str | MetricRef)]
    if metrics is not None and strange:
        raise _refused("metrics", strange[0], "Name a preset or a metric, or give a list of such names.")
    if device is not None and not isinstance(device, str | torch.device):
        raise _refused("device", device, "Write cpu, cuda or cuda:0.")
    if not isinstance(anchors, bool):
        raise _refused("anchors", anchors, "Write True to measure them on a solution of your own.")
    if not isinstance(sync_to, str) or sync_to not in SYNC_TO:
        raise UsageError(f"sync_to cannot be {sync_to!r}", hint=f"Write one of {', '.join(SYNC_TO)}.")
    if not isinstance(buffer, str) or buffer not in BUFFERS:
        raise UsageError(f"buffer cannot be {buffer!r}", hint=f"Write one of {', '.join(BUFFERS)}.")


def _refused(name: str, value: object, hint: str) -> UsageError:
    return UsageError(f"{name}= cannot be of type {type(value).__name__}", hint=hint)
