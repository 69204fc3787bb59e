"""The command line as one of several processes that torchrun started: where it stands among them, and who speaks."""

import os
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
