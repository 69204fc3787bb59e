__path__ = __import__("pkgutil").extend_path(__path__, __name__)
__doc__ = """The benchmark for biological foundation models: ``import prima_bench as pb``.

>>> import prima_bench as pb
>>> "perturbation_prediction" in pb.list_tasks()
True

This file names what the layers below offer and holds nothing of its own. Every name is loaded when first used, so
importing it costs a few milliseconds. Nothing below imports it.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prima_bench.tasks.artifacts import fetch_data, load
    from prima_bench.tasks.errors import (
        DataError,
        IncomparableError,
        PredictionError,
        PrimaBenchError,
        UnknownNameError,
        UsageError,
    )
    from prima_bench.tasks.evaluation import Evaluation
    from prima_bench.tasks.registry import list_datasets, list_metrics, list_tasks
    from prima_bench.tasks.results.leaderboard import leaderboard
    from prima_bench.tasks.results.schema import EvalResult

    __version__: str

_HOMES = {
    "DataError": "prima_bench.tasks.errors",
    "EvalResult": "prima_bench.tasks.results.schema",
    "Evaluation": "prima_bench.tasks.evaluation",
    "IncomparableError": "prima_bench.tasks.errors",
    "PredictionError": "prima_bench.tasks.errors",
    "PrimaBenchError": "prima_bench.tasks.errors",
    "UnknownNameError": "prima_bench.tasks.errors",
    "UsageError": "prima_bench.tasks.errors",
    "fetch_data": "prima_bench.tasks.artifacts",
    "leaderboard": "prima_bench.tasks.results.leaderboard",
    "list_datasets": "prima_bench.tasks.registry",
    "list_metrics": "prima_bench.tasks.registry",
    "list_tasks": "prima_bench.tasks.registry",
    "load": "prima_bench.tasks.artifacts",
}

__all__ = [
    "DataError",
    "EvalResult",
    "Evaluation",
    "IncomparableError",
    "PredictionError",
    "PrimaBenchError",
    "UnknownNameError",
    "UsageError",
    "__version__",
    "fetch_data",
    "leaderboard",
    "list_datasets",
    "list_metrics",
    "list_tasks",
    "load",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            value: object = importlib.import_module("importlib.metadata").version("prima-bench")
        elif name in _HOMES:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value
