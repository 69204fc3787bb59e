"""What an evaluation holds: rows in the kernel's panel, and the ledger of their names; all of an update, or nothing."""

from typing import TYPE_CHECKING

from prima_bench.metrics.errors import InputError
from prima_bench.tasks.errors import DataError, PredictionError, raised_as
from prima_bench.tasks.inputs.ledger import Ledger
from prima_bench.tasks.states.records import StateFile
from prima_bench.tasks.states.rows import as_arrays, from_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prima_bench.metrics.panel import Panel
    from prima_bench.tasks.problems.base import Chunk, Encoded, Problem
    from prima_bench.tasks.states.container import Stack


class Holdings:
    """The rows that were handed in.

    Args:
        problem: The opened solution.
        panel: Where rows are kept.

    Attributes:
        ledger: Their names.
        ignored: Whether rows of a kind that is not scored were handed in.
        mark: Another object whenever rows came or went.
    """

    def __init__(self, problem: "Problem", panel: "Panel") -> None:
        self._problem = problem
        self._panel = panel
        self.ledger = Ledger(problem.identity_hint)
        self.ignored = False
        self.mark = object()

    def add(self, encoded: "Encoded") -> None:
        """Keep the rows of an update, all or none.

        Raises:
            PredictionError: If they cannot be scored, or one name has two contents.
            InputError: If the panel refuses them.
        """
        with self.ledger.all_or_none(), self._panel.all_or_none():
            self._panel.extend(self._of_one_form(encoded))
            rows = encoded.rows()
            self.ledger.check(rows)
            self.ledger.add(rows)
        self.mark = object()
        self.ignored = self.ignored or encoded.ignored

    def _of_one_form(self, encoded: "Encoded") -> "Iterator[Chunk]":
        # What is wrong with the predictions themselves comes first.
        for chunk in encoded.chunks:
            self.ledger.check_form(encoded.form)
            yield chunk

    def clear(self) -> None:
        """Forget all rows."""
        self._panel.reset()
        self.mark = object()
        self.ledger.clear()
        self.ignored = False

    def stored(self) -> "tuple[list[dict[str, int]], dict[str, Stack]]":
        """The rows as they lie in a state: columns of each run's fields, and arrays."""
        return as_arrays(self._panel.chunks, self.ledger.held)

    def restore(self, file: StateFile) -> None:
        """Keep the rows of a state.

        Raises:
            DataError: If the file is damaged, or holds what no update could bring.
            PredictionError: If one name has two contents.
        """
        try:
            stored = from_arrays(file.head.runs, file.arrays(), file.head.form)
            for index, fields in stored.chunks:
                self._problem.check_rows(index, fields)
            with raised_as(DataError, InputError):
                if stored.rows is not None:
                    self.ledger.check(stored.rows)
                self._panel.extend(stored.chunks)
        except (DataError, PredictionError) as error:
            raise type(error)(f"{file.path}: {error.message}", hint=error.hint) from error
        self.mark = object()
        if stored.rows is not None:
            self.ledger.add(stored.rows)
        self.ignored = self.ignored or file.head.ignored
