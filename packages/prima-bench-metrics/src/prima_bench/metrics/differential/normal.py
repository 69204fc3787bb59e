"""The normal approximation to the rank-sum statistic."""

import torch
from torch import Tensor


def two_sided(two_u: Tensor, ties: Tensor, n_cells: Tensor) -> tuple[Tensor, Tensor]:
    """Z and p, as ``scipy.stats.mannwhitneyu(method="asymptotic", use_continuity=True)`` has them.

    ``z = (U - n1 n0 / 2 -+ 1/2) / sqrt(n1 n0 / 12 (n + 1 - sum(t^3 - t) / (n (n - 1))))`` with ``n = n0 + n1``, the
    half taken towards zero (Lehmann 1975, Nonparametrics).

    Args:
        two_u: Twice U, int64 ``[genes, P]``.
        ties: ``sum(t^3 - t)`` over the tie groups of each test, int64 ``[genes, P]``.
        n_cells: Number of cells by code, the control first, int64 ``[1 + P]``.

    Returns:
        Float64 ``[genes, P]`` each; 0 and 1 where there is no variance, or one side has no cells.
    """
    n0, n1 = n_cells[0], n_cells[1:]
    n = n0 + n1
    # An exact integer up to here, 12 n (n - 1) / (n0 n1) times the variance: a constant gene is seen to be one.
    spread = (n**3 - n) - ties
    variance = spread.to(torch.float64).mul_((n0 * n1) / (12.0 * (n * (n - 1)).clamp(min=1).to(torch.float64)))
    distance = (two_u - n0 * n1).to(torch.float64).mul_(0.5)
    # Where there is no variance, the distance is zero.
    deviation = variance.clamp_(min=torch.finfo(torch.float64).tiny).sqrt_()
    z = distance.abs().sub_(0.5).clamp_(min=0.0).div_(deviation).copysign_(distance)
    return z, torch.special.erfc(z.abs().mul_(0.5**0.5)).clamp_(max=1.0)
