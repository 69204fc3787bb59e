"""Which true effects lie closer to a predicted effect than its own does: the comparisons behind discrimination.

Only comparisons of distances matter, so all distances are first estimated fast (a matrix product, or float32), with a
bound on the error; those too close to call are then computed from differences in a fixed order of additions. So the
outcome depends neither on threads nor on the library that multiplies matrices, and a tie is a tie.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation import rowwise

Distance = Literal["cosine", "l1", "l2"]
Ties = Literal["half", "order"]
Estimate = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]

TIE = 1e-12
"""Distances that differ by less than this share of the effects' sizes are tied."""

_BLOCK_ROWS = 256
_BLOCK_ELEMENTS = 1 << 18
_TILE_ELEMENTS = 1 << 18
_TILE_GENES = 32
_FLOAT64_BOUND = 1e-9
_FLOAT32_BOUND = 5e-6
_CANCELLED = 1e-2


def closer_and_tied(
    e: Tensor, d: Tensor, distance: Distance, keep: Tensor | None = None, ties: Ties = "half"
) -> Tensor:
    """For each row ``p``: how many rows of ``d`` lie closer to ``e_p`` than ``d_p`` does, and half of the ties.

    Args:
        e: Predicted effects, float64 ``[n, genes]``.
        d: True effects, of the same shape.
        distance: ``"cosine"`` (1 when either norm is 0), ``"l1"`` or ``"l2"``.
        keep: The genes that count for row ``p``, boolean ``[n, genes]``; all of them when None.
        ties: ``"order"`` counts ties in earlier rows whole and in later rows not at all.

    Returns:
        float64 ``[n]``, within 0 and ``n - 1``.

    Example:
        >>> d = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
        >>> closer_and_tied(d, d, "l1")
        tensor([0.5000, 0.0000, 0.5000], dtype=torch.float64)
    """
    estimate = {"cosine": _cosine_estimates, "l1": _l1_estimates, "l2": _squared_l2_estimates}[distance](d)
    ranks = []
    for start in range(0, e.shape[0], _BLOCK_ROWS):
        part = slice(start, start + _BLOCK_ROWS)
        mask = None if keep is None else keep[part]
        block = rowwise.kept(e[part], mask)
        own = torch.arange(start, start + len(block), device=e.device)
        value, bound = estimate(block, None if mask is None else ~mask)
        gap = value - value.gather(1, own[:, None])
        # Whatever is not surely apart is computed exactly; a NaN estimate is never sure.
        sure = gap.abs() > bound + bound.gather(1, own[:, None])
        rank = (sure & (gap < 0)).sum(dim=1).to(torch.float64)
        ranks.append(rank + _exact_ranks(block, d, ~sure, own, distance, mask, ties))
    return torch.cat(ranks)


def _exact_ranks(
    e: Tensor, d: Tensor, unsure: Tensor, own: Tensor, distance: Distance, keep: Tensor | None, ties: Ties
) -> Tensor:
    """Closer rows and tied ones as they count among the ``unsure`` pairs ``[rows, n]``; a row is no tie of itself."""

    def over_pairs(row: Tensor, other: Tensor, formula: Callable[[Tensor, Tensor, Distance], Tensor]) -> Tensor:
        pairs = zip(torch.split(row, step), torch.split(other, step), strict=True)
        return torch.cat(
            [formula(e[r], rowwise.kept(d[q], None if keep is None else keep[r]), distance) for r, q in pairs]
        )

    step = max(1, _BLOCK_ELEMENTS // e.shape[1])
    row, other = unsure.nonzero(as_tuple=True)
    value = over_pairs(row, other, _distances)
    is_own = other == own[row]
    gap = value - value[is_own][row]
    tolerance = TIE * over_pairs(torch.arange(len(e), device=e.device), own, _sizes)[row]
    # Whatever is not surely farther counts as closer, so that distances without a number are no advantage.
    tied = torch.full_like(gap, 0.5) if ties == "half" else (other < own[row]).to(torch.float64)
    score = torch.where(gap.abs() <= tolerance, tied, (~(gap > 0)).to(torch.float64))
    score[is_own] = 0.0
    # Halves add up exactly, in any order.
    return torch.zeros(len(e), dtype=torch.float64, device=e.device).index_add_(0, row, score)


def _distances(e: Tensor, d: Tensor, distance: Distance) -> Tensor:
    """Distance of each row of ``e`` to the same row of ``d``, in a fixed order of additions."""
    if distance == "cosine":
        zero = rowwise.is_zero(e, None) | rowwise.is_zero(d, None)
        return torch.where(zero, 1.0, 1.0 - rowwise.cosine(e, d))
    if distance == "l1":
        return tree_sum((e - d).abs(), dim=1)
    return tree_sum((e - d).square(), dim=1).sqrt()


def _sizes(e: Tensor, d: Tensor, distance: Distance) -> Tensor:
    """What differences between distances are measured against, ``[rows]``."""
    if distance == "cosine":
        return torch.ones(len(e), dtype=torch.float64, device=e.device)
    zero = e.new_zeros(())
    return _distances(e, zero, distance) + _distances(d, zero, distance)


def _cosine_estimates(d: Tensor) -> Estimate:
    full = _squares(d)

    def estimate(e: Tensor, lost: Tensor | None) -> tuple[Tensor, Tensor]:
        norms = full - _over(lost, d, Tensor.square)
        value = 1.0 - (e @ d.T) / (_squares(e)[:, None] * norms).sqrt()
        # Where excluded genes held most of an effect, little of the estimate is left.
        return value, torch.where(norms <= _CANCELLED * full, torch.inf, _FLOAT64_BOUND).expand_as(value)

    return estimate


def _squared_l2_estimates(d: Tensor) -> Estimate:
    full = _squares(d)

    def estimate(e: Tensor, lost: Tensor | None) -> tuple[Tensor, Tensor]:
        size = _squares(e)[:, None]
        return size + full - _over(lost, d, Tensor.square) - 2.0 * (e @ d.T), _FLOAT64_BOUND * (size + full)

    return estimate


def _l1_estimates(d: Tensor) -> Estimate:
    # |a - b| = 2 max(a, b) - a - b: one operation for each pair of values, and sums that need no pairs. In float32, by
    # tiles that stay in the cache, with the genes in front so that few values are added before float64 takes over.
    unit = d.abs().amax().clamp(min=torch.finfo(d.dtype).tiny)
    by_gene = torch.empty(d.T.shape, dtype=torch.float32, device=d.device)
    torch.div(d.T, unit, out=by_gene)
    total, size = d.sum(dim=1), _absolutes(d)
    rows = max(1, _TILE_ELEMENTS // (_TILE_GENES * len(d)))

    def estimate(e: Tensor, lost: Tensor | None) -> tuple[Tensor, Tensor]:
        scaled = torch.empty(e.T.shape, dtype=torch.float32, device=e.device)
        torch.div(e.T, unit, out=scaled)
        largest = torch.zeros((len(e), len(d)), dtype=torch.float64, device=e.device)
        for start in range(0, len(e), rows):
            part = slice(start, start + rows)
            a = scaled[:, part].unsqueeze(2).contiguous()
            for genes in range(0, len(by_gene), _TILE_GENES):
                tile = slice(genes, genes + _TILE_GENES)
                largest[part] += torch.maximum(a[tile], by_gene[tile].unsqueeze(1)).sum(dim=0)
        value = 2.0 * largest * unit - e.sum(dim=1, keepdim=True) - total - _over(lost, d, Tensor.abs)
        return value, _FLOAT32_BOUND * (_absolutes(e)[:, None] + size)

    return estimate


def _squares(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=1)
    return norms.square()


def _absolutes(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, ord=1, dim=1)
    return norms


def _over(lost: Tensor | None, d: Tensor, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum of ``measure(d)`` over each row's excluded genes, ``[rows, n]``; zero where there are none."""
    if lost is None:
        return d.new_zeros(())
    genes = lost.any(dim=0).nonzero().flatten()
    return lost[:, genes].to(d.dtype) @ measure(d[:, genes]).T
