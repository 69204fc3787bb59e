"""One pass over ordered nonzeros: twice U and the tie term of every group, for each gene.

Zeros are not stored: they are one tie group between the negative and the positive values, added in closed form.
"""

import torch
from torch import Tensor

from prima_bench.metrics.differential.primitives import nonzero

MOST_CELLS = 1 << 21
"""The most cells that control and one group may have together: ``t^3 - t`` of as many ties still fits into int64."""


def rank_block(
    keys: Tensor, group_bits: int, index: Tensor, negative: Tensor | None, n_cells: Tensor
) -> tuple[Tensor, Tensor]:
    """Rank the values of some genes among those of the control and of each one's own group.

    Args:
        keys: Ordered by gene, value and group, equal in all but the lowest ``group_bits`` where gene and value are,
            int64 ``[k]``.
        group_bits: How many of the lowest bits hold the group.
        index: ``gene * groups + group`` of each, int64 ``[k]``.
        negative: Which values are negative, bool ``[k]``; None when none is.
        n_cells: Number of cells of each gene's groups by code, the control first, int64 ``[genes, groups]``.

    Returns:
        Twice U and ``sum(t^3 - t)`` over the ties of control and group, both int64 ``[genes, groups]``; what is said
        of the control itself has no meaning.
    """
    upto = _is_control(keys, group_bits).cumsum(0)  # controls up to here; among ties, the control comes first
    two_u = _add_up(upto, index, n_cells).mul_(2)
    stored = _add_up(torch.ones_like(upto), index, n_cells)
    two_u -= 2 * (stored[:, :1].cumsum(0) - stored[:, :1]) * stored  # controls of the genes before
    ties = torch.zeros_like(stored)
    tied = _tied(keys >> group_bits)
    share = int(tied.count_nonzero()) / max(1, len(tied))
    if share > 0:
        if share < 0.5:
            place = nonzero(tied)
            equal, ties = _ties(keys.index_select(0, place), group_bits, index.index_select(0, place), n_cells)
        else:
            equal, ties = _ties(keys, group_bits, index, n_cells)
        two_u -= equal

    zeros = n_cells - stored
    below_zero = torch.zeros_like(stored) if negative is None else _add_up(negative.to(torch.int64), index, n_cells)
    two_u += (stored - below_zero) * (2 * zeros[:, :1]) + zeros * (2 * below_zero[:, :1] + zeros[:, :1])
    tied_zeros = zeros[:, 1:] + zeros[:, :1]
    ties[:, 1:] += tied_zeros**3 - tied_zeros
    return two_u, ties


def _ties(keys: Tensor, group_bits: int, index: Tensor, n_cells: Tensor) -> tuple[Tensor, Tensor]:
    """How many pairs of a cell and a control are equal, and ``sum(t^3 - t)``, of values that are tied."""
    control = _is_control(keys, group_bits)
    upto = control.cumsum(0)
    equal = upto - _at_first(upto - control.to(torch.int64), keys >> group_bits)
    place = torch.arange(1, len(keys) + 1, device=keys.device)
    own = (place - _at_first(place, keys) + 1).masked_fill_(control, 0)
    # Of control and own group, t are tied with this value so far: (t - 1) t (t + 1) has grown by 3 t (t - 1).
    tied = equal + own
    ties = _add_up(tied.mul(tied - 1).mul_(3), index, n_cells)
    ties[:, 1:] += ties[:, :1]
    return _add_up(equal, index, n_cells), ties


def _is_control(keys: Tensor, group_bits: int) -> Tensor:
    return keys.bitwise_and((1 << group_bits) - 1) == 0


def _tied(values: Tensor) -> Tensor:
    """Which elements of an ordered vector have an equal neighbour."""
    equal = torch.zeros(len(values) + 1, dtype=torch.bool, device=values.device)
    torch.eq(values[1:], values[:-1], out=equal[1 : len(values)])
    return equal[1:] | equal[:-1]


def _at_first(x: Tensor, run: Tensor) -> Tensor:
    """For each element, ``x`` at the first of its run of equal elements, for non-negative ``x`` that never falls."""
    new = torch.ones(len(run), dtype=torch.bool, device=run.device)
    torch.ne(run[1:], run[:-1], out=new[1:])
    return (x * new).cummax(0).values


def _add_up(x: Tensor, index: Tensor, like: Tensor) -> Tensor:
    return torch.zeros(like.numel(), dtype=x.dtype, device=x.device).scatter_add_(0, index, x).view(like.shape)
