"""The delete-one jackknife of a group's log profile, without going through every gene of every cell.

Leaving out cell ``i`` turns ``b = log1p(a)``, ``a = target_sum * sum / total``, into ``v_i = log1p(target_sum *
(sum - x_i) / (total - total_i))``. With ``s = a / (1 + a)`` and ``u_i = total_i / (total - total_i)`` that is

    v_i - b = log1p(s (u_i - (1 + u_i) x_i / sum)),

which for a cell without the gene is ``log1p(s u_i)``: a smooth function of ``s`` with the cell's total in it alone.
Summed over cells it is a power series in ``s`` whose coefficients are sums of powers of ``u_i``. So only values that
are not zero are looked at one by one, and the few cells that hold so much of a group that the series is slow.
"""

import torch
from torch import Tensor

from prima_bench.metrics.elements import add_in_order
from prima_bench.metrics.numerics import group_sums, tree_sum
from prima_bench.metrics.perturbation.profiles.moments import Stored, over_groups, stored_values
from prima_bench.metrics.rows import RowMatrix

_SLOW = 1 / 8
"""Cells with ``u`` above this are left out gene by gene; a group has eight of them at most."""

_TERMS = 20
"""Of a series in powers of ``_SLOW`` at most: the next ones are below float64's rounding."""


def log_sum_noise(cells: RowMatrix, group: Tensor, sums: Tensor, target_sum: float) -> Tensor:
    """Variance of ``log1p(target_sum * sums / total)``, by the delete-one jackknife over the cells of each group.

    ``(n - 1) / n * sum over cells i of (v_i - mean v)^2``, where ``v_i`` is the value without cell ``i``
    (Efron and Stein 1981, doi:10.1214/aos/1176345462).

    Args:
        cells: Counts ``[cells, genes]``, dense or sparse.
        group: Code of each cell, int64 ``[cells]``; cells of a negative one are left out.
        sums: Counts summed over the cells of each group, float64 ``[groups, genes]``.
        target_sum: The total that every group is scaled to.

    Returns:
        float64 ``[groups, genes]``; zero for a group of one cell, and where there are no counts.

    Example:
        >>> x = torch.tensor([[1.0, 1.0], [1.0, 3.0], [2.0, 0.0]])
        >>> log_sum_noise(RowMatrix([x]), torch.tensor([0, 0, 0]), x.double().sum(0, keepdim=True), 10.0)
        tensor([[0.1514, 0.2145]], dtype=torch.float64)
    """
    n = torch.bincount(group[group >= 0], minlength=len(sums)).clamp(min=1).to(torch.float64).unsqueeze(1)
    result = torch.zeros_like(sums)

    def work(part: slice, positions: Tensor, codes: Tensor) -> None:
        first, second = _moments(cells.select(positions), codes, sums[part], target_sum)
        spread = (second - first.square() / n[part]).clamp(min=0.0)
        result[part] = spread * ((n[part] - 1.0) / n[part])

    over_groups(cells.shape[1], group, len(sums), work)
    return result


def _moments(cells: RowMatrix, group: Tensor, sums: Tensor, target_sum: float) -> tuple[Tensor, Tensor]:
    """Sums over the cells of each group of ``v_i - b`` and of its square, ``[groups, genes]``."""
    totals = tree_sum(sums, dim=1)
    level = sums / torch.where(totals > 0, totals, 1.0).unsqueeze(1) * target_sum
    first, second = (torch.zeros_like(sums).view(-1) for _ in range(2))
    shares = [torch.zeros(0, dtype=torch.float64, device=sums.device)]
    for block in stored_values(cells, group):
        rest = (totals[block.group] - block.total).clamp(min=0.0)
        shares.append(torch.where(rest > 0, block.total / rest, torch.inf))
        place, change, alike = _changes(block, shares[-1], rest, sums, level, target_sum)
        # The series below holds every cell as if it lacked the gene.
        change -= alike
        add_in_order(first, place, change)
        add_in_order(second, place, change * (change + 2.0 * alike))
    first, second, share = first.view(sums.shape), second.view(sums.shape), torch.cat(shares)
    slow = ~(share <= _SLOW)
    _add_series(first, second, level, group_sums(_powers(share.masked_fill(slow, 0.0)), group, len(sums)))
    codes, counts = torch.unique_consecutive(group[slow], return_counts=True)
    for code, members in zip(codes, torch.split(slow.nonzero().flatten(), counts.tolist()), strict=True):
        change = _without_each(cells.take(members).double(), sums[code], totals[code], level[code], target_sum)
        first[code] += tree_sum(change)
        second[code] += tree_sum(change.square())
    return first, second


def _changes(
    block: Stored, own: Tensor, rest: Tensor, sums: Tensor, level: Tensor, target_sum: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``v_i - b`` at each value of the cells that are not slow, its place, and what it would be without the gene."""
    row, place, value = block.row, block.place, block.value
    fast = own <= _SLOW
    if not bool(fast.all()):
        kept = fast[row].nonzero().flatten()
        row, place, value = (x.index_select(0, kept) for x in (row, place, value))
    total, a = (x.view(-1).index_select(0, place) for x in (sums, level))
    u = own.index_select(0, row)
    s = a / (1.0 + a)
    argument = s * (u - (1.0 + u) * (value / total))
    change = torch.log1p(argument)
    # Close to -1 the argument has lost its digits: the difference of two logarithms then has more of them.
    far = (argument < -0.5).nonzero().flatten()
    left = (total[far] - value[far]) / rest[row[far]] * target_sum
    change[far] = torch.log1p(left) - torch.log1p(a[far])
    return place, change, torch.log1p(s * u)


def _powers(share: Tensor) -> Tensor:
    powers = [share]
    for _ in range(_TERMS - 1):
        powers.append(powers[-1] * share)
    return torch.stack(powers, dim=1)


def _add_series(first: Tensor, second: Tensor, level: Tensor, powers: Tensor) -> None:
    """Add the sums over cells of ``log1p(s u)`` and of its square, in place; ``powers`` is ``[groups, terms]``."""
    terms = range(1, _TERMS + 1)
    log = torch.tensor([(-1.0) ** (k + 1) / k for k in terms], dtype=torch.float64, device=powers.device)
    harmonic = [sum(1.0 / j for j in range(1, k)) for k in terms]
    square = torch.tensor(
        [2.0 * (-1.0) ** k * harmonic[k - 1] / k for k in terms], dtype=torch.float64, device=powers.device
    )
    s = level / (1.0 + level)
    for sums, coefficients in ((first, powers * log), (second, powers * square)):
        value = coefficients[:, -1:].expand_as(s).clone()
        for k in range(_TERMS - 2, -1, -1):
            value.mul_(s).add_(coefficients[:, k : k + 1])
        sums += value.mul_(s)


def _without_each(x: Tensor, sums: Tensor, total: Tensor, level: Tensor, target_sum: float) -> Tensor:
    """``v_i - b`` at every gene of some cells ``[cells, genes]`` of one group."""
    rest = (total - tree_sum(x, dim=1)).clamp(min=0.0).unsqueeze(1)
    left = (sums - x) / torch.where(rest > 0, rest, 1.0) * target_sum
    # A group that has no counts left has an empty profile.
    return torch.where(rest > 0, torch.log1p(left), 0.0) - torch.log1p(level)
