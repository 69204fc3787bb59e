"""What a metric declares about its inputs, and the one place where inputs are checked against it.

A checked chunk is ready to be kept: detached, contiguous, of a kept dtype, owned by the buffer. Nothing is stored here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.rows import SparseRows

_EXACT_FLOAT32 = 1 << 24
_EXACT_FLOAT64 = 1 << 53
_SCAN_ELEMENTS = 1 << 22
_INTEGERS = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip

Chunk = dict[str, Tensor | SparseRows]


@dataclass(frozen=True, slots=True)
class Field:
    """One input of a metric, given for every row.

    Attributes:
        name: The name under which ``score`` finds it.
        kind: ``"real"`` values are kept as float32 or float64, ``"integer"`` ones as int64.
        width: ``"scalar"`` is one value a row ``[n]``, ``"row"`` a short dense vector ``[n, w]``, ``"rows"`` a long
            vector ``[n, w]`` that may come dense or sparse.
        optional: Whether it may be left out, in all updates alike.
    """

    name: str
    kind: Literal["real", "integer"]
    width: Literal["scalar", "row", "rows"]
    optional: bool = False


def check_chunk(
    fields: tuple[Field, ...],
    given: Mapping[str, Tensor | SparseRows | None],
    *,
    device: torch.device,
    owned: bool,
) -> Chunk:
    """Check one update's inputs and make them the buffer's own.

    Args:
        fields: What is declared, the index among it.
        given: Values by field name; None is the same as leaving the field out.
        device: Where the rows are kept.
        owned: Whether the tensors already belong to the buffer, which may then write to them; else they are copied.

    Returns:
        The kept values by field name, in the order of the declaration.

    Raises:
        InputError: If a field is unknown or missing, or has the wrong type, shape, dtype or content.
    """
    known = {f.name: f for f in fields}
    present = {name: value for name, value in given.items() if value is not None}
    for name in present:
        if name not in known:
            raise InputError(f"unknown field {name!r}", hint=f"The fields are {', '.join(known)}.")
    for field in fields:
        if not field.optional and field.name not in present:
            raise InputError(f"field {field.name!r} is missing")
    chunk: Chunk = {n: _checked(known[n], present[n], device, owned) for n in known if n in present}
    sizes = {name: value.shape[0] for name, value in chunk.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"all inputs need the same number of rows, not {_listed(sizes)}")
    return chunk


def _checked(field: Field, value: object, device: torch.device, owned: bool) -> Tensor | SparseRows:
    name = field.name
    if isinstance(value, Tensor) and value.layout == torch.sparse_csr:
        value = SparseRows.from_csr(value)
    if isinstance(value, SparseRows):
        if field.width != "rows" or field.kind != "real":
            raise InputError(f"{name} cannot be sparse")
        return _sparse(name, value, device, owned)
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        raise InputError(f"{name} must be a dense tensor" + (" or SparseRows" if field.width == "rows" else ""))
    dims = 1 if field.width == "scalar" else 2
    if value.dim() != dims or (dims == 2 and value.shape[1] == 0):
        raise InputError(f"{name} must have shape {'[n]' if dims == 1 else '[n, w], w > 0,'} not {list(value.shape)}")
    if field.kind == "integer":
        if value.dtype not in (*_INTEGERS, torch.bool):
            raise InputError(f"{name} must hold integers, not {value.dtype}")
        return _own(value, torch.int64, device, owned)
    kept = _own(value, _real_dtype(name, value), device, owned)
    return _clean(name, kept)


def _sparse(name: str, value: SparseRows, device: torch.device, owned: bool) -> SparseRows:
    if value.n_columns <= 0:
        raise InputError(f"{name} must have at least one column")
    rows = value.canonical(name)
    values = _own(rows.values, _real_dtype(name, rows.values), device, owned or rows.values is not value.values)
    columns = _own(rows.columns, torch.int32, device, owned or rows.columns is not value.columns)
    lengths = _own(rows.lengths, torch.int64, device, owned or rows.lengths is not value.lengths)
    bad = _first_non_finite(values)
    if bad is not None:
        row = int(torch.searchsorted(lengths.cumsum(0), bad, right=True))
        raise InputError(f"{name}: row {row}, column {int(columns[bad])} is {float(values[bad])}")
    return SparseRows(values, columns, lengths, rows.n_columns)


def _own(value: Tensor, dtype: torch.dtype, device: torch.device, owned: bool) -> Tensor:
    kept = value.detach().to(device=device, dtype=dtype).contiguous()
    shared = kept.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    return kept.clone() if shared and not owned else kept


def _real_dtype(name: str, value: Tensor) -> torch.dtype:
    """The dtype that keeps the values exactly."""
    if value.dtype in (torch.float32, torch.float64):
        return value.dtype
    if value.dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    if value.dtype not in _INTEGERS:
        raise InputError(f"{name} must hold real numbers, not {value.dtype}")
    largest = 0
    for part in _scan(value):
        low, high = torch.aminmax(part.to(torch.int64))
        largest = max(largest, -int(low), int(high))
    if largest > _EXACT_FLOAT64:
        raise InputError(f"{name} holds {largest}, which float64 cannot represent exactly")
    return torch.float32 if largest <= _EXACT_FLOAT32 else torch.float64


def _clean(name: str, x: Tensor) -> Tensor:
    """Refuse values that are not finite, and turn -0.0 into 0.0 in place: sparse rows cannot tell them apart."""
    bad = _first_non_finite(x)
    if bad is not None:
        where = f"row {bad}" if x.dim() == 1 else f"row {bad // x.shape[1]}, column {bad % x.shape[1]}"
        raise InputError(f"{name}: {where} is {float(x.flatten()[bad])}")
    bits = torch.int32 if x.dtype == torch.float32 else torch.int64
    for part in _scan(x):
        if int(part.view(bits).min()) == torch.iinfo(bits).min:  # the bits of -0.0
            part.add_(0.0)
    return x


def _first_non_finite(x: Tensor) -> int | None:
    """The flat position of the first NaN or infinity of a contiguous tensor."""
    start = 0
    for part in _scan(x):
        if not all(bool(torch.isfinite(v)) for v in torch.aminmax(part)):
            return start + int((~torch.isfinite(part)).nonzero()[0])
        start += part.numel()
    return None


def _scan(x: Tensor) -> tuple[Tensor, ...]:
    return torch.split(x.reshape(-1), _SCAN_ELEMENTS) if x.numel() else ()


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {size}" for name, size in sizes.items())
