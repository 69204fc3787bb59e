"""Exchanges the buffered chunks of all ranks of a process group.

First every rank tells what it holds (a few hundred bytes), and all ranks come to the same verdict on whether that fits
together. Then each rank's tensors travel as raw bytes, in windows of bounded size, straight into their place in the
receivers' memory: any dtype, any number of chunks, empty ranks, no padding and no second copy. A rank's own chunks are
in the answer as they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from prima_bench.metrics.errors import SyncError
from prima_bench.metrics.fields import Chunk
from prima_bench.metrics.rows import SparseRows

_WINDOW_BYTES = 64 << 20
_PARTS = ("values", "columns", "lengths")


@dataclass(frozen=True, slots=True)
class Schema:
    """What all ranks must agree on before rows are exchanged.

    Attributes:
        metric: The metric's class, or a panel's metrics.
        tag: The owner's own mark, such as the digest of the solution.
        fields: Name, kind and width of each declared field.
        numbered: Whether this rank numbered its rows itself, so that its ids mean nothing elsewhere.
    """

    metric: str
    tag: str
    fields: tuple[str, ...]
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive chunks of one layout, which travel as one.

    ``tensors`` holds dtype and shape by name (``x``, or ``x.values`` and so on), ``widths`` the columns by field.
    """

    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]]
    widths: dict[str, int]


def exchange(chunks: Sequence[Chunk], schema: Schema, group: Any, device: torch.device) -> list[Chunk]:
    """The chunks of all ranks of a group, in the order of ranks; every rank must call it.

    Args:
        chunks: This rank's chunks, each with its index.
        schema: What this rank expects of the others.
        group: The process group; None for all ranks.
        device: Where received rows are put.

    Raises:
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
    told: list[Any] = [None] * world
    dist.all_gather_object(told, (schema, [_described(run, widths[0]) for run in runs]), group=group)
    _agree([t[0] for t in told], [t[1] for t in told])

    wire = _wire(group)
    gathered: list[Chunk] = []
    for sender in range(world):
        source = sender if group is None else dist.get_global_rank(group, sender)
        if sender == rank:
            for run in runs:
                for name in run[0]:
                    for window in _windows([tensors[name] for tensors in run]):
                        dist.broadcast(window.to(wire), source, group=group)
            gathered.extend(chunks)
            continue
        for described in told[sender][1]:
            tensors = {n: torch.empty(s, dtype=d, device=device) for n, (d, s) in described.tensors.items()}
            for tensor in tensors.values():
                _receive(tensor, wire, source, group)
            gathered.append(_chunk(tensors, described.widths))
    return gathered


def _agree(schemas: Sequence[Schema], runs: Sequence[Sequence[_Run]]) -> None:
    """The same verdict on every rank, since all look at the same list."""
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


def _receive(tensor: Tensor, wire: torch.device, source: int, group: Any) -> None:
    for window in torch.split(_bytes(tensor), _WINDOW_BYTES) if tensor.numel() else ():
        if window.device == wire:
            dist.broadcast(window, source, group=group)
        else:
            staged = torch.empty_like(window, device=wire)
            dist.broadcast(staged, source, group=group)
            window.copy_(staged)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _wire(group: Any) -> torch.device:
    """Where the group's backend takes tensors from."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
