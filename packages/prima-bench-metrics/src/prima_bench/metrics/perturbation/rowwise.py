"""Arithmetic on the rows of a matrix, in float64 and in a fixed order of additions.

The formulas of the pseudobulk metrics are written with these. Each function treats the rows one by one, so a row's
value depends neither on its neighbours nor on how many are computed together. Not a place for formulas of metrics.

Throughout, ``keep`` is a boolean mask of the genes that count, ``[rows, genes]``; None means all of them.
"""

import torch
from torch import Tensor

from prima_bench.metrics.numerics import tree_sum

ROUNDING = 2.0**-43
"""What a difference of two pseudobulks may owe to rounding, relative to the larger of them: about 1e-13.

The sums of up to a million cells are off by a few 1e-15; an effect below this bound is no effect.
"""


def kept(x: Tensor, keep: Tensor | None, fill: float = 0.0) -> Tensor:
    """``x`` with ``fill`` in the place of genes that do not count."""
    return x if keep is None else torch.where(keep, x, fill)


def count(x: Tensor, keep: Tensor | None) -> Tensor:
    """How many genes count in each row, float64 ``[rows]``."""
    if keep is None:
        return torch.full(x.shape[:1], float(x.shape[1]), dtype=torch.float64, device=x.device)
    return keep.sum(dim=1).to(torch.float64)


def mean(x: Tensor, keep: Tensor | None) -> Tensor:
    """Mean over the genes that count, float64 ``[rows]``; NaN where none does."""
    return tree_sum(kept(x, keep), dim=1) / count(x, keep)


def centre(x: Tensor, keep: Tensor | None) -> Tensor:
    """``x`` minus its row means; zero where a gene does not count."""
    return kept(x - mean(x, keep).unsqueeze(1), keep)


def difference(profile: Tensor, origin: Tensor) -> Tensor:
    """``profile - origin`` in float64, and exactly zero where the two agree up to rounding.

    So a prediction that repeats the control has no effect, however its cells were summed.

    Args:
        profile: ``[rows, genes]``.
        origin: ``[genes]`` or ``[rows, genes]``.

    Example:
        >>> tenths = torch.full((1, 2), 0.1, dtype=torch.float64)
        >>> difference(tenths + tenths + tenths, torch.tensor([0.3, 0.0], dtype=torch.float64))
        tensor([[0.0000, 0.3000]], dtype=torch.float64)
    """
    profile, origin = profile.double(), origin.double()
    effect = profile - origin
    noise = torch.maximum(profile.abs(), origin.abs()).mul_(ROUNDING)
    return torch.where(effect.abs() <= noise, 0.0, effect)


def is_zero(effect: Tensor, keep: Tensor | None) -> Tensor:
    """Whether a row of differences is zero, boolean ``[rows]``; True where no gene counts."""
    zero = effect == 0
    return (zero if keep is None else zero | ~keep).all(dim=1)


def is_constant(effect: Tensor, keep: Tensor | None, profile: Tensor, origin: Tensor) -> Tensor:
    """Whether ``effect = profile - origin`` is the same for all genes up to rounding, boolean ``[rows]``.

    True where no gene counts.
    """
    spread = kept(effect, keep, -torch.inf).amax(dim=1) - kept(effect, keep, torch.inf).amin(dim=1)
    largest = torch.maximum(profile.abs().amax(dim=-1), origin.abs().amax(dim=-1))
    return spread <= ROUNDING * largest


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """Cosine of the angle between the rows of ``x`` and of ``y``, float64 ``[rows]``; NaN where a row is zero.

    >>> x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    >>> cosine(x, 3 * x)
    tensor([1.], dtype=torch.float64)
    """
    # Brought to a common size first: squares of very small or very large effects would leave float64's range.
    x = x / x.abs().amax(dim=1, keepdim=True)
    y = y / y.abs().amax(dim=1, keepdim=True)
    # One root of the product, so that the cosine of a row with itself is exactly 1.
    norms = torch.sqrt(tree_sum(x * x, dim=1) * tree_sum(y * y, dim=1))
    return (tree_sum(x * y, dim=1) / norms).clamp(-1.0, 1.0)


def graded(value: Tensor, *, no_skill: Tensor, undefined: Tensor, worst: float = 0.0) -> Tensor:
    """``value`` with the no-skill value of degenerate predictions, and NaN where the solution is degenerate.

    The solution comes last: what it leaves undefined stays so, whatever was predicted.
    """
    value = torch.where(no_skill, worst, value)
    return torch.where(undefined, torch.nan, value)
