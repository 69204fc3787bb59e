"""Finds metrics without importing them.

A metric module holds ``SPECS = (MetricSpec(...), ...)``, written as literals. Listing reads that assignment from
the module's syntax tree (about a millisecond a file), so it needs no torch; :func:`load_metric` imports the one
module whose class is wanted. Other packages add metrics through the entry-point group ``prima_bench.metrics``, whose
entries name a module (or a package whose modules are searched).
"""

import difflib
import importlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from prima_bench.metrics.errors import MetricError, MetricNameError
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


class MetricLoadError(MetricError, ImportError):
    """A metric is listed, but the class that computes it cannot be had: the fault of the module that lists it."""


@cache
def catalog() -> tuple[dict[str, CatalogEntry], tuple[BrokenModule, ...]]:
    """All metrics by name, sorted, and the modules that could not be read.

    Nothing of a plugin is run. The answer is kept for the life of the process; ``catalog.cache_clear()`` forgets it.

    Raises:
        ValueError: If one of this package's own modules cannot be read.
    """
    entries: dict[str, CatalogEntry] = {}
    broken: list[BrokenModule] = []
    plugins = named_modules(ENTRY_POINT_GROUP, "SPECS", broken)
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


def named_modules(group: str, constant: str, broken: list[BrokenModule]) -> list[str]:
    """The modules that the entry points of a group name, sorted; those that name another constant go to ``broken``.

    Args:
        group: The group.
        constant: What is read from a module; an entry may name it, as ``module:SPECS``.
        broken: Takes what cannot be used.
    """
    modules = set()
    for entry in importlib.metadata.entry_points(group=group):
        module, _, attribute = (part.strip() for part in entry.value.partition(":"))
        if attribute in ("", constant) or not module:
            modules.add(module)
        else:
            reason = f"entry point {entry.name} names {attribute}, but what is read of a module is its {constant}"
            broken.append(BrokenModule(module, reason))
    return sorted(modules)


def not_read(name: str, broken: Sequence[BrokenModule]) -> str:
    """A sentence to follow the hint for an unknown name: which modules that may hold it cannot be read; empty for none.

    Args:
        name: What was looked for; the module most like it is named first.
        broken: Modules that cannot be read.

    Example:
        >>> not_read("recall", [BrokenModule("my_lab.recall", "SyntaxError: invalid syntax")])
        ' Not read: my_lab.recall (SyntaxError: invalid syntax).'
    """
    if not broken:
        return ""
    by_likeness = {b.module.rpartition(".")[2]: b for b in reversed(broken)}
    first = by_likeness[difflib.get_close_matches(name, by_likeness, n=1, cutoff=0.0)[0]]
    more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
    return f" Not read: {first.module} ({first.reason}){more}."


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
        MetricLoadError: If its module cannot be imported, or lacks the class that its spec names; an ``ImportError``.
    """
    entry = _entry(name)
    wanted = entry.spec.implementation
    try:
        module = importlib.import_module(entry.module)
    except ImportError as error:
        raise MetricLoadError(
            f"metric {name} cannot be loaded: importing {entry.module} fails: {type(error).__name__}: {error}",
            hint="Install what its package needs, or leave the metric out.",
        ) from error
    if not hasattr(module, wanted):
        near = difflib.get_close_matches(wanted, dir(module), n=1)
        raise MetricLoadError(
            f"metric {name} cannot be loaded: {entry.module} has no class {wanted}",
            hint=f"Its spec names the class by implementation={wanted!r}" + (f"; nearest: {near[0]}." if near else "."),
        )
    cls: type[BufferedMetric] = getattr(module, wanted)
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
        hint = f"Nearest names: {', '.join(nearest)}.{not_read(name, catalog()[1])}"
        raise MetricNameError(f"unknown metric {name!r}", nearest=nearest, hint=hint)
    return entries[name]


def _refuse_repeats(specs: tuple[MetricSpec, ...], entries: dict[str, CatalogEntry]) -> None:
    own: set[str] = set()
    for spec in specs:
        if spec.name in entries:
            raise ValueError(f"metric {spec.name} is already defined by {entries[spec.name].module}")
        if spec.name in own:
            raise ValueError(f"metric {spec.name} is defined twice")
        own.add(spec.name)
