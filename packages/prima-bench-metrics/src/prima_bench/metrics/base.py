"""The base class of all metrics, and the recipe for a new one.

A metric here is dual-mode: it buffers **raw** rows in torchmetrics states and does all its math in ``compute``. So one
process may hold all rows, or many may each hold some and let the states be gathered: the same rows give the same bits,
whatever their order, sharding, number of ranks or number of threads.

The recipe:

1. Declare in ``fields`` what is given for every row. Nothing is averaged, thresholded or normalised on the way in.
2. In ``update``, hand the rows to ``_append`` with ``index``, each row's id in the dataset. The base class checks,
   copies and keeps them, or refuses them all.
3. In ``score``, compute from the batch, which holds every row once, ascending by id. Reduce rows with the functions
   of :mod:`prima_bench.metrics.numerics` (plain ``sum``, ``mean`` or a matrix product depend on threads and layout);
   put what other metrics also need into ``batch.memo``. ``score`` is pure: it reads the batch and the metric's
   parameters alone.
4. A value that does not exist is None with a reason, never 0: return ``Score(None, "...")``, or NaN units with
   reasons.
5. Add ``SPECS`` beside the class, and the metric is listed, documented and offered (see
   :mod:`prima_bench.metrics.catalog`).

>>> import torch
>>> from prima_bench.metrics.numerics import tree_mean
>>> class MeanGap(BufferedMetric):
...     '''The mean absolute difference of two numbers per row.'''
...
...     fields = (Field("guess", "real", "scalar"), Field("truth", "real", "scalar"))
...     higher_is_better = False
...
...     def update(self, preds, target, index=None):
...         self._append({"guess": preds, "truth": target}, index)
...
...     def score(self, batch):
...         gap = batch.tensor("guess").double() - batch.tensor("truth").double()
...         return Score(float(tree_mean(gap.abs())))

In one update, or in shards, shuffled, with a row that came twice:

>>> guess, truth = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 1.0, 1.0])
>>> whole, shards = MeanGap(), MeanGap()
>>> whole.update(guess, truth)
>>> for rows in ([2, 0], [1, 2]):
...     shards.update(guess[rows], truth[rows], index=torch.tensor(rows))
>>> whole.compute() == shards.compute()
tensor(True)
>>> whole.result().value
1.3333333333333333
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from prima_bench.metrics.batch import Batch
from prima_bench.metrics.buffer import RowBuffer
from prima_bench.metrics.fields import Field
from prima_bench.metrics.numerics import tree_mean
from prima_bench.metrics.rows import RowMatrix, SparseRows
from prima_bench.metrics.threads import one_thread

__all__ = ["Batch", "BufferedMetric", "Field", "RowMatrix", "Score", "SparseRows"]


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """What a metric says: a value, or why there is none, and the values of the units.

    Attributes:
        value: The score; None when it is undefined.
        reason: Why the value is undefined; None when it is not.
        units: Value of each unit (perturbation, class), float64 ``[U]``, NaN where undefined; None for global metrics.
        undefined: Why each undefined unit is, by its position in ``units``.
    """

    value: float | None
    reason: str | None = None
    units: Tensor | None = None
    undefined: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def from_units(cls, units: Tensor, undefined: Mapping[int, str] | None = None) -> Self:
        """The mean over the defined units.

        Args:
            units: Value of each unit, ``[U]``, NaN where undefined.
            undefined: Why each undefined unit is, by its position.

        Raises:
            ValueError: If a unit is NaN without a reason, or has a reason and a value.

        Example:
            >>> s = Score.from_units(torch.tensor([1.0, float("nan"), 0.5]), {1: "constant solution effect"})
            >>> s.value, s.undefined
            (0.75, {1: 'constant solution effect'})
        """
        units = units.detach().to(device="cpu", dtype=torch.float64)
        reasons = dict(sorted((undefined or {}).items()))
        missing = units.isnan().nonzero().flatten().tolist()
        if missing != list(reasons):
            raise ValueError(f"units {missing} are NaN and units {list(reasons)} have a reason")
        defined = units[~units.isnan()]
        if not len(defined):
            return cls(None, next(iter(reasons.values()), "there are no units"), units, reasons)
        return cls(float(tree_mean(defined)), None, units, reasons)


class BufferedMetric(RowBuffer, ABC):
    """A metric that buffers raw rows and scores them all in ``compute``.

    Subclasses declare ``fields`` and ``higher_is_better`` and write ``update`` and :meth:`score`; the module's
    docstring holds the recipe.

    Rows are part of ``state_dict``, so that a run goes on from a checkpoint; ``metric.persistent(False)`` keeps them
    out. Several metrics of the same inputs belong in a :class:`~prima_bench.metrics.panel.Panel`, which holds and
    exchanges the rows once. A torchmetrics ``MetricCollection`` works too, but holds them once per metric, unless it
    finds two metrics alike after their first batch: give it ``compute_groups=False`` where that could be chance.

    Args:
        kwargs: The keyword arguments of :class:`torchmetrics.Metric`.
    """

    fields: ClassVar[tuple[Field, ...]]
    is_differentiable = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(self.fields, **kwargs)
        self._score: Score | None = None

    @abstractmethod
    def score(self, batch: Batch) -> Score:
        """The score of a batch of at least one row, as a pure function of it."""

    def compute(self) -> Tensor:
        """The score as a 0-d float64 tensor; NaN where :meth:`result` says why it is undefined.

        Raises:
            ConflictingRowsError: If an id came with two contents.
            SyncError: If the ranks of a process group disagree about what they buffer.
        """
        self._score = score_of(self, self._batch())
        return as_tensor(self._score, self.device)

    def result(self) -> Score:
        """The whole score: value or reason, and the units. It raises what :meth:`compute` raises."""
        self.compute()
        if self._score is None:
            raise RuntimeError("compute was replaced by one that keeps no score")
        return self._score


def score_of(metric: BufferedMetric, batch: Batch) -> Score:
    """A metric's score of a batch that may be empty."""
    if not batch.n:
        return Score(None, "no rows were given")
    with one_thread():
        return metric.score(batch)


def as_tensor(score: Score, device: torch.device) -> Tensor:
    """A score's value for loggers: 0-d float64, NaN where undefined."""
    return torch.tensor(float("nan") if score.value is None else score.value, dtype=torch.float64, device=device)
