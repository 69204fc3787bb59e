"""Ranks of a block of genes: twice U, the tie term and the means of every group."""

import torch
from torch import Tensor


def rank_block(values: Tensor, group: Tensor, n_groups: int, linear: str) -> tuple[Tensor, Tensor, Tensor]:
    """Rank each row of ``[genes, cells]`` in float64; gives three ``[groups, genes]``: 2U and ties int64, mean."""
    genes, n = values.shape
    ordered, order = torch.sort(values + 0.0, dim=1)
    code = group[order]
    order = torch.sort(code + n_groups * _dense_rank(ordered), dim=1).indices
    ordered, code = ordered.gather(1, order), code.gather(1, order)
    rank = _dense_rank(ordered)
    row = torch.arange(genes, device=values.device)[:, None]
    per_value = torch.zeros((genes, n + 1, n_groups), dtype=torch.int64, device=values.device)
    per_value.index_put_((row.expand_as(rank), rank, code), torch.ones_like(rank), accumulate=True)
    c = per_value[:, :, :1]
    u2 = (per_value * (2 * (c.cumsum(1) - c) + c)).sum(1).T
    t = per_value + c
    ties = (t**3 - t).sum(1).T
    lin = torch.expm1(ordered) if linear == "expm1" else ordered
    # Two limbs on a grid of powers of two below each gene's largest value: their sums are exact in any order.
    exponent = torch.frexp(lin.abs().amax(1, keepdim=True)).exponent.clamp(min=-1000) if n else row
    lin = torch.ldexp(lin, -exponent)
    bits = 52 - max(1, n).bit_length()
    magic = 1.5 * 2.0 ** (52 - bits)
    high = (lin + magic) - magic
    magic *= 2.0**-bits
    low = ((lin - high) + magic) - magic
    sums = torch.zeros((genes, n_groups), dtype=torch.float64, device=values.device)
    sums = sums.scatter_add(1, code, high) + sums.scatter_add(1, code, low)
    counts = torch.bincount(group, minlength=n_groups).clamp(min=1)
    return u2, ties, torch.ldexp(sums / counts, exponent).T + 0.0


def _dense_rank(ordered: Tensor) -> Tensor:
    new = torch.zeros_like(ordered, dtype=torch.int64)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return new.cumsum(1)
