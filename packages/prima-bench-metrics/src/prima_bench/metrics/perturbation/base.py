"""What all perturbation metrics share: their inputs, whom they compare with, and how units become a score.

A metric of this folder is a formula over pseudobulks: one row at a time (:class:`RowwiseMetric`), or over all
perturbations at once (:meth:`PerturbationMetric.values`). The formulas are not here, and neither are buffering,
canonical order and exchange between ranks, which ``prima_bench.metrics.base`` owns.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, BufferedMetric, Field, Score, SparseRows
from prima_bench.metrics.errors import InputError, ProfileError
from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation.pseudobulk import (
    LARGEST_TARGET_SUM,
    Scale,
    others_mean,
    predicted_profiles,
    too_large,
)
from prima_bench.metrics.perturbation.reference import (
    ExcludeTargets,
    PerturbationReference,
    check_codes,
    check_scale,
    check_sign,
    listed,
)

ControlSource = Literal["solution", "prediction"]

ABSENT = "no cells of this perturbation in the target"
NO_CONTROL = "no control cells in the target"
NO_GENES = "all genes are excluded"
ALONE = "needs at least two perturbations"

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


class PerturbationMetric(BufferedMetric):
    """A metric of predicted against true responses to perturbations, one row for each predicted cell.

    Without a reference, each update brings the true cells beside the predicted ones, control cells (code 0) included,
    and the truth is made of those; then perturbations that never came are undefined. Targets are known to a reference
    alone: without one no gene is excluded.

    Args:
        reference: The solution.
        num_perturbations: P, where there is no reference.
        scale: What the values are, where there is no reference: ``"log1p_cp10k"`` unless told otherwise.
        control_source: Whose control cells predicted effects are measured from. ``"prediction"`` is there for
            parity with other tools: a model can move its score by editing its control cells.
        exclude_targets: Leave out the ``"own"`` target genes of each perturbation, or those of the whole ``"panel"``.
        target_sum: For counts, the total that pseudobulks are scaled to; 0 for the solution's median group total.
        **kwargs: Passed on to ``torchmetrics.Metric``.

    Raises:
        InputError: If an argument is not one of these, or has no meaning beside the others.
    """

    fields: ClassVar[tuple[Field, ...]] = (
        Field("x", "real", "rows"),
        Field("group", "integer", "scalar"),
        Field("target_x", "real", "rows", optional=True),
    )
    origin: ClassVar[Literal["none", "control", "others"]] = "control"
    degenerate: ClassVar[str] = "constant solution effect"
    default_exclude_targets: ClassVar[ExcludeTargets] = "none"

    def __init__(
        self,
        reference: PerturbationReference | None = None,
        *,
        num_perturbations: int | None = None,
        scale: Scale | None = None,
        control_source: ControlSource = "solution",
        exclude_targets: ExcludeTargets | None = None,
        target_sum: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reference = reference
        self.num_perturbations = _num_perturbations(reference, num_perturbations)
        self.scale: Scale = _scale(reference, scale)
        self.control_source = control_source
        self.exclude_targets: ExcludeTargets = exclude_targets or self.default_exclude_targets
        self.target_sum = float(target_sum)
        self._check_options()
        genes = "" if reference is None else f" x {reference.num_genes} genes"
        self.schema_tag = f"{self.num_perturbations} perturbations{genes}, {self.scale}"

    @property
    def uses_predicted_control(self) -> bool:
        """Whether predicted control cells have a say in the score."""
        return self.control_source == "prediction"

    def update(
        self,
        preds: Tensor | SparseRows,
        target: Tensor | SparseRows | None = None,
        *,
        perturbation: Tensor,
        index: Tensor | None = None,
    ) -> None:
        """Take in a chunk of cells, or none of them if any is wrong.

        Args:
            preds: Predicted expression, real ``[cells, genes]``, dense or sparse.
            target: True expression, of the same shape, where there is no reference.
            perturbation: Code of each cell, integer ``[cells]``: 0 for control, 1 to P for the perturbations.
            index: Ids of the cells, integer ``[cells]``; None numbers them as they come, in one process only.

        Raises:
            InputError: If shapes, dtypes, codes or values do not fit.
        """
        fields = {"x": preds, "group": perturbation, "target_x": target}
        self.check(fields)
        self._append(fields, index)

    def check(self, fields: Mapping[str, Any]) -> None:
        """Refuse a chunk of cells that cannot be scored; what a field's declaration says is checked elsewhere.

        Raises:
            InputError: If codes or widths do not fit, or the true cells are missing or come beside a reference.
        """
        x, group, target = (fields.get(name) for name in ("x", "group", "target_x"))
        if self.reference is None and target is None:
            raise InputError("target is missing", hint="Pass the true cells, or build the metric with a reference.")
        if self.reference is not None and target is not None:
            raise InputError("target was given beside a reference", hint="The truth comes from the reference alone.")
        if isinstance(group, Tensor) and not group.is_floating_point():
            check_codes(group, self.num_perturbations)
        width = self.reference.num_genes if self.reference is not None else getattr(target, "shape", (0, 0))[-1]
        if x is not None and len(x.shape) == 2 and x.shape[1] != width:
            raise InputError(f"predicted cells have {x.shape[1]} genes, the true ones {width}")

    def score(self, batch: Batch) -> Score:
        """The mean over perturbations, with each perturbation's own value.

        Raises:
            ProfileError: If predicted expression is too large to be scored: nothing predicted makes a unit undefined.
            InputError: If a perturbation has no predicted cells, or the cells do not fit.
        """
        reference = self.reference if self.reference is not None else self._paired(batch)
        pred = self._predicted(batch, reference)
        true = reference.profiles(self.target_sum).to(pred.device)
        present = (reference.cells_per_group[1:] > 0).to(pred.device)
        units = torch.full((self.num_perturbations,), torch.nan, dtype=torch.float64, device=pred.device)
        reasons = dict.fromkeys((~present).nonzero().flatten().tolist(), ABSENT)
        chosen = present.nonzero().flatten()
        keep = reference.kept_genes(self.exclude_targets)
        keep = None if keep is None else keep.to(pred.device)
        common = NO_GENES if keep is not None and not bool(keep.any()) else self._common_reason(reference, len(chosen))
        if common is None:
            rows = Rows(
                pred=_chosen(pred[1:], present),
                true=_chosen(true[1:], present),
                origin=true[0],
                pred_origin=pred[0] if self.uses_predicted_control else true[0],
                keep=keep if keep is None or keep.dim() == 1 else _chosen(keep, present),
            )
            units[chosen] = self._defined(rows, chosen)
        for position in chosen[units[chosen].isnan()].tolist():
            reasons[position] = common or self._unit_reason(keep, position)
        return Score.from_units(units, reasons)

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
                raise _too_large((1 + chosen[odd[~undefined]]).tolist())
            values[odd] = torch.nan
        return values

    def _predicted(self, batch: Batch, reference: PerturbationReference) -> Tensor:
        """Predicted pseudobulks by code, after a check that every perturbation is there."""
        batch.memo(("perturbation checks", reference), lambda: self._check_predicted(batch, reference))
        pred, cells = predicted_profiles(batch, reference, self.target_sum)
        needed = reference.cells_per_group.to(cells.device) > 0
        needed[0] = needed[0] & self.uses_predicted_control
        missing = (needed & (cells == 0)).nonzero().flatten().tolist()
        if missing:
            raise InputError(
                f"no predicted cells of group {listed(missing)}",
                hint="Predict at least one cell of every perturbation of the solution.",
            )
        large = batch.memo(("perturbation overflow", reference, self.target_sum), lambda: too_large(pred))
        if wrong := (needed & large).nonzero().flatten().tolist():
            raise _too_large(wrong)
        return pred

    def _check_predicted(self, batch: Batch, reference: PerturbationReference) -> None:
        # Again, because a panel's rows do not pass through this metric's update.
        width = batch.rows("x").shape[1]
        if width != reference.num_genes:
            raise InputError(f"predicted cells have {width} genes, the true ones {reference.num_genes}")
        check_codes(batch.tensor("group"), self.num_perturbations)
        check_sign(batch.rows("x"), self.scale)

    def _paired(self, batch: Batch) -> PerturbationReference:
        if "target_x" not in batch:
            raise InputError("target_x is missing", hint="Pass the true cells, or build the metric with a reference.")

        def build() -> PerturbationReference:
            cells, group = batch.rows("target_x"), batch.tensor("group")
            check_codes(group, self.num_perturbations)
            check_sign(cells, self.scale)
            return PerturbationReference(cells, group, num_perturbations=self.num_perturbations, scale=self.scale)

        return batch.memo(("perturbation reference", self.num_perturbations, self.scale), build)

    def _common_reason(self, reference: PerturbationReference, present: int) -> str | None:
        """Why no perturbation at all can be scored."""
        if self.origin == "control" and int(reference.cells_per_group[0]) == 0:
            return NO_CONTROL
        return ALONE if self.origin == "others" and present < 2 else None

    def _unit_reason(self, keep: Tensor | None, position: int) -> str:
        if keep is not None and not bool((keep if keep.dim() == 1 else keep[position]).any()):
            return NO_GENES
        return self.degenerate

    def _check_options(self) -> None:
        for name, value, choices in (
            ("control_source", self.control_source, get_args(ControlSource)),
            ("exclude_targets", self.exclude_targets, get_args(ExcludeTargets)),
        ):
            if value not in choices:
                raise InputError(f"{name} cannot be {value!r}", hint=f"Choose one of {', '.join(choices)}.")
        if self.uses_predicted_control and self.origin != "control":
            raise InputError(f"{type(self).__name__} has no use for control cells", hint="Leave control_source out.")
        if self.reference is None and self.exclude_targets not in ("none", self.default_exclude_targets):
            raise InputError("targets are known to a reference alone", hint="Build a PerturbationReference.")
        if self.target_sum and not 1 / LARGEST_TARGET_SUM <= self.target_sum <= LARGEST_TARGET_SUM:
            raise InputError(
                f"target_sum cannot be {self.target_sum}",
                hint=f"Give a total of at most {LARGEST_TARGET_SUM:g}, such as 10000, or 0 for the solution's own.",
            )
        if self.target_sum and self.scale != "counts":
            raise InputError(f"target_sum={self.target_sum} has no meaning on scale {self.scale}", hint="Leave it out.")


class RowwiseMetric(PerturbationMetric):
    """A perturbation metric whose value for one perturbation needs no other prediction."""

    def values(self, rows: Rows) -> Tensor:
        """The value of each perturbation, computed a few perturbations at a time to bound memory."""
        n, genes = rows.true.shape
        total = tree_sum(rows.true, dim=0) if self.origin == "others" else None
        step = max(1, _BLOCK_ELEMENTS // genes)
        return torch.cat([self.row_values(_block(rows, slice(i, i + step), total)) for i in range(0, n, step)])

    def undefined(self, rows: Rows, positions: Tensor) -> Tensor:
        """Whether even the truth itself, as the prediction, would have no value."""
        truth = replace(rows, pred=rows.true, pred_origin=rows.origin)
        total = tree_sum(rows.true, dim=0) if self.origin == "others" else None
        parts = torch.split(positions, max(1, _BLOCK_ELEMENTS // rows.true.shape[1]))
        return torch.cat([self.row_values(_block(truth, part, total)).isnan() for part in parts])

    @abstractmethod
    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations, NaN where undefined; ``keep`` is given for each row."""


def _too_large(groups: list[int]) -> ProfileError:
    return ProfileError(
        f"predicted expression is too large to be scored in group {listed(groups)}",
        groups=groups,
        hint="Code 0 is the control. Predict values on the scale of the solution.",
    )


def _block(rows: Rows, part: slice | Tensor, total: Tensor | None) -> Rows:
    pred, true, origin, keep = rows.pred[part], rows.true[part], rows.origin, rows.keep
    if total is not None:
        origin = others_mean(total, true, rows.true.shape[0])
    if keep is not None:
        keep = keep.expand_as(true) if keep.dim() == 1 else keep[part]
    return Rows(pred, true, origin, origin if total is not None else rows.pred_origin, keep)


def _chosen(x: Tensor, present: Tensor) -> Tensor:
    return x if bool(present.all()) else x[present]


def _num_perturbations(reference: PerturbationReference | None, given: int | None) -> int:
    if reference is not None:
        if given not in (None, reference.num_perturbations):
            raise InputError(f"the reference has {reference.num_perturbations} perturbations, not {given}")
        return reference.num_perturbations
    if given is None or given < 1:
        raise InputError("a reference, or num_perturbations of at least 1, is needed")
    return given


def _scale(reference: PerturbationReference | None, given: Scale | None) -> Scale:
    if given is not None:
        check_scale(given)
    if reference is not None:
        if given not in (None, reference.scale):
            raise InputError(f"the reference is on scale {reference.scale}, not {given}")
        return reference.scale
    return given or "log1p_cp10k"
