"""Exact products of rows that are rounded to whole numbers: the same bits on every machine, in any order and blocks.

Values become whole numbers of at most 23 bits. A processor with instructions for it multiplies them in three digits of
base 256, which add up exactly in 32-bit integers. Where there are none, float64 gives the same sums of 128 products at
a time, since it too is exact for whole numbers below 2^53; and then rows that hold few values are multiplied sparse.
``exact_product`` keeps all bits of float64, at ten times the cost.
"""

import functools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from prima_bench.metrics.elements import repeat_each, row_of_each
from prima_bench.metrics.rows import SparseRows

LARGEST = (1 << 23) - (1 << 16)
"""The largest whole number: what its digits, which are balanced around 0, can still hold."""

DIGITS = 3
_DIGIT_COLUMNS = 1 << 15  # as many products of digits, three times, stay below 2^31
_EXACT = 128  # as many products of the largest whole numbers stay below 2^53
_WIDEST = 512  # with more columns, what the products are taken of no longer fits into the processor's cache
_SPARSE = 1 / 4  # of the columns; with more values than that, dense products are faster


class RoundedRows:
    """Rows of a matrix, each rounded to whole multiples of a unit of its own: its largest value over ``LARGEST``.

    What products need of them is made when it is first asked for, and kept.

    Attributes:
        whole: The multiples, int32 ``[n, w]``, dense or canonical sparse.
        unit: The unit of each row, float64 ``[n]``; 0 for a row of zeros.
        squares: The sum of the squares of each row's multiples, int64 ``[n]``.
        shape: Number of rows and of columns.
    """

    def __init__(self, whole: Tensor | SparseRows, unit: Tensor, squares: Tensor) -> None:
        self.whole, self.unit, self.squares = whole, unit, squares
        self.shape = (whole.shape[0], whole.shape[1])

    @classmethod
    def of(cls, x: Tensor | SparseRows, largest: Tensor) -> Self:
        """Round the rows of a matrix.

        Args:
            x: Finite float64 ``[n, w]``.
            largest: The largest value of each row in size, float64 ``[n]``.
        """
        per_unit, unit = torch.where(largest > 0, LARGEST / largest, 0.0), largest / LARGEST
        if isinstance(x, Tensor):
            whole = (x * per_unit.unsqueeze(1)).round_().to(torch.int32)
            return cls(whole, unit, whole.to(torch.int64).square_().sum(dim=1))
        values = (x.values * repeat_each(per_unit, x.lengths)).round_().to(torch.int32)
        running = torch.cat([x.lengths.new_zeros(1), values.to(torch.int64).square_().cumsum(0)])
        ends = x.lengths.cumsum(0)
        squares = running[ends] - running[ends - x.lengths]
        return cls(SparseRows(values, x.columns, x.lengths, x.n_columns), unit, squares)

    @functools.cached_property
    def digits(self) -> tuple[Tensor, ...]:
        """Base-256 digits, from -128 to 127, the coarsest first, int8 ``[n, w]`` each."""
        if isinstance(self.whole, Tensor):
            return _digits(self.whole)
        n, w = self.shape
        place = repeat_each(torch.arange(n, device=self.unit.device) * w, self.whole.lengths).add_(self.whole.columns)
        empty = torch.zeros(n * w, dtype=torch.int8, device=self.unit.device)
        return tuple(empty.scatter(0, place, d).view(n, w) for d in _digits(self.whole.values))

    @functools.cached_property
    def by_column(self) -> Tensor:
        """The multiples, float64 ``[w, n]``."""
        if isinstance(self.whole, Tensor):
            return self.whole.T.to(torch.float64, memory_format=torch.contiguous_format)
        n, w = self.shape
        place = self.whole.columns.to(torch.int64).mul_(n).add_(row_of_each(self.whole.lengths))
        values = self.whole.values.to(torch.float64)
        return torch.zeros(w * n, dtype=torch.float64, device=self.unit.device).scatter_(0, place, values).view(w, n)

    @functools.cached_property
    def blocks(self) -> Sequence[Tensor]:
        """The multiples of some columns at a time, float64 ``[n, columns]``, sparse if they are few.

        All blocks but the last have the same number of columns. No row of any is more than ``_EXACT`` of the largest.
        """
        n, w = self.shape
        x = self.whole
        if isinstance(x, Tensor) or self.unit.device.type != "cpu" or len(x.values) > _SPARSE * n * w:
            return self.dense_blocks
        row, size, width = row_of_each(x.lengths), x.values.abs().to(torch.float64), _WIDEST
        while True:
            key = x.columns.to(torch.int64).div_(width, rounding_mode="floor").mul_(n).add_(row)
            held = torch.bincount(key, weights=size)
            if width == _EXACT or not len(held) or float(held.max()) <= _EXACT * LARGEST:
                break
            width //= 2
        counts = torch.bincount(key, minlength=-(-w // width) * n).view(-1, n)
        order = torch.sort(key, stable=True).indices
        first = torch.zeros((len(counts), n + 1), dtype=torch.int32)
        torch.cumsum(counts, dim=1, out=first[:, 1:])
        columns = x.columns.index_select(0, order).remainder_(width)
        values = x.values.index_select(0, order).to(torch.float64)
        sizes = counts.sum(dim=1).tolist()
        _expect_sparse_warning()
        return [
            torch.sparse_csr_tensor(starts, where, what, size=(n, min(width, w - left)), check_invariants=False)
            for left, starts, where, what in zip(
                range(0, w, width), first, torch.split(columns, sizes), torch.split(values, sizes), strict=True
            )
        ]

    @property
    def dense_blocks(self) -> Sequence[Tensor]:
        """The multiples of ``_EXACT`` columns at a time, float64 ``[n, columns]``."""
        return [part.T for part in torch.split(self.by_column, _EXACT)]


def row_products(a: RoundedRows, b: RoundedRows) -> Tensor:
    """Scalar product of the multiples of every row of ``a`` with those of every row of ``b``, exact.

    Args:
        a: ``[n, w]``, below 2^17 columns. Where it is used several times, what is made of it is made once.
        b: ``[m, w]``.

    Returns:
        int64 ``[n, m]``.

    Example:
        >>> x = RoundedRows.of(torch.tensor([[3.0, 1.0], [0.0, 5.0]]), largest=torch.tensor([3.0, 5.0]))
        >>> bool((row_products(x, x).diagonal() == x.squares).all())
        True
    """
    total = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.int64, device=a.unit.device)
    if a.unit.device.type == "cpu" and _digits_are_faster():
        for start in range(0, a.shape[1], _DIGIT_COLUMNS):
            columns = slice(start, start + _DIGIT_COLUMNS)
            total += _digit_products([d[:, columns] for d in a.digits], [d[:, columns] for d in b.digits])
    else:
        # With itself once, the order of columns costs more than it saves.
        left = a.dense_blocks if a is b else a.blocks
        product = torch.zeros(total.shape, dtype=torch.float64, device=total.device)
        for part, other in zip(left, torch.split(b.by_column, left[0].shape[1] if left else 1), strict=True):
            total += torch.addmm(product, part, other, beta=0, out=product).to(torch.int64)
    return total


def _digit_products(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    total: Tensor | None = None
    for order in range(2 * DIGITS - 1):
        pairs = [(i, order - i) for i in range(DIGITS) if 0 <= order - i < DIGITS]
        same = functools.reduce(torch.Tensor.add_, (torch._int_mm(left[i], right[j].T) for i, j in pairs))
        total = same.to(torch.int64) if total is None else total.mul_(256).add_(same)
    if total is None:
        raise AssertionError("there are digits")
    return total


def _digits(whole: Tensor) -> tuple[Tensor, ...]:
    found = []
    for _ in range(DIGITS - 1):
        low = ((whole + 128) & 255) - 128
        found.append(low.to(torch.int8))
        whole = (whole - low) >> 8
    return whole.to(torch.int8), *reversed(found)


@functools.cache
def _digits_are_faster() -> bool:
    """Whether products of digits are exact here, and faster; only time depends on the answer, no bit of a result."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    edge = torch.tensor([-128, 127, 127, -128, -128, 127, 0, 1], dtype=torch.int8).repeat(256)
    rows = torch.stack([edge.roll(i) for i in range(48)])
    whole = rows.to(torch.float64)
    try:
        # Some processors lose what leaves 16 bits on the way, and some have no instructions for it.
        exact = torch.equal(torch._int_mm(rows, rows.T).to(torch.float64), whole @ whole.T)
    except (AttributeError, RuntimeError):
        return False
    return exact and DIGITS**2 * _seconds(lambda: torch._int_mm(rows, rows.T)) < _seconds(lambda: whole @ whole.T)


def _seconds(work: Callable[[], object]) -> float:
    spent = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)


@functools.cache
def _expect_sparse_warning() -> None:
    """Have torch say now that it may still change how sparse tensors are made, which it says once, and drop it."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        torch.zeros(1, 1).to_sparse_csr()
