"""Small metrics and data with which the kernel is tested apart from the real metrics.

Loaded by path (``runpy``), by the tests and by the processes that ``test_sync.py`` starts.
"""

import hashlib

import numpy as np
import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, BufferedMetric, Field, Score
from prima_bench.metrics.numerics import group_sums, tree_mean, tree_sum
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.rows import SparseRows

N_GROUPS = 3


class GroupMeans(BufferedMetric):
    """The mean over columns of each group's mean row; a unit is a group."""

    fields = (Field("x", "real", "rows"), Field("group", "integer", "scalar"))
    higher_is_better = True

    def update(self, x, group, index=None):
        self._append({"x": x, "group": group}, index)

    def score(self, batch: Batch) -> Score:
        sums = batch.memo("group sums", lambda: group_sums(batch.rows("x"), batch.tensor("group"), N_GROUPS))
        counts = torch.bincount(batch.tensor("group"), minlength=N_GROUPS)
        units = tree_mean(sums, dim=1) / counts
        return Score.from_units(units, {g: "no rows" for g in range(N_GROUPS) if not counts[g]})


class WeightedFirst(BufferedMetric):
    """A weighted mean of the first column over a dense vector of extras, summed."""

    fields = (
        Field("x", "real", "rows"),
        Field("weight", "real", "scalar"),
        Field("extra", "real", "row", optional=True),
    )
    higher_is_better = True

    def update(self, x, weight, extra=None, index=None):
        self._append({"x": x, "weight": weight, "extra": extra}, index)

    def score(self, batch: Batch) -> Score:
        weight = batch.tensor("weight").double()
        first = batch.rows("x").take(torch.arange(batch.n))[:, 0].double()
        value = float(tree_sum(first * weight) / tree_sum(weight.abs()))
        if "extra" in batch:
            value += float(tree_sum(tree_sum(batch.tensor("extra"))))
        return Score(value)


class Correlation(BufferedMetric):
    """One correlation over all rows: undefined when a side is constant."""

    fields = (Field("a", "real", "scalar"), Field("b", "real", "scalar"))
    higher_is_better = True

    def update(self, preds, target, index=None):
        self._append({"a": preds, "b": target}, index)

    def score(self, batch: Batch) -> Score:
        a, b = (batch.tensor(name).double() for name in "ab")
        a, b = a - tree_mean(a), b - tree_mean(b)
        scale = float(tree_sum(a * a) * tree_sum(b * b)) ** 0.5
        return Score(float(tree_sum(a * b)) / scale) if scale else Score(None, "one side is constant")


def panel(**kwargs) -> Panel:
    return Panel({"means": GroupMeans(), "first": WeightedFirst()}, **kwargs)


def data(n: int, width: int, seed: int, density: float = 0.5) -> dict[str, Tensor]:
    """Rows whose values span nine decades, so that any change of the order of a sum shows."""
    rng = np.random.default_rng(seed)
    spread = lambda *shape: rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-4.5, 4.5, shape)  # noqa: E731
    x = spread(n, width) * (rng.random((n, width)) < density)
    return {
        "x": torch.from_numpy(x).float(),
        "group": torch.from_numpy(rng.integers(0, N_GROUPS, n)),
        "weight": torch.from_numpy(spread(n)),
        "extra": torch.from_numpy(spread(n, 2)).float(),
    }


def some(rows: Tensor, fields: dict[str, Tensor], layout: str = "dense") -> dict[str, Tensor | SparseRows]:
    """Some rows, with the matrix in one of the layouts that hold the same values."""
    part: dict[str, Tensor | SparseRows] = {name: value[rows] for name, value in fields.items()}
    x = fields["x"][rows]
    part["x"] = {
        "dense": x,
        "double": x.double(),
        "transposed": x.t().contiguous().t(),
        "sparse": SparseRows.from_dense(x),
        "sparse double": SparseRows.from_dense(x.double()),
    }[layout]
    return part


LAYOUTS = ("dense", "double", "transposed", "sparse", "sparse double")


def digest(scores: dict[str, Score]) -> str:
    """A digest of every bit of every score."""
    h = hashlib.sha256()
    for name, score in sorted(scores.items()):
        h.update(f"{name} {score.value!r} {score.reason} {dict(score.undefined)}".encode())
        if score.units is not None:
            h.update(score.units.numpy().tobytes())
    return h.hexdigest()
