"""Exact, order-free, distributed metrics on torch and torchmetrics alone.

Every name below is imported when it is first used, so that importing this package, or listing its metrics, does not
import torch. Metric classes are found by name through the catalog, those of plugins too::

    from prima_bench.metrics import PearsonDelta, list_specs
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prima_bench.metrics.base import Batch, BufferedMetric, Field, Score
    from prima_bench.metrics.catalog import get_spec, list_specs, load_metric, parse_ref
    from prima_bench.metrics.device import resolve_device
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

_HOME = {
    "Batch": "base",
    "BufferedMetric": "base",
    "ConflictingRowsError": "errors",
    "Field": "base",
    "InputError": "errors",
    "MetricError": "errors",
    "MetricNameError": "errors",
    "MetricRef": "spec",
    "MetricSpec": "spec",
    "Panel": "panel",
    "Param": "spec",
    "PerturbationReference": "perturbation.reference",
    "ReferenceDataError": "errors",
    "RowMatrix": "rows",
    "Score": "base",
    "SparseRows": "rows",
    "SyncError": "errors",
    "get_spec": "catalog",
    "list_specs": "catalog",
    "load_metric": "catalog",
    "parse_ref": "catalog",
    "resolve_device": "device",
}


def _metric_modules() -> dict[str, str]:
    """The module of each metric class, by class name."""
    catalog = import_module("prima_bench.metrics.catalog")
    return {e.spec.implementation: e.module for e in catalog.catalog()[0].values()}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return __dir__()
        if name in _HOME:
            module = f"{__name__}.{_HOME[name]}"
        elif name[:1].isupper():
            module = _metric_modules().get(name)
        else:
            module = None
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*_HOME, *_metric_modules()})
