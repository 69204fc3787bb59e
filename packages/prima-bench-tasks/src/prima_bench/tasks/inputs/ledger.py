"""What this process was handed so far: which row ids, and a digest of what each held.

It refuses contradictions at the update that brings them, before anything is stored. Contradictions between ranks are
found by the kernel, which compares the rows themselves.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse

from prima_bench.tasks.errors import PredictionError, counted, first_few
from prima_bench.tasks.inputs.ids import Ids

Int64 = npt.NDArray[np.int64]

_SEED = 6025
_BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one update.

    Attributes:
        ids: Their names, [n].
        index: Their row ids in the kernel, int64 [n].
        digests: A digest of each row's content, int64 [n]: rows whose digests differ are different.
        form: What kind of prediction they are (``"labels"``, ``"scores"``, ``"cells"``).
    """

    ids: Ids
    index: Int64
    digests: Int64
    form: str


class Ledger:
    """All rows taken so far.

    Args:
        hint: How to mend a contradiction; depends on what makes up a row's identity.

    Attributes:
        form: What kind of prediction they are; None before the first update.
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._index: Int64 = np.zeros(0, dtype=np.int64)
        self._digests: Int64 = np.zeros(0, dtype=np.int64)
        self._names: list[tuple[Int64, Ids]] = []
        self.form: str | None = None

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Undo what was remembered within when an error, or an interrupt, leaves it."""
        before = self._index, self._digests, list(self._names), self.form
        try:
            yield
        except BaseException:
            self._index, self._digests, self._names, self.form = before
            raise

    def check_form(self, form: str) -> None:
        """Compare the kind of an update's predictions with that of earlier ones.

        Raises:
            PredictionError: If it changed.
        """
        if self.form not in (None, form):
            raise PredictionError(
                f"this update gives {form}, earlier ones gave {self.form}",
                hint="Give all predictions of a run in one form.",
            )

    def check(self, rows: Rows) -> None:
        """Compare an update with itself and with what came before; nothing is remembered.

        Raises:
            PredictionError: If one name has two contents, or the kind of prediction changed.
        """
        self.check_form(rows.form)
        order = np.argsort(rows.index, kind="stable")
        index, digests = rows.index[order], rows.digests[order]
        # Against the first row of the same id within the update, then against the ledger.
        first = np.searchsorted(index, index, side="left")
        clash = digests != digests[first]
        if len(self._index):
            at = np.minimum(np.searchsorted(self._index, index), len(self._index) - 1)
            clash |= (self._index[at] == index) & (self._digests[at] != digests)
        if clash.any():
            names = list(dict.fromkeys(rows.ids[np.sort(order[clash])]))
            raise PredictionError(
                f"{counted(len(names), 'row')} came more than once with different content: {first_few(names)}",
                hint=self._hint,
            )

    def add(self, rows: Rows) -> None:
        """Remember an update that was checked and stored."""
        index, where = np.unique(np.concatenate([self._index, rows.index]), return_index=True)
        self._digests = np.concatenate([self._digests, rows.digests])[where]
        self._index = index
        self._names.append((rows.index, rows.ids))
        self.form = rows.form

    @property
    def held(self) -> Rows | None:
        """All rows taken so far, repeated ones included; None before the first update."""
        if self.form is None:
            return None
        index = np.concatenate([held for held, _ in self._names])
        ids = np.concatenate([names for _, names in self._names])
        return Rows(ids, index, self._digests[np.searchsorted(self._index, index)], self.form)

    def names_of(self, index: Any) -> list[str]:
        """The names of rows by their row ids; those that another rank handed in have none here."""
        found = {int(i): str(name) for held, names in self._names for i, name in zip(held, names, strict=True)}
        return [found.get(int(i), f"row {int(i)} of another rank") for i in index]


class RowDigest:
    """Digests rows of numbers: equal rows have equal digests, dense or sparse, float32 or float64.

    Each value's bits are multiplied by an odd constant of its column and summed modulo 2^64, so two rows that differ
    in one value always have different digests; a collision of others is as likely as a random 64-bit one.

    Args:
        width: Number of columns.
    """

    def __init__(self, width: int) -> None:
        random = np.random.Generator(np.random.PCG64(_SEED))
        self._factors: Int64 = random.integers(-(2**62), 2**62, size=width, dtype=np.int64) * 2 + 1

    def __call__(self, block: Any) -> Int64:
        """The digest of each row.

        Args:
            block: Float, dense [k, width] or canonical CSR.
        """
        n = block.shape[0]
        out = np.zeros(n, dtype=np.int64)
        per_row = block.nnz / max(n, 1) if issparse(block) else block.shape[1]
        step = max(1, int(_BLOCK_ELEMENTS // max(per_row, 1)))
        for start in range(0, n, step):
            part = slice(start, min(start + step, n))
            out[part] = self._sparse(block, part) if issparse(block) else _bits(block[part]) @ self._factors
        return out

    def _sparse(self, block: Any, rows: slice) -> Int64:
        indptr = block.indptr[rows.start : rows.stop + 1]
        values = slice(indptr[0], indptr[-1])
        running = np.zeros(indptr[-1] - indptr[0] + 1, dtype=np.int64)
        np.cumsum(_bits(block.data[values]) * self._factors[block.indices[values]], out=running[1:])
        return np.asarray(np.diff(running[indptr - indptr[0]]))


def _bits(values: npt.NDArray[Any]) -> Int64:
    """The bits of each value as float64; the upper half is mixed into the lower, which counts would leave zero."""
    bits = (values.astype(np.float64) + 0.0).view(np.uint64)
    bits ^= bits >> np.uint64(32)
    return bits.view(np.int64)
