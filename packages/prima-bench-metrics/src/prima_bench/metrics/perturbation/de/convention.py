"""How tables of differential expression are made: the choices in which tools differ, under names.

What a table is made of is here; making one is ``de_table``'s job.
"""

from dataclasses import dataclass
from typing import Literal

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.perturbation.base import ControlSource
from prima_bench.metrics.perturbation.reference import ExcludeTargets


@dataclass(frozen=True, slots=True, kw_only=True)
class DEConvention:
    """A way to make a table of differential expression, and to read it.

    Attributes:
        name: What the parameter ``table`` calls it.
        target_sum: Total that the counts of each cell are scaled to before the test.
        min_control_fraction: A gene is tested when at least this share of the solution's control cells expresses it.
        min_control_cpm: Counts only: a gene is tested when its mean over the solution's control cells is above this
            many counts per million; negative for no such floor.
        mean: The mean of normalised expression that fold changes are taken of: of the values themselves, or
            ``expm1`` of the mean of their ``log1p``.
        pseudocount: What is added to both means; None for the smallest mean that the solution's control could show:
            the median over its cells of the smallest positive normalised value, divided by the number of cells.
        control_source: Whose control cells predicted cells are tested against. The true ones always have their own.
        exclude_targets: Whose target genes are left out, unless a metric is told otherwise.
        alpha: A gene is called differentially expressed when its false discovery rate is below this.
        shares_ties: Whether genes tied at the end of a list share the places left, or are taken by column.
        smallest_fdr: What false discovery rates are raised to where a gene is ranked by them.
        defined_without_calls: Whether a perturbation without true calls has a value where the definition gives one.
    """

    name: str
    target_sum: float = 1e4
    min_control_fraction: float = 0.0
    min_control_cpm: float = -1.0
    mean: Literal["arithmetic", "geometric"] = "arithmetic"
    pseudocount: float | None = None
    control_source: ControlSource = "solution"
    exclude_targets: ExcludeTargets = "own"
    alpha: float = 0.05
    shares_ties: bool = False
    smallest_fdr: float = 0.0
    defined_without_calls: bool = False


CONVENTIONS = {
    c.name: c
    for c in (
        DEConvention(
            name="default",
            min_control_fraction=0.01,
            shares_ties=True,
            smallest_fdr=1e-10,
        ),
        # cell-eval2 0.20 with its profiles "vcc2026" and "full". Its floor needs counts: on log scale it has none.
        DEConvention(
            name="vcc2026",
            target_sum=1e6,
            min_control_cpm=5.0,
            pseudocount=1e-9,
            exclude_targets="own_single",
            defined_without_calls=True,
        ),
        # cell-eval 0.8.2, whose fold changes may be infinite.
        DEConvention(
            name="cell_eval",
            mean="geometric",
            pseudocount=0.0,
            control_source="prediction",
            exclude_targets="none",
            smallest_fdr=1e-10,
        ),
    )
}


def convention_of(name: str) -> DEConvention:
    """The convention of a name.

    Raises:
        InputError: If there is none.

    Example:
        >>> convention_of("vcc2026").target_sum
        1000000.0
    """
    if name not in CONVENTIONS:
        raise InputError(f"table cannot be {name!r}", hint=f"Choose one of {', '.join(CONVENTIONS)}.")
    return CONVENTIONS[name]
