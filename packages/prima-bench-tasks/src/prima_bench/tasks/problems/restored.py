"""What a problem checks of rows that come out of a file: that their codes and ids name something of the solution."""

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from prima_bench.tasks.errors import DataError

Int64 = npt.NDArray[np.int64]


def named_codes(values: Any, n: int, low: int, high: int, what: str) -> Int64:
    """Integers of which each names something.

    Raises:
        DataError: If there are none, not ``n``, or some lie outside ``low`` to ``high - 1``.
    """
    if not isinstance(values, Tensor) or values.dim() != 1 or len(values) != n or values.is_floating_point():
        raise impossible(f"no {what}")
    array: Int64 = values.numpy().astype(np.int64)
    if ((array < low) | (array >= high)).any():
        raise impossible(f"{what} that the solution does not have")
    return array


def impossible(what: str) -> DataError:
    """The error about rows that no update could have brought."""
    return DataError(f"its rows hold {what}", hint="The file is forged, or was written by another release.")
