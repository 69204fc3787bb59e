"""A process that torchrun started, or a launcher that sets the same variables: how it joins the others; its own GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


@contextmanager
def joined(world: int) -> Iterator[None]:
    """Join the other processes, and part from them when all is done.

    Args:
        world: How many there are.
    """
    if world == 1:
        yield
        return
    dist.init_process_group("gloo")  # it carries rows of any device
    yield
    # Not after an error: what ended this process must reach the others before their store goes.
    dist.destroy_process_group()


def local_device(device: str | None, world: int) -> str | None:
    """The GPU of this process, where each is to have its own and ``cuda`` was asked for, or nothing was.

    Args:
        device: What was asked for.
        world: How many processes there are.

    Example:
        >>> local_device("cpu", 4), local_device(None, 1)
        ('cpu', None)
    """
    if world == 1 or device not in (None, "cuda") or "LOCAL_RANK" not in os.environ or not torch.cuda.is_available():
        return device
    return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
