"""Reads a table of cells block by block: aligned to the gene space, checked, and ready for the kernel."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from prima_bench.metrics.rows import SparseRows
from prima_bench.tasks.inputs.cells import CellTable
from prima_bench.tasks.inputs.genes import GeneSpace
from prima_bench.tasks.inputs.ledger import Int64
from prima_bench.tasks.inputs.scale import ScaleCheck

_HASH_ROWS = 256


def blocks(
    table: CellTable, genes: GeneSpace, check: ScaleCheck, keep: npt.NDArray[np.bool_] | None = None
) -> Iterator[tuple[Int64, Any]]:
    """A table's rows in the solution's gene order, each block checked.

    Args:
        table: The cells.
        genes: The gene space.
        check: The declared scale.
        keep: Which rows to read, bool [n]; None for all.

    Yields:
        Row numbers, int64 [k], and expression, dense [k, genes] or CSR, which nobody else holds.

    Raises:
        PrimaBenchError: If genes or values are wrong, naming the first few cells.
    """
    order = genes.order_of(table.genes, table.matrix.shape[1])
    for rows, block in table.matrix.blocks(order, keep):
        check.check(block, table.ids[rows], genes.genes)
        yield rows, block


def to_kernel(block: Any, device: torch.device) -> Tensor | SparseRows:
    """A block as the kernel takes it; dense shares the block's memory."""
    if isinstance(block, np.ndarray):
        return torch.from_numpy(block).to(device)
    return _sparse(block.data, block.indices.astype(np.int32, copy=False), _lengths(block), block.shape[1], device)


def _sparse(values: Any, columns: Any, lengths: Any, width: int, device: torch.device) -> SparseRows:
    values, columns, lengths = (torch.from_numpy(array).to(device) for array in (values, columns, lengths))
    return SparseRows(values, columns, lengths, width)


def joined(parts: list[Any], device: torch.device) -> Tensor | SparseRows:
    """Blocks as one matrix; each block is let go as soon as it is copied."""
    if len(parts) == 1:
        return to_kernel(parts.pop(), device)
    width, n = parts[0].shape[1], sum(part.shape[0] for part in parts)
    if isinstance(parts[0], np.ndarray):
        whole = np.empty((n, width), dtype=np.result_type(*parts))
        for part, start in _from_the_last(parts, len):
            whole[start : start + len(part)] = part
        return torch.from_numpy(whole).to(device)
    lengths = np.concatenate([_lengths(part) for part in parts])
    values = np.empty(int(lengths.sum()), dtype=np.result_type(*(part.data for part in parts)))
    columns = np.empty(len(values), dtype=np.int32)
    for part, start in _from_the_last(parts, lambda part: len(part.data)):
        values[start : start + len(part.data)] = part.data
        columns[start : start + len(part.data)] = part.indices
    return _sparse(values, columns, lengths, width, device)


def _from_the_last(parts: list[Any], size: Callable[[Any], int]) -> Iterator[tuple[Any, int]]:
    """Take each part out of the list, with the sum of the sizes before it."""
    start = sum(map(size, parts))
    while parts:
        part = parts.pop()
        start -= size(part)
        yield part, start


def _lengths(block: Any) -> Int64:
    lengths: Int64 = np.diff(block.indptr).astype(np.int64)
    return lengths


def row_hashes(block: Any, labels: list[str]) -> list[bytes]:
    """sha256 of each row's label and nonzeros: the same for dense and sparse, float32 and float64.

    Args:
        block: Float, dense [k, genes] or canonical CSR.
        labels: One label for each row.
    """
    hashes = []
    for start in range(0, len(labels), _HASH_ROWS):
        part = sp.csr_matrix(block[start : start + _HASH_ROWS])
        columns, values = part.indices.astype("<i4"), part.data.astype("<f8")
        for row, label in enumerate(labels[start : start + _HASH_ROWS]):
            span = slice(part.indptr[row], part.indptr[row + 1])
            total = hashlib.sha256(f"{label}\0".encode())
            total.update(columns[span].tobytes())
            total.update(values[span].tobytes())
            hashes.append(total.digest())
    return hashes


def ranks(hashes: list[bytes]) -> Int64:
    """Each row's place when rows are sorted by hash, int64 [n]: an order that a file's own cannot change."""
    place = np.empty(len(hashes), dtype=np.int64)
    place[sorted(range(len(hashes)), key=hashes.__getitem__)] = np.arange(len(hashes))
    return place
