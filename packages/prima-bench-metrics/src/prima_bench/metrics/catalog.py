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
import sys
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
            modules = list(_modules(root))
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
    for node in ast.parse(path.read_text(encoding="utf-8"), filename=str(path)).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="SPECS")], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id="SPECS"), value=ast.expr() as value):
                pass
            case _:
                continue
        specs = _literal(value, path)
        if not (isinstance(specs, tuple) and all(isinstance(s, MetricSpec) for s in specs)):
            raise ValueError(f"{path.name}: SPECS must be a tuple of MetricSpec(...)")
        return specs
    return ()


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


def _modules(root: str) -> Iterator[tuple[str, Path]]:
    """A module, or the modules of a package, with their files, found without importing any of them."""
    top, *rest = root.split(".")
    if top in sys.modules:
        folders, file = [Path(p) for p in getattr(sys.modules[top], "__path__", ())], sys.modules[top].__file__
    else:
        spec = importlib.util.find_spec(top)
        folders = [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
        file = spec.origin if spec else None
    for part in rest:
        file = next((str(f) for folder in folders if (f := folder / f"{part}.py").is_file()), None)
        folders = [folder / part for folder in folders if (folder / part).is_dir()]
    if folders:
        for folder in folders:
            for path in sorted(folder.glob("*.py")):
                if path.stem != "__init__":
                    yield f"{root}.{path.stem}", path
    elif file is not None and Path(file).is_file():
        yield root, Path(file)
    else:
        raise ImportError(f"no module named {root}")


def _literal(node: ast.expr, path: Path) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_literal(e, path) for e in node.elts)
    match node:
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords) if name in _CONSTRUCTORS:
            if all(k.arg for k in keywords):
                return _CONSTRUCTORS[name](**{str(k.arg): _literal(k.value, path) for k in keywords})
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{path.name}:{node.lineno}: not a literal, MetricSpec(...) or Param(...)") from None
