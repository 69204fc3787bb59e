"""How far perturbed cells lie from control over all genes: whether strong effects are predicted to be strong.

The distance is that of cell-eval 0.8, so that its column can be had; ``energy`` holds one that compares predicted with
true cells.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, Score
from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.cells.expression import CellExpression, predicted_expression, true_expression
from prima_bench.metrics.perturbation.cells.gene_distances import distance_sums, parts
from prima_bench.metrics.perturbation.cells.metric import CellMetric
from prima_bench.metrics.perturbation.params import CONTROL_SOURCE
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.spec import MetricSpec

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
            "as cells get fewer. Counts are taken as log1p of counts per 10,000. For the same bits on every machine, "
            "each cell is rounded to one part in 8 million of its largest value; cell-eval computes in float32. "
            "cell-eval repeats the one value on every perturbation."
        ),
    ),
)

SAME_DISTANCE = "the same distance from control for all perturbations in the target"

SAME = 1e-9
"""Distances that differ by less than this share are the same: small differences of large means owe it to rounding."""


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


@dataclass(frozen=True, slots=True, eq=False)
class _Control:
    """Control cells, and the mean distance among them, each with itself included, 0-d."""

    cells: CellExpression
    rows: Tensor
    own: Tensor

    @classmethod
    def of(cls, cells: CellExpression, group: Tensor) -> Self:
        rows = (group == 0).nonzero().flatten()
        sums, _ = distance_sums(cells, parts(cells, rows), cells, rows)
        return cls(cells, rows, tree_sum(sums) / len(rows) ** 2)

    def distances(self, cells: CellExpression, group: Tensor, groups: int) -> Tensor:
        """E-distance of each perturbation's cells from these, float64 ``[groups - 1]``; NaN for one without cells."""
        n = torch.bincount(group, minlength=groups)
        members = torch.split(torch.sort(group, stable=True).indices, n.tolist())[1:]
        cross, own = distance_sums(cells, members, self.cells, self.rows)
        n = n[1:]
        cross = 2.0 * cross / (n * len(self.rows))
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
