"""What npz and HDF5 containers may hold: plain arrays, as large as they say, and nothing outside of the file itself.
Names and meaning of the contents are not looked at here.
"""

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import h5py
import numpy as np

UNREADABLE = (
    OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, ImportError, RuntimeError,
    OverflowError, MemoryError, SyntaxError, AssertionError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
    lzma.LZMAError, struct.error,
)  # fmt: skip
"""What the libraries raise on damaged or hostile files; they promise nothing narrower."""

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class RefusedContent(ValueError):
    """A file that holds what is not read.

    Attributes:
        hint: How to mend it.
    """

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def read_arrays(path: Path, bound: Callable[[int], None], only: Collection[str] | None = None) -> dict[str, Any]:
    """The arrays of an npz file; nothing in it can run code or claim more memory than it fills.

    Args:
        path: The file.
        bound: Called with the size of all arrays before any is read, in bytes; raises where that is too large.
        only: Names of those to read; None for all.

    Raises:
        RefusedContent: If a member is no array of plain values, or not as long as its header says.
        ValueError: If the file is damaged; so do other errors of ``UNREADABLE``.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        bound(sum(member.file_size for member in members))
        if len({member.filename for member in members}) < len(members):
            raise RefusedContent("an array is stored more than once", hint="Save it anew with numpy.savez.")
        for member in members:
            _check_header(archive, member)
        arrays = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if only is not None and name not in only:
                continue
            with archive.open(member) as stream:
                arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
        return arrays


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    if not member.filename.endswith(".npy"):
        raise RefusedContent(f"{member.filename!r} is no array", hint="Save arrays alone, with numpy.savez.")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise RefusedContent(f"{member.filename!r} is no plain array", hint="Save arrays of numbers or strings.")
        shape, _, dtype = _HEADERS[version](stream)
        held = member.file_size - stream.tell()
    if dtype.hasobject:
        raise RefusedContent(
            f"{member.filename!r} holds Python objects, which are never loaded",
            hint="Save names and labels as fixed-width strings: numpy.asarray(labels, dtype=str).",
        )
    claimed = math.prod(shape) * max(dtype.itemsize, 1)
    if min(shape, default=0) < 0 or claimed > held:
        raise RefusedContent(
            f"{member.filename!r} claims shape {shape} of {dtype}, {claimed} bytes, and holds {held}",
            hint="It is damaged; save it anew with numpy.savez.",
        )


def refuse_links(path: Path) -> None:
    """Refuse an HDF5 file that would have other files read in its place.

    Raises:
        RefusedContent: If it holds a link to another file, or a dataset whose values lie in one.
        OSError: If the file is damaged; so do other errors of ``UNREADABLE``.
    """
    with h5py.File(path, "r") as file:
        groups, seen = [file["/"]], set()
        while groups:
            group = groups.pop()
            for name in group:
                where = f"{group.name.rstrip('/')}/{name}"
                link = group.get(name, getlink=True)
                if isinstance(link, h5py.ExternalLink):
                    raise RefusedContent(f"{where} is a link to another file", hint="Save the data themselves.")
                if isinstance(link, h5py.SoftLink):
                    continue  # it leads to where this walk gets by itself, or nowhere
                item = group[name]
                if isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
                    raise RefusedContent(f"the values of {where} lie in another file", hint="Save the data themselves.")
                address = h5py.h5o.get_info(item.id).addr
                if isinstance(item, h5py.Group) and address not in seen:
                    seen.add(address)
                    groups.append(item)
