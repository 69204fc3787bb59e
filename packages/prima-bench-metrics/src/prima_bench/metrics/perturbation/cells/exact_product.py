"""Products of the rows of two matrices whose bits depend on the two rows alone.

A library's matrix product depends in its last bits on the shape of the blocks, on the place of a row within them and on
the number of threads. Here every row is cut into slices of few bits, which are whole numbers after scaling; products of
slices add up to less than 2^53, so every order of additions gives the same, exact sum (Ozaki et al. 2012,
doi:10.1007/s11075-011-9478-1). What is left to round is done element by element.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

_EXACT_BITS = 53
_LEAST_EXPONENT = -900


@dataclass(frozen=True, slots=True, eq=False)
class SlicedRows:
    """The rows of a matrix, cut into three slices of ``bits`` bits below each row's largest value.

    Attributes:
        slices: Whole numbers of at most ``2^bits`` in size, coarsest first, float64 ``[n, k]`` each.
        unit: What a row's numbers of the coarsest slice are multiplied by, a power of two, float64 ``[n, 1]``.
        bits: How many bits a slice holds.
    """

    slices: tuple[Tensor, Tensor, Tensor]
    unit: Tensor
    bits: int

    @classmethod
    def of(cls, x: Tensor) -> Self:
        """Cut the rows of ``x``, finite ``[n, k]``; what lies below the last slice is rounded."""
        x = x.to(torch.float64)
        bits = (_EXACT_BITS - math.ceil(math.log2(max(1, x.shape[1])))) // 2
        largest = x.abs().amax(dim=1, keepdim=True) if x.shape[1] else x.new_zeros((len(x), 1))
        exponent = torch.frexp(largest).exponent.clamp(min=_LEAST_EXPONENT)
        rest = x * _power_of_two(bits - exponent)
        coarse = rest.round()
        rest.sub_(coarse).mul_(2.0**bits)
        middle = rest.round()
        rest.sub_(middle).mul_(2.0**bits).round_()
        return cls((coarse, middle, rest), _power_of_two(exponent - bits), bits)


def row_products(a: SlicedRows, b: SlicedRows) -> Tensor:
    """Scalar product of every row of ``a`` with every row of ``b``.

    Args:
        a: ``[n, k]``.
        b: ``[m, k]``.

    Returns:
        float64 ``[n, m]``, off by no more than rounding: about 1e-16 of k times the two rows' largest values.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [0.1, 0.0]], dtype=torch.float64)
        >>> row_products(SlicedRows.of(x), SlicedRows.of(x))
        tensor([[5.0000, 0.1000],
                [0.1000, 0.0100]], dtype=torch.float64)
    """
    (a0, a1, a2), (b0, b1, b2) = a.slices, b.slices
    # By falling weight; mirror images are added first, so that the products of a and b are those of b and a.
    first = a0 @ b0.T
    second = a0 @ b1.T + a1 @ b0.T
    third = (a0 @ b2.T + a2 @ b0.T) + a1 @ b1.T
    scale = 2.0**-a.bits
    return (first + scale * (second + scale * third)) * a.unit * b.unit.T


def _power_of_two(exponent: Tensor) -> Tensor:
    # From its bits: no library's power function need be exact.
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)
