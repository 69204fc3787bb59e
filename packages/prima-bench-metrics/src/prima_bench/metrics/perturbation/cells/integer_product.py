"""Exact products of rows that are rounded to whole numbers: the same bits on every machine, in any order and blocks.

Values become whole numbers of at most 23 bits, cut into three digits of base 256. Products of digits add up exactly in
32-bit integers, which a processor with instructions for them does an order of magnitude faster than it multiplies in
float64; where there are none, float64 gives the same sums, since it too is exact for whole numbers below 2^53.
``exact_product`` keeps all bits of float64, at ten times the cost.
"""

import functools
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from prima_bench.metrics.elements import repeat_each
from prima_bench.metrics.rows import SparseRows

LARGEST = (1 << 23) - (1 << 16)
"""The largest whole number: what its digits, which are balanced around 0, can still hold."""

DIGITS = 3
_COLUMNS = 1 << 15  # as many products of digits, three times, stay below 2^31


@dataclass(frozen=True, slots=True, eq=False)
class RoundedRows:
    """Rows of a matrix, each rounded to whole multiples of a unit of its own: its largest value over ``LARGEST``.

    Attributes:
        digits: Base-256 digits of the multiples, from -128 to 127, the coarsest first, int8 ``[n, w]`` each.
        unit: The unit of each row, float64 ``[n]``; 0 for a row of zeros.
        squares: The sum of the squares of each row's multiples, int64 ``[n]``.
    """

    digits: tuple[Tensor, ...]
    unit: Tensor
    squares: Tensor

    @classmethod
    def of(cls, x: Tensor | SparseRows, largest: Tensor) -> Self:
        """Round the rows of a matrix.

        Args:
            x: Finite float64 ``[n, w]``.
            largest: The largest value of each row in size, float64 ``[n]``.
        """
        per_unit = torch.where(largest > 0, LARGEST / largest, 0.0)
        if isinstance(x, SparseRows):
            squares, digits = _round_sparse(x, per_unit)
        else:
            whole = (x * per_unit.unsqueeze(1)).round_().to(torch.int32)
            squares, digits = whole.to(torch.int64).square_().sum(dim=1), _digits(whole)
        return cls(digits, largest / LARGEST, squares)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return self.digits[0].shape[0], self.digits[0].shape[1]


def _round_sparse(x: SparseRows, per_unit: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    n, w = x.shape
    whole = (x.values * repeat_each(per_unit, x.lengths)).round_().to(torch.int32)
    running = torch.cat([x.lengths.new_zeros(1), whole.to(torch.int64).square_().cumsum(0)])
    ends = x.lengths.cumsum(0)
    place = repeat_each(torch.arange(n, device=x.device) * w, x.lengths)
    place += x.columns
    digits = (
        torch.zeros(n * w, dtype=torch.int8, device=x.device).scatter_(0, place, d).view(n, w) for d in _digits(whole)
    )
    return running[ends] - running[ends - x.lengths], tuple(digits)


def row_products(a: RoundedRows, b: RoundedRows) -> Tensor:
    """Scalar product of the multiples of every row of ``a`` with those of every row of ``b``, exact.

    Args:
        a: ``[n, w]``, below 2^17 columns.
        b: ``[m, w]``.

    Returns:
        int64 ``[n, m]``.

    Example:
        >>> x = RoundedRows.of(torch.tensor([[3.0, 1.0], [0.0, 5.0]]), largest=torch.tensor([3.0, 5.0]))
        >>> bool((row_products(x, x).diagonal() == x.squares).all())
        True
    """
    return sum(
        (_products_of(a, b, slice(start, start + _COLUMNS)) for start in range(0, a.shape[1], _COLUMNS)),
        start=torch.zeros((a.shape[0], b.shape[0]), dtype=torch.int64, device=a.unit.device),
    )


def _products_of(a: RoundedRows, b: RoundedRows, columns: slice) -> Tensor:
    left = [d[:, columns] for d in a.digits]
    right = [d[:, columns] for d in b.digits]
    if a.unit.device.type != "cpu" or not _has_exact_int8():
        return _float_products(left, right)
    total: Tensor | None = None
    for order in range(2 * DIGITS - 1):
        pairs = [(i, order - i) for i in range(DIGITS) if 0 <= order - i < DIGITS]
        same = functools.reduce(torch.Tensor.add_, (torch._int_mm(left[i], right[j].T) for i, j in pairs))
        total = same.to(torch.int64) if total is None else total.mul_(256).add_(same)
    if total is None:
        raise AssertionError("there are digits")
    return total


def _float_products(left: list[Tensor], right: list[Tensor]) -> Tensor:
    # 23 bits times 16, times 2^15 columns: nothing is rounded.
    whole = _number(left)
    high = (whole @ _number(right[:2]).T).to(torch.int64)
    low = (whole @ _number(right[2:]).T).to(torch.int64)
    return high.mul_(256).add_(low)


def _number(digits: list[Tensor]) -> Tensor:
    total = digits[0].to(torch.float64)
    for digit in digits[1:]:
        total = total.mul_(256.0).add_(digit)
    return total


def _digits(whole: Tensor) -> tuple[Tensor, ...]:
    found = []
    for _ in range(DIGITS - 1):
        low = ((whole + 128) & 255) - 128
        found.append(low.to(torch.int8))
        whole = (whole - low) >> 8
    return whole.to(torch.int8), *reversed(found)


@functools.cache
def _has_exact_int8() -> bool:
    """Whether 8-bit products are fast here, and exact: some processors lose what leaves 16 bits on the way."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    edge = torch.tensor([-128, 127, 127, -128, -128, 127, 0, 1], dtype=torch.int8).repeat(256)
    rows = torch.stack([edge.roll(i) for i in range(48)])
    try:
        found = torch._int_mm(rows, rows.T)
    except (AttributeError, RuntimeError):
        return False
    return torch.equal(found.to(torch.float64), rows.to(torch.float64) @ rows.to(torch.float64).T)
