"""False discovery rates by Benjamini and Hochberg's step-up procedure."""

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.primitives import sorted_rows
from prima_bench.metrics.threads import Workers

_BLOCK_ELEMENTS = 1 << 16


def benjamini_hochberg(p: Tensor, tested: Tensor | None = None) -> Tensor:
    """Adjusted p-values of each row: the smallest false discovery rate at which a test would be rejected.

    The k-th smallest of m p-values becomes the least of ``p_(j) * m / j`` over all ``j >= k``, at most 1
    (Benjamini & Hochberg 1995, doi:10.1111/j.2517-6161.1995.tb02031.x).

    Args:
        p: P-values, a floating dtype, ``[..., tests]``.
        tested: Which of them were tested, bool, of a shape that broadcasts to that of ``p``; None for all. The others
            are not counted among the m tests.

    Returns:
        Float64, of the shape of ``p``; 1 for what was not tested. Without ``tested`` it equals
        ``scipy.stats.false_discovery_control(p, axis=-1)``.

    Raises:
        InputError: If a tested p-value is not within 0 to 1, or ``tested`` is not a mask of that shape.

    Example:
        >>> benjamini_hochberg(torch.tensor([0.01, 0.04, 0.03, 0.5]), torch.tensor([True, True, True, False]))
        tensor([0.0300, 0.0400, 0.0400, 1.0000], dtype=torch.float64)
    """
    if not p.is_floating_point() or p.dim() == 0:
        raise InputError(f"p-values must be floating point with at least one dimension, not {p.dtype} {tuple(p.shape)}")
    with Workers(p.device) as workers:
        p = p.detach().to(torch.float64)
        tested = _mask(tested, p)
        rates = torch.empty_like(p, memory_format=torch.contiguous_format)
        if p.numel():
            flat = [t.reshape(-1, p.shape[-1]) for t in (p, tested, rates)]
            rows = max(1, _BLOCK_ELEMENTS // p.shape[-1])
            workers.for_each(_adjust, list(zip(*(torch.split(t, rows) for t in flat), strict=True)))
        return rates


def _adjust(block: tuple[Tensor, Tensor, Tensor]) -> None:
    p, tested, rates = block
    # What was not tested sorts behind every p-value, so that it takes no rank and bounds nothing. Equal p-values have
    # one rate, that of the last of them, so their order does not matter.
    value, order = sorted_rows(p.masked_fill(~tested, torch.inf))
    tests = tested.sum(dim=-1, keepdim=True)
    ends = value.gather(-1, torch.cat([torch.zeros_like(tests), tests - 1], dim=-1).clamp_(min=0))
    if bool(((tests > 0) & ~((ends >= 0) & (ends <= 1))).any()):
        wrong = p[tested & ~((p >= 0) & (p <= 1))]
        raise InputError(f"p-value {float(wrong[0])} is outside 0 to 1", hint="Mask what was not tested.")
    rank = torch.arange(1, p.shape[-1] + 1, dtype=torch.float64, device=p.device)
    rate = value.mul_(tests.clamp_(min=1) / rank).clamp_(max=1.0)
    rates.scatter_(-1, order, rate.flip(-1).cummin(dim=-1).values.flip(-1))


def _mask(tested: Tensor | None, p: Tensor) -> Tensor:
    if tested is None:
        return torch.ones((), dtype=torch.bool, device=p.device).expand(p.shape)
    said = f"tested must be a bool mask that broadcasts to {tuple(p.shape)}, not {tested.dtype} {tuple(tested.shape)}"
    if tested.dtype != torch.bool:
        raise InputError(said)
    try:
        return tested.to(p.device).expand(p.shape)
    except RuntimeError as error:
        raise InputError(said) from error
