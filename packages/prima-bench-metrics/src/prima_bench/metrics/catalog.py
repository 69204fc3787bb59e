"""Finds metrics without importing them.

A metric module holds ``SPECS = (MetricSpec(...), ...)``, written as literals. Listing reads that assignment from
the module's syntax tree (about a millisecond a file), so it needs no torch; :func:`load_metric` imports the one
module whose class is wanted. Other packages add metrics through the entry-point group ``prima_bench.metrics``, whose
entries name a module (or a package whose modules are searched).
"""

import difflib
import importlib
import importlib.metadata
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from prima_bench.metrics.errors import MetricNameError
from prima_bench.metrics.spec import MetricRef, MetricSpec, Param, resolve_ref, split_ref
from prima_bench.metrics.specfiles import modules_under, read_constant

if TYPE_CHECKING:
    from prima_bench.metrics.base import BufferedMetric

ENTRY_POINT_GROUP = "prima_bench.metrics"
_BUILT_IN = ("prima_bench.metrics.classification", "prima_bench.metrics.perturbation")
_CONSTRUCTORS = {"MetricSpec": MetricSpec, "Param": Param}


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """Where one metric's spec was found."""

    spec: MetricSpec
    module: str


@dataclass(frozen=True, slots=True)
class BrokenModule:
    """A module that was meant to hold metrics and cannot be read; it hides no other."""

    module: str
    reason: str


@cache
def catalog() -> tuple[dict[str, CatalogEntry], tuple[BrokenModule, ...]]:
    """All metrics by name, sorted, and the modules that could not be read.

    Nothing of a plugin is run. The answer is kept for the life of the process; ``catalog.cache_clear()`` forgets it.

    Raises:
        ValueError: If one of this package's own modules cannot be read.
    """
    entries: dict[str, CatalogEntry] = {}
    broken: list[BrokenModule] = []
    plugins = sorted(
        {e.value.partition(":")[0].strip() for e in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
    )
    for root in dict.fromkeys((*_BUILT_IN, *plugins)):
        try:
            modules = list(modules_under(root))
        except (ImportError, ValueError, OSError) as error:
            if root in _BUILT_IN:
                raise
            broken.append(BrokenModule(root, f"{type(error).__name__}: {error}"))
            continue
        before = len(entries), len(broken)
        for module, path in modules:
            try:
                specs = read_specs(path)
                _refuse_repeats(specs, entries)
            except (ValueError, TypeError, AttributeError, SyntaxError, OSError, RecursionError) as error:
                if root in _BUILT_IN:
                    raise
                broken.append(BrokenModule(module, f"{type(error).__name__}: {error}"))
            else:
                entries.update({spec.name: CatalogEntry(spec, module) for spec in specs})
        if (len(entries), len(broken)) == before:
            broken.append(BrokenModule(root, "holds no SPECS"))
    return dict(sorted(entries.items())), tuple(broken)


def list_specs(inputs: str | None = None) -> list[MetricSpec]:
    """The specs of all metrics, or of those that score one family of inputs, sorted by name.

    >>> [s.name for s in list_specs("classification")][:2]
    ['accuracy', 'auprc_macro']
    """
    return [e.spec for e in catalog()[0].values() if inputs is None or e.spec.inputs == inputs]


def get_spec(name: str) -> MetricSpec:
    """The spec of one metric.

    Raises:
        MetricNameError: If there is none of that name; carries the three nearest.
    """
    return _entry(name).spec


def parse_ref(text: str) -> MetricRef:
    """Parse and check ``name`` or ``name(param=value, ...)``.

    Raises:
        MetricNameError: If the metric or a parameter is unknown, or a value is not allowed.
    """
    return resolve_ref(text, get_spec(split_ref(text)[0]))


def load_metric(name: str) -> "type[BufferedMetric]":
    """Import and return the class that computes a metric.

    Raises:
        MetricNameError: If there is none of that name.
        ImportError: If its module cannot be imported, or lacks the class that its spec names.
    """
    entry = _entry(name)
    module = importlib.import_module(entry.module)
    if not hasattr(module, entry.spec.implementation):
        raise ImportError(f"{entry.module} lists metric {name} but has no class {entry.spec.implementation}")
    cls: type[BufferedMetric] = getattr(module, entry.spec.implementation)
    return cls


def read_specs(path: Path) -> tuple[MetricSpec, ...]:
    """Read the literal ``SPECS`` of a metric module without running it; empty when it has none.

    Raises:
        ValueError: If ``SPECS`` is not made of literals, ``MetricSpec(...)`` and ``Param(...)``, or the facts of a
            spec contradict each other.
        TypeError: If a spec lacks a fact or has one too many.
        SyntaxError: If the module is not Python.
    """
    specs = read_constant(path, "SPECS", _CONSTRUCTORS)
    if specs is None:
        return ()
    if not (isinstance(specs, tuple) and all(isinstance(s, MetricSpec) for s in specs)):
        raise ValueError(f"{path.name}: SPECS must be a tuple of MetricSpec(...)")
    return specs


def _entry(name: str) -> CatalogEntry:
    entries = catalog()[0]
    if name not in entries:
        nearest = difflib.get_close_matches(name, entries, n=3, cutoff=0.0)
        raise MetricNameError(f"unknown metric {name!r}", nearest=nearest, hint=f"Nearest names: {', '.join(nearest)}.")
    return entries[name]


def _refuse_repeats(specs: tuple[MetricSpec, ...], entries: dict[str, CatalogEntry]) -> None:
    own: set[str] = set()
    for spec in specs:
        if spec.name in entries:
            raise ValueError(f"metric {spec.name} is already defined by {entries[spec.name].module}")
        if spec.name in own:
            raise ValueError(f"metric {spec.name} is defined twice")
        own.add(spec.name)
