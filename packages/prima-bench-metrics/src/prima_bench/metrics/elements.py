"""Repeats and adds up single elements: numpy's way on the CPU, where it takes a fraction of torch's time.

The order is kept on every device: what is added to one place is added one element after another.
"""

import numpy as np
import torch
from torch import Tensor

from prima_bench.metrics.primitives import by_numpy


def repeat_each(x: Tensor, counts: Tensor, total: int | None = None) -> Tensor:
    """Each element as many times as its count says, one after the other.

    Args:
        x: ``[k]``.
        counts: Integer ``[k]``, on the device of ``x``.
        total: Their sum, where it is known: then no device has to be waited for.

    Returns:
        ``[sum of counts]``.

    Example:
        >>> repeat_each(torch.tensor([5.0, 7.0]), torch.tensor([1, 2]))
        tensor([5., 7., 7.])
    """
    if by_numpy(x):
        return torch.from_numpy(np.repeat(x.numpy(), counts.numpy()))
    return torch.repeat_interleave(x, counts, output_size=total)


def row_of_each(counts: Tensor) -> Tensor:
    """The row of each element where rows have so many elements, int64 ``[sum of counts]``.

    Example:
        >>> row_of_each(torch.tensor([1, 0, 2]))
        tensor([0, 2, 2])
    """
    return repeat_each(torch.arange(len(counts), device=counts.device), counts)


def add_in_order(sums: Tensor, place: Tensor, value: Tensor) -> None:
    """Add values to places of a vector, in place, one after another in the order given.

    Args:
        sums: ``[n]``.
        place: Int64 ``[k]``.
        value: ``[k]``, of the dtype of ``sums``.

    Example:
        >>> sums = torch.zeros(2)
        >>> add_in_order(sums, torch.tensor([1, 1]), torch.tensor([2.0, 3.0]))
        >>> sums
        tensor([0., 5.])
    """
    if sums.device.type == "cpu":
        sums.scatter_add_(0, place, value)  # of one dimension it is a plain loop, whatever the number of threads
    else:
        sums.index_put_((place,), value, accumulate=True)
