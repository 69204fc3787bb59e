"""What a rank-sum test reads: chunks of cells as they lie in memory, with the group and the scale of each row.

Nothing here depends on the order of cells, so a view's permutation is undone on the groups instead of on the matrix.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.rows import RowMatrix, SparseRows

Matrix = Tensor | SparseRows | RowMatrix


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Some of the cells of a test.

    Attributes:
        x: Their expression and perhaps that of others, ``[rows, genes]``, dense or canonical sparse.
        rows: The rows that take part, int64 ``[cells]``; None for all.
        group: The group of each cell, int64 ``[cells]``.
        scale: What the values of each cell are multiplied by, float64 ``[cells]``; None for nothing.
    """

    x: Tensor | SparseRows
    rows: Tensor | None
    group: Tensor
    scale: Tensor | None


def read_cells(x: Matrix, group: Tensor, scale: Tensor | None, n_groups: int, name: str) -> list[Cells]:
    """Check one matrix with its groups and scales, and give its chunks without cells of negative groups.

    Args:
        x: ``[cells, genes]``.
        group: Integer ``[cells]``, below ``n_groups``; negative for cells to be left out.
        scale: ``[cells]``, finite and not negative; None for ones.
        n_groups: Number of groups.
        name: What error messages call the matrix.

    Raises:
        InputError: If shapes, dtypes, groups or scales are not as said above.
    """
    if len(x.shape) != 2 or x.dtype == torch.bool or x.dtype.is_complex:
        raise InputError(f"{name} must be real [cells, genes], not {x.dtype} {tuple(x.shape)}")
    if isinstance(x, Tensor) and x.layout != torch.strided:
        raise InputError(f"{name} is a {x.layout} tensor", hint="Pass SparseRows.from_csr(x) or x.to_dense().")
    n = x.shape[0]
    if group.shape != (n,) or group.is_floating_point() or group.is_complex() or group.dtype == torch.bool:
        raise InputError(f"{name}: {n} cells need one integer group each, not {group.dtype} {tuple(group.shape)}")
    group = group.to(device=x.device, dtype=torch.int64)
    if n and int(group.max()) >= n_groups:
        raise InputError(f"{name}: group {int(group.max())} is outside 0 to {n_groups - 1}")
    if scale is not None:
        scale = _checked_scale(scale, n, name).to(x.device)
    return [part for part in _chunks(x, group, scale, name) if len(part.group)]


def _checked_scale(scale: Tensor, n: int, name: str) -> Tensor:
    if scale.shape != (n,) or not scale.is_floating_point():
        raise InputError(f"{name}: {n} cells need one scale each, float64, not {scale.dtype} {tuple(scale.shape)}")
    scale = scale.detach().to(torch.float64)
    wrong = (~(scale.isfinite() & (scale >= 0))).nonzero().flatten().tolist()
    if wrong:
        raise InputError(f"{name}: the scales of {len(wrong)} cells are negative or not finite: {wrong[:5]}")
    return scale


def _chunks(x: Matrix, group: Tensor, scale: Tensor | None, name: str) -> list[Cells]:
    if not isinstance(x, RowMatrix):
        return [_part(x.canonical(name) if isinstance(x, SparseRows) else x, group, scale, name)]
    if x._order is None:
        return _split(x._chunks, group, scale, name)
    # For each row of the chunks, which cell of the view it is: the last one beyond all cells when it is not shown.
    place = torch.arange(len(group), device=x.device)
    shown = torch.full((sum(c.shape[0] for c in x._chunks),), len(group), device=x.device)
    shown.scatter_reduce_(0, x._order, place, "amin")
    own = torch.cat([group, group.new_full((1,), -1)])[shown]
    own_scale = None if scale is None else torch.cat([scale, scale.new_ones(1)])[shown]
    parts = _split(x._chunks, own, own_scale, name)
    again = (shown[x._order] != place).nonzero().flatten()
    if len(again):  # a row that the view shows twice is two cells
        parts.append(_part(x.take(again), group[again], None if scale is None else scale[again], name))
    return parts


def _split(chunks: tuple[Tensor | SparseRows, ...], group: Tensor, scale: Tensor | None, name: str) -> list[Cells]:
    sizes = [c.shape[0] for c in chunks]
    scales = [None] * len(sizes) if scale is None else torch.split(scale, sizes)
    return [_part(*part, name) for part in zip(chunks, torch.split(group, sizes), scales, strict=True)]


def _part(x: Tensor | SparseRows, group: Tensor, scale: Tensor | None, name: str) -> Cells:
    values = x.values if isinstance(x, SparseRows) else x
    if not values.is_floating_point() and values.numel():
        low, high = (int(v) for v in torch.aminmax(values))
        if max(-low, high) > 1 << 53:
            raise InputError(f"{name} holds integers beyond 2^53, which float64 cannot tell apart")
    taken = group >= 0
    if bool(taken.all()):
        return Cells(x, None, group, scale)
    return Cells(x, taken.nonzero().flatten(), group[taken], None if scale is None else scale[taken])
