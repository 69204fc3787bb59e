"""What all perturbation metrics share: their inputs, whom they compare with, and how units become a score.

A metric of this folder is a formula over pseudobulks: one row at a time (:class:`RowwiseMetric`), or over all
perturbations at once (:meth:`PerturbationMetric.values`). The formulas are not here, and neither are buffering,
canonical order and exchange between ranks, which ``prima_bench.metrics.base`` owns.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, BufferedMetric, Field, Score, SparseRows
from prima_bench.metrics.errors import InputError, ProfileError
from prima_bench.metrics.perturbation.contexts import StratifiedReference, check_contexts, joined
from prima_bench.metrics.perturbation.pseudobulk import Scale
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


def _check_arguments(preds: object, target: object, perturbation: object) -> None:
    """Raise InputError, in the words of ``update``, where an argument is no tensor of its shape or has other rows."""
    for name, x in (("preds", preds), ("target", target)):
        if x is None and name == "target":
            continue
        if not isinstance(x, Tensor | SparseRows):
            raise InputError(
                f"{name} must be a torch tensor or SparseRows, not {type(x).__name__}",
                hint=f"Wrap it: torch.as_tensor({name}).",
            )
        if len(x.shape) != 2:
            raise InputError(
                f"{name} must have shape [cells, genes], not {list(x.shape)}",
                hint="Give a row for each cell; one cell alone is x[None, :].",
            )
    if not isinstance(perturbation, Tensor) or perturbation.dim() != 1:
        seen = list(perturbation.shape) if isinstance(perturbation, Tensor) else type(perturbation).__name__
        raise InputError(
            f"perturbation must be an integer tensor of shape [cells], not {seen}",
            hint="Give a code for each cell, not its name: 0 for control, 1 to num_perturbations for the others.",
        )
    rows = [len(perturbation), *(x.shape[0] for x in (preds, target) if isinstance(x, Tensor | SparseRows))]
    if len(set(rows)) > 1:
        others = f"{rows[1]} predicted" + (f" and {rows[2]} true" if len(rows) > 2 else "")
        raise InputError(
            f"all inputs need the same number of rows, not {rows[0]} codes of perturbations for {others} cells",
            hint="A row is a cell: its code, its prediction and, where there is no reference, a true cell.",
        )


class PerturbationMetric(BufferedMetric):
    """A metric of predicted against true responses to perturbations, one row for each predicted cell.

    Without a reference, each update brings the true cells beside the predicted ones, control cells (code 0) included,
    and the truth is made of those; then perturbations that never came are undefined. Targets are known to a reference
    alone: without one no gene is excluded.

    Args:
        reference: The solution; with contexts, each is scored by itself.
        num_perturbations: P, where there is no reference.
        scale: What the values are, where there is no reference: ``"log1p_cp10k"`` unless told otherwise.
        control_source: Whose control cells predicted effects are measured from. ``"prediction"`` is there for
            parity with other tools: a model can move its score by editing its control cells.
        exclude_targets: Leave out the ``"own"`` target genes of each perturbation, or those of the whole ``"panel"``;
            ``"own_single"`` and ``"panel_single"`` only those of perturbations with one target.
        **kwargs: Passed on to ``torchmetrics.Metric``.

    Raises:
        InputError: If an argument is not one of these, or has no meaning beside the others.
    """

    fields: ClassVar[tuple[Field, ...]] = (
        Field("x", "real", "rows"),
        Field("group", "integer", "scalar"),
        Field("target_x", "real", "rows", optional=True),
        Field("context", "integer", "scalar", optional=True),
    )
    needs_control: ClassVar[bool] = True
    needs_others: ClassVar[bool] = False
    degenerate: ClassVar[str] = "constant solution effect"
    default_exclude_targets: ClassVar[ExcludeTargets] = "none"

    def __init__(
        self,
        reference: PerturbationReference | StratifiedReference | None = None,
        *,
        num_perturbations: int | None = None,
        scale: Scale | None = None,
        control_source: ControlSource = "solution",
        exclude_targets: ExcludeTargets | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reference = reference
        self.num_perturbations = _num_perturbations(reference, num_perturbations)
        self.scale: Scale = _scale(reference, scale)
        self.control_source = control_source
        self.exclude_targets: ExcludeTargets = exclude_targets or self.default_exclude_targets
        self._check_sources()
        genes = "" if reference is None else f" x {reference.num_genes} genes"
        contexts = f" in {reference.num_contexts} contexts" if isinstance(reference, StratifiedReference) else ""
        self.schema_tag = f"{self.num_perturbations} perturbations{genes}{contexts}, {self.scale}"

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
        context: Tensor | None = None,
        index: Tensor | None = None,
    ) -> None:
        """Take in a chunk of cells, or none of them if any is wrong.

        Args:
            preds: Predicted expression, real ``[cells, genes]``, dense or sparse.
            target: True expression, of the same shape, where there is no reference.
            perturbation: Code of each cell, integer ``[cells]``: 0 for control, 1 to P for the perturbations.
            context: Context of each cell, integer ``[cells]`` from 0, where the reference has contexts.
            index: Ids of the cells, integer ``[cells]``; None numbers them as they come, in one process only.

        Raises:
            InputError: If shapes, dtypes, codes or values do not fit.
        """
        _check_arguments(preds, target, perturbation)
        fields = {"x": preds, "group": perturbation, "target_x": target, "context": context}
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
        self._check_contexts(fields.get("context"))
        width = self.reference.num_genes if self.reference is not None else getattr(target, "shape", (0, 0))[-1]
        if x is not None and len(x.shape) == 2 and x.shape[1] != width:
            raise InputError(
                f"predicted cells have {x.shape[1]} genes, the true ones {width}",
                hint="Give the same genes in the same order.",
            )

    def score(self, batch: Batch) -> Score:
        """The mean over perturbations, with each perturbation's own value; with contexts, over all pairs of the two.

        Raises:
            ProfileError: If predicted expression is too large to be scored: nothing predicted makes a unit undefined.
            InputError: If a perturbation has no predicted cells, or the cells do not fit.
        """
        if isinstance(self.reference, StratifiedReference):
            self._check_contexts(batch.tensor("context") if "context" in batch else None)
            parts = enumerate(self.reference.parts)
            return joined([self._score_checked(batch.part("context", c), reference) for c, reference in parts])
        return self._score_checked(batch, self.reference if self.reference is not None else self._paired(batch))

    def _score_checked(self, batch: Batch, reference: PerturbationReference) -> Score:
        batch.memo(("perturbation checks", reference), lambda: self._check_cells(batch, reference))
        self._check_all_predicted(batch, reference)
        return self.score_against(batch, reference)

    def score_against(self, batch: Batch, reference: PerturbationReference) -> Score:
        """The score of checked cells; metrics that are no mean over perturbations replace this.

        Args:
            batch: Predicted cells, of every perturbation that the reference has.
            reference: The truth.
        """
        present = reference.cells_per_group[1:] > 0
        chosen = present.nonzero().flatten()
        units = torch.full((self.num_perturbations,), torch.nan, dtype=torch.float64, device=batch.device)
        reasons = dict.fromkeys((~present).nonzero().flatten().tolist(), ABSENT)
        common = self.common_reason(reference)
        why: Mapping[int, str] = {}
        if common is None:
            values, why = self.unit_values(batch, reference, chosen.to(batch.device))
            units[chosen.to(batch.device)] = values
        for position in chosen.tolist():
            if bool(units[position].isnan()):
                reasons[position] = common or why.get(position) or self._unit_reason(reference, position)
        return Score.from_units(units, reasons)

    @abstractmethod
    def unit_values(
        self, batch: Batch, reference: PerturbationReference, chosen: Tensor
    ) -> tuple[Tensor, Mapping[int, str]]:
        """The values of the perturbations that have true cells.

        Args:
            batch: Predicted cells, of every perturbation that the reference has.
            reference: The truth.
            chosen: Which perturbations, ascending from 0, int64 ``[k]``.

        Returns:
            float64 ``[k]``, NaN where the solution alone leaves a value undefined, and why, by perturbation, where
            ``degenerate`` does not say it.
        """

    def common_reason(self, reference: PerturbationReference) -> str | None:
        """Why no perturbation at all can be scored; None when some can."""
        keep = self.kept_genes(reference)
        if keep is not None and not bool(keep.any()):
            return NO_GENES
        if self.needs_control and int(reference.cells_per_group[0]) == 0:
            return NO_CONTROL
        return ALONE if self.needs_others and int((reference.cells_per_group[1:] > 0).sum()) < 2 else None

    def kept_genes(self, reference: PerturbationReference) -> Tensor | None:
        """The genes that are compared, boolean ``[genes]`` or ``[perturbations, genes]``; None for all."""
        return reference.kept_genes(self.exclude_targets)

    def _unit_reason(self, reference: PerturbationReference, position: int) -> str:
        keep = self.kept_genes(reference)
        if keep is not None and not bool((keep if keep.dim() == 1 else keep[position]).any()):
            return NO_GENES
        return self.degenerate

    def _check_contexts(self, context: Any) -> None:
        if not isinstance(self.reference, StratifiedReference):
            if context is not None:
                raise InputError("context was given, but the reference has none", hint="Leave context out.")
        elif context is None:
            raise InputError("context is missing", hint="Pass the context of each cell; the reference has several.")
        elif isinstance(context, Tensor) and not context.is_floating_point():
            check_contexts(context, self.reference.num_contexts)

    def _check_cells(self, batch: Batch, reference: PerturbationReference) -> None:
        # Again, because a panel's rows do not pass through this metric's update.
        width = batch.rows("x").shape[1]
        if width != reference.num_genes:
            raise InputError(f"predicted cells have {width} genes, the true ones {reference.num_genes}")
        check_codes(batch.tensor("group"), self.num_perturbations)
        check_sign(batch.rows("x"), self.scale)

    def _check_all_predicted(self, batch: Batch, reference: PerturbationReference) -> None:
        cells = predicted_cells(batch, reference)
        needed = reference.cells_per_group.to(cells.device) > 0
        needed[0] = needed[0] & self.uses_predicted_control
        if missing := (needed & (cells == 0)).nonzero().flatten().tolist():
            raise InputError(
                f"no predicted cells of group {listed(missing)}",
                hint="Predict at least one cell of every perturbation of the solution.",
            )

    def _paired(self, batch: Batch) -> PerturbationReference:
        if "target_x" not in batch:
            raise InputError("target_x is missing", hint="Pass the true cells, or build the metric with a reference.")

        def build() -> PerturbationReference:
            cells, group = batch.rows("target_x"), batch.tensor("group")
            check_codes(group, self.num_perturbations)
            check_sign(cells, self.scale)
            return PerturbationReference(cells, group, num_perturbations=self.num_perturbations, scale=self.scale)

        return batch.memo(("perturbation reference", self.num_perturbations, self.scale), build)

    def _check_sources(self) -> None:
        for name, value, choices in (
            ("control_source", self.control_source, get_args(ControlSource)),
            ("exclude_targets", self.exclude_targets, get_args(ExcludeTargets)),
        ):
            if value not in choices:
                raise InputError(f"{name} cannot be {value!r}", hint=f"Choose one of {', '.join(choices)}.")
        if self.uses_predicted_control and not self.needs_control:
            raise InputError(f"{type(self).__name__} has no use for control cells", hint="Leave control_source out.")
        if self.reference is None and self.exclude_targets not in ("none", self.default_exclude_targets):
            raise InputError("targets are known to a reference alone", hint="Build a PerturbationReference.")


def predicted_cells(batch: Batch, reference: PerturbationReference) -> Tensor:
    """How many cells were predicted of each group, int64 ``[1 + perturbations]``, on the batch's device."""
    groups = 1 + reference.num_perturbations
    return batch.memo(("perturbation cells", groups), lambda: torch.bincount(batch.tensor("group"), minlength=groups))


def too_large_error(groups: list[int]) -> ProfileError:
    """What is raised when predicted expression of some groups is too large to be scored."""
    return ProfileError(
        f"predicted expression is too large to be scored in group {listed(groups)}",
        groups=groups,
        hint="Code 0 is the control. Predict values on the scale of the solution.",
    )


def _num_perturbations(reference: PerturbationReference | StratifiedReference | None, given: int | None) -> int:
    if reference is not None:
        if given not in (None, reference.num_perturbations):
            raise InputError(f"the reference has {reference.num_perturbations} perturbations, not {given}")
        return reference.num_perturbations
    if given is None or given < 1:
        raise InputError("a reference, or num_perturbations of at least 1, is needed")
    return given


def _scale(reference: PerturbationReference | StratifiedReference | None, given: Scale | None) -> Scale:
    if given is not None:
        check_scale(given)
    if reference is not None:
        if given not in (None, reference.scale):
            raise InputError(f"the reference is on scale {reference.scale}, not {given}")
        return reference.scale
    return given or "log1p_cp10k"
