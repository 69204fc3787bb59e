"""The normal approximation to the rank-sum statistic."""

import torch
from torch import Tensor


def two_sided(u2: Tensor, ties: Tensor, n_cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, z and p, as ``scipy.stats.mannwhitneyu(method="asymptotic", use_continuity=True)`` has them.

    ``z = (U - n1 n0 / 2 -+ 1/2) / sqrt(n1 n0 / 12 (n + 1 - sum(t^3 - t) / (n (n - 1))))`` with ``n = n0 + n1``, the
    half taken towards zero (Lehmann 1975, Nonparametrics).

    Args:
        u2: Twice U, int64 ``[P, genes]``.
        ties: ``sum(t^3 - t)`` over the tie groups of each test, int64 ``[P, genes]``.
        n_cells: Number of cells by code, the control first, int64 ``[1 + P]``.
    """
    n0, n1 = n_cells[0], n_cells[1:, None]
    n = n0 + n1
    # The variance times 12 n (n - 1) / (n0 n1): an exact integer, so that a constant gene is seen to be one.
    spread = n**3 - n - ties
    tested = (n0 * n1 > 0) & (spread > 0)
    variance = (n0 * n1).to(torch.float64) / 12 * (spread.to(torch.float64) / (n * (n - 1)).clamp(min=1))
    distance = (u2 - n0 * n1).to(torch.float64) / 2
    size = (distance.abs() - 0.5).clamp(min=0.0)
    z = torch.where(tested, distance.sign() * size / torch.where(tested, variance, 1.0).sqrt(), 0.0)
    p = torch.special.erfc(z.abs() * 0.5**0.5).clamp(max=1.0)
    return u2.to(torch.float64) / 2, z, p
