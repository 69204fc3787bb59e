"""The space in which cells are compared: principal components of the solution's own cells, the same for any prediction.

Of the genes that vary most, the covariance over all cells, control included, is summed in whole numbers, so that it
does not depend on the order of the cells, the layout or the number of threads; its leading eigenvectors span the space.
Distances between cells need no more: they do not move when the axes are turned or reflected within it. Nothing here
measures distances.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from prima_bench.metrics.batch import Batch
from prima_bench.metrics.perturbation.cells.exact_product import SlicedRows, row_products
from prima_bench.metrics.perturbation.cells.expression import (
    DEPTH,
    CellExpression,
    blocks,
    predicted_expression,
    true_expression,
)
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.threads import one_thread

DIMENSIONS = 50
"""How many components the space has, where the cells have as many."""

GENES = 2000
"""How many genes the components are made of: those that vary most."""

LEAST_VARIANCE = 1e-8
"""A component with a smaller share of the first one's variance is rounding, or does not matter to a distance."""

TIE = 1e-6
"""Components whose variances differ by less than this share are tied: none of them is more part of the space."""

_EXACT_BITS = 53
_GRAM_ROWS = 2048
_GRAM_COLUMNS = 512


@dataclass(frozen=True, slots=True, eq=False)
class VariableGenes:
    """The genes whose expression varies most between the solution's cells.

    Attributes:
        genes: Columns of the genes, ascending, int64 ``[k]``.
        unit: The rounding unit of the sums that the genes and components are found by, a power of two.
    """

    genes: Tensor
    unit: float


@dataclass(frozen=True, slots=True, eq=False)
class LatentSpace:
    """Coordinates of cells that are comparable between all cells of one solution and of predictions of it.

    Attributes:
        genes: Columns of the genes that coordinates are made of, int64 ``[k]``.
        basis: The axes, orthonormal, float64 ``[d, k]``; d is 0 where all cells of the solution are alike.
        cells: Coordinates of the solution's cells, float64 ``[cells, d]``.
    """

    genes: Tensor
    basis: Tensor
    cells: Tensor


_GENES: WeakKeyDictionary[PerturbationReference, VariableGenes] = WeakKeyDictionary()
_SPACES: WeakKeyDictionary[PerturbationReference, LatentSpace] = WeakKeyDictionary()


def variable_genes(reference: PerturbationReference) -> VariableGenes:
    """The 2,000 genes with the largest variance over all cells of the solution, ties by column; made once.

    Args:
        reference: The solution.

    Raises:
        ReferenceDataError: If the solution's expression is too large to be scored.
    """
    if reference not in _GENES:
        cells = true_expression(reference)
        unit = _unit(cells)
        chosen = torch.sort(_spread(cells, unit), descending=True, stable=True).indices[:GENES]
        _GENES[reference] = VariableGenes(torch.sort(chosen).values, unit)
    return _GENES[reference]


def latent_space(reference: PerturbationReference) -> LatentSpace:
    """The space of a solution, made once: up to 50 principal components of its cells.

    Args:
        reference: The solution.

    Raises:
        ReferenceDataError: If the solution's expression is too large to be scored.

    Example:
        >>> x = torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0], [4.0, 1.0, -2.0]])
        >>> reference = PerturbationReference.from_cells(
        ...     x, torch.tensor([0, 0, 1]), num_perturbations=1, scale="log1p_cp10k"
        ... )
        >>> latent_space(reference).basis.abs()
        tensor([[0.7071, 0.0000, 0.7071]], dtype=torch.float64)
    """
    if reference not in _SPACES:
        cells, variable = true_expression(reference), variable_genes(reference)
        basis = principal_axes(_covariance(cells, variable)).to(reference.cells.device)
        _SPACES[reference] = LatentSpace(variable.genes, basis, project(cells, variable.genes, basis))
    return _SPACES[reference]


def predicted_coordinates(batch: Batch, reference: PerturbationReference) -> Tensor:
    """Coordinates of the predicted cells in the solution's space, float64 ``[cells, d]``; once for a panel.

    Args:
        batch: Predicted cells ``x`` and their codes ``group``.
        reference: The solution.

    Raises:
        ProfileError: If predicted expression is too large to be scored.
    """

    def build() -> Tensor:
        cells = predicted_expression(batch, reference)
        space = latent_space(reference)
        return project(cells, space.genes.to(batch.device), space.basis.to(batch.device))

    return batch.memo(("cell coordinates", reference), build)


def project(cells: CellExpression, genes: Tensor, basis: Tensor) -> Tensor:
    """Coordinates of cells, each the same whatever other cells there are.

    Args:
        cells: The cells.
        genes: The columns that ``basis`` refers to, int64 ``[k]``.
        basis: The axes, float64 ``[d, k]``.

    Returns:
        float64 ``[cells, d]``.
    """
    axes = SlicedRows.of(basis)
    return torch.cat([row_products(SlicedRows.of(cells.take(part, genes)), axes) for part in blocks(cells.rows)])


def principal_axes(covariance: Tensor) -> Tensor:
    """Leading eigenvectors of a covariance, by falling variance, their largest coefficient positive.

    There are up to 50, fewer where the rest have less than 1e-8 of the first one's variance. Where the last of them
    is tied with the first left out, no choice between them has a reason: all tied with it are left out, or, if that
    would be all there are, all kept.

    Args:
        covariance: float64 ``[k, k]``.

    Returns:
        float64 ``[d, k]``.

    Example:
        >>> principal_axes(torch.diag(torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64)))
        tensor([[0., 1., 0.],
                [1., 0., 0.]], dtype=torch.float64)
    """
    with one_thread():
        variance, vectors = torch.linalg.eigh(covariance.cpu())
    variance, vectors = variance.flip(0), vectors.T.flip(0)
    axes = vectors[: _dimensions(variance.tolist())]
    largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)) if len(axes) else axes[:, :1]
    signed: Tensor = axes * largest.sign()
    return signed.contiguous()


def _dimensions(variance: list[float]) -> int:
    """How many of the components, by falling variance, make the space."""
    real = sum(v > LEAST_VARIANCE * max(variance[0], 0.0) for v in variance)
    d = min(DIMENSIONS, real)

    def tied(first: int) -> bool:
        return first < real and variance[first - 1] - variance[first] <= TIE * variance[first - 1]

    while d and tied(d):
        d -= 1
    if not d and real:
        d = 1
        while tied(d):
            d += 1
    return d


def _unit(cells: CellExpression) -> float:
    """The finest power of two for which the squares of all cells' values, in units of it, add up below 2^53."""
    largest = math.log1p(DEPTH) if cells.totals is not None else float(cells.largest.max())
    bits = (_EXACT_BITS - math.ceil(math.log2(len(cells.largest)))) // 2
    return math.ldexp(1.0, math.frexp(largest)[1] - bits)


def _spread(cells: CellExpression, unit: float) -> Tensor:
    """The variance of every gene, times the number of cells, in squared units."""
    width = cells.rows.shape[1]
    sums, squares = (torch.zeros(width, dtype=torch.float64, device=cells.rows.device) for _ in range(2))
    for part in blocks(cells.rows):
        block = (cells.take(part) / unit).round_()
        sums += block.sum(dim=0)
        squares += block.square_().sum(dim=0)
    return squares - sums.square() / cells.rows.shape[0]


def _covariance(cells: CellExpression, variable: VariableGenes) -> Tensor:
    """The covariance of the variable genes, times the number of cells, in squared units."""
    device, k = cells.rows.device, len(variable.genes)
    products = torch.zeros((k, k), dtype=torch.float64, device=device)
    sums = torch.zeros(k, dtype=torch.float64, device=device)
    for block in _stacked(cells, variable.genes):
        block = (block / variable.unit).round_()
        sums += block.sum(dim=0)
        for start in range(0, k, _GRAM_COLUMNS):
            part = slice(start, start + _GRAM_COLUMNS)
            products[part, start:].addmm_(block[:, part].T, block[:, start:])
    products = products.triu() + products.triu(1).T
    return products - sums.unsqueeze(1) * sums / cells.rows.shape[0]


def _stacked(cells: CellExpression, genes: Tensor) -> Iterator[Tensor]:
    """Expression of the genes in blocks of about 2,048 cells, large enough for a quick product."""
    waiting: list[Tensor] = []
    for part in blocks(cells.rows):
        waiting.append(cells.take(part, genes))
        if sum(map(len, waiting)) >= _GRAM_ROWS:
            yield torch.cat(waiting)
            waiting = []
    if waiting:
        yield torch.cat(waiting)
