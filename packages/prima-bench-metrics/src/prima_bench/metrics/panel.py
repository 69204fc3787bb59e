"""Several metrics over one buffer: rows are kept, exchanged and sorted once, and derived quantities are shared."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from prima_bench.metrics.base import BufferedMetric, Score
from prima_bench.metrics.batch import Batch
from prima_bench.metrics.buffer import RowBuffer
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.fields import Field
from prima_bench.metrics.rows import SparseRows


class Panel(RowBuffer):
    """Metrics by name that read one buffer over the union of their fields.

    Args:
        metrics: The metrics; they lend their ``score`` and their fields, and hold no rows themselves.
        kwargs: The keyword arguments of :class:`torchmetrics.Metric`.

    Raises:
        InputError: If there are no metrics, or two of them declare one field differently.
    """

    is_differentiable = False
    higher_is_better = None

    def __init__(self, metrics: Mapping[str, BufferedMetric], **kwargs: Any) -> None:
        super().__init__(_union(metrics), **kwargs)
        self._members = dict(metrics)
        self._scores: dict[str, Score] | None = None

    def update(self, index: Tensor | None = None, **fields: Tensor | SparseRows | None) -> None:
        """Add rows, copied.

        Args:
            index: Their ids, integer ``[n]``; None numbers them as they come, in one process only.
            fields: The metrics' fields by name, as declared in their ``fields``.
        """
        self._append(fields, index)

    def extend(self, chunks: Iterable[tuple[Tensor | None, Mapping[str, Tensor | SparseRows | None]]]) -> None:
        """Add chunks of rows without copying: all of them, or none when one is refused.

        Args:
            chunks: Pairs of index and fields. The panel takes the tensors over; they must not be written to again.
        """
        self._append_all(list(chunks), owned=True)
        self._computed = None
        self._update_count += 1

    def score_all(self, batch: Batch) -> dict[str, Score]:
        """Every metric's score of one batch."""
        if not batch.n:
            return {name: Score(None, "no rows were given") for name in self._members}
        return {name: metric.score(batch) for name, metric in self._members.items()}

    def compute(self) -> dict[str, Tensor]:
        """Every metric's value as a 0-d float64 tensor, NaN where undefined."""
        self._scores = self.score_all(self._batch())
        values = {name: float("nan") if s.value is None else s.value for name, s in self._scores.items()}
        return {name: torch.tensor(v, dtype=torch.float64, device=self.device) for name, v in values.items()}

    def results(self) -> dict[str, Score]:
        """Every metric's whole score."""
        self.compute()
        return dict(self._scores or {})


def _union(metrics: Mapping[str, BufferedMetric]) -> tuple[Field, ...]:
    if not metrics:
        raise InputError("a panel needs at least one metric")
    fields: dict[str, Field] = {}
    for name, metric in metrics.items():
        for field in metric.fields:
            known = fields.setdefault(field.name, field)
            if (known.kind, known.width) != (field.kind, field.width):
                raise InputError(f"metric {name} declares {field.name} as {field.kind} {field.width}, others differ")
            if known.optional and not field.optional:
                fields[field.name] = field
    return tuple(fields.values())
