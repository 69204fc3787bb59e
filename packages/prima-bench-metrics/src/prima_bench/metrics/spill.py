"""Tensors kept in temporary files instead of memory, and read through memory maps.

A kept tensor is an ordinary one to whoever reads it. Its pages count as resident once they were read; readers that go
through much of it say so (:func:`relieve`), and pages that were read are given back then: they come again from the file
when they are needed. The files have no name from the start, so they vanish with the process, however it ends.
"""

import math
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError

RESIDENT_BYTES = 32 << 20
"""How much may be read of kept tensors until their pages are given back.

Linux maps up to 64 kB around every page that is read, so scattered rows take up to ten times as much.
"""

_WRITE_BYTES = 64 << 20
_BLOCK_BYTES = 16 << 20


class _Mapping(mmap.mmap):
    """A memory map that a weak reference can point to."""


class _Open:
    """The maps that tensors still hold, by the address where each begins."""

    def __init__(self) -> None:
        self._maps: dict[int, weakref.ref[_Mapping]] = {}
        self._read = 0
        self._lock = threading.Lock()

    def add(self, address: int, mapping: _Mapping) -> None:
        with self._lock:
            self._maps[address] = weakref.ref(mapping)
        weakref.finalize(mapping, self._maps.pop, address, None)

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
            maps = [found for ref in self._maps.values() if (found := ref()) is not None]
        if hasattr(mmap, "MADV_DONTNEED"):  # elsewhere the system takes pages back when it is short of memory
            for mapping in maps:
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
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="prima-bench-")  # noqa: SIM115 - closed with the spill
        weakref.finalize(self, self._file.close)
        self._end = 0

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
            self._file.seek(start)
            for part in parts:
                data = part.detach().flatten().view(torch.uint8).numpy().data
                for first in range(0, len(data), _WRITE_BYTES):
                    self._file.write(data[first : first + _WRITE_BYTES])
            self._file.flush()
        return self._mapped(start, self._file.tell() - start, dtype, shape, mmap.ACCESS_COPY)

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
                os.posix_fallocate(self._file.fileno(), start, max(1, nbytes))
            else:
                self._file.seek(start)
                for first in range(0, nbytes, _WRITE_BYTES):
                    self._file.write(bytes(min(_WRITE_BYTES, nbytes - first)))
                self._file.flush()
        return self._mapped(start, nbytes, dtype, shape, mmap.ACCESS_WRITE)

    def _next(self) -> int:
        return -(-self._end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY

    def _mapped(self, start: int, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...], access: int) -> Tensor:
        self._end = start + nbytes
        if not nbytes:
            return torch.empty(shape, dtype=dtype)
        mapping = _Mapping(self._file.fileno(), nbytes, offset=start, access=access)
        kept = torch.frombuffer(mapping, dtype=dtype)
        _OPEN.add(kept.untyped_storage().data_ptr(), mapping)
        return kept.view(shape)


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"rows cannot be kept on disk: {error.strerror}",
            hint="Point TMPDIR at a folder with more room, or keep them in memory.",
        ) from error


def is_kept(x: Tensor) -> bool:
    """Whether a tensor lies in a file, or is a view of one that does."""
    return bool(_OPEN) and x.untyped_storage().data_ptr() in _OPEN


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
