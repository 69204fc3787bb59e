"""How far perturbed cells lie from control over all genes: whether strong effects are predicted to be strong.

The distance is that of cell-eval 0.8, so that its column can be had; ``energy`` holds one that compares predicted with
true cells.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, Score
from prima_bench.metrics.numerics import group_sums, tree_sum
from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.cell_expression import CellExpression, predicted_expression, true_expression
from prima_bench.metrics.perturbation.cell_metric import CellMetric
from prima_bench.metrics.perturbation.params import CONTROL_SOURCE
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.spec import MetricSpec
from prima_bench.metrics.threads import Workers, one_thread

SPECS = (
    MetricSpec(
        name="edistance_pearson",
        version=1,
        inputs="perturbation",
        implementation="EDistancePearson",
        title="Pearson correlation of energy distances from control",
        summary="Whether perturbations with strong true effects are predicted to have strong effects.",
        formula=(
            "Pearson over perturbations of E(Y_p, X_c) and E(X_p, X_c), E(X, Y) = 2 mean|x - y| - mean|x - x'| - "
            "mean|y - y'| over all pairs, each cell with itself included, Euclidean over all genes"
        ),
        direction="max",
        range=(-1.0, 1.0),
        perfect=1.0,
        chance=0.0,
        level="global",
        unit=None,
        undefined="Fewer than two perturbations, or the same true distance for all.",
        references=("cell-eval 0.8 `pearson_edistance` (control_source=prediction)",),
        params=(CONTROL_SOURCE,),
        notes=(
            "Sees how strong an effect is, not which. Equal distances for all predictions score 0; of two "
            "perturbations it is 1 or -1. The means count each cell's distance to itself, so that the distance grows "
            "as cells get fewer. Counts are taken as log1p of counts per 10,000. cell-eval repeats the one value on "
            "every perturbation."
        ),
    ),
)

SAME_DISTANCE = "the same distance from control for all perturbations in the target"

SAME = 1e-9
"""Distances that differ by less than this share are the same: small differences of large means owe it to rounding."""

_BLOCK_ELEMENTS = 1 << 21
_PAGE_ELEMENTS = 1 << 24


def edistance_pearson(pred: Tensor, target: Tensor) -> Tensor:
    """Pearson correlation of predicted and true distances from control.

    Args:
        pred: Predicted distances, float64 ``[perturbations]``.
        target: True distances, of the same shape, at least two.

    Returns:
        float64, 0-d: NaN where the true distances are all the same, else 0 where the predicted ones are.

    Example:
        >>> target = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
        >>> edistance_pearson(3 * target, target), edistance_pearson(0 * target, target)
        (tensor(1., dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    e, d = pred.unsqueeze(0), target.unsqueeze(0)
    value = rowwise.cosine(rowwise.centre(e, None), rowwise.centre(d, None))
    return rowwise.graded(value, no_skill=_all_same(e), undefined=_all_same(d)).squeeze(0)


def _all_same(x: Tensor) -> Tensor:
    return x.amax(dim=1) - x.amin(dim=1) <= SAME * x.abs().amax(dim=1)


def gene_distance_sums(x: CellExpression, rows: Tensor, y: CellExpression, others: Tensor) -> Tensor:
    """For each of some cells, the sum of its Euclidean distances over all genes to other cells.

    Args:
        x: Cells.
        rows: Which of them, int64 ``[n]``.
        y: Other cells, or the same.
        others: Which of those, int64 ``[m]``.

    Returns:
        float64 ``[n]``.
    """
    pages = torch.split(others, max(1, _PAGE_ELEMENTS // x.rows.shape[1]))
    step = max(1, _BLOCK_ELEMENTS // x.rows.shape[1])
    parts = [slice(i, i + step) for i in range(0, len(rows), step)]
    sums = torch.empty((len(pages), len(rows)), dtype=torch.float64, device=rows.device)
    # Blocks are cut from canonical order, always alike, and each is multiplied on one thread: so the bits are the same.
    with one_thread(), Workers(rows.device) as workers:
        for page, to_page in zip(pages, sums, strict=True):
            held = y.take(page).to(rows.device)
            workers.for_each(partial(_sum_part, to_page, held, tree_sum(held.square(), dim=1), x, rows), parts)
    return tree_sum(sums)


def _sum_part(sums: Tensor, held: Tensor, sizes: Tensor, x: CellExpression, rows: Tensor, part: slice) -> None:
    sums[part] = tree_sum(_distances(held, sizes, x.take(rows[part])))


def _distances(x: Tensor, sizes: Tensor, y: Tensor) -> Tensor:
    """Euclidean distances between rows, ``[n, m]``, by products: exactly 0 where no more than rounding is left.

    ``sizes`` are the squared lengths of the rows of ``x``.
    """
    both = sizes.unsqueeze(1) + tree_sum(y.square(), dim=1)
    squares = both - 2.0 * (x @ y.T)
    return torch.where(squares <= rowwise.ROUNDING * both, 0.0, squares).sqrt_()


@dataclass(frozen=True, slots=True, eq=False)
class _Control:
    """Control cells, and the mean distance among them, each with itself included, 0-d."""

    cells: CellExpression
    rows: Tensor
    own: Tensor

    @classmethod
    def of(cls, cells: CellExpression, group: Tensor) -> Self:
        rows = (group == 0).nonzero().flatten()
        return cls(cells, rows, tree_sum(gene_distance_sums(cells, rows, cells, rows)) / len(rows) ** 2)

    def distances(self, cells: CellExpression, group: Tensor, groups: int) -> Tensor:
        """E-distance of each perturbation's cells from these, float64 ``[groups - 1]``; NaN for one without cells."""
        perturbed = (group > 0).nonzero().flatten()
        codes, order = torch.sort(group[perturbed] - 1, stable=True)
        order, n = perturbed[order], torch.bincount(codes, minlength=groups - 1)
        cross = group_sums(gene_distance_sums(cells, order, self.cells, self.rows).unsqueeze(1), codes, groups - 1)
        cross = 2.0 * cross.squeeze(1) / (n * len(self.rows))
        members, own = torch.split(order, n.tolist()), torch.empty_like(cross)

        def among(number: int) -> None:
            part = members[number]
            own[number] = tree_sum(gene_distance_sums(cells, part, cells, part))

        with one_thread(), Workers(group.device) as workers:
            workers.for_each(among, range(len(members)))
        difference = cross - own / (n * n) - self.own.to(n.device)
        return torch.where(difference.abs() <= rowwise.ROUNDING * cross, 0.0, difference)


@dataclass(frozen=True, slots=True, eq=False)
class _Truth:
    control: _Control
    distances: Tensor


_TRUTHS: WeakKeyDictionary[PerturbationReference, _Truth] = WeakKeyDictionary()


def _truth(reference: PerturbationReference) -> _Truth:
    if reference not in _TRUTHS:
        cells = true_expression(reference)
        control = _Control.of(cells, reference.group)
        distances = control.distances(cells, reference.group, 1 + reference.num_perturbations)
        _TRUTHS[reference] = _Truth(control, distances)
    return _TRUTHS[reference]


class EDistancePearson(CellMetric):
    """Pearson correlation of energy distances from control; see :func:`edistance_pearson`."""

    higher_is_better = True
    needs_control = True
    needs_others = True
    degenerate = SAME_DISTANCE

    def score_against(self, batch: Batch, reference: PerturbationReference) -> Score:
        """One correlation over all perturbations that have true cells."""
        if reason := self.common_reason(reference):
            return Score(None, reason)
        chosen = (reference.cells_per_group[1:] > 0).nonzero().flatten().to(batch.device)
        pred, _ = self.unit_values(batch, reference, chosen)
        value = edistance_pearson(pred, _truth(reference).distances.to(batch.device)[chosen])
        return Score(None, SAME_DISTANCE) if bool(value.isnan()) else Score(float(value))

    def unit_values(
        self, batch: Batch, reference: PerturbationReference, chosen: Tensor
    ) -> tuple[Tensor, Mapping[int, str]]:
        """The predicted distance of each perturbation from control, float64 ``[k]``."""
        cells = predicted_expression(batch, reference, control=self.uses_predicted_control)

        def build() -> Tensor:
            group = batch.tensor("group")
            control = _Control.of(cells, group) if self.uses_predicted_control else _truth(reference).control
            return control.distances(cells, group, 1 + reference.num_perturbations)

        return batch.memo(("edistances", reference, self.control_source), build)[chosen], {}
