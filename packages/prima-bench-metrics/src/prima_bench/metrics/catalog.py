"""Finds metrics without importing them.

A metric module holds ``SPECS = (MetricSpec(...), ...)``, written as literals. Listing reads that assignment from
the module's syntax tree (about a millisecond a file), so it needs no torch; :func:`load_metric` imports the one
module whose class is wanted. Other packages add metrics through the entry-point group ``prima_bench.metrics``, whose
entries name a module (or a package whose modules are searched).
"""

import ast
import difflib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prima_bench.metrics.errors import MetricNameError
from prima_bench.metrics.spec import MetricRef, MetricSpec, Param, resolve_ref, split_ref

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

    The answer is kept for the life of the process; ``catalog.cache_clear()`` forgets it.
    """
    entries: dict[str, CatalogEntry] = {}
    broken: list[BrokenModule] = []
    plugins = sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda e: (e.name, e.value))
    for root in dict.fromkeys((*_BUILT_IN, *(e.value for e in plugins))):
        try:
            for module, path in _modules(root):
                for spec in read_specs(path):
                    if spec.name in entries and entries[spec.name].module != module:
                        raise ValueError(f"metric {spec.name} is already defined by {entries[spec.name].module}")
                    entries[spec.name] = CatalogEntry(spec, module)
        except (ValueError, TypeError, SyntaxError, OSError, ImportError) as error:
            if root in _BUILT_IN:
                raise
            broken.append(BrokenModule(root, f"{type(error).__name__}: {error}"))
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
    """
    entry = _entry(name)
    cls: type[BufferedMetric] = getattr(importlib.import_module(entry.module), entry.spec.implementation)
    return cls


def _entry(name: str) -> CatalogEntry:
    entries = catalog()[0]
    if name not in entries:
        nearest = difflib.get_close_matches(name, entries, n=3, cutoff=0.0)
        raise MetricNameError(
            f"unknown metric {name!r}", nearest=nearest, hint=f"Nearest names: {', '.join(nearest)}."
        )
    return entries[name]


def _modules(root: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(root)
    if spec is None:
        raise ImportError(f"no module named {root}")
    if spec.submodule_search_locations is None:
        yield root, Path(str(spec.origin))
        return
    for folder in spec.submodule_search_locations:
        for path in sorted(Path(folder).glob("*.py")):
            if path.stem != "__init__":
                yield f"{root}.{path.stem}", path


def read_specs(path: Path) -> tuple[MetricSpec, ...]:
    """Read the literal ``SPECS`` of a metric module without running it; empty when it has none.

    Raises:
        ValueError: If ``SPECS`` is not made of literals, ``MetricSpec(...)`` and ``Param(...)``.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "SPECS" and node.value is not None:  # type: ignore[attr-defined]
            specs = _literal(node.value, path)  # type: ignore[attr-defined]
            if not (isinstance(specs, tuple) and all(isinstance(s, MetricSpec) for s in specs)):
                raise ValueError(f"{path.name}: SPECS must be a tuple of MetricSpec(...)")
            return specs
    return ()


def _literal(node: ast.expr, path: Path) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_literal(e, path) for e in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CONSTRUCTORS and not node.args:
        return _CONSTRUCTORS[node.func.id](**{str(k.arg): _literal(k.value, path) for k in node.keywords if k.arg})
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{path.name}:{node.lineno}: not a literal, MetricSpec(...) or Param(...)") from None
