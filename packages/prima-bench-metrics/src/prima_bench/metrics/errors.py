"""What the kernel raises. Every error says what is wrong, where, and (in ``hint``) how to mend it.

::

    MetricError            a ValueError with a hint; exit code 5
    ├── InputError         a tensor of the wrong shape, dtype, range or content
    │   └── ProfileError   predicted expression too large to be scored
    ├── ConflictingRowsError   one row id, two contents
    ├── ReferenceDataError the reference (solution) cannot be scored against; exit code 4
    ├── SyncError          ranks disagree about what they are about to exchange
    │   └── LostRankError  a rank gave up or ended, so that the others wait for nothing
    └── MetricNameError    a metric reference that cannot be parsed or does not exist; exit code 3
"""

from collections.abc import Sequence


class MetricError(ValueError):
    """Root of the kernel's errors.

    Attributes:
        hint: One sentence on how to mend it; empty when there is nothing to add.
        exit_code: What a command line ends with when this error reaches it.
    """

    exit_code: int = 5

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    @property
    def message(self) -> str:
        """What is wrong, without the hint."""
        return str(self.args[0])


class InputError(MetricError):
    """A tensor handed to ``update`` has the wrong shape, dtype, range or content."""


class ProfileError(InputError):
    """The predicted expression of some groups of cells is too large to be scored.

    Attributes:
        groups: The codes of the groups concerned, ascending: 0 for the control, 1 to P for the perturbations.
    """

    def __init__(self, message: str, *, groups: Sequence[int] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.groups = tuple(groups)


class ConflictingRowsError(MetricError):
    """The same row id came twice with different content.

    Attributes:
        rows: The first few ids concerned, ascending.
    """

    def __init__(self, message: str, *, rows: Sequence[int] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.rows = tuple(rows)


class ReferenceDataError(MetricError):
    """The reference (solution) itself cannot be scored against."""

    exit_code = 4


class SyncError(MetricError):
    """The ranks of a process group disagree about the state they are about to exchange."""


class LostRankError(SyncError):
    """A rank gave up or ended, so that its rows will never come; all others raise it.

    Attributes:
        rank: Which; None where nobody could tell.
    """

    def __init__(self, message: str, *, rank: int | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.rank = rank


class MetricNameError(MetricError):
    """A metric reference that cannot be parsed, or that names an unknown metric or parameter.

    Attributes:
        nearest: Up to three known names that resemble the one asked for.
    """

    exit_code = 3

    def __init__(self, message: str, *, nearest: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.nearest = tuple(nearest)
