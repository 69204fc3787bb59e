"""What a metric's ``score`` sees: every row once, in canonical order, with room to share derived quantities.

The batch is a view over the buffered chunks; matrices of rows are never laid out anew in memory.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor

from prima_bench.metrics.errors import ConflictingRowsError
from prima_bench.metrics.fields import Chunk, Field
from prima_bench.metrics.rows import RowMatrix
from prima_bench.metrics.spill import Spill, is_kept

T = TypeVar("T")
_NAMED = 5
_BLOCK_ELEMENTS = 1 << 20


class Batch:
    """All buffered rows: ascending by index, each once.

    The same rows in any order, sharding or layout give the same batch.

    Args:
        fields: What the buffer declares.
        chunks: The buffered chunks, each with its ``"index"``.
        device: Where the rows are.

    Attributes:
        n: Number of rows.
        index: Their ids, int64 ``[n]``, strictly ascending.
        duplicates_dropped: How many rows came again with equal content.
        device: Where the rows are.

    Raises:
        ConflictingRowsError: If an id came with two contents.
    """

    def __init__(self, fields: Sequence[Field], chunks: Sequence[Chunk], device: torch.device) -> None:
        self.device = device
        self._memo: dict[Hashable, object] = {}
        self._fields = {f.name: f for f in fields if chunks and f.name in chunks[0]}
        self._chunks = tuple(chunks)
        index = self._laid_out("index") if chunks else torch.zeros(0, dtype=torch.int64, device=device)
        self._order: Tensor | None = None
        self.index = index
        if bool((index[1:] <= index[:-1]).any()):
            self.index, self._order = torch.sort(index, stable=True)
        again = torch.zeros_like(self.index, dtype=torch.bool)
        again[1:] = self.index[1:] == self.index[:-1]
        self.duplicates_dropped = int(again.sum())
        if self._order is not None and self.duplicates_dropped:
            self._refuse_conflicts(again)
            self.index, self._order = self.index[~again], self._order[~again]
        self.n = len(self.index)

    @classmethod
    def of(cls, fields: Sequence[Field], values: Mapping[str, Tensor | RowMatrix]) -> "Batch":
        """A batch of rows that never were in a buffer, in the order in which they are given.

        Args:
            fields: What is declared; fields without a value were not given.
            values: ``[n]``, ``[n, w]`` or a matrix of rows ``[n, w]`` by field.
        """
        first = next(iter(values.values()))
        batch = cls((), (), first.device)
        batch._fields = {f.name: f for f in fields if f.name in values}
        batch._memo = {("field", name): value for name, value in values.items()}
        batch.n = first.shape[0]
        batch.index = torch.arange(batch.n, device=first.device)
        return batch

    def part(self, name: str, code: int) -> "Batch":
        """The rows whose scalar field holds a code, as a batch of their own; one for all metrics of a panel.

        Args:
            name: An integer field.
            code: The value that its rows hold.

        Raises:
            KeyError: If the field was not given.
        """
        return self.memo(("part", name, code), lambda: self._selected((self.tensor(name) == code).nonzero().flatten()))

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __getitem__(self, name: str) -> Tensor | RowMatrix:
        """A field's values in canonical order: :meth:`rows` or :meth:`tensor`, as the field was declared.

        Raises:
            KeyError: If the field was not given.
        """
        return self.rows(name) if self._fields[name].width == "rows" else self.tensor(name)

    def tensor(self, name: str) -> Tensor:
        """The values of a scalar or row field, ``[n]`` or ``[n, w]``; not to be written to.

        Raises:
            KeyError: If the field was not given, or is a matrix of rows.
        """
        if self._fields[name].width == "rows":
            raise KeyError(f"{name} is a matrix of rows")
        return self.memo(("field", name), lambda: self._ordered(name))

    def rows(self, name: str) -> RowMatrix:
        """A matrix of rows, ``[n, w]``, as a view over the buffered chunks.

        Raises:
            KeyError: If the field was not given, or is not a matrix of rows.
        """
        if self._fields[name].width != "rows":
            raise KeyError(f"{name} is not a matrix of rows")
        return self.memo(("field", name), lambda: RowMatrix([c[name] for c in self._chunks], self._order))

    def memo(self, key: Hashable, build: Callable[[], T]) -> T:
        """A derived quantity, built the first time it is asked for and shared by all metrics of a panel.

        Args:
            key: Names the quantity with everything that its value depends on, beside the rows.
            build: Builds it.
        """
        if key not in self._memo:
            self._memo[key] = build()
        return cast(T, self._memo[key])

    def _selected(self, positions: Tensor) -> "Batch":
        chosen = Batch.of(
            tuple(self._fields.values()),
            {
                name: self.rows(name).select(positions) if field.width == "rows" else self.tensor(name)[positions]
                for name, field in self._fields.items()
            },
        )
        chosen.index = self.index[positions]
        return chosen

    def _laid_out(self, name: str) -> Tensor:
        parts = [cast(Tensor, c[name]) for c in self._chunks]
        if len(parts) == 1:
            return parts[0]
        widest = torch.float64 if any(p.dtype == torch.float64 for p in parts) else parts[0].dtype
        return torch.cat([p.to(widest) for p in parts])

    def _ordered(self, name: str) -> Tensor:
        parts = [cast(Tensor, c[name]) for c in self._chunks]
        if self._fields[name].width == "row" and any(map(is_kept, parts)):
            return parts[0] if len(parts) == 1 and self._order is None else self._ordered_on_disk(RowMatrix(parts))
        values = self._laid_out(name)
        return values if self._order is None else values.index_select(0, self._order)

    def _ordered_on_disk(self, rows: RowMatrix) -> Tensor:
        order = torch.arange(rows.shape[0]) if self._order is None else self._order
        blocks = torch.split(order, max(1, _BLOCK_ELEMENTS // rows.shape[1]))
        return Spill().keep_parts(map(rows.take, blocks), rows.dtype, (len(order), rows.shape[1]))

    def _refuse_conflicts(self, again: Tensor) -> None:
        """Compare every repeated row with the first of its id."""
        if self._order is None:
            return
        position = torch.arange(len(again), device=self.device)
        first = torch.where(again, 0, position).cummax(0).values[again]
        a, b = self._order[again], self._order[first]
        differs = torch.zeros(len(a), dtype=torch.bool, device=self.device)
        for name, field in self._fields.items():
            if field.width == "scalar":
                values = self._laid_out(name)
                differs |= values[a] != values[b]
            else:
                differs |= ~RowMatrix([c[name] for c in self._chunks]).equal_rows(a, b)
        ids = torch.unique(self.index[again][differs]).tolist()
        if ids:
            named = ", ".join(map(str, ids[:_NAMED])) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "")
            raise ConflictingRowsError(
                f"{len(ids)} row{'s' if len(ids) > 1 else ''} came more than once with different content: {named}",
                rows=ids[:_NAMED],
                hint="Give every row one id and one content; a padding sampler must repeat rows exactly.",
            )
