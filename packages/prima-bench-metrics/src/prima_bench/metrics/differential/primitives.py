"""Operations that numpy does several times as fast as torch on the CPU; on other devices torch does them."""

import numpy as np
import torch
from torch import Tensor

_NUMPY_DEVICES = frozenset({"cpu"})


def sort_(keys: Tensor) -> Tensor:
    """Sort 1-d integers ascending, in place where numpy does it."""
    if keys.device.type in _NUMPY_DEVICES:
        keys.numpy().sort()
        return keys
    return torch.sort(keys).values


def nonzero(mask: Tensor) -> Tensor:
    """The positions of what is true in a 1-d mask, int64."""
    if mask.device.type in _NUMPY_DEVICES:
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
    if x.device.type not in _NUMPY_DEVICES or x.dtype == torch.bfloat16:
        torch.ne(x, 0, out=mask[:rows, :columns])
        return nonzero(mask[:rows].view(-1))
    np.not_equal(x.numpy(), 0, out=mask[:rows, :columns].numpy())
    # Where a tenth or less is true, numpy looks for each by itself and mispredicts; more than that is faster.
    padding = mask[rows:]
    padding.fill_(True)
    found = nonzero(mask.view(-1))
    padding.fill_(False)
    return found[: len(found) - padding.numel()]
