"""Raw rows kept as torchmetrics states: the half of a metric that holds inputs and computes nothing.

Every update appends one chunk to "cat" list states that stay aligned with each other: ``index_chunks``, and per field
``<name>_chunks``, with ``<name>_values``, ``<name>_columns`` and ``<name>_lengths`` beside it where the field may be
sparse. A kept chunk is never written to again, so copies of the state are lists of references.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, cast

import torch
import torch.distributed as dist
import torchmetrics
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from prima_bench.metrics.attendance import attend
from prima_bench.metrics.batch import Batch
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.fields import Chunk, Field, check_chunk
from prima_bench.metrics.lifecycle import SafeMetric, State
from prima_bench.metrics.rows import SparseRows
from prima_bench.metrics.spill import Spill, is_kept, room_beyond
from prima_bench.metrics.sync import Allocate, Schema, exchange

Given = Mapping[str, Tensor | SparseRows | None]

_INDEX = Field("index", "integer", "scalar")
_SPARSE_PARTS = ("values", "columns", "lengths")
_SLAB_BYTES = 16 << 20  # larger ones leave more small chunks lying between other memory until they are joined
_LOOSE_CHUNKS = 512
_LEAST_KEPT_BYTES = 1 << 20  # what is smaller stays in memory: ids, lengths of rows


class RowBuffer(SafeMetric):
    """A torchmetrics metric that buffers typed rows by id and leaves all math to ``compute``.

    Args:
        fields: What is given for every row.
        kwargs: The keyword arguments of :class:`torchmetrics.Metric`.

    Attributes:
        schema_tag: What all ranks must agree on before they exchange rows, such as the digest of a dataset; or several
            such things by name.
        spill_above: How many bytes of rows are held in memory; once there are more, all go to a temporary file. None:
            all stay in memory.

    Raises:
        InputError: If two fields have one name, or one is called ``index``.
    """

    def __init__(self, fields: Sequence[Field], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if len({f.name for f in fields} | {_INDEX.name}) != len(fields) + 1:
            raise InputError("fields need distinct names, none of them 'index'")
        self.schema_tag: str | Mapping[str, str] = ""
        self.spill_above: int | None = None
        self._spill: Spill | None = None
        self._gather_on: int | None = None
        self._row_fields = (_INDEX, *fields)
        self._row_states = tuple(s for f in self._row_fields for s in _states_of(f))
        self._rows_before = 0  # rows that forward has set aside
        self._ids_given: bool | None = None  # None while the rows held could have been numbered either way
        self._loose = 0  # chunks at the end of the states that wait to be joined into a larger one
        self._loose_bytes = 0
        for state in self._row_states:
            self.add_state(state, default=[], dist_reduce_fx="cat", persistent=True)

    @property
    def n_rows(self) -> int:
        """Rows held, repeated ones included: this rank's, or those of all ranks while synced."""
        return sum(len(c) for c in self._state("index_chunks"))

    @property
    def chunks(self) -> list[Chunk]:
        """The rows held, in the chunks in which they lie; the tensors are the buffer's own, not to be written to."""
        return self._chunks()

    @contextmanager
    def synced(self) -> Iterator[Batch]:
        """The rows of all ranks as one batch; afterwards this rank holds its own rows again.

        Raises:
            ConflictingRowsError: If an id came with two contents.
            SyncError: If the ranks disagree about what they buffer; raised on every rank.
        """
        ours = not self._is_synced
        with self.sync_context(should_sync=ours, should_unsync=ours):
            yield self._batch()

    @contextmanager
    def gathered(self, rank: int) -> Iterator[Batch | None]:
        """The rows of all ranks as one batch on one of them, and None on the others, which hold no more than before.

        Args:
            rank: Which, within the metric's process group.

        Raises:
            ConflictingRowsError: If an id came with two contents; on that rank alone.
            SyncError: If the ranks disagree about what they buffer; raised on every rank.
        """
        self._gather_on = rank
        try:
            with self.sync_context():
                here = not self._is_synced or dist.get_rank(self.process_group) == rank
                yield self._batch() if here else None
        finally:
            self._gather_on = None

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Undo what was added within when an error, or an interrupt, leaves it."""
        states, count, computed = self._copy_state_dict(), self._update_count, self._computed
        before = self._ids_given, self._loose, self._loose_bytes
        try:
            yield
        except BaseException:
            self._restore(states)
            self._update_count, self._computed = count, computed
            self._ids_given, self._loose, self._loose_bytes = before
            raise

    def add_state(
        self,
        name: str,
        default: list[Tensor] | Tensor,
        dist_reduce_fx: str | Callable[..., Any] | None = None,
        persistent: bool = False,
    ) -> None:
        """Declare a state of a subclass's own: a tensor. Rows are declared as fields.

        Raises:
            TypeError: If the state is a list.
        """
        if isinstance(default, list) and name not in self._row_states:
            raise TypeError(f"state {name} is a list: declare per-row inputs as a Field")
        super().add_state(name, default, dist_reduce_fx, persistent)

    def reset(self) -> None:
        """Forget all rows and any value computed from them."""
        super().reset()
        self._loose = self._loose_bytes = 0
        if not self._rows_before:
            self._ids_given = self._spill = None

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its own value, at the cost of that batch alone.

        Takes the arguments of ``update`` and returns what ``compute`` returns. When it raises, nothing was added.
        """
        ids_given, loose, loose_bytes = self._ids_given, self._loose, self._loose_bytes
        self._rows_before = self.n_rows
        try:
            value = super().forward(*args, **kwargs)
        except BaseException:
            self._ids_given, self._loose, self._loose_bytes = ids_given, loose, loose_bytes
            raise
        finally:
            self._rows_before = 0
        self._loose += loose
        self._loose_bytes += loose_bytes
        self._join_loose()
        return value

    def merge_state(self, incoming_state: dict[str, Any] | torchmetrics.Metric) -> None:
        """Add the rows of another metric with the same fields.

        Args:
            incoming_state: The other metric, or its ``metric_state``.

        Raises:
            ValueError: If it is not a metric of this class, nor states.
            InputError: If its states do not fit together, differ from this metric's in fields or widths, or come
                from a metric that numbered its rows itself while this one holds rows too.
        """
        other = incoming_state if isinstance(incoming_state, RowBuffer) else None
        if not isinstance(incoming_state, (dict, type(self))):
            raise ValueError(f"{type(incoming_state).__name__} cannot be merged into {type(self).__name__}")
        if other is not None and other._ids_given is False and self.n_rows:
            raise InputError("rows numbered from 0 by two metrics cannot be told apart", hint="Pass index=.")
        states = incoming_state if isinstance(incoming_state, dict) else incoming_state.metric_state
        own = self._checked_states(states, owned=other is not None)
        self._append_all([(cast(Tensor, c.pop("index")), c) for c in self._chunks(own)], owned=True)
        self._reduce_states({n: [] if n in self._row_states else s for n, s in own.items()})
        self._computed = None
        self._update_count += 1 if other is None else other.update_count

    def _append(self, fields: Given, index: Tensor | None, *, owned: bool = False) -> None:
        """Check one update's rows, then keep them: all or nothing.

        Args:
            fields: Values by field name; None is the same as leaving an optional field out.
            index: The rows' ids, integer ``[n]``; None numbers them as they come.
            owned: Whether the tensors are the buffer's to keep. Otherwise they are copied.

        Raises:
            InputError: If anything about the rows is not as declared, or unlike earlier updates.
        """
        self._append_all([(index, fields)], owned=owned)

    def _append_all(self, chunks: Iterable[tuple[Tensor | None, Given]], *, owned: bool) -> None:
        if self._is_synced:
            raise TorchMetricsUserError("The Metric shouldn't be synced when rows are added; call `unsync` first.")
        if self._shared and (attendance := attend()):
            attendance.look(self.process_group)
        shape, ids_given = self._shape(), self._ids_given
        position = self._rows_before + self.n_rows
        with self.all_or_none():
            for index, fields in chunks:
                ids_given = self._numbering(ids_given if position else None, index is not None)
                numbers = torch.arange(position, position + _rows_in(fields)) if index is None else index
                chunk = check_chunk(self._row_fields, {**fields, "index": numbers}, device=self._home, owned=owned)
                shape = _agreed(shape, _shape_of(chunk))
                n = chunk["index"].shape[0]
                position += n
                if n:
                    self._keep(chunk)
        if position > self._rows_before:
            self._ids_given = ids_given

    def _numbering(self, before: bool | None, given: bool) -> bool:
        """Whether ids are given, refusing what would give two rows one id by accident."""
        if before is not None and before != given:
            raise InputError(
                f"index is {'given' if given else 'missing'} here, unlike in earlier updates",
                hint="Give every row its id in all updates, or in none.",
            )
        if not given and self._shared and dist.get_world_size(self.process_group) > 1:
            raise InputError(
                "rows need ids when several processes share a metric",
                hint="Pass index=, each row's position in the dataset, which tells padded repeats from new rows.",
            )
        return given

    @property
    def _shared(self) -> bool:
        """Whether other ranks hold rows of this metric too."""
        return (self.sync_on_compute or self.dist_sync_on_step) and bool(self.distributed_available_fn())

    def _keep(self, chunk: Chunk) -> None:
        for name, added in self._states_for([chunk]).items():
            self._state(name).extend(added)
            self._loose_bytes += sum(t.nbytes for t in added)
        self._loose += 1
        self._join_loose()

    def _join_loose(self) -> None:
        """Join many small chunks into a larger one, each row once, so that few chunks are ever held."""
        if self._loose < _LOOSE_CHUNKS and self._loose_bytes < _SLAB_BYTES:
            return
        states = {name: self._state(name) for name in self._row_states if self._state(name)}
        end = len(self._state("index_chunks"))
        start = end - self._loose
        runs = [
            list(run)
            for _, run in groupby(range(start, end), lambda i: [(s[i].dtype, len(s[i]) > 0) for s in states.values()])
        ]
        joined = {
            n: [s[r[0]] if len(r) == 1 else torch.cat([s[i] for i in r]) for r in runs] for n, s in states.items()
        }
        for name, tail in joined.items():
            states[name][start:] = tail
        self._loose = self._loose_bytes = 0
        self._move_to_disk()

    def _move_to_disk(self) -> None:
        """Keep large tensors in a file once they are too many for memory."""
        if self.spill_above is None or self._home.type != "cpu":
            return
        states = [self._state(name) for name in self._row_states]
        held = [(s, i) for s in states for i, x in enumerate(s) if x.nbytes >= _LEAST_KEPT_BYTES and not is_kept(x)]
        if sum(s[i].nbytes for s, i in held) <= self.spill_above:
            return
        self._spill = self._spill or Spill()
        for state, i in held:
            state[i] = self._spill.keep(state[i])

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        group = process_group or self.process_group
        fields = tuple(f"{f.name}: {f.kind} {f.width}" for f in self._row_fields)
        schema = Schema(self._schema_name(), self.schema_tag, fields, self._ids_given is False)
        chunks = exchange(self._chunks(), schema, group, self._room_for_others(), self._gather_on)
        states: dict[str, State] = dict(self._states_for(chunks))
        for name in self._defaults.keys() - states.keys():
            values = torch.stack(dist_sync_fn(getattr(self, name), group))
            reduction = cast(Callable[[Tensor], Tensor] | None, self._reductions[name])
            states[name] = values if reduction is None else reduction(values)
        for name, state in states.items():
            setattr(self, name, state)

    def _room_for_others(self) -> Allocate:
        """Makes room for rows of other ranks: in memory, or in a file where rows are to be kept there."""
        if self.spill_above is None or self._home.type != "cpu":
            return lambda dtype, shape: torch.empty(shape, dtype=dtype, device=self._home)
        held = sum(x.nbytes for n in self._row_states for x in self._state(n) if not is_kept(x))
        return room_beyond(self.spill_above - held, _LEAST_KEPT_BYTES)

    def _schema_name(self) -> str:
        return type(self).__name__

    @property
    def _home(self) -> torch.device:
        """Where rows are kept."""
        return torch.device("cpu") if self.compute_on_cpu else self.device

    def _batch(self) -> Batch:
        chunks = self._chunks()
        return Batch(self._row_fields[1:], chunks, chunks[0]["index"].device if chunks else self._home)

    def _chunks(self, states: Mapping[str, Any] | None = None) -> list[Chunk]:
        """The chunks that the states hold, field by field."""
        held = {s: self._state(s) for s in self._row_states} if states is None else states
        chunks: list[Chunk] = [{} for _ in held["index_chunks"]]
        for field in self._row_fields:
            lists = [held[s] for s in _states_of(field)]
            for chunk, x, *parts in zip(chunks, *lists, strict=any(lists)):
                chunk[field.name] = x
                if parts and len(parts[-1]):
                    values, columns, lengths = parts
                    chunk[field.name] = SparseRows(values, columns, lengths, x.shape[1])
        return chunks

    def _states_for(self, chunks: Iterable[Chunk]) -> dict[str, list[Tensor]]:
        states: dict[str, list[Tensor]] = {s: [] for s in self._row_states}
        for chunk in chunks:
            for field in self._row_fields:
                if field.name in chunk:
                    for state, part in zip(_states_of(field), _parts(field, chunk[field.name]), strict=True):
                        states[state].append(part)
        return states

    def _shape(self) -> dict[str, int] | None:
        """The fields given so far with their widths (0 for scalars); None before the first row."""
        first = self._chunks({s: self._state(s)[:1] for s in self._row_states})
        return _shape_of(first[0]) if first else None

    def _checked_states(self, states: Mapping[str, Any], *, owned: bool = False) -> dict[str, State]:
        checked = super()._checked_states(states, owned=owned)
        shape: dict[str, int] | None = None
        chunks: list[Chunk] = []
        try:
            for chunk in self._chunks(checked):
                chunks.append(check_chunk(self._row_fields, chunk, device=self._home, owned=True))
                shape = _agreed(shape, _shape_of(chunks[-1]))
        except (ValueError, IndexError) as error:
            raise InputError(f"the states do not fit together: {error}") from error
        return {**checked, **self._states_for(chunks)}

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        if index := self._state("index_chunks"):
            ids = torch.cat(index)
            self._ids_given = None if torch.equal(ids, torch.arange(len(ids), device=ids.device)) else True

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


def _rows_in(fields: Given) -> int:
    return next((x.shape[0] for x in fields.values() if isinstance(x, SparseRows) or (x is not None and x.dim())), 0)


def _shape_of(chunk: Chunk) -> dict[str, int]:
    return {name: x.shape[1] if len(x.shape) > 1 else 0 for name, x in chunk.items()}


def _agreed(before: dict[str, int] | None, now: dict[str, int]) -> dict[str, int]:
    if before is None or before == now:
        return now
    if before.keys() != now.keys():
        raise InputError(f"earlier updates gave {', '.join(before)}; this one gives {', '.join(now)}")
    name = next(n for n in now if now[n] != before[n])
    raise InputError(f"{name} has {now[name]} columns; earlier updates had {before[name]}")
