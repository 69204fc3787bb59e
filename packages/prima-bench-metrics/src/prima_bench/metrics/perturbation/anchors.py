"""Stand-in predictions made of the solution's own cells: what a replicate would score, and what naive models would.

They are views over the solution, nothing is copied, so every metric can be anchored on any solution at the price of
scoring it. What is made of the scores (skill, dynamic range) is not decided here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from prima_bench.metrics.base import Batch
from prima_bench.metrics.perturbation.base import PerturbationMetric
from prima_bench.metrics.perturbation.contexts import StratifiedReference
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.rows import RowMatrix

Reference = PerturbationReference | StratifiedReference
Cells = tuple[Tensor, Tensor, Tensor]
"""Positions of true cells and of predicted cells among a solution's cells, and the codes of the predicted ones."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """Predicted cells and the truth that they are scored against; what ``PerturbationMetric.score`` takes.

    Attributes:
        reference: The truth.
        batch: The prediction, control cells included.
    """

    reference: Reference
    batch: Batch


def split_half(reference: Reference, seed: int = 0) -> StandIn:
    """A replicate: of each perturbation one random half of the cells is the prediction, the other the truth.

    The truth has the odd cell. Perturbations of a single cell are left out. All control cells are on both sides, as
    the origin of effects is the solution's.

    Args:
        reference: The solution.
        seed: Another seed, another split.

    Example:
        >>> x = torch.arange(10.0).reshape(5, 2)
        >>> group = torch.tensor([0, 1, 1, 2, 2])
        >>> whole = PerturbationReference.from_cells(x, group, num_perturbations=2, scale="log1p_cp10k")
        >>> halves = split_half(whole)
        >>> halves.reference.cells_per_group, halves.batch.tensor("group")
        (tensor([1, 1, 1]), tensor([0, 1, 2]))
    """

    def cells(part: PerturbationReference, random: np.random.RandomState) -> Cells:
        truth, prediction = [_members(part, 0)], [_members(part, 0)]
        for code in range(1, 1 + part.num_perturbations):
            members = _members(part, code)
            if len(members) > 1:
                shuffled = _shuffled(members, random)
                middle = (len(members) + 1) // 2
                truth.append(shuffled[:middle].sort().values)
                prediction.append(shuffled[middle:].sort().values)
        predicted = torch.cat(prediction)
        return torch.cat(truth), predicted, part.group[predicted]

    return _stand_in(reference, seed, cells)


def pasted_control(reference: Reference, seed: int = 0) -> StandIn:
    """No effect at all: real control cells, as many for each perturbation as it has true cells.

    The control cells are shuffled and dealt out in turn; control is predicted by itself.

    Args:
        reference: The solution.
        seed: Another seed, another shuffle.
    """

    def cells(part: PerturbationReference, random: np.random.RandomState) -> Cells:
        return _dealt(part, lambda code: _shuffled(_members(part, 0), random))

    return _stand_in(reference, seed, cells)


def other_perturbations(reference: Reference, seed: int = 0) -> StandIn:
    """The response that all perturbations share: random cells of the others, as many as there are true cells.

    Control is predicted by itself; where there is one perturbation alone, it is predicted by control.

    Args:
        reference: The solution.
        seed: Another seed, other cells.
    """

    def cells(part: PerturbationReference, random: np.random.RandomState) -> Cells:
        def donors(code: int) -> Tensor:
            others = ((part.group > 0) & (part.group != code)).nonzero().flatten()
            return _shuffled(others if len(others) else _members(part, 0), random)

        return _dealt(part, donors)

    return _stand_in(reference, seed, cells)


def _dealt(part: PerturbationReference, donors: Callable[[int], Tensor]) -> Cells:
    """For each perturbation as many donors as it has cells, in turn."""
    control = _members(part, 0)
    prediction, codes = [control], [torch.zeros_like(control)]
    for code, wanted in enumerate(part.cells_per_group.tolist()):
        if code and wanted:
            offered = donors(code)
            prediction.append(offered[torch.arange(wanted, device=offered.device) % len(offered)])
            codes.append(torch.full_like(prediction[-1], code))
    return torch.arange(len(part.group), device=part.group.device), torch.cat(prediction), torch.cat(codes)


def _stand_in(
    reference: Reference, seed: int, cells: Callable[[PerturbationReference, np.random.RandomState], Cells]
) -> StandIn:
    random = np.random.RandomState(seed)
    if isinstance(reference, PerturbationReference):
        truth, predicted, codes = cells(reference, random)
        alone: dict[str, Tensor | RowMatrix] = {"x": reference.cells.select(predicted), "group": codes}
        return StandIn(_subset(reference, truth), Batch.of(PerturbationMetric.fields, alone))
    chosen = [cells(part, random) for part in reference.parts]
    parts = [_subset(part, truth) for part, (truth, _, _) in zip(reference.parts, chosen, strict=True)]
    views = [part.cells.select(predicted) for part, (_, predicted, _) in zip(reference.parts, chosen, strict=True)]
    values: dict[str, Tensor | RowMatrix] = {
        "x": RowMatrix.stacked(views),
        "group": torch.cat([codes for _, _, codes in chosen]),
        "context": torch.cat([torch.full_like(codes, c) for c, (_, _, codes) in enumerate(chosen)]),
    }
    return StandIn(StratifiedReference(parts), Batch.of(PerturbationMetric.fields, values))


def _members(part: PerturbationReference, code: int) -> Tensor:
    return (part.group == code).nonzero().flatten()


def _shuffled(positions: Tensor, random: np.random.RandomState) -> Tensor:
    return positions[torch.from_numpy(random.permutation(len(positions))).to(positions.device)]


def _subset(part: PerturbationReference, positions: Tensor) -> PerturbationReference:
    return PerturbationReference(
        part.cells.select(positions),
        part.group[positions],
        num_perturbations=part.num_perturbations,
        scale=part.scale,
        targets=part.targets,
    )
