"""Exact, order-free, distributed metrics on torch and torchmetrics alone.

Every name below is imported when it is first used, so that importing this package, or listing its metrics, does not
import torch. Metric classes are found by name through the catalog, those of plugins too::

    from prima_bench.metrics import PearsonDelta, list_specs
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prima_bench.metrics.base import Batch, BufferedMetric, Field, Score
    from prima_bench.metrics.catalog import get_spec, list_specs, load_metric, parse_ref
    from prima_bench.metrics.device import resolve_device
    from prima_bench.metrics.differential.fdr import benjamini_hochberg
    from prima_bench.metrics.differential.rank_sum import RankSums, rank_sum_test
    from prima_bench.metrics.errors import (
        ConflictingRowsError,
        InputError,
        MetricError,
        MetricNameError,
        ReferenceDataError,
        SyncError,
    )
    from prima_bench.metrics.panel import Panel
    from prima_bench.metrics.perturbation.reference import PerturbationReference
    from prima_bench.metrics.rows import RowMatrix, SparseRows
    from prima_bench.metrics.spec import MetricRef, MetricSpec, Param

__all__ = [
    "Batch",
    "BufferedMetric",
    "ConflictingRowsError",
    "Field",
    "InputError",
    "MetricError",
    "MetricNameError",
    "MetricRef",
    "MetricSpec",
    "Panel",
    "Param",
    "PerturbationReference",
    "RankSums",
    "ReferenceDataError",
    "RowMatrix",
    "Score",
    "SparseRows",
    "SyncError",
    "benjamini_hochberg",
    "get_spec",
    "list_specs",
    "load_metric",
    "parse_ref",
    "rank_sum_test",
    "resolve_device",
]

_HOME = {
    "Batch": "base",
    "BufferedMetric": "base",
    "Field": "base",
    "MetricRef": "spec",
    "MetricSpec": "spec",
    "Panel": "panel",
    "Param": "spec",
    "PerturbationReference": "perturbation.reference",
    "RankSums": "differential.rank_sum",
    "RowMatrix": "rows",
    "Score": "base",
    "SparseRows": "rows",
    "benjamini_hochberg": "differential.fdr",
    "get_spec": "catalog",
    "list_specs": "catalog",
    "load_metric": "catalog",
    "parse_ref": "catalog",
    "rank_sum_test": "differential.rank_sum",
    "resolve_device": "device",
}


def __getattr__(name: str) -> "type[BufferedMetric]":
    """Import what is asked for; type checkers see every other name as a metric class."""
    if name in __all__:
        module = f"{__name__}.{_HOME.get(name, 'errors')}"
    elif name[:1].isupper() and name in (metrics := _metric_modules()):
        module = metrics[name]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: type[BufferedMetric] = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_metric_modules()})


def _metric_modules() -> dict[str, str]:
    """The module of each metric class, by class name."""
    from prima_bench.metrics.catalog import catalog

    return {entry.spec.implementation: entry.module for entry in catalog()[0].values()}
