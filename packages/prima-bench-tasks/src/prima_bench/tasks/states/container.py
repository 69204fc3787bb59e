"""A file of named arrays under a JSON head: written whole or not at all, read within bounds, vouched for by digests.

It is an npz file, numpy's own format, read without pickle. Arrays are stored and never compressed, so that a file
cannot claim more memory than it has bytes. The head holds the digest of every array, and an array beside it that of the
head: whatever bit was lost on the way, or cut off, is noticed. Digests guard against damage, not against forgery.
"""

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prima_bench.metrics.spill import relieve
from prima_bench.tasks.errors import DataError
from prima_bench.tasks.inputs.archives import UNREADABLE, RefusedContent, read_arrays
from prima_bench.tasks.results.files import json_object, published

Array = npt.NDArray[Any]

_HEAD, _DIGEST = "head", "head_sha256"
_AGAIN = "It is damaged or cut off; write it anew."


@dataclass(frozen=True, slots=True)
class Stack:
    """Arrays of one dtype and width that are written as one, end to end, without a copy of them all.

    Attributes:
        parts: The arrays, at least one.
    """

    parts: Sequence[Array]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        return (sum(len(p) for p in self.parts), *self.parts[0].shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the whole, little-endian."""
        return self.parts[0].dtype.newbyteorder("<")

    def pieces(self) -> Iterator[memoryview]:
        """The bytes of the whole."""
        for part in self.parts:
            if part.size:
                yield memoryview(np.ascontiguousarray(part, dtype=self.dtype)).cast("B")
                relieve(part.nbytes)


def write_container(path: Path, form: str, version: int, head: Mapping[str, Any], arrays: Mapping[str, Stack]) -> None:
    """Write a file.

    Args:
        path: Its place.
        form: What kind of file it is.
        version: Version of that kind.
        head: What the file says of itself: plain JSON.
        arrays: Its arrays by name.

    Raises:
        DataError: If it cannot be written.
    """
    with published(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        digests = {name: _write(archive, name, stack) for name, stack in arrays.items()}
        document = {"form": form, "version": version, "head": dict(head), "arrays": digests}
        raw = json.dumps(document, ensure_ascii=False, allow_nan=False, sort_keys=True).encode()
        _write(archive, _HEAD, Stack([np.frombuffer(raw, dtype=np.uint8)]))
        _write(archive, _DIGEST, Stack([np.frombuffer(hashlib.sha256(raw).digest(), dtype=np.uint8)]))


def read_head(path: Path, form: str, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file says of itself, without its arrays.

    Args:
        path: The file.
        form: What kind of file it must be.
        version: The newest version of that kind that is understood.

    Returns:
        The head, and the digests of the arrays by name.

    Raises:
        DataError: If there is no such file, or it is damaged, of another kind or newer.
    """
    found = _read(path, form, (_HEAD, _DIGEST))
    if found.keys() != {_HEAD, _DIGEST} or any(a.dtype != np.uint8 or a.ndim != 1 for a in found.values()):
        raise DataError(f"{path} is no {form}", hint=f"A {form} is written by Evaluation.save().")
    raw = found[_HEAD].tobytes()
    if hashlib.sha256(raw).digest() != found[_DIGEST].tobytes():
        raise DataError(f"{path} does not match its digest", hint=_AGAIN)
    document = json_object(raw, str(path))
    if document.get("form") != form:
        raise DataError(f"{path} is no {form}", hint=f"A {form} is written by Evaluation.save().")
    seen = document.get("version")
    if not isinstance(seen, int) or isinstance(seen, bool) or seen > version:
        raise DataError(
            f"{path} is a {form} of version {seen}; this release reads versions up to {version}",
            hint="It was written by a newer release of prima-bench: upgrade to read it.",
        )
    head, digests = document.get("head"), document.get("arrays")
    if not isinstance(head, dict) or not isinstance(digests, dict):
        raise DataError(f"{path} has no head", hint=_AGAIN)
    return head, digests


def read_arrays_of(path: Path, form: str, digests: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays of a file whose head was read.

    Args:
        path: The file.
        form: What kind of file it is.
        digests: The arrays' digests by name, as the head has them.

    Raises:
        DataError: If an array is missing, or is not the one that the head tells of.
    """
    found = _read(path, form, digests.keys())
    for name, digest in digests.items():
        if name not in found:
            raise DataError(f"{path} lacks the array {name!r}", hint=_AGAIN)
        array = found[name]
        if _digest(array.dtype, array.shape, Stack([array]).pieces()) != digest:
            raise DataError(f"{path}: the array {name!r} does not match its digest", hint=_AGAIN)
    return found


def _read(path: Path, form: str, names: Any) -> dict[str, Array]:
    try:
        there = path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        there = False
    if not there:
        raise DataError(f"there is no file {str(path)!r}", hint="Check the path; it is relative to the working folder.")
    size = path.stat().st_size

    def bound(claimed: int) -> None:
        if claimed > size:
            raise RefusedContent(f"it claims {claimed} bytes and has {size}", hint=_AGAIN)

    try:
        return read_arrays(path, bound, names)
    except UNREADABLE as error:
        hint = error.hint if isinstance(error, RefusedContent) else _AGAIN
        raise DataError(
            f"{path} cannot be read as a {form}: {str(error) or type(error).__name__}", hint=hint
        ) from error


def _write(archive: zipfile.ZipFile, name: str, stack: Stack) -> str:
    # A fixed date: the same rows are the same bytes.
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
        header = {"descr": stack.dtype.str, "fortran_order": False, "shape": stack.shape}
        np.lib.format.write_array_header_1_0(stream, header)
        return _digest(stack.dtype, stack.shape, stack.pieces(), stream)


def _digest(dtype: Any, shape: Any, pieces: Iterator[memoryview], copy_to: Any = None) -> str:
    """``sha256:...`` of an array; its bytes go to ``copy_to`` on the way."""
    total = hashlib.sha256(f"{dtype.str} {tuple(shape)} ".encode())
    for piece in pieces:
        total.update(piece)
        if copy_to is not None:
            copy_to.write(piece)
    return f"sha256:{total.hexdigest()}"
