"""One pass over ordered nonzeros: twice U and the tie term of every group, for each gene.

Zeros are not stored: they are one tie group between the negative and the positive values, added in closed form.
"""

import operator

import torch
from torch import Tensor

from prima_bench.metrics.primitives import at_first, compared, nonzero

MOST_CELLS = 1 << 21
"""The most cells that control and one group may have together: ``t^3 - t`` of as many ties still fits into int64."""

_COUNT_BITS = MOST_CELLS.bit_length()


def rank_block(
    keys: Tensor,
    group_bits: int,
    group: Tensor,
    index: Tensor,
    values: Tensor,
    negative: Tensor | None,
    n_cells: Tensor,
) -> tuple[Tensor, Tensor]:
    """Rank the values of some genes among those of the control and of each one's own group.

    Args:
        keys: Ordered by gene, value and group, equal in all but the lowest ``group_bits`` where gene and value are,
            int64 ``[k]``.
        group_bits: How many of the lowest bits hold the group.
        group: Their lowest ``group_bits``, int64 ``[k]``.
        index: ``gene * groups + group`` of each, int64 ``[k]``.
        values: ``[k]``.
        negative: Which values are negative, bool ``[k]``; None when none is.
        n_cells: Number of cells of each gene's groups by code, the control first, int64 ``[genes, groups]``.

    Returns:
        Twice U and ``sum(t^3 - t)`` over the ties of control and group, both int64 ``[genes, groups]``; what is said
        of the control itself has no meaning.
    """
    # Among ties, the control comes first. One sum holds two: below, how many values there are, and above, the controls
    # up to each. The latter may overflow, but taking off the controls of the genes before brings it back: U fits.
    step = compared(operator.eq, group, 0).to(torch.int64).bitwise_left_shift_(_COUNT_BITS)
    step[:1] += 1
    both = _add_up(step.cumsum(0), index, n_cells)
    stored = both & ((1 << _COUNT_BITS) - 1)
    before = stored[:, :1].cumsum(0) - stored[:, :1]
    u = (both >> _COUNT_BITS) - before * stored
    two_u = u.bitwise_left_shift_(_COUNT_BITS).bitwise_right_shift_(_COUNT_BITS - 1)
    ties = torch.zeros_like(stored)
    place = nonzero(_tied(values))
    if len(place):
        few = 2 * len(place) < len(keys)
        tied_keys, tied_index = (x.index_select(0, place) if few else x for x in (keys, index))
        pairs, ties = _ties(tied_keys, group_bits, tied_index, n_cells)
        two_u -= pairs

    zeros = n_cells - stored
    if negative is None:
        two_u += stored * (2 * zeros[:, :1]) + zeros * zeros[:, :1]
    else:
        below_zero = _add_up(negative.to(torch.int64), index, n_cells)
        two_u += (stored - below_zero) * (2 * zeros[:, :1]) + zeros * (2 * below_zero[:, :1] + zeros[:, :1])
    tied_zeros = zeros[:, 1:] + zeros[:, :1]
    ties[:, 1:] += tied_zeros * (tied_zeros * tied_zeros - 1)
    return two_u, ties


def _ties(keys: Tensor, group_bits: int, index: Tensor, n_cells: Tensor) -> tuple[Tensor, Tensor]:
    """How many pairs of a cell and a control are equal, and ``sum(t^3 - t)``, of values that are tied."""
    control = compared(operator.eq, keys & ((1 << group_bits) - 1), 0)
    step = control.to(torch.int64)
    upto = step.cumsum(0)
    pairs = upto - at_first(upto - step, keys >> group_bits)
    place = torch.arange(len(keys), device=keys.device)
    own = (place - at_first(place, keys)).add_(1).masked_fill_(control, 0)
    # Of control and own group, t are tied with this value so far: (t - 1) t (t + 1) has grown by 3 t (t - 1).
    tied = pairs + own
    ties = _add_up(tied.mul(tied - 1).mul_(3), index, n_cells)
    ties[:, 1:] += ties[:, :1]
    return _add_up(pairs, index, n_cells), ties


def _tied(values: Tensor) -> Tensor:
    """Which elements of an ordered vector have an equal neighbour."""
    tied = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    same = compared(operator.eq, values[1:], values[:-1])
    tied[1:] = same
    tied[:-1] |= same
    return tied


def _add_up(x: Tensor, index: Tensor, like: Tensor) -> Tensor:
    return torch.zeros(like.numel(), dtype=x.dtype, device=x.device).scatter_add_(0, index, x).view(like.shape)
