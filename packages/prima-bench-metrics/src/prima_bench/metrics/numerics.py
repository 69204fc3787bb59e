"""Float64 arithmetic whose bits depend on the order of the rows alone.

Every sum here is one fixed tree: neighbours are added, then neighbours of those, and so on, element by element. So a
result does not move with the number of threads, the memory layout, the block sizes, or whether rows are stored dense
or sparse. Nothing here knows about metrics or buffers.
"""

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.rows import RowMatrix

BLOCK_ROWS = 256  # a power of two, so that a block of rows is a subtree of the whole
_BLOCK_ELEMENTS = 1 << 20


def tree_sum(x: Tensor, dim: int = 0) -> Tensor:
    """Sum over one dimension in float64, by adding neighbours until one is left.

    Args:
        x: Any real tensor.
        dim: The dimension to sum over; an empty one gives zeros.

    Example:
        >>> tree_sum(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        tensor([ 9., 12.], dtype=torch.float64)
    """
    x = x.movedim(dim, 0).to(torch.float64)
    if x.shape[0] == 0:
        return torch.zeros(x.shape[1:], dtype=torch.float64, device=x.device)
    while (n := x.shape[0]) > 1:
        paired = x.new_empty((n - n // 2, *x.shape[1:]))
        torch.add(x[0 : n - n % 2 : 2], x[1::2], out=paired[: n // 2])
        if n % 2:
            paired[-1] = x[-1]
        x = paired
    return x[0] + 0.0  # a sum of negative zeros is zero, as it is where zeros are not stored


def tree_mean(x: Tensor, dim: int = 0) -> Tensor:
    """:func:`tree_sum` over the number of elements.

    Raises:
        InputError: If the dimension is empty.

    Example:
        >>> float(tree_mean(torch.tensor([1.0, 2.0, 6.0])))
        3.0
    """
    if x.shape[dim] == 0:
        raise InputError("the mean of nothing is undefined")
    return tree_sum(x, dim) / x.shape[dim]


def group_sums(rows: RowMatrix | Tensor, groups: Tensor, n_groups: int) -> Tensor:
    """Sum the rows of each group, in the order in which they come.

    Args:
        rows: ``[n, w]``.
        groups: The group of each row, integer ``[n]``; rows of a negative group are left out.
        n_groups: Number of groups; an empty group sums to zero.

    Returns:
        Float64 ``[n_groups, w]``; each row equals :func:`tree_sum` over its group's rows, bit for bit.

    Raises:
        InputError: If a group code is not below ``n_groups``, or there is not one code per row.

    Example:
        >>> group_sums(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1, 0, 1]), 2)
        tensor([[2.],
                [5.]], dtype=torch.float64)
    """
    rows = RowMatrix([rows]) if isinstance(rows, Tensor) else rows
    if groups.shape != rows.shape[:1]:
        raise InputError(f"{rows.shape[0]} rows need one group each, not {tuple(groups.shape)}")
    groups = groups.to(device=rows.device, dtype=torch.int64)
    if len(groups) and int(groups.max()) >= n_groups:
        raise InputError(f"group {int(groups.max())} is outside 0 to {n_groups - 1}")
    groups, order = torch.sort(groups, stable=True)
    left_out = int(torch.searchsorted(groups, 0))
    return _group_sums(rows, order[left_out:], torch.bincount(groups[left_out:], minlength=n_groups)) + 0.0


def _group_sums(rows: RowMatrix, positions: Tensor, counts: Tensor) -> Tensor:
    """Sums over runs of ``positions``: the first ``counts[0]`` of them, the next ``counts[1]``, and so on."""
    device = rows.device
    blocks_of = (counts + BLOCK_ROWS - 1) // BLOCK_ROWS
    n_blocks = int(blocks_of.sum())
    group = torch.repeat_interleave(torch.arange(len(counts), device=device), blocks_of)
    number = torch.arange(n_blocks, device=device) - (blocks_of.cumsum(0) - blocks_of)[group]
    start = (counts.cumsum(0) - counts)[group] + number * BLOCK_ROWS
    length = (counts[group] - number * BLOCK_ROWS).clamp(max=BLOCK_ROWS)
    # Blocks of about the same length are reduced together, padded with zero rows, which change no sum.
    length, by_length = torch.sort(length, descending=True, stable=True)
    start = start[by_length]
    several = bool((blocks_of > 1).any())
    sums = torch.zeros((n_blocks if several else len(counts), rows.shape[1]), dtype=torch.float64, device=device)
    target = by_length if several else group[by_length]
    lengths, done = length.tolist(), 0
    while done < n_blocks:
        longest = lengths[done]
        end = min(n_blocks, done + max(1, _BLOCK_ELEMENTS // (longest * max(1, rows.shape[1]))))
        sums[target[done:end]] = _sum_runs(rows, positions, start[done:end], length[done:end], longest)
        done = end
    if not several:
        return sums
    return _group_sums(RowMatrix([sums]), torch.arange(n_blocks, device=device), blocks_of)


def _sum_runs(rows: RowMatrix, positions: Tensor, start: Tensor, length: Tensor, longest: int) -> Tensor:
    offset = torch.arange(longest, device=rows.device)
    taken = offset < length[:, None]
    block = rows.take(positions[(start[:, None] + offset)[taken]])
    if not bool(taken.all()):
        padded = block.new_zeros((taken.numel(), block.shape[1]))
        padded[taken.flatten()] = block
        block = padded
    block = block.view(len(start), longest, -1)
    # A few columns at a time stay in the processor's cache through all levels of the tree.
    width = max(16, _BLOCK_ELEMENTS // 2 // block.shape[:2].numel())
    return torch.cat([tree_sum(part, dim=1) for part in torch.split(block, width, dim=2)], dim=1)


def average_ranks(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Ranks within each row, from 1, ties sharing the mean of their ranks.

    Args:
        x: ``[n, w]`` without NaN.
        mask: Elements to rank, bool ``[n, w]``; the others get rank 0 and are counted nowhere.

    Returns:
        Float64 ``[n, w]``.

    Example:
        >>> average_ranks(torch.tensor([[3.0, 1.0, 3.0]]))
        tensor([[2.5000, 1.0000, 2.5000]], dtype=torch.float64)
    """
    ranks = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for part in _row_blocks(x):
        block = x[part].to(torch.float64)
        if mask is not None:
            block = block.masked_fill(~mask[part], torch.inf)
        values, order = torch.sort(block, dim=1, stable=True)
        place = torch.arange(x.shape[1], device=x.device).expand_as(values)
        new = torch.ones_like(values, dtype=torch.bool)
        new[:, 1:] = values[:, 1:] != values[:, :-1]
        first = torch.where(new, place, 0).cummax(dim=1).values
        ends = torch.ones_like(new)
        ends[:, :-1] = new[:, 1:]
        last = torch.where(ends, place, x.shape[1]).flip(1).cummin(dim=1).values.flip(1)
        ranks[part] = torch.zeros_like(block).scatter_(1, order, (first + last).to(torch.float64) / 2 + 1)
    return ranks if mask is None else ranks.masked_fill_(~mask, 0.0)


def _row_blocks(x: Tensor) -> list[slice]:
    step = max(1, _BLOCK_ELEMENTS // 2 // max(1, x.shape[1]))
    return [slice(i, min(i + step, x.shape[0])) for i in range(0, x.shape[0], step)]
