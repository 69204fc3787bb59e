"""Several metrics over one buffer: rows are kept, exchanged and sorted once, and derived quantities are shared."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from torch import Tensor

from prima_bench.metrics.base import BufferedMetric, Score, as_tensor, score_of
from prima_bench.metrics.batch import Batch
from prima_bench.metrics.buffer import Given, RowBuffer
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.fields import Field
from prima_bench.metrics.rows import SparseRows


class Panel(RowBuffer):
    """Metrics by name that read one buffer over the union of their fields.

    A metric gives the same bits here as alone. It lends its ``score`` and its parameters; rows that it may hold
    itself play no part.

    Args:
        metrics: The metrics by name.
        kwargs: The keyword arguments of :class:`torchmetrics.Metric`.

    Raises:
        InputError: If there are no metrics, or two of them declare one field differently.

    Example:
        >>> import torch
        >>> from prima_bench.metrics import Accuracy, CohenKappa
        >>> panel = Panel({"accuracy": Accuracy(num_classes=2), "kappa": CohenKappa(num_classes=2)})
        >>> panel.update(target=torch.tensor([0, 1, 1]), label=torch.tensor([0, 1, 0]))
        >>> {name: round(float(value), 3) for name, value in panel.compute().items()}
        {'accuracy': 0.667, 'kappa': 0.4}
    """

    is_differentiable = False
    higher_is_better = None

    def __init__(self, metrics: Mapping[str, BufferedMetric], **kwargs: Any) -> None:
        super().__init__(_union(metrics), **kwargs)
        self._members = dict(metrics)
        self._scores: dict[str, Score] | None = None

    @property
    def metrics(self) -> dict[str, BufferedMetric]:
        """The metrics by name, in order."""
        return dict(self._members)

    def update(self, index: Tensor | None = None, **fields: Tensor | SparseRows | None) -> None:
        """Add rows, copied.

        Args:
            index: Their ids, integer ``[n]``; None numbers them as they come, in one process only.
            fields: The metrics' fields by name, as declared in their ``fields``.

        Raises:
            InputError: If anything about the rows is not as declared, or unlike earlier updates; nothing is added.
        """
        self._append(fields, index)

    def extend(self, chunks: Iterable[tuple[Tensor | None, Given]]) -> None:
        """Add chunks of rows without copying them, one after the other: all, or none when one is refused.

        Args:
            chunks: Pairs of index and fields. The panel takes the tensors over, which must be writable: it turns -0.0
                into 0.0. They must not be written to again.

        Raises:
            InputError: If anything about a chunk is not as declared, or unlike the others; nothing is added.
        """
        self._append_all(chunks, owned=True)
        self._computed = None
        self._update_count += 1

    def score_all(self, batch: Batch) -> dict[str, Score]:
        """Every metric's score of one batch."""
        return {name: score_of(metric, batch) for name, metric in self._members.items()}

    def compute(self) -> dict[str, Tensor]:
        """Every metric's value as a 0-d float64 tensor, NaN where :meth:`results` says why it is undefined.

        Raises:
            ConflictingRowsError: If an id came with two contents.
            SyncError: If the ranks of a process group disagree about what they buffer.
        """
        self._scores = self.score_all(self._batch())
        return {name: as_tensor(score, self.device) for name, score in self._scores.items()}

    def results(self) -> dict[str, Score]:
        """Every metric's whole score. It raises what :meth:`compute` raises."""
        self.compute()
        return dict(self._scores or {})

    def _schema_name(self) -> str:
        members = (f"{name}={m._schema_name()} {m.schema_tag}".rstrip() for name, m in self._members.items())
        return f"{type(self).__name__}({', '.join(members)})"

    def _apply(  # type: ignore[override]
        self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "", recurse: bool = True
    ) -> Self:
        for metric in self._members.values():
            metric._apply(fn)
        return super()._apply(fn, exclude_state, recurse)


def _union(metrics: Mapping[str, BufferedMetric]) -> tuple[Field, ...]:
    """Each field once; it is optional only where every metric that reads it can do without."""
    if not metrics:
        raise InputError("a panel needs at least one metric")
    fields: dict[str, Field] = {}
    for name, metric in metrics.items():
        for field in metric.fields:
            known = fields.setdefault(field.name, field)
            if (known.kind, known.width) != (field.kind, field.width):
                raise InputError(f"{name} reads {field.name} as {field.kind} {field.width}, another metric does not")
            if not field.optional:
                fields[field.name] = field
    return tuple(fields.values())
