"""What a rank-sum test reads: chunks of cells as they lie in memory, with the group and the scale of each row.

Nothing here depends on the order of cells, so a view's permutation is undone on the groups instead of on the matrix.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.rows import RowMatrix, SparseRows

Matrix = Tensor | SparseRows | RowMatrix


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Some of the cells of a test.

    Attributes:
        x: Their expression, ``[rows, genes]``, dense or canonical sparse.
        group: The group of each row, int64 ``[rows]``; negative for a row that is left out.
        scale: What the values of each row are multiplied by, float64 ``[rows]``; None for nothing.
    """

    x: Tensor | SparseRows
    group: Tensor
    scale: Tensor | None


def read_cells(x: Matrix, group: Tensor, scale: Tensor | None, n_groups: int, name: str) -> list[Cells]:
    """Check one matrix with its groups and scales, and give its chunks.

    Args:
        x: ``[cells, genes]``.
        group: Integer ``[cells]``, below ``n_groups``; negative for cells to be left out.
        scale: ``[cells]``, finite and not negative; None for ones.
        n_groups: Number of groups.
        name: What error messages call the matrix.

    Raises:
        InputError: If shapes, dtypes or values are not as said above, or the matrix holds NaN or infinity.
    """
    _check_shape(x, name)
    n = x.shape[0]
    if group.shape != (n,) or group.is_floating_point() or group.is_complex() or group.dtype == torch.bool:
        raise InputError(f"{name}: {n} cells need one integer group each, not {group.dtype} {tuple(group.shape)}")
    group = group.to(device=x.device, dtype=torch.int64)
    if n and int(group.max()) >= n_groups:
        raise InputError(f"{name}: group {int(group.max())} is outside 0 to {n_groups - 1}")
    if scale is not None:
        if scale.shape != (n,) or not scale.is_floating_point():
            raise InputError(f"{name}: {n} cells need one scale each, float64, not {scale.dtype} {tuple(scale.shape)}")
        scale = scale.to(device=x.device, dtype=torch.float64)
        wrong = (~(scale.isfinite() & (scale >= 0))).nonzero().flatten().tolist()
        if wrong:
            raise InputError(f"{name}: the scales of {len(wrong)} cells are negative or not finite: {wrong[:5]}")
    return [_checked(part, name) for part in _chunks(x, group, scale)]


def _check_shape(x: Matrix, name: str) -> None:
    if len(x.shape) != 2 or x.dtype == torch.bool or x.dtype.is_complex:
        raise InputError(f"{name}: must be real [cells, genes], not {x.dtype} {tuple(x.shape)}")


def _chunks(x: Matrix, group: Tensor, scale: Tensor | None) -> list[Cells]:
    """The chunks of a view, with the groups brought into the chunks' own order."""
    if not isinstance(x, RowMatrix):
        return [Cells(x.canonical() if isinstance(x, SparseRows) else x, group, scale)]
    chunks = list(x._chunks)
    if x._order is not None:
        total = sum(c.shape[0] for c in chunks)
        first = torch.full((total,), len(group), device=x.device)
        place = torch.arange(len(group), device=x.device)
        first.scatter_reduce_(0, x._order, place, "amin")
        # A row that the view shows again is a cell of its own: those are copied out.
        again = (first[x._order] != place).nonzero().flatten()
        shown = first < len(group)
        source = torch.where(shown, first, 0)
        extra = [Cells(SparseRows.from_dense(x.take(again)), group[again], None if scale is None else scale[again])]
        group = torch.where(shown, group[source], -1) if len(group) else first - 1
        scale = scale[source] if scale is not None and len(scale) else scale
    else:
        extra = []
    sizes = [c.shape[0] for c in chunks]
    groups = torch.split(group, sizes)
    scales = [None] * len(sizes) if scale is None else torch.split(scale, sizes)
    parts = [Cells(c, g, s) for c, g, s in zip(chunks, groups, scales, strict=True)]
    return parts + [e for e in extra if len(e.group)]


def _checked(cells: Cells, name: str) -> Cells:
    x = cells.x
    values = x.values if isinstance(x, SparseRows) else x
    if not values.numel():
        return cells
    low, high = (cast(float, v.item()) for v in torch.aminmax(values))
    if values.is_floating_point():
        if not (abs(low) < float("inf") and abs(high) < float("inf")):
            raise InputError(f"{name}: holds NaN or infinity", hint="Replace or leave out such cells first.")
    elif max(-low, high) > 1 << 53:
        raise InputError(f"{name}: holds integers beyond 2^53, which float64 cannot tell apart")
    return cells
