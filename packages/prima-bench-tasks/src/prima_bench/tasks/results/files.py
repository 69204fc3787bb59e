"""Files on disk: written whole or not at all; JSON read within bounds.

This module moves bytes and text; what they mean is the schema's business.
"""

import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from prima_bench.tasks.errors import DataError

MAX_BYTES = 256 * 1024 * 1024
"""No result comes near this size: a larger file is something else."""


@contextmanager
def published(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its name when it is complete: a reader sees the old file or the new one.

    Raises:
        DataError: If the folder is missing or cannot be written to.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot write {str(path)!r}: {_cause(error)}", hint="Is the folder there, and may you write to it?"
        ) from error
    finally:
        with suppress(OSError, ValueError):
            partial.unlink()


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` so that a reader sees the old file or the new one, never a part.

    Raises:
        DataError: If the folder is missing or cannot be written to.
    """
    with published(path) as file:
        file.write(text.encode("utf-8"))


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one strict JSON object: no NaN, no key twice.

    Raises:
        DataError: If there is no such file, it is larger than 256 MiB, or it is not such an object.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {str(path)!r}: {_cause(error)}") from error
    if len(raw) > MAX_BYTES:
        raise DataError(f"{path} is larger than {MAX_BYTES >> 20} MiB, so it is not a result")
    return json_object(raw, str(path))


def json_object(raw: bytes, where: str) -> dict[str, Any]:
    """Parse one strict JSON object: no NaN, no key twice.

    Raises:
        DataError: If it is none, naming ``where`` it came from.
    """
    try:
        document = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not strict JSON: {error}", hint="It may be cut off or edited by hand.") from error
    if not isinstance(document, dict):
        raise DataError(f"{where} holds a JSON {type(document).__name__}, not an object")
    return document


def _cause(error: OSError | ValueError) -> str:
    # A ValueError is a name that no file can have: with a null byte, or with half a character.
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in pairs:
        if key in document:
            raise ValueError(f"key {key!r} comes twice")
        document[key] = value
    return document
