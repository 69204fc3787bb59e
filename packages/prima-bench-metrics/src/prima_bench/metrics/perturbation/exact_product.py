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
    """The rows of a matrix, cut into slices of ``bits`` bits below each row's largest value.

    Attributes:
        slices: Whole numbers of at most ``2^bits`` in size, coarsest first, float64 ``[n, k]`` each.
        unit: What a row's numbers of the coarsest slice are multiplied by, a power of two, float64 ``[n, 1]``.
        bits: How many bits a slice holds.
    """

    slices: tuple[Tensor, ...]
    unit: Tensor
    bits: int

    @classmethod
    def of(cls, x: Tensor, slices: int = 3) -> Self:
        """Cut the rows of ``x``, finite ``[n, k]``; what lies below the last slice is rounded.

        Three slices hold more than a float64 does, at any width below 2^17.
        """
        x = x.to(torch.float64)
        bits = (_EXACT_BITS - math.ceil(math.log2(max(1, x.shape[1])))) // 2
        largest = x.abs().amax(dim=1, keepdim=True) if x.shape[1] else x.new_zeros((len(x), 1))
        exponent = torch.frexp(largest).exponent.clamp(min=_LEAST_EXPONENT)
        rest = x * _power_of_two(bits - exponent)
        parts = []
        for _ in range(slices):
            parts.append(rest.round())
            rest = (rest - parts[-1]) * 2.0**bits
        return cls(tuple(parts), _power_of_two(exponent - bits), bits)


def row_products(a: SlicedRows, b: SlicedRows) -> Tensor:
    """Scalar product of every row of ``a`` with every row of ``b``.

    Args:
        a: ``[n, k]``.
        b: ``[m, k]``, cut into as many slices.

    Returns:
        float64 ``[n, m]``. With three slices as exact as one rounding; with s, to about ``2^(-s * bits)`` of the
        product of the two rows' largest values.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [0.1, 0.0]], dtype=torch.float64)
        >>> row_products(SlicedRows.of(x), SlicedRows.of(x))
        tensor([[5.0000, 0.1000],
                [0.1000, 0.0100]], dtype=torch.float64)
    """
    return _weighed(a, [[x @ y.T for x, y in pairs] for pairs in _levels(a, b)]) * a.unit * b.unit.T


def row_squares(a: SlicedRows) -> Tensor:
    """Scalar product of every row with itself, float64 ``[n]``: bit for bit what :func:`row_products` says.

    Example:
        >>> row_squares(SlicedRows.of(torch.tensor([[3.0, 4.0]])))
        tensor([25.], dtype=torch.float64)
    """
    levels = [[(x * y).sum(dim=1) for x, y in pairs] for pairs in _levels(a, a)]
    unit = a.unit.squeeze(1)
    return _weighed(a, levels) * unit * unit


def _power_of_two(exponent: Tensor) -> Tensor:
    # From its bits: no library's power function need be exact.
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def _levels(a: SlicedRows, b: SlicedRows) -> list[list[tuple[Tensor, Tensor]]]:
    """Pairs of slices by weight; in each, mirror images stand together, so that a product is symmetric."""
    n = len(a.slices)
    orders = [sorted(((i, s - i) for i in range(s + 1)), key=lambda p: (-abs(p[0] - p[1]), p)) for s in range(n)]
    return [[(a.slices[i], b.slices[j]) for i, j in pairs] for pairs in orders]


def _weighed(a: SlicedRows, levels: list[list[Tensor]]) -> Tensor:
    total = torch.zeros_like(levels[0][0])
    for products in reversed(levels):
        total = total * 2.0**-a.bits
        level = products[0]
        for product in products[1:]:
            level = level + product
        total = total + level
    return total
