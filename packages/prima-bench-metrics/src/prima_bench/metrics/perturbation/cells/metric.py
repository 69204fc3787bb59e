"""Metrics that compare clouds of cells: each perturbation's predicted cells with its true ones, in the latent space.

The space and the coordinates are made in ``latent`` and shared by a panel; the formulas are in the metrics' files.
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.perturbation.base import PerturbationMetric
from prima_bench.metrics.perturbation.cells.latent import latent_space, predicted_coordinates
from prima_bench.metrics.perturbation.cells.pairwise import distances
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.perturbation.rowwise import ROUNDING

ONE_CELL = "needs at least two cells in the target"
ALIKE = "all cells of the target are alike"


@dataclass(frozen=True, slots=True, eq=False)
class Clouds:
    """Cells group by group, in order within a group.

    Attributes:
        groups: Rows of each group by code, float64 ``[cells, d]`` each.
    """

    groups: tuple[Tensor, ...]

    @classmethod
    def of(cls, rows: Tensor, group: Tensor, n_groups: int) -> "Clouds":
        """Part the rows ``[cells, d]`` by their codes ``[cells]``."""
        order = torch.sort(group, stable=True).indices
        return cls(torch.split(rows[order], torch.bincount(group, minlength=n_groups).tolist()))

    def __getitem__(self, code: int) -> Tensor:
        """The rows of one group."""
        return self.groups[code]


class CellMetric(PerturbationMetric):
    """A perturbation metric whose formula reads single cells rather than pseudobulks.

    Args:
        *args: As in ``PerturbationMetric``.
        **kwargs: As in ``PerturbationMetric``. All genes of the space count, so ``exclude_targets`` has no use here.

    Raises:
        InputError: If an argument is wrong, or has no meaning beside the others.
    """

    needs_control = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.exclude_targets != "none":
            raise InputError(f"{type(self).__name__} compares all genes", hint="Leave exclude_targets out.")

    def clouds(self, batch: Batch, reference: PerturbationReference) -> tuple[Clouds, Clouds]:
        """Predicted and true cells by group, in the solution's space, on the batch's device.

        Raises:
            ProfileError: If predicted expression is too large to be scored.
        """
        groups = 1 + reference.num_perturbations

        def pred() -> Clouds:
            return Clouds.of(predicted_coordinates(batch, reference), batch.tensor("group"), groups)

        def true() -> Clouds:
            cells = latent_space(reference).cells.to(batch.device)
            return Clouds.of(cells, reference.group.to(batch.device), groups)

        return batch.memo(("predicted clouds", reference), pred), batch.memo(("true clouds", reference), true)


SAMPLE = 2000
"""How many cells the typical distance is measured on."""

_TYPICAL: WeakKeyDictionary[PerturbationReference, float] = WeakKeyDictionary()


def typical_distance(reference: PerturbationReference) -> float:
    """The median distance between cells of the solution that are not alike; 0 where all are alike.

    Over all pairs of up to 2,000 cells, control included, which stand at even steps in the order of the solution.

    Args:
        reference: The solution.
    """
    if reference not in _TYPICAL:
        cells = latent_space(reference).cells
        _TYPICAL[reference] = median_distance(cells[evenly(len(cells), SAMPLE)])
    return _TYPICAL[reference]


def median_distance(x: Tensor) -> float:
    """The median Euclidean distance between rows that differ by more than rounding; 0 where none do.

    Args:
        x: float64 ``[n, d]``.

    Example:
        >>> median_distance(torch.tensor([[0.0], [0.0], [1.0], [4.0]], dtype=torch.float64))
        3.0
    """
    d = distances(x, x)
    differ = d > ROUNDING * largest_size(x)
    apart = torch.sort(d[differ.triu(1)]).values
    return float((apart[(len(apart) - 1) // 2] + apart[len(apart) // 2]) / 2) if len(apart) else 0.0


def largest_size(x: Tensor) -> float:
    """The largest absolute value; 0 where there is none."""
    return float(x.abs().max()) if x.numel() else 0.0


def evenly(n: int, at_most: int) -> Tensor:
    """Positions of up to ``at_most`` of ``n`` things at even steps, the first of them 0, int64.

    >>> evenly(10, 4), evenly(2, 4)
    (tensor([0, 2, 5, 7]), tensor([0, 1]))
    """
    k = min(n, at_most)
    return torch.arange(k) * n // max(1, k)
