"""The rows that an evaluation holds, as arrays of a file and back.

Consecutive chunks of one layout become one array for each field; the names of the rows lie end to end as UTF-8.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prima_bench.metrics.base import SparseRows
from prima_bench.metrics.fields import Chunk
from prima_bench.tasks.errors import DataError
from prima_bench.tasks.inputs.ledger import Rows
from prima_bench.tasks.states.container import Array, Stack

_PARTS = ("values", "columns", "lengths")
_LEDGER = ("rows.index", "rows.digests", "rows.names", "rows.name_lengths")


@dataclass(frozen=True, slots=True)
class Stored:
    """Rows that came out of a file.

    Attributes:
        chunks: Row ids and fields, as the panel takes them.
        rows: Names, ids and digests, as the ledger takes them; None where there are no rows.
    """

    chunks: list[tuple[Tensor, dict[str, Tensor | SparseRows]]]
    rows: Rows | None


def as_arrays(chunks: Sequence[Chunk], rows: Rows | None) -> tuple[list[dict[str, int]], dict[str, Stack]]:
    """The arrays of a state, and of each run of chunks the columns of each field (0 for scalars).

    Args:
        chunks: What the panel holds.
        rows: What the ledger holds.
    """
    runs: list[dict[str, int]] = []
    arrays: dict[str, Stack] = {}
    for _, run in groupby(chunks, key=_layout):
        held = list(run)
        for name, first in held[0].items():
            where = f"{len(runs)}.{name}"
            if isinstance(first, SparseRows):
                for part in _PARTS:
                    arrays[f"{where}.{part}"] = Stack([_array(getattr(c[name], part)) for c in held])
            else:
                arrays[where] = Stack([_array(c[name]) for c in held])
        runs.append({name: x.shape[1] if len(x.shape) > 1 else 0 for name, x in held[0].items()})
    if rows is not None:
        names = [str(name).encode() for name in rows.ids]
        lengths = np.array([len(name) for name in names], dtype=np.int64)
        blob = np.frombuffer(b"".join(names), dtype=np.uint8)
        ledger: list[Array] = [rows.index, rows.digests, blob, lengths]
        arrays |= dict(zip(_LEDGER, [Stack([a]) for a in ledger], strict=True))
    return runs, arrays


def from_arrays(runs: Sequence[Mapping[str, int]], arrays: Mapping[str, Array], form: str | None) -> Stored:
    """The rows that :func:`as_arrays` wrote. What they mean is not looked at.

    Args:
        runs: Of each run the columns of each field.
        arrays: The arrays.
        form: What kind of prediction the rows are; None where there are none.

    Raises:
        DataError: If they do not fit together.
    """
    try:
        chunks = list(_chunks(runs, arrays))
        rows = None if form is None else _rows(arrays, form)
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"its rows do not fit together: {error}", hint="The file is forged; write it anew.") from error
    ids = np.concatenate([index.numpy() for index, _ in chunks]) if chunks else np.zeros(0, dtype=np.int64)
    if not np.array_equal(np.unique(ids), np.unique(rows.index) if rows is not None else ids[:0]):
        raise DataError("its rows are not those that it names", hint="The file is forged; write it anew.")
    return Stored(chunks, rows)


def _chunks(
    runs: Sequence[Mapping[str, int]], arrays: Mapping[str, Array]
) -> Iterator[tuple[Tensor, dict[str, Tensor | SparseRows]]]:
    for number, widths in enumerate(runs):
        fields: dict[str, Tensor | SparseRows] = {}
        for name, width in widths.items():
            where = f"{number}.{name}"
            if where in arrays:
                fields[name] = torch.from_numpy(arrays[where])
            else:
                values, columns, lengths = (torch.from_numpy(arrays[f"{where}.{part}"]) for part in _PARTS)
                fields[name] = SparseRows(values, columns, lengths, width)
        index = fields.pop("index")
        if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.dim() != 1:
            raise ValueError("row ids must be integers of 64 bits")
        yield index, fields


def _rows(arrays: Mapping[str, Array], form: str) -> Rows:
    index, digests, blob, lengths = (arrays[name] for name in _LEDGER)
    if any(a.ndim != 1 or a.dtype != np.int64 for a in (index, digests, lengths)) or blob.dtype != np.uint8:
        raise ValueError("row names must be UTF-8 with lengths of 64 bits")
    if not len(index) == len(digests) == len(lengths):
        raise ValueError(f"{len(index)} row ids, {len(digests)} digests and {len(lengths)} names")
    if (lengths < 0).any() or (lengths > blob.size).any() or int(lengths.sum()) != blob.size:
        raise ValueError("row names are not as long as they say")
    text, ends = blob.tobytes(), np.cumsum(lengths)
    names = [text[end - n : end].decode() for end, n in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return Rows(np.array([*names, None], dtype=object)[:-1], index, digests, form)


def _layout(chunk: Chunk) -> tuple[Any, ...]:
    return tuple((name, isinstance(x, SparseRows), x.dtype) for name, x in chunk.items())


def _array(values: Tensor | SparseRows) -> Array:
    if isinstance(values, SparseRows):
        raise TypeError("chunks of one layout are all sparse, or all dense")
    array: Array = values.detach().cpu().numpy()
    return array
