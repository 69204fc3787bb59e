"""Wilcoxon rank-sum (Mann-Whitney) tests of every group of cells against the control, gene by gene."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from prima_bench.metrics.differential.cells import Cells, Matrix, read_cells
from prima_bench.metrics.differential.normal import two_sided
from prima_bench.metrics.differential.ties import rank_block
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.rows import SparseRows

Linear = Literal["identity", "expm1"]


@dataclass(frozen=True, slots=True, eq=False)
class RankSums:
    """Rank-sum tests of P groups of cells against a control, for each gene.

    Attributes:
        u: The Mann-Whitney U of the group over the control, exact half integers, float64 ``[P, genes]``: how many
            pairs of a cell of the group and a control cell have the larger value in the group, ties counting half.
        z: The signed z score with tie and continuity correction, float64 ``[P, genes]``; 0 without variance.
        p_value: Two-sided, float64 ``[P, genes]``; 1 without variance.
        mean: Mean of linear expression by group code, the control first, float64 ``[1 + P, genes]``.
        n_cells: Number of cells by group code, int64 ``[1 + P]``.
    """

    u: Tensor
    z: Tensor
    p_value: Tensor
    mean: Tensor
    n_cells: Tensor


def rank_sum_test(
    x: Matrix,
    group: Tensor,
    n_groups: int,
    *,
    control: Matrix | None = None,
    scale: Tensor | None = None,
    control_scale: Tensor | None = None,
    linear: Linear = "identity",
) -> RankSums:
    """Test every group of cells against the control, two-sided, gene by gene.

    U and p equal ``scipy.stats.mannwhitneyu(group, control, method="asymptotic")``. U and the tie term are exact
    integers, and the means are sums that do not depend on their order, so no bit of the result depends on the order
    of cells, how they are cut into chunks, dense or sparse storage, or the number of threads.

    Args:
        x: Expression, real ``[cells, genes]``.
        group: The group of each cell, integer ``[cells]``: 0 for the control, 1 to P; negative to leave a cell out.
        n_groups: 1 + P.
        control: The control cells, ``[control cells, genes]``; given, rows of ``x`` with group 0 are left out.
        scale: What every value of a cell is multiplied by before ranks and means, float64 ``[cells]``.
        control_scale: The same for ``control``.
        linear: How values become linear expression for the means: as they are, or by ``expm1``.

    Returns:
        A group without cells has u = 0, z = 0, p = 1 and mean = 0, and so has every group where there is no control;
        ``n_cells`` tells.

    Raises:
        InputError: If shapes or dtypes do not fit, a group is not below ``n_groups``, or a value is NaN or infinite.

    Example:
        >>> x = torch.tensor([[0.0, 1.0], [0.0, 2.0], [3.0, 1.0], [4.0, 1.0]])
        >>> result = rank_sum_test(x, torch.tensor([0, 0, 1, 1]), 2)
        >>> result.u, result.mean
        (tensor([[4., 1.]], dtype=torch.float64), tensor([[0.0000, 1.5000],
                [3.5000, 1.0000]], dtype=torch.float64))
    """
    if n_groups < 1:
        raise InputError(f"n_groups must count the control and the groups, not be {n_groups}")
    if linear not in ("identity", "expm1"):
        raise InputError(f"linear={linear!r} is neither identity nor expm1")
    if control is None and control_scale is not None:
        raise InputError("control_scale needs a control", hint="Without a control, scale holds for all cells of x.")
    if control is not None:
        if control.shape[1:] != x.shape[1:] or control.device != x.device:
            raise InputError(
                f"control must have the genes and the device of x, {tuple(x.shape[1:])} on {x.device}, "
                f"not {tuple(control.shape[1:])} on {control.device}"
            )
        group = torch.where(group == 0, -1, group)
    cells = read_cells(x, group, scale, n_groups, "x")
    if control is not None:
        cells += read_cells(control, torch.zeros(control.shape[0], dtype=torch.int64), control_scale, 1, "control")
    codes = torch.cat([c.group for c in cells])
    n_cells = torch.bincount(codes[codes >= 0], minlength=n_groups)
    genes = x.shape[1]
    step = max(1, (1 << 23) // max(1, int(n_cells.sum()) * n_groups))
    u2, ties, mean = (
        torch.zeros((n_groups, genes), dtype=d, device=x.device) for d in (torch.int64,) * 2 + (torch.float64,)
    )
    for start in range(0, genes, step):
        block = slice(start, min(start + step, genes))
        values = torch.cat([_columns(c, block) for c in cells])
        u2[:, block], ties[:, block], mean[:, block] = rank_block(
            values[codes >= 0].T, codes[codes >= 0], n_groups, linear
        )
    u, z, p = two_sided(u2[1:], ties[1:], n_cells)
    return RankSums(u, z, p, mean, n_cells)


def _columns(cells: Cells, block: slice) -> Tensor:
    x = cells.x
    if isinstance(x, SparseRows):
        row = torch.repeat_interleave(torch.arange(len(x.lengths), device=x.device), x.lengths)
        taken = (x.columns >= block.start) & (x.columns < block.stop)
        out = torch.zeros((len(x.lengths), block.stop - block.start), dtype=torch.float64, device=x.device)
        out[row[taken], x.columns[taken].long() - block.start] = x.values[taken].to(torch.float64)
    else:
        out = x[:, block].to(torch.float64)
    return out if cells.scale is None else out * cells.scale[:, None]
