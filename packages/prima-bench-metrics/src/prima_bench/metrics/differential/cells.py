"""What a rank-sum test reads: chunks of cells as they lie in memory, with the group and the total of each row.

Nothing here depends on the order of cells, so they are taken in the order in which they lie.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.rows import RowMatrix, SparseRows

_DTYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)
Matrix = Tensor | SparseRows | RowMatrix


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Some of the cells of a test.

    Attributes:
        x: Their expression and perhaps that of others, ``[rows, genes]``, dense or canonical sparse.
        rows: The row of each cell, ascending, int64 ``[cells]``; None for all rows, each once.
        group: The group of each cell, int32 ``[cells]``.
        total: What the values of each cell are divided by, float64 ``[cells]``; None for nothing.
    """

    x: Tensor | SparseRows
    rows: Tensor | None
    group: Tensor
    total: Tensor | None


def read_cells(
    x: Matrix, group: Tensor, total: Tensor | None, n_groups: int, name: str, *, control: bool = True
) -> list[Cells]:
    """Check one matrix with its groups and totals, and give its chunks without cells of negative groups.

    Args:
        x: ``[cells, genes]``.
        group: Integer ``[cells]``, below ``n_groups``; negative for cells to be left out.
        total: ``[cells]``, finite and positive; None for ones.
        n_groups: Number of groups.
        name: What error messages call the matrix.
        control: Whether cells of group 0 take part.

    Raises:
        InputError: If shapes, dtypes, groups or totals are not as said above.
    """
    if len(x.shape) != 2 or x.dtype not in _DTYPES:
        raise InputError(f"{name} must be real [cells, genes], not {x.dtype} {tuple(x.shape)}")
    if isinstance(x, Tensor) and x.layout != torch.strided:
        raise InputError(f"{name} is a {x.layout} tensor", hint="Pass SparseRows.from_csr(x) or x.to_dense().")
    n = x.shape[0]
    if group.shape != (n,) or group.is_floating_point() or group.is_complex() or group.dtype == torch.bool:
        raise InputError(f"{name}: {n} cells need one integer group each, not {group.dtype} {tuple(group.shape)}")
    group = group.to(device=x.device, dtype=torch.int64)
    if n and int(group.max()) >= n_groups:
        raise InputError(f"{name}: group {int(group.max())} is outside 0 to {n_groups - 1}")
    if total is not None:
        total = _checked_total(total, n, name).to(x.device)
    if isinstance(x, SparseRows):
        x = x.canonical(name)
    return list(
        _parts(
            x if isinstance(x, RowMatrix) else RowMatrix([x]),
            group if control else group.masked_fill(group == 0, -1),
            total,
            name,
        )
    )


def _checked_total(total: Tensor, n: int, name: str) -> Tensor:
    if total.shape != (n,) or not total.is_floating_point():
        raise InputError(f"{name}: {n} cells need one total each, float64, not {total.dtype} {tuple(total.shape)}")
    total = total.detach().to(torch.float64)
    wrong = (~(total.isfinite() & (total > 0))).nonzero().flatten().tolist()
    if wrong:
        raise InputError(f"{name}: the totals of {len(wrong)} cells are not positive or not finite: {wrong[:5]}")
    return total


def _parts(x: RowMatrix, group: Tensor, total: Tensor | None, name: str) -> Iterator[Cells]:
    """The chunks of a view that show cells of any group."""
    cells = (group >= 0).nonzero().flatten()
    source, by_source = torch.sort(cells if x._order is None else x._order[cells])
    cells, first, seen = cells[by_source], 0, 0
    for chunk in x._chunks:
        last = first + chunk.shape[0]
        end = int(torch.searchsorted(source, last))
        if end > seen:
            rows, shown = source[seen:end] - first, cells[seen:end]
            as_they_lie = torch.equal(rows, torch.arange(last - first, device=rows.device))
            own_total = None if total is None else total[shown]
            yield Cells(_checked(chunk, name), None if as_they_lie else rows, group[shown].to(torch.int32), own_total)
        first, seen = last, end


def _checked(x: Tensor | SparseRows, name: str) -> Tensor | SparseRows:
    values = x.values if isinstance(x, SparseRows) else x
    if not values.is_floating_point() and values.numel():
        low, high = (int(v) for v in torch.aminmax(values))
        if max(-low, high) > 1 << 53:
            raise InputError(f"{name} holds integers beyond 2^53, which float64 cannot tell apart")
    if isinstance(x, SparseRows):
        return SparseRows(values.detach(), x.columns, x.lengths, x.n_columns)
    return x.detach()
