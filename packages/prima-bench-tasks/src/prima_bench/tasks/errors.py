"""The errors a user meets, drawn as one tree, each with its exit code.

::

    PrimaBenchError                1  (a bug when nothing below fits)
    ├── UsageError                 2  arguments that contradict each other
    ├── UnknownNameError           3  no such task, dataset, metric, preset, baseline
    ├── DataError                  4  data unavailable, corrupt, offline or without credentials
    ├── PredictionError            5  predictions that cannot be scored
    └── IncomparableError          6  results that must not be compared, or a check that failed

The two leaf packages cannot know this tree (they never import upwards), so their errors carry the same ``hint`` and
``exit_code``; :func:`raised_as` turns them into this tree at the two places where they cross into this package.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class PrimaBenchError(Exception):
    """Root of all errors of prima-bench.

    Attributes:
        hint: How to mend it, in one or two sentences; empty when there is nothing to add.
        exit_code: What the command line ends with.
    """

    exit_code: int = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\nhint: {self.hint}" if self.hint else message

    @property
    def message(self) -> str:
        """What is wrong, without the hint."""
        return str(self.args[0])


class UsageError(PrimaBenchError):
    """Arguments that are missing, contradict each other or have the wrong form."""

    exit_code = 2


class UnknownNameError(PrimaBenchError):
    """A name that is not registered.

    Attributes:
        nearest: Up to three registered names that resemble it.
    """

    exit_code = 3

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.nearest = nearest_names(name, known)
        near = f"Nearest: {', '.join(self.nearest)}." if self.nearest else f"No {kind} is registered."
        super().__init__(f"unknown {kind} {name!r}", hint=near)


class DataError(PrimaBenchError):
    """A dataset or solution that is unavailable, corrupt or unusable."""

    exit_code = 4


class PredictionError(PrimaBenchError):
    """Predictions that cannot be scored; what was handed in before is untouched."""

    exit_code = 5


class IncomparableError(PrimaBenchError):
    """Results that must not be compared, or a check that failed."""

    exit_code = 6


def nearest_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """The three known names most like ``name``, best first.

    >>> nearest_names("pertubation_prediction", ["cell_type_annotation", "perturbation_prediction"])[0]
    'perturbation_prediction'
    """
    return tuple(difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.0))


def first_few(ids: Iterable[object], limit: int = 5) -> str:
    """The first few ids as text, with how many more there are.

    >>> first_few(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    items = [repr(str(i)) for i in ids]
    rest = len(items) - limit
    return ", ".join(items[:limit]) + (f" and {rest} more" if rest > 0 else "")


def counted(n: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "row"), counted(2, "row")
    ('1 row', '2 rows')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


@contextmanager
def raised_as(kind: type[PrimaBenchError], source: type[Exception]) -> Iterator[None]:
    """Re-raise a leaf package's ``source`` errors as ``kind``, keeping message and hint."""
    try:
        yield
    except source as error:
        raise kind(str(error.args[0]), hint=getattr(error, "hint", "")) from error
