"""Tasks, datasets, recipes, evaluation and results of prima-bench.

Names are resolved when first used, so that importing this package imports neither torch nor pandas nor anndata.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prima_bench.tasks.artifacts import fetch_data, load, solution_path
    from prima_bench.tasks.baselines import run_baseline
    from prima_bench.tasks.errors import (
        DataError,
        IncomparableError,
        PredictionError,
        PrimaBenchError,
        UnknownNameError,
        UsageError,
    )
    from prima_bench.tasks.evaluation import Evaluation
    from prima_bench.tasks.registry import (
        broken_modules,
        get_dataset,
        get_task,
        list_datasets,
        list_metrics,
        list_tasks,
        resolve_metrics,
    )
    from prima_bench.tasks.results.leaderboard import leaderboard
    from prima_bench.tasks.results.schema import EvalResult
    from prima_bench.tasks.specs import ArtifactSpec, BaselineSpec, DatasetSpec, TaskSpec

_HOME = {
    "ArtifactSpec": "specs",
    "BaselineSpec": "specs",
    "DataError": "errors",
    "DatasetSpec": "specs",
    "EvalResult": "results.schema",
    "Evaluation": "evaluation",
    "IncomparableError": "errors",
    "PredictionError": "errors",
    "PrimaBenchError": "errors",
    "TaskSpec": "specs",
    "UnknownNameError": "errors",
    "UsageError": "errors",
    "broken_modules": "registry",
    "fetch_data": "artifacts",
    "get_dataset": "registry",
    "get_task": "registry",
    "leaderboard": "results.leaderboard",
    "list_datasets": "registry",
    "list_metrics": "registry",
    "list_tasks": "registry",
    "load": "artifacts",
    "resolve_metrics": "registry",
    "run_baseline": "baselines",
    "solution_path": "artifacts",
}

__all__ = [
    "ArtifactSpec",
    "BaselineSpec",
    "DataError",
    "DatasetSpec",
    "EvalResult",
    "Evaluation",
    "IncomparableError",
    "PredictionError",
    "PrimaBenchError",
    "TaskSpec",
    "UnknownNameError",
    "UsageError",
    "broken_modules",
    "fetch_data",
    "get_dataset",
    "get_task",
    "leaderboard",
    "list_datasets",
    "list_metrics",
    "list_tasks",
    "load",
    "resolve_metrics",
    "run_baseline",
    "solution_path",
]


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
