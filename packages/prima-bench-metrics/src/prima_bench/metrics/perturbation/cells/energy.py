"""Energy distance between predicted and true cells, relative to that between control and true cells.

The energy distance of two samples is ``2 E|x - y| - E|x - x'| - E|y - y'|``: zero in expectation only where both have
one distribution, so it sees spread and shape where a pseudobulk sees the mean.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.numerics import group_sums, tree_sum
from prima_bench.metrics.perturbation.base import too_large_error
from prima_bench.metrics.perturbation.cells.latent import latent_space
from prima_bench.metrics.perturbation.cells.metric import ONE_CELL, CellMetric, Clouds, largest_size
from prima_bench.metrics.perturbation.cells.pairwise import distances, pair_sum, row_sums
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.perturbation.rowwise import ROUNDING
from prima_bench.metrics.spec import MetricSpec, Param

SPECS = (
    MetricSpec(
        name="energy_ratio",
        version=1,
        inputs="perturbation",
        implementation="EnergyRatio",
        title="Energy distance to the true cells, relative to control's",
        summary="Whether predicted cells are spread like the true ones: mean, variance and shape of the whole cloud.",
        formula=(
            "E(X_p, Y_p) / E(X_p, X_c), E(X, Y) = 2 mean|x - y| - U(X) - U(Y), U(X) = mean over pairs of different "
            "cells of |x - x'|, Euclidean in the solution's principal components; then mean over perturbations"
        ),
        direction="min",
        range=(None, None),
        perfect=0.0,
        chance=1.0,
        level="unit",
        unit="perturbation",
        undefined=(
            "A perturbation of one true cell, or whose true energy distance from control is at most min_effect "
            "standard deviations of chance; all of them with fewer than four control cells."
        ),
        references=(
            "Szekely & Rizzo 2013, doi:10.1016/j.jspi.2013.03.018",
            "Peidli et al. 2024, scPerturb, doi:10.1038/s41592-023-02144-y",
        ),
        params=(
            Param(
                name="min_effect",
                default=3.0,
                summary=(
                    "How many standard deviations of chance the true energy distance from control must exceed for a "
                    "perturbation to be scored; 0 for any that is positive."
                ),
            ),
        ),
        notes=(
            "0 is what a replicate has on average: means over pairs are unbiased, so values below 0 occur, and true "
            "cells themselves score below 0. The solution's own control cells score exactly 1. U(Y) corrects the mean "
            "over all pairs for the finite number m of predicted cells, by U(Y) / m; it is let correct by no more than "
            "U(X) / n of the n true cells, or two cells far apart would score best. A single predicted cell has "
            "U(Y) = 0. Without min_effect, perturbations without effect would divide by noise and decide the mean. "
            "Space: up to 50 principal components of all cells of the solution, from its 2,000 most variable genes; "
            "counts as log1p of counts per 10,000; with contexts, each has a space of its own. Other libraries' "
            "E-distances square the distances, count each cell's distance to itself, or live in another space."
        ),
    ),
)

NOISE = "effect not distinguishable from noise"
FEW_CONTROL = "needs at least four control cells in the target"

_LEAST_CONTROL = 4


def energy_ratio(pred: Tensor, target: Tensor, control: Tensor, *, min_effect: float = 3.0) -> Tensor:
    """Energy distance of one perturbation's predicted from its true cells, relative to the control cells'.

    ``E(target, pred) / E(target, control)`` with unbiased means over pairs; what corrects for the number of predicted
    cells is capped by what the true cells need.

    Args:
        pred: Coordinates of predicted cells, float64 ``[m, d]``.
        target: Coordinates of true cells, ``[n, d]``, at least two.
        control: Coordinates of true control cells, ``[c, d]``, at least four.
        min_effect: How many standard deviations of chance ``E(target, control)`` must exceed.

    Returns:
        float64, 0-d: NaN where the true effect is not distinguishable from noise.

    Example:
        >>> control = torch.tensor([[0.0], [1.0], [2.0], [3.0]], dtype=torch.float64)
        >>> energy_ratio(control, control + 8, control), energy_ratio(control + 7, control + 8, control) < 0.2
        (tensor(1., dtype=torch.float64), tensor(True))
        >>> energy_ratio(control, control + 0.1, control)
        tensor(nan, dtype=torch.float64)
    """
    n, m, c = (torch.tensor(float(len(x)), dtype=torch.float64) for x in (target, pred, control))
    own = pair_sum(target, target)
    effect = _energy(pair_sum(target, control), own, pair_sum(control, control), n, c)
    error = _energy(pair_sum(target, pred), own, pair_sum(pred, pred), n, m)
    rounding = ROUNDING * max(largest_size(target), largest_size(control))
    return torch.where(effect > (min_effect * _chance(control, n)).clamp(min=rounding), error / effect, torch.nan)


def _energy(cross: Tensor, own_x: Tensor, own_y: Tensor, n: Tensor, m: Tensor) -> Tensor:
    """Energy distance from sums over pairs; x is the truth and y what is compared with it."""
    unbiased = own_x / (n * (n - 1))
    # U(Y) = own_y / (m (m - 1)) in two parts: the mean over all pairs, and what it lacks.
    lacking = own_y / (m * m * (m - 1).clamp(min=1))
    return 2.0 * cross / (n * m) - unbiased - own_y / (m * m) - torch.minimum(lacking, unbiased / n)


def _chance(control: Tensor, n: Tensor) -> Tensor:
    """Standard deviation of the energy distance of ``n`` cells from the control cells, were they of one kind.

    To first order ``(1/n + 1/c) sqrt(2 V)``, V being the unbiased distance variance of the control cells.
    """
    c = len(control)
    sums = row_sums(control, control)
    share, grand = sums / (c - 2), tree_sum(sums) / ((c - 1) * (c - 2))
    squares = []
    for part in torch.split(torch.arange(c, device=control.device), max(1, (1 << 19) // c)):
        centred = distances(control, control[part]) - share.unsqueeze(1) - share[part] + grand
        centred[part, torch.arange(len(part), device=control.device)] = 0.0
        squares.append(tree_sum(centred.square_(), dim=0))
    variance = tree_sum(torch.cat(squares)) / (c * (c - 3))
    return (1.0 / n + 1.0 / c) * (2.0 * variance).sqrt()


@dataclass(frozen=True, slots=True, eq=False)
class _Truth:
    """What the solution alone decides, by code, float64 ``[1 + P]``, and what a distance may owe to rounding."""

    own: Tensor
    effect: Tensor
    chance: Tensor
    rounding: float


_TRUTHS: WeakKeyDictionary[PerturbationReference, _Truth] = WeakKeyDictionary()


def _truth(reference: PerturbationReference) -> _Truth:
    if reference not in _TRUTHS:
        cells, groups = latent_space(reference).cells, 1 + reference.num_perturbations
        true = Clouds.of(cells, reference.group, groups)
        n = reference.cells_per_group.to(torch.float64)
        cross = group_sums(row_sums(cells, true[0]).unsqueeze(1), reference.group, groups).squeeze(1)
        own = torch.stack([pair_sum(x, x) if len(x) else x.new_zeros(()) for x in true.groups])
        effect = _energy(cross, own, own[0], n, n[0])
        _TRUTHS[reference] = _Truth(own, effect, _chance(true[0], n), ROUNDING * largest_size(cells))
    return _TRUTHS[reference]


class EnergyRatio(CellMetric):
    """Energy distance of predicted from true cells, relative to that of the control cells; see :func:`energy_ratio`.

    Args:
        *args: As in ``CellMetric``.
        min_effect: How many standard deviations of chance a true effect must exceed to be scored.
        **kwargs: As in ``CellMetric``.

    Raises:
        InputError: If ``min_effect`` is negative or not finite, or another argument is wrong.
    """

    higher_is_better = False
    needs_control = True
    degenerate = NOISE

    def __init__(self, *args: Any, min_effect: float = 3.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not 0.0 <= min_effect < math.inf:
            raise InputError(f"min_effect cannot be {min_effect}", hint="Give a number of standard deviations, or 0.")
        if self.uses_predicted_control:
            raise InputError("EnergyRatio has no use for predicted control cells", hint="Leave control_source out.")
        self.min_effect = float(min_effect)

    def common_reason(self, reference: PerturbationReference) -> str | None:
        """Why no perturbation at all can be scored; None when some can."""
        few = FEW_CONTROL if int(reference.cells_per_group[0]) < _LEAST_CONTROL else None
        return super().common_reason(reference) or few

    def unit_values(
        self, batch: Batch, reference: PerturbationReference, chosen: Tensor
    ) -> tuple[Tensor, Mapping[int, str]]:
        """The values of the perturbations that have true cells."""
        pred, true = self.clouds(batch, reference)
        truth = _truth(reference)
        codes = [1 + p for p in chosen.tolist()]
        own, effect, chance = (x.to(batch.device)[1 + chosen] for x in (truth.own, truth.effect, truth.chance))
        n, m = (torch.tensor([float(len(x[p])) for p in codes], device=batch.device).double() for x in (true, pred))
        cross = torch.stack([pair_sum(true[p], pred[p]) for p in codes])
        own_pred = torch.stack([pair_sum(pred[p], pred[p]) for p in codes])
        values = _energy(cross, own, own_pred, n, m) / effect
        defined = (n > 1) & (effect > (self.min_effect * chance).clamp(min=truth.rounding))
        if wrong := (1 + chosen[defined & ~values.isfinite()]).tolist():
            raise too_large_error(wrong)
        return torch.where(defined, values, torch.nan), dict.fromkeys(chosen[n < 2].tolist(), ONE_CELL)
