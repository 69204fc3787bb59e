"""The rank-sum tests behind tables of differential expression, of true and of predicted cells, each made once.

Counts are tested as shares of their cell's total: one division, correctly rounded, so that two cells with the same
share are tied whatever their totals. A total common to all cells changes no rank, and scales the means; so the tests
serve every convention. What a convention makes of them is ``table``'s job.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch
from prima_bench.metrics.differential.rank_sum import RankSums, rank_sum_test
from prima_bench.metrics.errors import ReferenceDataError
from prima_bench.metrics.numerics import group_sums, tree_sum
from prima_bench.metrics.perturbation.base import ControlSource, too_large_error
from prima_bench.metrics.perturbation.pseudobulk import LARGEST, Scale, mean_profiles
from prima_bench.metrics.perturbation.reference import PerturbationReference, listed
from prima_bench.metrics.rows import RowMatrix, SparseRows
from prima_bench.metrics.spill import relieve

_BLOCK_ROWS = 256
_LARGEST_LOG = math.log1p(LARGEST)
_WHOLE = 2.0**53  # below it, float64 adds whole numbers without rounding


@dataclass(frozen=True, slots=True, eq=False)
class DETests:
    """DETests of all perturbations against control.

    Attributes:
        sums: Statistics; on counts the means are of shares, on log scale of linear expression.
        cells: The cells that were tested, and others.
        group: The code of each cell.
        sizes: For counts, the total of each cell, float64 ``[cells]``.
    """

    sums: RankSums
    cells: RowMatrix
    group: Tensor
    sizes: Tensor

    def log_means(self, target_sum: float) -> Tensor:
        """For counts, the mean of ``log1p`` of scaled counts by code, float64 ``[1 + perturbations, genes]``."""
        scale = target_sum / _divisors(self.sizes)
        groups = len(self.sums.n_cells)
        return mean_profiles(group_sums(_LogScaled(self.cells, scale), self.group, groups), self.sums.n_cells)


@dataclass(frozen=True, slots=True, eq=False)
class ControlFacts:
    """What a solution's control cells say.

    Attributes:
        cells: They themselves.
        totals: For counts, the total of each of them, float64 ``[cells]``; 1 for a cell without counts.
        expressed: Which share of them expresses each gene, float64 ``[genes]``.
        smallest_mean: The smallest mean that they could show: the median over cells of the smallest positive value,
            divided by the number of cells; in shares for counts, in linear expression otherwise. 0 where no cell
            expresses anything.
    """

    cells: RowMatrix
    totals: Tensor | None
    expressed: Tensor
    smallest_mean: float


_TRUE: WeakKeyDictionary[PerturbationReference, tuple[DETests, ControlFacts]] = WeakKeyDictionary()


def true_tests(reference: PerturbationReference) -> tuple[DETests, ControlFacts]:
    """The tests of the solution's own cells, and what its control says; made once.

    Raises:
        ReferenceDataError: If values are too large to be tested.
    """
    if reference not in _TRUE:
        tests, large = _tests(reference.cells, reference.group, reference)
        if wrong := large.nonzero().flatten().tolist():
            raise ReferenceDataError(
                f"the solution's expression is too large to be tested in group {listed(wrong)}",
                hint="Code 0 is the control. Are its values what the scale says?",
            )
        control = (reference.group == 0).nonzero().flatten()
        totals = _divisors(tests.sizes[control]) if reference.scale == "counts" else None
        _TRUE[reference] = tests, _facts(reference.cells.select(control), totals)
    return _TRUE[reference]


def predicted_tests(batch: Batch, reference: PerturbationReference, control_source: ControlSource) -> DETests:
    """The tests of the predicted cells, made once for all metrics of a panel.

    Args:
        batch: Predicted cells ``x`` and their codes ``group``.
        reference: The solution, which gives the scale and the control cells.
        control_source: Whose control cells to test against.

    Raises:
        ProfileError: If values of a perturbation, or of the control where it is used, are too large to be tested.
    """

    def build() -> DETests:
        own = control_source == "prediction"
        control = None if own else true_tests(reference)[1]
        tests, large = _tests(batch.rows("x"), batch.tensor("group"), reference, control)
        needed = reference.cells_per_group.to(batch.device) > 0
        needed[0] = own
        if wrong := (needed & large).nonzero().flatten().tolist():
            raise too_large_error(wrong)
        return tests

    return batch.memo(("de tests", reference, control_source), build)


def _tests(
    cells: RowMatrix, group: Tensor, reference: PerturbationReference, control: ControlFacts | None = None
) -> tuple[DETests, Tensor]:
    """The tests, and in which groups values are too large, boolean ``[groups]``."""
    groups, counts = 1 + reference.num_perturbations, reference.scale == "counts"
    sizes = _sizes(cells, reference.scale)
    fits = sizes <= LARGEST
    large = torch.zeros(groups, dtype=torch.bool, device=group.device)
    large[group[~fits]] = True
    sums = rank_sum_test(
        cells,
        torch.where(fits, group, -1),
        groups,
        control=None if control is None else _on(cells.device, control.cells),
        total=_divisors(torch.where(fits, sizes, 1.0)) if counts else None,
        control_total=None if control is None else control.totals,
        linear="identity" if counts else "expm1",
    )
    return DETests(sums, cells, group, sizes), large


def _divisors(totals: Tensor) -> Tensor:
    return torch.where(totals > 0, totals, 1.0)


def _on(device: torch.device, cells: RowMatrix) -> RowMatrix:
    if cells.device == device:
        return cells
    return RowMatrix([SparseRows.from_dense(cells.take(positions)).to(device) for positions in _blocks(cells)])


def _sizes(cells: RowMatrix, scale: Scale) -> Tensor:
    """The total of each cell's counts, or a bound of its largest linear expression, float64 ``[cells]``."""
    every = torch.arange(cells.shape[0], device=cells.device)
    if scale == "counts":
        totals = [_whole_totals(chunk) for chunk in cells._chunks]
        if all(t is not None for t in totals):
            return torch.cat([t for t in totals if t is not None])[cells._source(every)]
        parts = [tree_sum(cells.take(positions).double(), dim=1) for positions in _blocks(cells)]
    else:
        if all(_largest(chunk) <= _LARGEST_LOG for chunk in cells._chunks):
            return torch.zeros(len(every), dtype=torch.float64, device=cells.device)
        parts = [cells.take(positions).double().amax(dim=1).expm1() for positions in _blocks(cells)]
    return torch.cat(parts)


def _whole_totals(x: Tensor | SparseRows) -> Tensor | None:
    """The sum of each row, exact in whatever order it is made; None unless all values are whole numbers."""
    totals = []
    for part in _parts(x):
        values = part.values if isinstance(part, SparseRows) else part
        if not _is_whole(values):
            return None
        totals.append(_row_sums(part))
        if not bool((totals[-1] < _WHOLE).all()):
            return None
    return torch.cat(totals)


def _largest(x: Tensor | SparseRows) -> float:
    values = (part.values if isinstance(part, SparseRows) else part for part in _parts(x))
    return max((float(v.max()) for v in values if v.numel()), default=0.0)


def _parts(x: Tensor | SparseRows) -> Iterator[Tensor | SparseRows]:
    """A few rows at a time."""
    if isinstance(x, Tensor):
        for rows in torch.split(x, _BLOCK_ROWS):
            yield rows
            relieve(rows.nbytes)
        return
    start = 0
    for lengths in torch.split(x.lengths, _BLOCK_ROWS):
        stop = start + int(lengths.sum())
        yield SparseRows(x.values[start:stop], x.columns[start:stop], lengths, x.n_columns)
        relieve(x.values[start:stop].nbytes)
        start = stop


def _row_sums(x: Tensor | SparseRows) -> Tensor:
    if isinstance(x, Tensor):
        return x.sum(dim=1, dtype=torch.float64)
    running = torch.cat([x.values.new_zeros(1, dtype=torch.float64), x.values.cumsum(0, dtype=torch.float64)])
    ends = x.lengths.cumsum(0)
    return running[ends] - running[ends - x.lengths]


def _is_whole(x: Tensor) -> bool:
    return not x.is_floating_point() or bool((x == x.floor()).all())


def _facts(control: RowMatrix, totals: Tensor | None) -> ControlFacts:
    n = max(1, control.shape[0])
    expressed = torch.zeros(control.shape[1], dtype=torch.int64, device=control.device)
    parts = [torch.zeros(0, dtype=torch.float64, device=control.device)]
    for positions in _blocks(control):
        block = control.take(positions).double()
        expressed += (block > 0).sum(dim=0)
        parts.append(torch.where(block > 0, block, torch.inf).amin(dim=1))
    least = torch.cat(parts)
    least = least.expm1() if totals is None else least / totals
    least = torch.sort(least[least.isfinite()]).values
    median = (least[(len(least) - 1) // 2] + least[len(least) // 2]) / 2 if len(least) else least.new_zeros(())
    return ControlFacts(control, totals, expressed.double() / n, float(median) / n)


class _LogScaled(RowMatrix):
    """Counts as they are read: scaled cell by cell, then ``log1p``."""

    def __init__(self, cells: RowMatrix, scale: Tensor) -> None:
        super().__init__(cells._chunks, cells._order)
        self._scale = scale

    def take(self, positions: Tensor) -> Tensor:
        return torch.log1p(super().take(positions).double() * self._scale[positions].unsqueeze(1))


def _blocks(cells: RowMatrix) -> tuple[Tensor, ...]:
    return torch.split(torch.arange(cells.shape[0], device=cells.device), _BLOCK_ROWS)
