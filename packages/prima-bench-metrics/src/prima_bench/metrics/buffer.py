"""Raw rows kept as torchmetrics states: the half of a metric that holds inputs and computes nothing.

Every update appends one chunk to "cat" list states that stay aligned with each other: ``index_chunks``, and per field
``<name>_chunks``, with ``<name>_values``, ``<name>_columns`` and ``<name>_lengths`` beside it where the field may be
sparse. A kept chunk is never written to again, so copies of the state are lists of references.
"""

from abc import ABC
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torchmetrics
from torch import Tensor
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from prima_bench.metrics.batch import Batch
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.fields import Chunk, Field, check_chunk
from prima_bench.metrics.rows import SparseRows

INDEX = Field("index", "integer", "scalar")
_SPARSE_PARTS = ("values", "columns", "lengths")


class RowBuffer(torchmetrics.Metric, ABC):
    """A torchmetrics metric that buffers typed rows by id and leaves all math to ``compute``.

    Args:
        fields: What is given for every row.
        kwargs: The keyword arguments of :class:`torchmetrics.Metric`.

    Attributes:
        schema_tag: What all ranks must agree on before they exchange rows, such as the digest of a dataset.
    """

    full_state_update = False

    def __init__(self, fields: Sequence[Field], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if len({f.name for f in fields} | {"index"}) != len(fields) + 1:
            raise InputError("fields need distinct names, none of them 'index'")
        self._row_fields = tuple(fields)
        self._rows_before = 0
        self.schema_tag = ""
        for field in (INDEX, *fields):
            for state in _states_of(field):
                self.add_state(state, default=[], dist_reduce_fx="cat", persistent=True)

    @property
    def n_rows(self) -> int:
        """Rows buffered on this rank, repeated ones included."""
        return sum(len(c) for c in self._state("index_chunks"))

    @contextmanager
    def synced(self) -> Iterator[Batch]:
        """The rows of all ranks as one batch; afterwards this rank holds its own rows again.

        Raises:
            ConflictingRowsError: If an id came with two contents.
            SyncError: If the ranks disagree about what they buffer; raised on every rank.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=not self._is_synced):
            yield self._batch()

    def _append(
        self, fields: Mapping[str, Tensor | SparseRows | None], index: Tensor | None, *, owned: bool = False
    ) -> None:
        """Check one update's rows, then keep them: all or nothing.

        Args:
            fields: Values by field name; None is the same as leaving an optional field out.
            index: The rows' ids, integer ``[n]``; None numbers them as they come.
            owned: Whether the tensors are the buffer's to keep. Otherwise they are copied.

        Raises:
            InputError: If anything about the rows is not as declared, or unlike earlier updates.
        """
        self._append_all([(index, fields)], owned=owned)

    def _append_all(
        self, chunks: Iterable[tuple[Tensor | None, Mapping[str, Tensor | SparseRows | None]]], *, owned: bool
    ) -> None:
        if self._is_synced:
            raise TorchMetricsUserError("The Metric shouldn't be synced when rows are added; call `unsync` first.")
        device = torch.device("cpu") if self.compute_on_cpu else self.device
        shape = self._shape()
        position = self._rows_before + self.n_rows
        checked: list[Chunk] = []
        for index, fields in chunks:
            chunk = check_chunk(self._row_fields, fields, index, device=device, owned=owned)
            n = next(iter(chunk.values())).shape[0]
            if index is None:
                chunk["index"] = torch.arange(position, position + n, device=device)
            position += n
            shape = _agreed(shape, _shape_of(chunk))
            if n:
                checked.append(chunk)
        for chunk in checked:
            self._keep(chunk)

    def _keep(self, chunk: Chunk) -> None:
        self._state("index_chunks").append(cast(Tensor, chunk["index"]))
        for field in self._row_fields:
            if field.name in chunk:
                for state, part in zip(_states_of(field), _parts(field, chunk[field.name]), strict=True):
                    self._state(state).append(part)

    def _chunks(self) -> list[Chunk]:
        return [self._chunk(i) for i in range(len(self._state("index_chunks")))]

    def _chunk(self, i: int) -> Chunk:
        chunk: Chunk = {"index": self._state("index_chunks")[i]}
        for field in self._row_fields:
            dense, *sparse = (self._state(s) for s in _states_of(field))
            if dense:
                chunk[field.name] = dense[i]
                if sparse and len(sparse[-1][i]):
                    values, columns, lengths = (s[i] for s in sparse)
                    chunk[field.name] = SparseRows(values, columns, lengths, dense[i].shape[1])
        return chunk

    def _batch(self) -> Batch:
        chunks = self._chunks()
        return Batch(self._row_fields, chunks, chunks[0]["index"].device if chunks else self.device)

    def _shape(self) -> dict[str, int] | None:
        """The fields given so far with their widths (0 for scalars); None before the first row."""
        return _shape_of(self._chunk(0)) if self._state("index_chunks") else None

    def _state(self, name: str) -> list[Tensor]:
        return cast(list[Tensor], getattr(self, name))


def _states_of(field: Field) -> tuple[str, ...]:
    states = (f"{field.name}_chunks",)
    return (*states, *(f"{field.name}_{part}" for part in _SPARSE_PARTS)) if field.width == "rows" else states


def _parts(field: Field, value: Tensor | SparseRows) -> tuple[Tensor, ...]:
    """A chunk's tensors, one per state; the layout that is not used is there with no rows."""
    if isinstance(value, SparseRows):
        return value.values.new_zeros((0, value.n_columns)), value.values, value.columns, value.lengths
    if field.width != "rows":
        return (value,)
    none = torch.zeros(0, dtype=torch.int64, device=value.device)
    return value, value.new_zeros(0), none.to(torch.int32), none


def _shape_of(chunk: Chunk) -> dict[str, int]:
    return {name: value.shape[1] if len(value.shape) > 1 else 0 for name, value in chunk.items() if name != "index"}


def _agreed(before: dict[str, int] | None, now: dict[str, int]) -> dict[str, int]:
    if before is None or before == now:
        return now
    if before.keys() != now.keys():
        raise InputError(f"earlier updates gave {', '.join(before)}; this one gives {', '.join(now)}")
    name = next(n for n in now if now[n] != before[n])
    raise InputError(f"{name} has {now[name]} columns; earlier updates had {before[name]}")
