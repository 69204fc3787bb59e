"""The command line as one of several processes that torchrun started: where it stands among them, and who speaks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_GIVEN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Place:
    """A process among others.

    Attributes:
        rank: Which it is.
        world: How many there are.
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether it is the one that prints and writes."""
        return self.rank == 0

    def own[T](self, items: list[T]) -> list[T]:
        """This process's share.

        >>> Place(1, 3).own(["a", "b", "c", "d", "e"])
        ['b', 'e']
        """
        return items[self.rank :: self.world]


def place() -> Place:
    """Where this process stands among those that torchrun, or a launcher that sets the same variables, started."""
    given = [os.environ.get(name, "") for name in _GIVEN]
    if not all(given) or not (given[0].isdigit() and given[1].isdigit()):
        return Place()
    return Place(int(given[0]), int(given[1]))


@contextmanager
def joined(here: Place) -> Iterator[None]:
    """Join the other processes, and part from them when all is done."""
    if here.world == 1:
        yield
        return
    import torch.distributed as dist

    # gloo carries rows of any device.
    dist.init_process_group("gloo")
    yield
    # Not after an error: what ended this process must reach the others before their store goes.
    dist.destroy_process_group()


def local_device(device: str | None) -> str | None:
    """The GPU of this process where each is to have its own, and ``cuda`` was asked for or nothing was."""
    if place().world == 1 or device not in (None, "cuda") or "LOCAL_RANK" not in os.environ:
        return device
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{int(os.environ['LOCAL_RANK']) % count}" if count else device
