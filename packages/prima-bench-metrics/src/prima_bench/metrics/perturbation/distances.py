"""Which true effects lie closer to a predicted effect than its own does: the comparisons behind discrimination.

Only comparisons of distances matter, so all distances are first estimated fast (a matrix product, or float32), with a
bound on the error; those too close to call are then computed from differences in a fixed order of additions. So the
outcome depends neither on threads nor on the library that multiplies matrices, and a tie is a tie.
"""

from typing import Literal

import torch
from torch import Tensor

from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation import rowwise

Distance = Literal["cosine", "l1", "l2"]

TIE = 1e-12
"""Distances that differ by less than this share of the effects' sizes are tied."""

_BLOCK_ROWS = 64
_BLOCK_GENES = 256
_BLOCK_ELEMENTS = 1 << 20
_TILE_ELEMENTS = 1 << 17
_FLOAT64_BOUND = 1e-9
_FLOAT32_BOUND = 1e-4
_CANCELLED = 1e-2


def closer_and_tied(e: Tensor, d: Tensor, distance: Distance, keep: Tensor | None = None) -> Tensor:
    """For each row ``p``: how many rows of ``d`` lie closer to ``e_p`` than ``d_p`` does, and half of the ties.

    Args:
        e: Predicted effects, float64 ``[n, genes]``.
        d: True effects, of the same shape.
        distance: ``"cosine"`` (1 when either norm is 0), ``"l1"`` or ``"l2"``.
        keep: The genes that count for row ``p``, boolean ``[n, genes]``; all of them when None.

    Returns:
        float64 ``[n]``, within 0 and ``n - 1``.

    Example:
        >>> d = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
        >>> closer_and_tied(d, d, "l1")
        tensor([0.5000, 0.0000, 0.5000], dtype=torch.float64)
    """
    estimate = {"cosine": _estimate_cosine, "l1": _estimate_l1, "l2": _estimate_l2}[distance]
    ranks = []
    for start in range(0, e.shape[0], _BLOCK_ROWS):
        part = slice(start, start + _BLOCK_ROWS)
        mask = None if keep is None else keep[part]
        block = rowwise.kept(e[part], mask)
        own = torch.arange(start, start + len(block), device=e.device)
        value, bound = estimate(block, d, None if mask is None else ~mask)
        gap = value - value.gather(1, own[:, None])
        # Whatever is not surely apart is computed exactly; a NaN estimate is never sure.
        sure = gap.abs() > bound + bound.gather(1, own[:, None])
        rank = (sure & (gap < 0)).sum(dim=1).to(torch.float64)
        ranks.append(rank + _exact_ranks(block, d, ~sure, own, distance, mask))
    return torch.cat(ranks)


def _exact_ranks(e: Tensor, d: Tensor, unsure: Tensor, own: Tensor, distance: Distance, keep: Tensor | None) -> Tensor:
    """Closer rows and half of the tied ones among the ``unsure`` pairs ``[rows, n]``; a row is no tie of itself."""
    row, other = unsure.nonzero(as_tuple=True)
    step = max(1, _BLOCK_ELEMENTS // e.shape[1])
    parts = [
        _distances(e[r], rowwise.kept(d[q], None if keep is None else keep[r]), distance)
        for r, q in zip(torch.split(row, step), torch.split(other, step), strict=True)
    ]
    value = torch.cat(parts)
    is_own = other == own[row]
    gap = value - value[is_own][row]
    tolerance = TIE * _sizes(e, rowwise.kept(d[own], keep), distance)[row]
    score = torch.where(gap.abs() <= tolerance, 0.5, (gap < 0).to(torch.float64))
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
    zero = torch.zeros_like(e)
    return _distances(e, zero, distance) + _distances(d, zero, distance)


def _estimate_cosine(e: Tensor, d: Tensor, lost: Tensor | None) -> tuple[Tensor, Tensor]:
    """Estimated distances ``[rows, n]`` and the bound of their error; NaN where a norm is zero."""
    full = d.square().sum(dim=1).expand(len(e), -1)
    norms = full if lost is None else full - lost.to(d.dtype) @ d.square().T
    value = 1.0 - (e @ d.T) / (e.square().sum(dim=1, keepdim=True) * norms).sqrt()
    # Where excluded genes held most of an effect, little of the estimate is left.
    return value, torch.where(norms <= _CANCELLED * full, torch.inf, _FLOAT64_BOUND)


def _estimate_l2(e: Tensor, d: Tensor, lost: Tensor | None) -> tuple[Tensor, Tensor]:
    """Estimated squared distances ``[rows, n]`` and the bound of their error."""
    full = d.square().sum(dim=1).expand(len(e), -1)
    norms = full if lost is None else full - lost.to(d.dtype) @ d.square().T
    size = e.square().sum(dim=1, keepdim=True)
    return size + norms - 2.0 * (e @ d.T), _FLOAT64_BOUND * (size + full)


def _estimate_l1(e: Tensor, d: Tensor, lost: Tensor | None) -> tuple[Tensor, Tensor]:
    """Estimated distances ``[rows, n]`` and the bound of their error, in float32 by tiles that fit the cache.

    |a - b| = 2 max(a, b) - a - b: one operation for each pair of values, and sums that need no pairs.
    """
    unit = torch.maximum(e.abs().amax(), d.abs().amax()).clamp(min=torch.finfo(torch.float64).tiny)
    e, d = e / unit, d / unit
    largest = torch.zeros((len(e), len(d)), dtype=torch.float64, device=e.device)
    step = max(1, _TILE_ELEMENTS // (_BLOCK_GENES * len(e)))
    for genes in range(0, e.shape[1], _BLOCK_GENES):
        a = e[:, genes : genes + _BLOCK_GENES].to(torch.float32).unsqueeze(1).contiguous()
        b = d[:, genes : genes + _BLOCK_GENES].to(torch.float32).contiguous()
        for start in range(0, len(d), step):
            largest[:, start : start + step] += torch.maximum(a, b[start : start + step]).sum(dim=2)
    value = 2.0 * largest - e.sum(dim=1, keepdim=True) - d.sum(dim=1)
    if lost is not None:
        value -= lost.to(d.dtype) @ d.abs().T
    return value, _FLOAT32_BOUND * (e.abs().sum(dim=1, keepdim=True) + d.abs().sum(dim=1))
