"""The way from a result back to the predictions behind it, as long as the evaluation that made it still holds them.

A result is a record: it keeps no predictions alive, and one that was read from a file has none behind it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self
from weakref import ReferenceType, ref

from prima_bench.tasks.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd


class Holder(Protocol):
    """An evaluation that holds predictions."""

    def detail(self, state: object, table: str, arguments: dict[str, Any]) -> "pd.DataFrame | None":
        """A table about the predictions; None when they are not those of ``state`` any more."""


class Detail:
    """Tables about the predictions behind one result.

    Args:
        holder: The evaluation.
        state: What its predictions were when the result was made.
    """

    def __init__(self, holder: Holder, state: object) -> None:
        self._holder: Callable[[], Holder | None] | ReferenceType[Holder] = ref(holder)
        self._state = state

    def __reduce__(self) -> "tuple[type[Detail], tuple[Holder, None]]":
        return Detail, (_Gone(), None)  # another process has no predictions

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def table(self, name: str, **arguments: Any) -> "pd.DataFrame":
        """One of the tables that the task offers.

        Raises:
            UsageError: If the predictions are gone, or the task offers no such table.
        """
        holder = self._holder()
        found = None if holder is None else holder.detail(self._state, name, arguments)
        if found is None:
            raise gone()
        return found


class _Gone:
    """A holder of nothing."""

    def detail(self, state: object, table: str, arguments: dict[str, Any]) -> None:
        """No table."""


def gone() -> UsageError:
    """What is raised when there are no predictions behind a result."""
    return UsageError(
        "the predictions behind this result are gone",
        hint="Ask while the Evaluation that made it exists, before it is updated or reset; a file holds scores alone.",
    )
