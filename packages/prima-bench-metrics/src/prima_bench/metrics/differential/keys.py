"""Orders the nonzeros of a span of genes by gene, value and group, by sorting one int64 key for each.

Values that float32 holds exactly go into the key as they are (the narrow key). Others, such as counts scaled in
float64, are sorted by the leading bits of the value with the position riding along, and put right by the whole
value where those bits do not tell (the wide key). Both give the same order of the same ties.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prima_bench.metrics.differential.primitives import sort_
from prima_bench.metrics.differential.spans import Nonzeros

KEY_BITS = 63
VALUE_BITS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """Nonzeros ordered by gene, value and group.

    Attributes:
        keys: Int64 ``[k]``, ascending; two are equal in all but their lowest ``group_bits`` when gene and value are.
        group_bits: How many of the lowest bits hold the group.
        gene: Column of each, int64 ``[k]``.
        wide: The values, float64 ``[k]``, where the keys do not hold them.
    """

    keys: Tensor
    group_bits: int
    gene: Tensor
    wide: Tensor | None

    def values(self, part: slice) -> Tensor:
        """The values of some of them, float64."""
        if self.wide is not None:
            return self.wide[part]
        ordered = (self.keys[part] >> self.group_bits).to(torch.int32) ^ -(1 << 31)
        return _float_bits(ordered, 31).view(torch.float32).to(torch.float64)


def order(stored: Nonzeros, group_bits: int) -> Ordered:
    """Sort the nonzeros of at most ``2 ** (63 - 32 - group_bits)`` genes; none of them is zero."""
    value = stored.value
    narrow = value.to(torch.float32)
    if value.dtype == torch.float64 and not torch.equal(narrow.to(torch.float64), value):
        return _wide(stored, group_bits)
    ordered = _float_bits(narrow.view(torch.int32), 31)
    keys = stored.gene.to(torch.int64).bitwise_left_shift_(VALUE_BITS).add_(ordered).add_(1 << (VALUE_BITS - 1))
    keys = sort_(keys.bitwise_left_shift_(group_bits).bitwise_or_(stored.group))
    return Ordered(keys, group_bits, keys >> (VALUE_BITS + group_bits), None)


def _wide(stored: Nonzeros, group_bits: int) -> Ordered:
    n, device = len(stored.gene), stored.gene.device
    position_bits = n.bit_length()
    room = KEY_BITS - position_bits - int(stored.gene.max()).bit_length()
    ordered = _float_bits(stored.value.view(torch.int64), 63)
    low, high = (int(v) for v in torch.aminmax(ordered))
    shift = max(0, (high - low).bit_length() - room)
    if (high >> shift) - (low >> shift) >= 1 << room:
        shift += 1
    keys = (ordered >> shift).sub_(low >> shift).add_(stored.gene.to(torch.int64) << room)
    keys = sort_(keys.bitwise_left_shift_(position_bits).bitwise_or_(torch.arange(n, device=device)))
    position = keys & ((1 << position_bits) - 1)
    leading = keys.bitwise_right_shift_(position_bits)
    whole = ordered.index_select(0, position)
    if shift and bool(((leading[1:] == leading[:-1]) & (whole[1:] < whole[:-1])).any()):
        position, whole = _put_right(leading, position, whole)
    new = torch.ones(n, dtype=torch.bool, device=device)
    torch.logical_or(leading[1:] != leading[:-1], whole[1:] != whole[:-1], out=new[1:])
    keys = (new.cumsum(0) << group_bits).bitwise_or_(stored.group.index_select(0, position))
    if bool((keys[1:] < keys[:-1]).any()):
        keys = sort_(keys)
    value = _float_bits(whole, 63).view(torch.float64)
    return Ordered(keys, group_bits, leading >> room, value)


def _put_right(leading: Tensor, position: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by the whole value within those runs of equal leading bits that are out of order."""
    new = torch.ones_like(leading, dtype=torch.bool)
    new[1:] = leading[1:] != leading[:-1]
    run = new.cumsum(0) - 1
    wrong = torch.zeros(len(run), dtype=torch.bool, device=run.device)
    wrong[run[1:][(~new[1:]) & (whole[1:] < whole[:-1])]] = True
    place = wrong[run].nonzero().flatten()
    by_value = torch.sort(whole[place], stable=True).indices
    source = place[by_value[torch.sort(run[place][by_value], stable=True).indices]]
    position, whole = position.clone(), whole.clone()
    position[place], whole[place] = position[source], whole[source]
    return position, whole


def _float_bits(bits: Tensor, magnitude_bits: int) -> Tensor:
    """Bits of floats as integers that ascend with the float, and back again."""
    return bits ^ ((bits >> magnitude_bits) & ((1 << magnitude_bits) - 1))
