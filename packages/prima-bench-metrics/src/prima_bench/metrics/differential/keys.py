"""Orders the nonzeros of a span of genes by gene, value and group, by sorting one int64 key for each.

Values that float32 holds exactly go into the key as they are (the narrow order). Others, such as counts scaled in
float64, are sorted by the leading bits of the value with the position riding along, and put right by the whole
value where those bits do not tell (the wide order). Both see the same ties.
"""

import torch
from torch import Tensor

from prima_bench.metrics.differential.spans import Nonzeros
from prima_bench.metrics.primitives import sort_

KEY_BITS = 63
VALUE_BITS = 32


class NarrowOrder:
    """Nonzeros whose values float32 holds exactly.

    Attributes:
        edges: Where each gene begins, and the last one ends, int64 ``[1 + genes]``.
    """

    def __init__(self, parts: list[Nonzeros], genes: int, group_bits: int) -> None:
        keys = torch.empty(sum(len(p.gene) for p in parts), dtype=torch.int64, device=parts[0].gene.device)
        self._group_bits = group_bits
        self._positive = all(bool(p.value.amin() >= 0) for p in parts if len(p.value))
        for part, out in zip(parts, _slices(keys, parts), strict=True):
            out.copy_(self._ordered(part.value.to(torch.float32).view(torch.int32)))
            if not self._positive:
                out.add_(1 << (VALUE_BITS - 1))
            out.bitwise_or_(part.gene.to(torch.int64).bitwise_left_shift_(VALUE_BITS))
            out.bitwise_left_shift_(group_bits).bitwise_or_(part.group.to(torch.int64))
        self._keys = sort_(keys)
        self.edges = _edges(self._keys, genes, VALUE_BITS + group_bits)

    def block(self, part: slice) -> tuple[Tensor, Tensor]:
        """The nonzeros of some genes in order.

        Args:
            part: From where a gene begins to where one ends.

        Returns:
            Ascending keys, int64 ``[k]``: two are equal in all but their lowest ``group_bits``, which hold the group,
            when gene and value are. And the values, float64 ``[k]``.
        """
        keys = self._keys[part]
        ordered = (keys >> self._group_bits).to(torch.int32)
        if not self._positive:
            ordered.bitwise_xor_(-(1 << 31))
        return keys, self._ordered(ordered).view(torch.float32).to(torch.float64)

    def _ordered(self, bits: Tensor) -> Tensor:
        return bits if self._positive else _float_bits(bits, 31)


class WideOrder:
    """Nonzeros of any values; otherwise like :class:`NarrowOrder`."""

    def __init__(self, parts: list[Nonzeros], genes: int, group_bits: int) -> None:
        self._group = torch.cat([p.group for p in parts])
        self._group_bits = group_bits
        self._whole = torch.cat([_float_bits(p.value.to(torch.float64).view(torch.int64), 63) for p in parts])
        n, device = len(self._whole), self._whole.device
        self._position_bits = n.bit_length()
        room = KEY_BITS - self._position_bits - (genes - 1).bit_length()
        low, high = (int(v) for v in torch.aminmax(self._whole))
        shift = max(0, (high - low).bit_length() - room)
        if (high >> shift) - (low >> shift) >= 1 << room:
            shift += 1
        self._cut_off = shift > 0
        keys = torch.arange(n, device=device)
        for part, whole, out in zip(parts, _slices(self._whole, parts), _slices(keys, parts), strict=True):
            key = (whole >> shift).sub_(low >> shift).add_(part.gene.to(torch.int64) << room)
            out.bitwise_or_(key.bitwise_left_shift_(self._position_bits))
        self._keys = sort_(keys)
        self.edges = _edges(self._keys, genes, room + self._position_bits)

    def block(self, part: slice) -> tuple[Tensor, Tensor]:
        """The nonzeros of some genes in order: see :meth:`NarrowOrder.block`."""
        position = self._keys[part] & ((1 << self._position_bits) - 1)
        leading = self._keys[part] >> self._position_bits
        whole = self._whole.index_select(0, position)
        if self._cut_off and bool(((leading[1:] == leading[:-1]) & (whole[1:] < whole[:-1])).any()):
            position, whole = _put_right(leading, position, whole)
        new = torch.ones_like(leading, dtype=torch.bool)
        torch.logical_or(leading[1:] != leading[:-1], whole[1:] != whole[:-1], out=new[1:])
        keys = new.cumsum(0).bitwise_left_shift_(self._group_bits)
        keys.bitwise_or_(self._group.index_select(0, position))
        if bool((keys[1:] < keys[:-1]).any()):
            keys = sort_(keys)
        return keys, _float_bits(whole, 63).view(torch.float64)


def order(parts: list[Nonzeros], genes: int, group_bits: int) -> NarrowOrder | WideOrder:
    """Order the nonzeros of at most ``2 ** (63 - 32 - group_bits)`` genes, none of which is zero."""
    narrow = all(_held_by_float32(p.value) for p in parts)
    return (NarrowOrder if narrow else WideOrder)(parts, genes, group_bits)


def _held_by_float32(value: Tensor) -> bool:
    return value.dtype == torch.float32 or torch.equal(value.to(torch.float32).to(torch.float64), value)


def _slices(x: Tensor, parts: list[Nonzeros]) -> tuple[Tensor, ...]:
    return torch.split(x, [len(p.gene) for p in parts])


def _put_right(leading: Tensor, position: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by the whole value within those runs of equal leading bits that are out of order."""
    new = torch.ones_like(leading, dtype=torch.bool)
    new[1:] = leading[1:] != leading[:-1]
    run = new.cumsum(0) - 1
    wrong = torch.zeros_like(new)
    wrong[run[1:][(~new[1:]) & (whole[1:] < whole[:-1])]] = True
    place = wrong[run].nonzero().flatten()
    by_value = torch.sort(whole[place], stable=True).indices
    source = place[by_value[torch.sort(run[place][by_value], stable=True).indices]]
    position[place], whole[place] = position[source], whole[source]
    return position, whole


def _edges(keys: Tensor, genes: int, gene_shift: int) -> Tensor:
    starts = torch.searchsorted(keys, torch.arange(genes, device=keys.device) << gene_shift)
    return torch.cat([starts, starts.new_full((1,), len(keys))])


def _float_bits(bits: Tensor, magnitude_bits: int) -> Tensor:
    """Bits of floats as integers that ascend with the float, and back again."""
    return bits ^ ((bits >> magnitude_bits) & ((1 << magnitude_bits) - 1))
