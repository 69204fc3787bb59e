"""Metrics that compare pseudobulks: all perturbations at once, or one at a time.

The pseudobulks themselves are formed in ``pseudobulk`` and shared by a panel; the formulas are in the metrics' files.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation.base import PerturbationMetric, too_large_error
from prima_bench.metrics.perturbation.profiles.predicted import predicted_profiles
from prima_bench.metrics.perturbation.pseudobulk import LARGEST_TARGET_SUM, others_mean, too_large
from prima_bench.metrics.perturbation.reference import PerturbationReference, check_target_sum

_BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True, slots=True)
class Rows:
    """Some perturbations with what they are compared to, all float64.

    Attributes:
        pred: Predicted pseudobulks ``[rows, genes]``.
        true: True pseudobulks ``[rows, genes]``.
        origin: What effects are measured from, ``[genes]`` or ``[rows, genes]``.
        pred_origin: The same for predicted effects.
        keep: The genes that are compared, boolean ``[genes]`` or ``[rows, genes]``; None for all.
    """

    pred: Tensor
    true: Tensor
    origin: Tensor
    pred_origin: Tensor
    keep: Tensor | None


class ProfileMetric(PerturbationMetric):
    """A perturbation metric whose formula reads pseudobulks.

    Args:
        *args: As in ``PerturbationMetric``.
        target_sum: For counts, the total that pseudobulks are scaled to; 0 for the solution's median group total.
        **kwargs: As in ``PerturbationMetric``.

    Raises:
        InputError: If an argument is wrong, or has no meaning beside the others.
    """

    origin: ClassVar[Literal["none", "control", "others"]] = "control"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.needs_control = cls.origin == "control"
        cls.needs_others = cls.needs_others or cls.origin == "others"

    def __init__(self, *args: Any, target_sum: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.target_sum = float(target_sum)
        if self.target_sum and not 1 / LARGEST_TARGET_SUM <= self.target_sum <= LARGEST_TARGET_SUM:
            raise InputError(
                f"target_sum cannot be {self.target_sum}",
                hint=f"Give a total of at most {LARGEST_TARGET_SUM:g}, such as 10000, or 0 for the solution's own.",
            )
        check_target_sum(self.target_sum, self.scale)

    def unit_values(
        self, batch: Batch, reference: PerturbationReference, chosen: Tensor
    ) -> tuple[Tensor, Mapping[int, str]]:
        """The values of the perturbations that have true cells."""
        return self._defined(self.rows(batch, reference, chosen), chosen), {}

    def rows(self, batch: Batch, reference: PerturbationReference, chosen: Tensor) -> Rows:
        """The pseudobulks of some perturbations, and what they are compared to.

        Raises:
            ProfileError: If a predicted pseudobulk is too large to be scored.
        """
        pred = self._predicted(batch, reference)
        true = reference.profiles(self.target_sum).to(pred.device)
        keep = self.kept_genes(reference)
        keep = None if keep is None else keep.to(pred.device)
        return Rows(
            pred=_chosen(pred[1:], chosen),
            true=_chosen(true[1:], chosen),
            origin=true[0],
            pred_origin=pred[0] if self.uses_predicted_control else true[0],
            keep=keep if keep is None or keep.dim() == 1 else _chosen(keep, chosen),
        )

    @abstractmethod
    def values(self, rows: Rows) -> Tensor:
        """The value of each perturbation, NaN where undefined.

        Args:
            rows: All perturbations that have true cells.

        Returns:
            float64 ``[rows]``.
        """

    @abstractmethod
    def undefined(self, rows: Rows, positions: Tensor) -> Tensor:
        """Whether the solution leaves some perturbations without a value; what was predicted has no say in it.

        Args:
            rows: As in :meth:`values`.
            positions: The perturbations asked for, as rows of ``rows``, int64 ``[k]``.

        Returns:
            Boolean ``[k]``.
        """

    def _defined(self, rows: Rows, chosen: Tensor) -> Tensor:
        """The values, NaN only where the solution alone leaves them undefined."""
        values = self.values(rows)
        odd = (~values.isfinite()).nonzero().flatten()
        if len(odd):
            undefined = self.undefined(rows, odd)
            if not bool(undefined.all()):
                raise too_large_error((1 + chosen[odd[~undefined]]).tolist())
            values[odd] = torch.nan
        return values

    def _predicted(self, batch: Batch, reference: PerturbationReference) -> Tensor:
        pred, cells = predicted_profiles(batch, reference, self.target_sum)
        large = batch.memo(("perturbation overflow", reference, self.target_sum), lambda: too_large(pred))
        needed = reference.cells_per_group.to(cells.device) > 0
        needed[0] = needed[0] & self.uses_predicted_control
        if wrong := (needed & large).nonzero().flatten().tolist():
            raise too_large_error(wrong)
        return pred


class RowwiseMetric(ProfileMetric):
    """A pseudobulk metric whose value for one perturbation needs no other prediction.

    Where ``origin`` is ``"others"``, effects are measured from the mean of the other perturbations' true pseudobulks,
    or, without ``leave_one_out``, of all of them.
    """

    leave_one_out: bool = True

    def values(self, rows: Rows) -> Tensor:
        """The value of each perturbation, computed a few perturbations at a time to bound memory."""
        n, genes = rows.true.shape
        total = tree_sum(rows.true, dim=0) if self.origin == "others" else None
        step = max(1, _BLOCK_ELEMENTS // genes)
        return torch.cat([self.row_values(self._block(rows, slice(i, i + step), total)) for i in range(0, n, step)])

    def undefined(self, rows: Rows, positions: Tensor) -> Tensor:
        """Whether even the truth itself, as the prediction, would have no value."""
        truth = replace(rows, pred=rows.true, pred_origin=rows.origin)
        total = tree_sum(rows.true, dim=0) if self.origin == "others" else None
        parts = torch.split(positions, max(1, _BLOCK_ELEMENTS // rows.true.shape[1]))
        return torch.cat([self.row_values(self._block(truth, part, total)).isnan() for part in parts])

    @abstractmethod
    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations, NaN where undefined; ``keep`` is given for each row."""

    def _block(self, rows: Rows, part: slice | Tensor, total: Tensor | None) -> Rows:
        pred, true, origin, keep = rows.pred[part], rows.true[part], rows.origin, rows.keep
        if total is not None:
            n = rows.true.shape[0]
            origin = others_mean(total, true, n) if self.leave_one_out else (total / n).expand_as(true)
        if keep is not None:
            keep = keep.expand_as(true) if keep.dim() == 1 else keep[part]
        return Rows(pred, true, origin, origin if total is not None else rows.pred_origin, keep)


def _chosen(x: Tensor, chosen: Tensor) -> Tensor:
    return x if len(chosen) == len(x) else x[chosen]
