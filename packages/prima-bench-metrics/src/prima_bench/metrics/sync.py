"""Exchanges the buffered chunks of all ranks of a process group.

First the ranks meet, so that no collective waits for one that is gone. Then every rank tells what it holds (a few
hundred bytes), and all ranks come to the same verdict on whether that fits together. Then each rank's tensors travel as
raw bytes, in windows of bounded size, straight into their place in the receivers' memory: any dtype, any number of
chunks, empty ranks, no padding and no second copy. A rank's own chunks are in the answer as they are.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from prima_bench.metrics.attendance import Attendance, attend
from prima_bench.metrics.errors import SyncError
from prima_bench.metrics.fields import Chunk
from prima_bench.metrics.rows import SparseRows
from prima_bench.metrics.spill import relieve

_WINDOW_BYTES = 16 << 20
_PARTS = ("values", "columns", "lengths")
Allocate = Callable[[torch.dtype, tuple[int, ...]], Tensor]


@dataclass(frozen=True, slots=True)
class Schema:
    """What all ranks must agree on before rows are exchanged.

    Attributes:
        metric: The metric's class, or a panel's metrics.
        tag: The owner's own mark, such as the digest of the solution; or several by name.
        fields: Name, kind and width of each declared field.
        numbered: Whether this rank numbered its rows itself, so that its ids mean nothing elsewhere.
    """

    metric: str
    tag: str | Mapping[str, str]
    fields: tuple[str, ...]
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive chunks of one layout, which travel as one.

    ``tensors`` holds dtype and shape by name (``x``, or ``x.values`` and so on), ``widths`` the columns by field.
    """

    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]]
    widths: dict[str, int]


def exchange(
    chunks: Sequence[Chunk], schema: Schema, group: Any, allocate: Allocate, to: int | None = None
) -> list[Chunk]:
    """The chunks of all ranks of a group, in the order of ranks; every rank must call it.

    Args:
        chunks: This rank's chunks, each with its index.
        schema: What this rank expects of the others.
        group: The process group; None for all ranks.
        allocate: Makes the tensors that received rows are put into, by dtype and shape.
        to: The rank within the group that gets the chunks of all; the others get their own back. None: all get all.

    Raises:
        LostRankError: If a rank gave up or ended.
        SyncError: If the ranks disagree on the schema, the fields given or their widths, or if rows numbered by
            their own rank would meet others. It is raised on every rank with the same message.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise SyncError("this process is not in the metric's process group")
    if world == 1:
        return list(chunks)
    runs = [[_tensors(c) for c in run] for _, run in groupby(chunks, key=_layout)]
    widths = [{n: x.shape[1] if len(x.shape) > 1 else 0 for n, x in c.items()} for c in chunks[:1]]
    told = share((schema, to, [_described(run, widths[0]) for run in runs]), group)
    _agree([t[0] for t in told], [t[2] for t in told])
    _same("rank to gather on", [(rank, t[1]) for rank, t in enumerate(told)])
    gathered: list[Chunk] = []
    wire = _wire(group)
    for sender in range(world):
        route = _Route(group, wire, sender, to, sending=sender == rank)
        if sender == rank:
            gathered.extend(chunks)
            if sender != to:
                for run in runs:
                    for name in run[0]:
                        for window in _windows([tensors[name] for tensors in run]):
                            route.carry(window.to(wire))
                            relieve(len(window))
        elif to is None or to == rank:
            for described in told[sender][2]:
                tensors = {n: allocate(d, s) for n, (d, s) in described.tensors.items()}
                for tensor in tensors.values():
                    _receive(tensor, route)
                gathered.append(_chunk(tensors, described.widths))
    return gathered


def share(value: Any, group: Any) -> list[Any]:
    """What each rank of a group says, in their order, once all have come; every rank must call it.

    Args:
        value: What this rank says: a few hundred bytes.
        group: The process group; None for all ranks.

    Raises:
        LostRankError: If a rank gave up or ended.
    """
    attendance = attend()
    if attendance is None:
        return [value]
    attendance.meet(group)
    told: list[Any] = [None] * dist.get_world_size(group)
    with _blaming(attendance, group):
        dist.all_gather_object(told, value, group=group)
    return told


@contextmanager
def _blaming(attendance: Attendance | None, group: Any) -> Iterator[None]:
    """Let the error of a collective name the rank that is gone."""
    try:
        yield
    except RuntimeError as error:
        if attendance is None:
            raise
        raise attendance.blame(group, error) from error


@dataclass(frozen=True, slots=True)
class _Route:
    """How windows travel from one rank: to all others, or to one."""

    group: Any
    wire: torch.device
    sender: int
    to: int | None
    sending: bool

    def carry(self, window: Tensor) -> None:
        """Send the window, or fill it, looking after the other ranks meanwhile.

        Raises:
            LostRankError: If one of them is gone.
        """
        attendance, pause = attend(), 1e-5
        with _blaming(attendance, self.group):
            if self.to is not None:
                # gloo says of these only when waited for that they are done; the end of either side ends both.
                carry, other = (dist.isend, self.to) if self.sending else (dist.irecv, self.sender)
                work = carry(window, self._world_rank(other), group=self.group)
            else:
                work = dist.broadcast(window, self._world_rank(self.sender), group=self.group, async_op=True)
            while self.to is None and work is not None and not work.is_completed():
                time.sleep(pause)
                pause = min(pause * 1.5, 0.002)
                if attendance is not None:
                    attendance.look(self.group)
            if work is not None:
                work.wait()

    def _world_rank(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


def _agree(schemas: Sequence[Schema], runs: Sequence[Sequence[_Run]]) -> None:
    """The same verdict on every rank, since all look at the same list."""
    tags = [{"tag": s.tag} if isinstance(s.tag, str) else s.tag for s in schemas]
    for what in dict.fromkeys(name for tag in tags for name in tag if name != "tag"):
        _same(what, [(rank, tag.get(what)) for rank, tag in enumerate(tags)])
    for what in ("metric", "tag", "fields"):
        _same(what, [(rank, getattr(s, what)) for rank, s in enumerate(schemas)])
    holders = [rank for rank, own in enumerate(runs) if own]
    _same("given fields", [(rank, tuple(runs[rank][0].widths)) for rank in holders])
    _same("number of columns", [(rank, runs[rank][0].widths) for rank in holders])
    numbered = [rank for rank in holders if schemas[rank].numbered]
    if numbered and len(holders) > 1:
        raise SyncError(f"rank {numbered[0]} numbered its rows itself", hint="Give every row its id: index=.")


def _same(what: str, told: Sequence[tuple[int, object]]) -> None:
    for rank, value in told:
        if value != told[0][1]:
            first = told[0]
            raise SyncError(f"ranks disagree about the {what}: {first[1]} on rank {first[0]}, {value} on rank {rank}")


def _layout(chunk: Chunk) -> tuple[object, ...]:
    return tuple((name, isinstance(x, SparseRows), x.dtype) for name, x in chunk.items())


def _tensors(chunk: Chunk) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, x in chunk.items():
        if isinstance(x, SparseRows):
            tensors.update({f"{name}.{part}": getattr(x, part) for part in _PARTS})
        else:
            tensors[name] = x
    return tensors


def _chunk(tensors: dict[str, Tensor], widths: dict[str, int]) -> Chunk:
    return {
        name: tensors[name]
        if name in tensors
        else SparseRows(tensors[f"{name}.values"], tensors[f"{name}.columns"], tensors[f"{name}.lengths"], width)
        for name, width in widths.items()
    }


def _described(run: Sequence[dict[str, Tensor]], widths: dict[str, int]) -> _Run:
    shapes = {n: (sum(c[n].shape[0] for c in run), *t.shape[1:]) for n, t in run[0].items()}
    return _Run({n: (t.dtype, shapes[n]) for n, t in run[0].items()}, widths)


def _windows(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensors' bytes as one stream, cut every ``_WINDOW_BYTES``."""
    held: list[Tensor] = []
    room = _WINDOW_BYTES
    for tensor in tensors:
        rest = _bytes(tensor.contiguous())
        while len(rest):
            held.append(rest[:room])
            rest = rest[room:]
            room -= len(held[-1])
            if not room:
                yield held[0] if len(held) == 1 else torch.cat(held)
                held, room = [], _WINDOW_BYTES
    if held:
        yield held[0] if len(held) == 1 else torch.cat(held)


def _receive(tensor: Tensor, route: _Route) -> None:
    for window in torch.split(_bytes(tensor), _WINDOW_BYTES) if tensor.numel() else ():
        if window.device == route.wire:
            route.carry(window)
        else:
            staged = torch.empty_like(window, device=route.wire)
            route.carry(staged)
            window.copy_(staged)
        relieve(len(window))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _wire(group: Any) -> torch.device:
    """Where the group's backend takes tensors from."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
