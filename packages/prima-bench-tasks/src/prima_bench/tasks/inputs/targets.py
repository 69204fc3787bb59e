"""Which genes each perturbation acts on: those genes give the answer away, and metrics may leave them out.

Targets come from what the user or the dataset says and never from a coincidence of names: labels are read as genes
only when asked to (``target_map="labels"``).
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from prima_bench.tasks.errors import DataError, PrimaBenchError, UsageError, first_few
from prima_bench.tasks.inputs.files import opened
from prima_bench.tasks.inputs.genes import GeneSpace
from prima_bench.tasks.inputs.vocabulary import normalise

FROM_LABELS = "labels"
FROM_MEASURED_LABELS = "measured_labels"
NO_TARGETS = "none"
WORDS = (FROM_LABELS, FROM_MEASURED_LABELS, NO_TARGETS)
SEPARATOR = "+"


def named_targets(
    target_map: Any, perturbations: Sequence[str], genes: GeneSpace, separator: str = SEPARATOR
) -> list[list[str]]:
    """The names of every perturbation's targets, whether they were measured or not.

    Args:
        target_map: ``"labels"``: a label is the name of its target gene, and ``A+B`` names two; every one of them must
            have been measured. ``"measured_labels"``: the same, but a name that is no measured gene has no target.
            ``"none"``: no perturbation has a target, as with compounds. A mapping of labels to a gene, to several (a
            list, or ``A+B``), or to none (an empty list or string). The path of a table with the columns label and
            genes.
        perturbations: The solution's labels, [P].
        genes: The solution's genes. A mapping may name genes that were not measured; nothing is left out for those.
        separator: What stands between the genes of a combination.

    Returns:
        For each perturbation its targets.

    Raises:
        UsageError: If a label has no entry, or does not name genes, or a gene differs from a measured one in case.
        DataError: If the table cannot be read.

    Example:
        >>> genes = GeneSpace(["B", "A"])
        >>> columns_of(named_targets("labels", ["A", "A+B"], genes), genes)
        [[1], [0, 1]]
    """
    if not separator.strip():
        raise UsageError(f"target_separator cannot be {separator!r}", hint="It stands between gene names, such as '+'.")
    if isinstance(target_map, str) and target_map == NO_TARGETS:
        return [[] for _ in perturbations]
    if isinstance(target_map, str) and target_map in (FROM_LABELS, FROM_MEASURED_LABELS):
        named = {label: label.split(separator) for label in perturbations}
        if target_map == FROM_LABELS:
            _refuse_unresolved(named, genes)
    elif isinstance(target_map, Mapping):
        named = _entries(target_map, separator, UsageError)
    elif isinstance(target_map, str | PathLike):
        named = _table(Path(target_map), separator)
    else:
        raise UsageError(
            f"target_map cannot be a {type(target_map).__name__}",
            hint="Give a dict of labels to target genes (series.to_dict()), the path of a table, 'labels' or 'none'.",
        )
    missing = [label for label in perturbations if label not in named]
    if missing:
        raise UsageError(
            f"target_map has no entry for {len(missing)} perturbations: {first_few(missing)}",
            hint="Give every perturbation its target genes; an empty list where it has none, as for a drug.",
        )
    _refuse_near_misses({label: named[label] for label in perturbations}, genes)
    return [[g.strip() for g in named[label]] for label in perturbations]


def columns_of(named: Sequence[Sequence[str]], genes: GeneSpace) -> list[list[int]]:
    """For each perturbation the columns of those of its targets that were measured, ascending."""
    return [sorted({int(c) for c in genes.positions(targets) if c >= 0}) for targets in named]


def _entries(target_map: Mapping[Any, Any], separator: str, error: type[PrimaBenchError]) -> dict[str, list[str]]:
    named = {}
    for label, entry in target_map.items():
        listed = entry.split(separator) if isinstance(entry, str) else entry
        if not isinstance(listed, list | tuple | set | frozenset) or not all(isinstance(g, str) for g in listed):
            raise error(
                f"the targets of {label!r} must be gene names, not {entry!r}",
                hint="Give a gene, several in a list or joined by +, or an empty list.",
            )
        named[normalise(str(label))] = [g for g in listed if g.strip()]
    return named


def _table(path: Path, separator: str) -> dict[str, list[str]]:
    if path.suffix not in (".csv", ".tsv"):
        raise UsageError(
            f"target_map {str(path)!r} is neither a .csv or .tsv file nor one of {', '.join(map(repr, WORDS))}",
            hint="'labels' reads every label as its target gene; else give a dict, or a table of label and genes.",
        )
    with opened(path, error=DataError) as frame:
        if frame.shape[1] != 1:
            raise DataError(
                f"{path} needs two columns, label and genes; it has {1 + frame.shape[1]}",
                hint=f"Write one perturbation in a row; join several genes by {separator}, or give each its own row.",
            )
        named: dict[str, list[str]] = {}
        for label, entry in _entries_of(frame, separator):
            named.setdefault(label, []).extend(entry)
    return named


def _entries_of(frame: Any, separator: str) -> list[tuple[str, list[str]]]:
    return [
        (normalise(str(label)), [g for g in str(entry).split(separator) if g.strip()])
        for label, entry in zip(frame.index, frame.iloc[:, 0], strict=True)
    ]


def _refuse_unresolved(named: Mapping[str, list[str]], genes: GeneSpace) -> None:
    unresolved = [label for label, listed in named.items() if (genes.positions([g.strip() for g in listed]) < 0).any()]
    if unresolved:
        raise UsageError(
            f"{len(unresolved)} of {len(named)} labels name no gene of the solution: {first_few(unresolved)}",
            hint="target_map='labels' reads every label as a gene, and A+B as two. Say 'measured_labels' if some of "
            "them were not measured, 'none' for compounds, or give a mapping of labels to genes.",
        )


def _refuse_near_misses(named: Mapping[str, list[str]], genes: GeneSpace) -> None:
    measured = {str(g) for g in genes.genes}
    folded = {g.casefold(): g for g in measured}
    for label, listed in named.items():
        for gene in (g.strip() for g in listed):
            if gene not in measured and gene.casefold() in folded:
                raise UsageError(
                    f"target {gene!r} of {label!r} is not a gene of the solution, but {folded[gene.casefold()]!r} is",
                    hint="Gene names are compared exactly; write the target as the solution does.",
                )
