"""Refuses arrays that hide some of their values: what lies under a mask is no prediction, and would be scored as one
if the mask were dropped.
"""

from typing import Any

import numpy as np
import torch

from prima_bench.tasks.errors import PrimaBenchError


def refuse_masked(x: Any, what: str, error: type[PrimaBenchError]) -> None:
    """Raise if an array or tensor masks values.

    Args:
        x: Anything.
        what: What it is, in the plural (``"ids"``, ``"class codes"``).
        error: What to raise.

    Raises:
        PrimaBenchError: If it is a numpy array with masked values, or a masked tensor.
    """
    hidden = isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x)
    # torch.masked is a prototype without a public way to name the class; other tensors have no get_mask.
    if hidden or (isinstance(x, torch.Tensor) and hasattr(x, "get_mask")):
        raise error(f"{what} have masked values", hint="Every value must be given; fill in or leave out masked rows.")
