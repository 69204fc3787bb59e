"""Tensors kept in temporary files instead of memory.

A kept tensor is an ordinary one to whoever reads it, through a memory map. Pages count as resident once they were read,
so readers that go through one from end to end say how far they came (:func:`relieve`), and what was read is given back.
Scattered rows are copied from the file without the map (:func:`take_runs`): it would bring megabytes around each. The
files have no name from the start, so they vanish with the process, however it ends.
"""

import math
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO

import torch
from torch import Tensor

from prima_bench.metrics.elements import repeat_each
from prima_bench.metrics.errors import InputError

RESIDENT_BYTES = 64 << 20
"""How much may be read of kept tensors until their pages are given back."""

_WRITE_BYTES = 64 << 20
_WINDOW_BYTES = 1 << 30  # one map holds many tensors: each map takes one of the files that a process may have open
_BLOCK_BYTES = 16 << 20


class _File:
    """A file that is open as long as a spill or a tensor needs it."""

    def __init__(self) -> None:
        with _room():
            self.stream: IO[bytes] = tempfile.TemporaryFile(prefix="prima-bench-")  # noqa: SIM115 - closed below
        self.end = 0
        self.process = os.getpid()
        weakref.finalize(self, self.stream.close)


class _Mapping(mmap.mmap):
    """A memory map that knows its place, and that a weak reference can point to."""

    file: _File
    start: int
    nbytes: int

    def covers(self, start: int, nbytes: int) -> bool:
        """Whether a range of the file lies in it."""
        return self.start <= start and start + nbytes <= self.start + self.nbytes


class _Open:
    """The maps that tensors still hold, and the place in the file, by the address where each tensor begins."""

    def __init__(self) -> None:
        self._maps: dict[int, tuple[weakref.ref[_Mapping], int]] = {}
        self._read = 0
        self._lock = threading.Lock()

    def add(self, address: int, mapping: _Mapping, start: int) -> None:
        self._maps[address] = weakref.ref(mapping), start
        weakref.finalize(mapping, self._maps.pop, address, None)

    def at(self, address: int) -> tuple[_Mapping, int] | None:
        """The map of a tensor, and where in the file the tensor begins."""
        ref, start = self._maps.get(address, (None, 0))
        mapping = None if ref is None else ref()
        return None if mapping is None else (mapping, start)

    def __contains__(self, address: int) -> bool:
        return address in self._maps

    def __bool__(self) -> bool:
        return bool(self._maps)

    def read(self, nbytes: int) -> None:
        with self._lock:
            self._read += nbytes
            if self._read < RESIDENT_BYTES:
                return
            self._read = 0
        # A list at once: a map that goes meanwhile, in this thread or another, takes its entries out.
        maps = {id(found): found for ref, _ in list(self._maps.values()) if (found := ref()) is not None}
        if hasattr(mmap, "MADV_DONTNEED"):  # elsewhere the system takes pages back when it is short of memory
            for mapping in maps.values():
                mapping.madvise(mmap.MADV_DONTNEED)


_OPEN = _Open()


class Spill:
    """A temporary file without a name, in the system's folder for those (``TMPDIR``).

    Example:
        >>> spill = Spill()
        >>> x = spill.keep(torch.arange(6.0).view(2, 3))
        >>> x.sum(), is_kept(x), is_kept(x[1:]), is_kept(x + 0)
        (tensor(15.), True, True, False)
    """

    def __init__(self) -> None:
        self._file = _File()
        self._window: _Mapping | None = None

    def __reduce__(self) -> tuple[type["Spill"], tuple[()]]:
        # A copy keeps nothing: copies of its tensors are in memory.
        return Spill, ()

    def keep(self, x: Tensor) -> Tensor:
        """Write a tensor; what comes back has its values and lies in the file.

        Args:
            x: On the CPU.

        Raises:
            InputError: If there is no room.
        """
        flat = x.detach().contiguous().flatten()
        return self.keep_parts([flat], x.dtype, tuple(x.shape))

    def keep_parts(self, parts: Iterable[Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Write a tensor part by part, so that it need never be in memory as a whole.

        Args:
            parts: Its values in row-major order, of that dtype, contiguous.
            dtype: Its dtype.
            shape: Its shape.

        Raises:
            InputError: If there is no room.
        """
        start = self._next()
        with _room():
            self._file.stream.seek(start)
            for part in parts:
                data = part.detach().flatten().view(torch.uint8).numpy().data
                for first in range(0, len(data), _WRITE_BYTES):
                    self._file.stream.write(data[first : first + _WRITE_BYTES])
            self._file.stream.flush()
            nbytes = self._file.stream.tell() - start
        return self._mapped(start, nbytes, dtype, shape)

    def empty(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """A tensor in the file whose values are not set yet: writing to it writes to the file.

        Args:
            dtype: Its dtype.
            shape: Its shape.

        Raises:
            InputError: If there is no room.
        """
        start, nbytes = self._next(), math.prod(shape) * dtype.itemsize
        with _room():
            if hasattr(os, "posix_fallocate"):  # a file with holes would kill the process when the disk is full
                os.posix_fallocate(self._file.stream.fileno(), start, max(1, nbytes))
            else:
                self._file.stream.seek(start)
                for first in range(0, nbytes, _WRITE_BYTES):
                    self._file.stream.write(bytes(min(_WRITE_BYTES, nbytes - first)))
                self._file.stream.flush()
        return self._mapped(start, nbytes, dtype, shape)

    def _next(self) -> int:
        if self._file.process != os.getpid():  # after a fork: the file is the parent's, which goes on writing to it
            self._file, self._window = _File(), None
        return -(-self._file.end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY

    def _mapped(self, start: int, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        if not nbytes:
            return torch.empty(shape, dtype=dtype)
        with _room():
            window = self._window_over(start, nbytes)
        kept = torch.frombuffer(window, dtype=dtype, count=nbytes // dtype.itemsize, offset=start - window.start)
        _OPEN.add(kept.untyped_storage().data_ptr(), window, start)
        self._file.end = start + nbytes
        return kept.view(shape)

    def _window_over(self, start: int, nbytes: int) -> _Mapping:
        if self._window is None or not self._window.covers(start, nbytes):
            size = max(nbytes, min(start, _WINDOW_BYTES))
            stream = self._file.stream
            stream.truncate(max(start + size, stream.seek(0, os.SEEK_END)))  # what is not written yet takes no room
            # Shared with the file, since the system would set memory aside for a private map of this size.
            self._window = _Mapping(stream.fileno(), size, offset=start, access=mmap.ACCESS_WRITE)
            self._window.file, self._window.start, self._window.nbytes = self._file, start, size
        return self._window


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"rows cannot be kept on disk: {error.strerror}",
            hint="Point TMPDIR at a folder with more room, or keep them in memory.",
        ) from error


def room_beyond(free: int, least: int) -> Callable[[torch.dtype, tuple[int, ...]], Tensor]:
    """Makes tensors to be written to: in memory up to so many bytes, then in a file.

    Args:
        free: How many bytes may be in memory.
        least: What is smaller always is.

    Example:
        >>> room = room_beyond(free=100, least=8)
        >>> [is_kept(room(torch.float32, (n,))) for n in (20, 20, 1)]
        [False, True, False]
    """
    spill = Spill()

    def allocate(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        nonlocal free
        nbytes = math.prod(shape) * dtype.itemsize
        free -= nbytes
        return spill.empty(dtype, shape) if nbytes >= least and free < 0 else torch.empty(shape, dtype=dtype)

    return allocate


def is_kept(x: Tensor) -> bool:
    """Whether a tensor lies in a file, or is a view of one that does."""
    return bool(_OPEN) and x.untyped_storage().data_ptr() in _OPEN


def take_runs(x: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Copy runs of a vector, one after the other.

    Args:
        x: ``[n]``, contiguous where it is kept.
        starts: Where each run begins, int64 ``[k]``.
        lengths: How many values each run has, int64 ``[k]``.

    Returns:
        ``[sum of lengths]``, in memory.

    Example:
        >>> take_runs(torch.arange(10), torch.tensor([7, 2]), torch.tensor([2, 3]))
        tensor([7, 8, 2, 3, 4])
    """
    total = int(lengths.sum())
    found = _OPEN.at(x.untyped_storage().data_ptr()) if _OPEN else None
    if found is None or not hasattr(os, "preadv"):
        shift = starts - (lengths.cumsum(0) - lengths)
        where = repeat_each(shift, lengths)
        return x.index_select(0, where.add_(torch.arange(total, device=x.device)))
    taken, size = torch.empty(total, dtype=x.dtype), x.element_size()
    mapping, begin = found
    room, done, descriptor = memoryview(_bytes(taken).numpy()), 0, mapping.file.stream.fileno()
    first = begin + x.storage_offset() * size
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        offset, end = first + start * size, done + length * size
        while done < end:
            read = os.preadv(descriptor, [room[done:end]], offset)
            if not read:
                raise EOFError("a temporary file of this process was cut short")
            done, offset = done + read, offset + read
    return taken


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Copy rows of a matrix ``[n, w]``, contiguous where it is kept; ``rows`` is int64 ``[k]``."""
    if not is_kept(x):
        return x.index_select(0, rows)
    width = x.shape[1]
    return take_runs(x.view(-1), rows * width, torch.full_like(rows, width)).view(len(rows), width)


def _bytes(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)


def relieve(nbytes: int) -> None:
    """Say that so many bytes of kept tensors were read; costs little where none are kept."""
    if _OPEN:
        _OPEN.read(nbytes)


def row_blocks(x: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a matrix: all of them at once where it lies in memory, some after the other where it is kept.

    Yields:
        Where they are, and they themselves; not to be written to.

    Example:
        >>> [rows for rows, _ in row_blocks(torch.zeros(3, 2))]
        [slice(0, 3, None)]
    """
    step = max(1, _BLOCK_BYTES // max(1, x[:1].nbytes) if is_kept(x) else len(x))
    for start in range(0, len(x), step):
        rows = slice(start, min(start + step, len(x)))
        yield rows, x[rows]
        relieve(x[rows].nbytes)
