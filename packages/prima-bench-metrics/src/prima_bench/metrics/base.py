"""The base class of all metrics."""

from abc import abstractmethod
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
            >>> s.value, dict(s.undefined)
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


class BufferedMetric(RowBuffer):
    """A metric that buffers raw rows and scores them all in ``compute``."""

    fields: ClassVar[tuple[Field, ...]]
    is_differentiable = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(self.fields, **kwargs)
        self._score: Score | None = None

    @abstractmethod
    def score(self, batch: Batch) -> Score:
        """The score of a batch, as a pure function of it."""

    def compute(self) -> Tensor:
        """The score as a 0-d float64 tensor; NaN where :meth:`result` says why it is undefined."""
        batch = self._batch()
        self._score = self.score(batch) if batch.n else Score(None, "no rows were given")
        value = self._score.value
        return torch.tensor(float("nan") if value is None else value, dtype=torch.float64, device=self.device)

    def result(self) -> Score:
        """The whole score: value or reason, and the units."""
        self.compute()
        if self._score is None:
            raise RuntimeError("compute was replaced by one that keeps no score")
        return self._score
