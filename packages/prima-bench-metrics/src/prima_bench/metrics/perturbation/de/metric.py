"""Metrics that compare tables of differential expression, and what those tables say about some perturbations.

The tables are made in ``de_table`` and shared by a panel; the formulas are in the metrics' files.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch
from prima_bench.metrics.perturbation.base import PerturbationMetric
from prima_bench.metrics.perturbation.de.convention import convention_of
from prima_bench.metrics.perturbation.de.table import DETable, predicted_table, true_table
from prima_bench.metrics.perturbation.reference import ExcludeTargets, PerturbationReference

NONE_CALLED = "no differentially expressed genes in the solution"

_BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """What is predicted and what is true of some perturbations; masks are boolean ``[rows, genes]``.

    Attributes:
        pred: The predicted table.
        true: The true table.
        keep: The genes that are compared: tested, and no excluded target.
        pred_called: Which of them the prediction calls differentially expressed.
        true_called: Which of them the solution does.
    """

    pred: DETable
    true: DETable
    keep: Tensor
    pred_called: Tensor
    true_called: Tensor


class DEMetric(PerturbationMetric):
    """A perturbation metric whose formula reads tables of differential expression.

    A perturbation without true calls is undefined, unless the convention gives it a value; a prediction that calls
    nothing has the worst value, or that of no skill.

    Args:
        reference: The solution.
        table: How the tables are made: the name of a ``DEConvention``. It also says whose control cells predictions
            are tested against.
        exclude_targets: Leave out the ``"own"`` target genes of each perturbation, or those of the whole ``"panel"``;
            ``"table"`` for what the convention says.
        **kwargs: As in ``PerturbationMetric``.

    Raises:
        InputError: If an argument is wrong, or has no meaning beside the others.
    """

    degenerate: ClassVar[str] = NONE_CALLED
    otherwise: ClassVar[str] = NONE_CALLED
    default_exclude_targets: ClassVar[ExcludeTargets] = "own"

    def __init__(
        self,
        reference: Any = None,
        *,
        table: str = "default",
        exclude_targets: str = "table",
        **kwargs: Any,
    ) -> None:
        convention = convention_of(table)
        exclude = convention.exclude_targets if exclude_targets == "table" else exclude_targets
        super().__init__(
            reference,
            control_source=convention.control_source,
            exclude_targets=cast(ExcludeTargets, exclude),
            **kwargs,
        )
        self.convention = convention

    def unit_values(
        self, batch: Batch, reference: PerturbationReference, chosen: Tensor
    ) -> tuple[Tensor, Mapping[int, str]]:
        """The values of the perturbations that have true cells, a few at a time to bound memory."""
        parts = [(self.row_values(t), t.true_called.any(dim=1)) for t in self.blocks(batch, reference, chosen)]
        values, some_called = (torch.cat(part) for part in zip(*parts, strict=True))
        return values, dict.fromkeys(chosen[values.isnan() & some_called].tolist(), self.otherwise)

    @abstractmethod
    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations, float64 ``[rows]``; NaN where undefined.

        ``otherwise`` says why, where the solution has calls.
        """

    def blocks(self, batch: Batch, reference: PerturbationReference, chosen: Tensor) -> Iterator[Tables]:
        """The true and the predicted tables of a few perturbations at a time, in order.

        Args:
            batch: Predicted cells.
            reference: The solution.
            chosen: Which perturbations, int64 ``[k]``, from 0.

        Raises:
            ProfileError: If predicted expression is too large to be tested.
        """
        alpha, device = self.convention.alpha, batch.device
        pred = predicted_table(batch, reference, self.convention)
        true = true_table(reference, self.convention)
        kept = self.kept_genes(reference)
        for part in torch.split(chosen, max(1, _BLOCK_ELEMENTS // reference.num_genes)):
            p, t = pred.rows(part), true.rows(part.to(reference.cells.device)).to(device)
            keep = t.tested
            if kept is not None:
                keep = keep & (kept if kept.dim() == 1 else kept[part.to(kept.device)]).to(device)
            yield Tables(p, t, keep, p.called(alpha) & keep, t.called(alpha) & keep)


def share(part: Tensor, whole: Tensor) -> Tensor:
    """``part / whole`` of counts, float64; NaN where there is nothing to take a share of.

    >>> share(torch.tensor([1, 0]), torch.tensor([2, 0]))
    tensor([0.5000,    nan], dtype=torch.float64)
    """
    return part.double() / torch.where(whole > 0, whole, torch.nan)


def compacted(mask: Tensor, *columns: Tensor, fill: float = 0.0) -> tuple[Tensor, ...]:
    """The chosen entries of each row, moved to its front, in order: ``[rows, most that a row has, at least 1]``.

    Args:
        mask: What is chosen, boolean ``[rows, genes]``.
        *columns: What to choose from, of the same shape.
        fill: What stands behind the last chosen entry.

    Returns:
        Where an entry stands, boolean, then each of the columns.

    Example:
        >>> mask = torch.tensor([[True, False, True], [False, True, False]])
        >>> compacted(mask, torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        (tensor([[ True,  True],
                [ True, False]]), tensor([[1., 3.],
                [5., 0.]]))
    """
    counts = mask.sum(dim=1)
    row, column = mask.nonzero(as_tuple=True)
    place = torch.arange(len(row), device=mask.device) - (counts.cumsum(0) - counts)[row]
    shape = (len(mask), max(1, int(counts.max())) if len(mask) else 1)
    there = torch.zeros(shape, dtype=torch.bool, device=mask.device)
    there[row, place] = True
    out = [there]
    for values in columns:
        laid = torch.full(shape, fill, dtype=values.dtype, device=mask.device)
        laid[row, place] = values[row, column]
        out.append(laid)
    return tuple(out)
