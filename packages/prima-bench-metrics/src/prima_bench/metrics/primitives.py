"""Operations that numpy does several times as fast as torch on the CPU; on other devices torch does them."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

_NUMPY_DEVICES = frozenset({"cpu"})


def by_numpy(x: Tensor) -> bool:
    """Whether numpy works on a tensor where it lies."""
    return x.device.type in _NUMPY_DEVICES


def sort_(keys: Tensor) -> Tensor:
    """Sort 1-d integers ascending, in place where numpy does it."""
    if by_numpy(keys):
        keys.numpy().sort()
        return keys
    return torch.sort(keys).values


def sorted_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of a matrix ascending, and where its elements were; equal ones in any order."""
    if by_numpy(x):
        order = torch.from_numpy(x.numpy().argsort(axis=-1))
        return x.gather(-1, order), order
    ordered = torch.sort(x, dim=-1)
    return ordered.values, ordered.indices


def plus_(x: Tensor, y: Tensor) -> Tensor:
    """Add integers in place."""
    if by_numpy(x):
        np.add(x.numpy(), y.numpy(), out=x.numpy())
        return x
    return x.add_(y)


def compared(how: Callable[[Any, Any], Any], x: Tensor, y: Tensor | int) -> Tensor:
    """Compare elementwise: ``how`` is ``operator.eq`` or another of its kind."""
    if not by_numpy(x) or x.dtype == torch.bfloat16:
        return cast(Tensor, how(x, y))
    return torch.from_numpy(how(x.detach().numpy(), y.detach().numpy() if isinstance(y, Tensor) else y))


def all_true(mask: Tensor) -> bool:
    """Whether all of a mask is true."""
    return bool(mask.numpy().all() if by_numpy(mask) else mask.all())


def at_first(x: Tensor, run: Tensor) -> Tensor:
    """For each element, ``x`` at the first of its run of equal elements, for non-negative ``x`` that never falls."""
    new = torch.ones(len(run), dtype=torch.bool, device=run.device)
    if by_numpy(x):
        np.not_equal(run[1:].numpy(), run[:-1].numpy(), out=new[1:].numpy())
        return torch.from_numpy(np.maximum.accumulate(x.numpy() * new.numpy()))
    torch.ne(run[1:], run[:-1], out=new[1:])
    return (x * new).cummax(0).values


def nonzero(mask: Tensor) -> Tensor:
    """The positions of what is true in a 1-d mask, int64."""
    if by_numpy(mask):
        return torch.from_numpy(mask.numpy().nonzero()[0])
    return mask.nonzero().flatten()


def nonzero_places(x: Tensor, mask: Tensor) -> Tensor:
    """Where a matrix is not zero, as positions in a wider one.

    Args:
        x: ``[rows, columns]``.
        mask: Bool, at least as many rows and columns, a ninth more rows for speed; overwritten. It must hold False
            beyond the columns of ``x``.

    Returns:
        ``row * mask.shape[1] + column`` of each nonzero, ascending, int64.
    """
    rows, columns = x.shape
    if not by_numpy(x) or x.dtype == torch.bfloat16:
        torch.ne(x, 0, out=mask[:rows, :columns])
        return nonzero(mask[:rows].view(-1))
    np.not_equal(x.numpy(), 0, out=mask[:rows, :columns].numpy())
    # Where a tenth or less is true, numpy looks for each by itself and mispredicts; more than that is faster.
    padding = mask[rows:]
    padding.fill_(True)
    found = nonzero(mask.view(-1))
    padding.fill_(False)
    return found[: len(found) - padding.numel()]
