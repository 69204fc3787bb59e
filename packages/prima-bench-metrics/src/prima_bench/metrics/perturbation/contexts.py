"""A solution whose perturbations are scored within contexts (cell types, donors), each against controls of its own.

One reference for each context, all over the same cells, genes and perturbations, and what their scores become together.
"""

from collections.abc import Iterable, Sequence
from typing import Self, cast

import torch
from torch import Tensor

from prima_bench.metrics.base import Score
from prima_bench.metrics.errors import InputError, ReferenceDataError
from prima_bench.metrics.fields import Field, check_chunk
from prima_bench.metrics.numerics import tree_mean
from prima_bench.metrics.perturbation.pseudobulk import Scale
from prima_bench.metrics.perturbation.reference import (
    FIELDS,
    PerturbationReference,
    canonical_order,
    check_codes,
    check_scale,
    check_sign,
    checked_targets,
    listed,
)
from prima_bench.metrics.rows import RowMatrix, SparseRows


class StratifiedReference:
    """Real cells by context: of each context a control (code 0) and some of the perturbations (codes 1 to P).

    Make one with :meth:`from_cells`. A metric built on it scores each context by itself; unit ``c * P + p - 1`` is
    perturbation ``p`` in context ``c``, and undefined where the context lacks it.

    Attributes:
        parts: The reference of each context.
        num_contexts: C.
        num_perturbations: P.
        num_genes: Number of genes.
        scale: ``"counts"`` or ``"log1p_cp10k"``.
        targets: For each perturbation, the columns of the genes that it acts on; None when no target is known.

    Example:
        >>> x = torch.tensor([[1.0, 1.0], [5.0, 2.0], [2.0, 0.0], [2.0, 4.0]])
        >>> reference = StratifiedReference.from_cells(
        ...     x,
        ...     group=torch.tensor([0, 1, 0, 1]),
        ...     context=torch.tensor([0, 0, 1, 1]),
        ...     num_perturbations=1,
        ...     num_contexts=2,
        ...     scale="log1p_cp10k",
        ... )
        >>> reference.parts[1].profiles()
        tensor([[2., 0.],
                [2., 4.]], dtype=torch.float64)
    """

    def __init__(self, parts: Sequence[PerturbationReference]) -> None:
        first = parts[0]
        self.parts = tuple(parts)
        self.num_contexts = len(parts)
        self.num_perturbations = first.num_perturbations
        self.num_genes = first.num_genes
        self.scale: Scale = first.scale
        self.targets = first.targets

    @classmethod
    def from_cells(
        cls,
        x: Tensor | SparseRows,
        group: Tensor,
        context: Tensor,
        *,
        num_perturbations: int,
        num_contexts: int,
        scale: Scale,
        targets: Sequence[Sequence[int]] | None = None,
        index: Tensor | None = None,
    ) -> Self:
        """Check and take the solution's cells.

        Args:
            x: Expression, real ``[cells, genes]``, dense or sparse; kept once, without a copy.
            group: Code of each cell, integer ``[cells]``: 0 for control, 1 to P for the perturbations.
            context: Context of each cell, integer ``[cells]``, 0 to C - 1.
            num_perturbations: P.
            num_contexts: C.
            scale: What the values are: raw counts, or log1p of counts per 10,000.
            targets: For perturbations 1 to P, the columns of their target genes.
            index: Ids of the cells, as in ``PerturbationReference``.

        Raises:
            InputError: If shapes, dtypes or codes are wrong, or values are not finite (negative, for counts).
            ReferenceDataError: If a context has no control or no perturbed cells, a perturbation is nowhere, or two
                cells have one id.
        """
        if num_perturbations < 1 or num_contexts < 1:
            raise InputError("num_perturbations and num_contexts must be at least 1")
        check_scale(scale)
        fields = (*FIELDS, Field("context", "integer", "scalar"))
        given = {"x": x, "group": group, "context": context, "index": index}
        chunk = check_chunk(fields, given, device=x.device, owned=True)
        matrix, codes, contexts = chunk["x"], cast(Tensor, chunk["group"]), cast(Tensor, chunk["context"])
        check_codes(codes, num_perturbations)
        check_contexts(contexts, num_contexts)
        order = canonical_order(chunk.get("index"))
        if order is None:
            order = torch.arange(len(codes), device=codes.device)
        columns = checked_targets(targets, num_perturbations, matrix.shape[1])
        parts = []
        for number in range(num_contexts):
            own = order[contexts[order] == number]
            parts.append(
                PerturbationReference(
                    RowMatrix([matrix], own),
                    codes[own],
                    num_perturbations=num_perturbations,
                    scale=scale,
                    targets=columns,
                )
            )
            check_sign(parts[-1].cells, scale)
        _refuse_gaps(parts)
        return cls(parts)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Itself: it never changes."""
        return self


def check_contexts(context: Tensor, num_contexts: int) -> None:
    """Raise InputError unless all codes lie within 0 and ``num_contexts - 1``."""
    outside = context[(context < 0) | (context >= num_contexts)]
    if len(outside):
        raise InputError(f"context {int(outside[0])} is outside 0 to {num_contexts - 1}")


def joined(scores: Iterable[Score]) -> Score:
    """One score for all contexts: the mean over all units, or, of metrics without units, over the contexts.

    Example:
        >>> joined([Score(1.0), Score(None, "no cells"), Score(0.5)]).value
        0.75
    """
    scores = list(scores)
    if any(s.units is None for s in scores):
        values = [s.value for s in scores if s.value is not None]
        if not values:
            return Score(None, next(s.reason for s in scores))
        return Score(float(tree_mean(torch.tensor(values, dtype=torch.float64))))
    units = [cast(Tensor, s.units) for s in scores]
    width = len(units[0])
    reasons = {number * width + unit: why for number, s in enumerate(scores) for unit, why in s.undefined.items()}
    return Score.from_units(torch.cat(units), reasons)


def _refuse_gaps(parts: Sequence[PerturbationReference]) -> None:
    cells = torch.stack([part.cells_per_group for part in parts])
    for what, lacking in (("control", cells[:, 0] == 0), ("perturbed", cells[:, 1:].sum(dim=1) == 0)):
        if bool(lacking.any()):
            raise ReferenceDataError(
                f"the solution has no {what} cells in context {listed(lacking.nonzero().flatten().tolist())}",
                hint="Effects are measured within a context; leave such contexts out.",
            )
    nowhere = (cells[:, 1:].sum(dim=0) == 0).nonzero().flatten() + 1
    if len(nowhere):
        raise ReferenceDataError(
            f"the solution has no cells of group {listed(nowhere.tolist())}",
            hint="Leave perturbations without cells out of the numbering.",
        )
