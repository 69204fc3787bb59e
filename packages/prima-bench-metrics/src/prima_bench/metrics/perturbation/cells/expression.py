"""Expression of single cells as distances between cells see it: comparable from cell to cell, a few rows at a time.

Counts become log1p of counts per 10,000 of their cell; log-normalised expression is taken as it is. Matrices are never
made dense as a whole. What is learnt from a solution's cells is not here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from prima_bench.metrics.batch import Batch
from prima_bench.metrics.elements import repeat_each
from prima_bench.metrics.errors import ReferenceDataError
from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation.base import too_large_error
from prima_bench.metrics.perturbation.pseudobulk import LARGEST, Scale
from prima_bench.metrics.perturbation.reference import PerturbationReference, listed
from prima_bench.metrics.rows import RowMatrix, SparseRows

DEPTH = 1e4
"""The total that the counts of every cell are scaled to."""

_BLOCK_ELEMENTS = 1 << 20
_EXACT = 2.0**53


@dataclass(frozen=True, slots=True, eq=False)
class CellExpression:
    """Cells with what makes their expression comparable.

    Attributes:
        rows: Their values as given, ``[cells, genes]``.
        totals: The total count of each cell, float64 ``[cells]``; None where values are log-normalised already.
        largest: The largest value of each cell in size, float64 ``[cells]``.
    """

    rows: RowMatrix
    totals: Tensor | None
    largest: Tensor

    @classmethod
    def of(cls, rows: RowMatrix, scale: Scale) -> Self:
        """Read the totals and the sizes of all cells.

        Args:
            rows: Their values, ``[cells, genes]``.
            scale: What the values are.
        """
        totals, largest = [], []
        for positions in blocks(rows):
            block = rows.take(positions)
            largest.append(torch.maximum(block.amax(dim=1), -block.amin(dim=1)).to(torch.float64))
            if scale == "counts":
                totals.append(row_totals(block))
        return cls(rows, torch.cat(totals) if scale == "counts" else None, torch.cat(largest))

    @property
    def too_large(self) -> Tensor:
        """Whether a cell's values, or their total, leave what can be scored: boolean ``[cells]``."""
        return ~((self.largest if self.totals is None else self.totals) <= LARGEST)

    def size(self, positions: Tensor) -> Tensor:
        """The largest comparable expression of some cells in size, float64 ``[k]``.

        Args:
            positions: Which cells, int64 ``[k]``.
        """
        largest = self.largest[positions]
        return largest if self.totals is None else _comparable(largest, self.totals[positions])

    def take(self, positions: Tensor, genes: Tensor | None = None) -> Tensor:
        """Comparable expression of some cells, float64 ``[k, genes]``; zero for a cell without counts.

        Args:
            positions: Which cells, int64 ``[k]``.
            genes: Which genes, int64; all of them when None.
        """
        block = self.rows.take(positions)
        block = (block if genes is None else block.index_select(1, genes)).to(torch.float64)
        if self.totals is None:
            return block
        return _comparable(block, self.totals[positions].unsqueeze(1))

    def take_stored(self, positions: Tensor) -> SparseRows:
        """As :meth:`take`, of all genes, without the zeros; only where the rows are sparse.

        Args:
            positions: Which cells, int64 ``[k]``.
        """
        stored = self.rows.take_sparse(positions)
        if self.totals is None:
            return stored
        totals = repeat_each(self.totals[positions], stored.lengths)
        return replace(stored, values=_comparable(stored.values, totals))


def _comparable(counts: Tensor, totals: Tensor) -> Tensor:
    return torch.log1p(counts / torch.where(totals > 0, totals, 1.0) * DEPTH)


def blocks(rows: RowMatrix) -> Iterator[Tensor]:
    """Positions of all rows, a few at a time, so that a dense copy of those stays small."""
    step = max(1, _BLOCK_ELEMENTS // rows.shape[1])
    return iter(torch.split(torch.arange(rows.shape[0], device=rows.device), step))


def row_totals(block: Tensor) -> Tensor:
    """The sum of each row, float64 ``[rows]``, the same whatever the layout and the number of threads.

    Example:
        >>> row_totals(torch.tensor([[1.0, 2.0], [0.5, 0.0]]))
        tensor([3.0000, 0.5000], dtype=torch.float64)
    """
    # Whole numbers add up exactly in any order, and faster.
    whole = float(block.abs().max()) * block.shape[1] < _EXACT and not bool(block.frac().any())
    return block.sum(dim=1, dtype=torch.float64) if whole else tree_sum(block, dim=1)


_TRUE: WeakKeyDictionary[PerturbationReference, CellExpression] = WeakKeyDictionary()


def true_expression(reference: PerturbationReference) -> CellExpression:
    """The solution's cells, made comparable; once for a reference.

    Args:
        reference: The solution.

    Raises:
        ReferenceDataError: If the solution's expression is too large to be scored.
    """
    if reference not in _TRUE:
        cells = CellExpression.of(reference.cells, reference.scale)
        if wrong := torch.unique(reference.group[cells.too_large]).tolist():
            raise ReferenceDataError(
                f"the solution's expression is too large to be scored in group {listed(wrong)}",
                hint="Code 0 is the control. Are its values what the scale says?",
            )
        _TRUE[reference] = cells
    return _TRUE[reference]


def predicted_expression(batch: Batch, reference: PerturbationReference, *, control: bool = False) -> CellExpression:
    """Predicted cells, made comparable; once for all metrics of a panel.

    Args:
        batch: Predicted cells ``x`` and their codes ``group``.
        reference: Gives the scale, and says which groups are scored.
        control: Whether predicted control cells have a say.

    Raises:
        ProfileError: If predicted expression is too large to be scored.
    """
    scale = reference.scale
    cells = batch.memo(("cell expression", scale), lambda: CellExpression.of(batch.rows("x"), scale))
    scored = (reference.cells_per_group > 0).to(batch.device)
    scored[0] &= control
    group = batch.tensor("group")
    if wrong := torch.unique(group[cells.too_large & scored[group]]).tolist():
        raise too_large_error(wrong)
    return cells
