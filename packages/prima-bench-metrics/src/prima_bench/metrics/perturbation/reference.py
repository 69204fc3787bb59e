"""The solution of a perturbation dataset: real cells by group, and the truths that metrics draw from them.

Built once per dataset and shared by all metrics of a panel. It owns the origin of effects (control cells), the gene
space and the target genes; a prediction cannot touch any of them. It knows no labels: groups are integer codes.
"""

from collections.abc import Sequence
from typing import Literal, Self, cast, get_args

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError, ReferenceDataError
from prima_bench.metrics.fields import Field, check_chunk
from prima_bench.metrics.numerics import group_sums
from prima_bench.metrics.perturbation.pseudobulk import Scale, log_profiles, mean_profiles, median_total, too_large
from prima_bench.metrics.rows import RowMatrix, SparseRows

ExcludeTargets = Literal["none", "own", "own_single", "panel", "panel_single"]

FIELDS = (
    Field("x", "real", "rows"),
    Field("group", "integer", "scalar"),
    Field("index", "integer", "scalar", optional=True),
)
_NAMED = 5


class PerturbationReference:
    """Real cells of a control (code 0) and of perturbations (codes 1 to P).

    Make one with :meth:`from_cells`. It never changes after that, so copies of metrics share it; the cells are kept
    as they were given, without a copy, and must not be changed either.

    Attributes:
        cells: The expression of all cells in canonical order, ``[cells, genes]``, dense or sparse.
        group: The code of each cell, int64 ``[cells]``.
        num_perturbations: P.
        num_genes: Number of genes.
        scale: ``"counts"`` or ``"log1p_cp10k"``; predictions are on the same one.
        targets: For each perturbation, the columns of the genes that it acts on; None when no target is known.
        cells_per_group: Number of cells by code, int64 ``[1 + P]``.

    Example:
        >>> x = torch.tensor([[1.0, 1.0], [1.0, 3.0], [5.0, 2.0]])
        >>> reference = PerturbationReference.from_cells(
        ...     x, torch.tensor([0, 0, 1]), num_perturbations=1, scale="log1p_cp10k"
        ... )
        >>> reference.profiles()
        tensor([[1., 2.],
                [5., 2.]], dtype=torch.float64)
    """

    def __init__(
        self,
        cells: RowMatrix,
        group: Tensor,
        *,
        num_perturbations: int,
        scale: Scale,
        targets: tuple[tuple[int, ...], ...] | None = None,
    ) -> None:
        self.cells = cells
        self.group = group
        self.num_perturbations = num_perturbations
        self.num_genes = cells.shape[1]
        self.scale: Scale = scale
        self.targets = targets
        self.cells_per_group = torch.bincount(group, minlength=1 + num_perturbations)
        self._sums: Tensor | None = None
        self._profiles: dict[float, Tensor] = {}

    @classmethod
    def from_cells(
        cls,
        x: Tensor | SparseRows,
        group: Tensor,
        *,
        num_perturbations: int,
        scale: Scale,
        targets: Sequence[Sequence[int]] | None = None,
        index: Tensor | None = None,
    ) -> Self:
        """Check and take the solution's cells.

        Args:
            x: Expression, real ``[cells, genes]``, dense or sparse.
            group: Code of each cell, integer ``[cells]``: 0 for control, 1 to P for the perturbations.
            num_perturbations: P.
            scale: What the values are: raw counts, or log1p of counts per 10,000.
            targets: For perturbations 1 to P, the columns of their target genes (empty for a drug).
            index: Ids of the cells, integer ``[cells]``; cells are taken in ascending order of it, so that scores do
                not depend on how a file is sorted. None to take them as they come.

        Raises:
            InputError: If shapes, dtypes or codes are wrong, or values are not finite (negative, for counts).
            ReferenceDataError: If the control or a perturbation has no cells, or two cells have one id.
        """
        if num_perturbations < 1:
            raise InputError(f"num_perturbations must be at least 1, not {num_perturbations}")
        check_scale(scale)
        chunk = check_chunk(FIELDS, {"x": x, "group": group, "index": index}, device=x.device, owned=True)
        matrix, codes = chunk["x"], cast(Tensor, chunk["group"])
        check_codes(codes, num_perturbations)
        order = canonical_order(chunk.get("index"))
        reference = cls(
            RowMatrix([matrix], order),
            codes if order is None else codes[order],
            num_perturbations=num_perturbations,
            scale=scale,
            targets=checked_targets(targets, num_perturbations, matrix.shape[1]),
        )
        check_sign(reference.cells, scale)
        empty = (reference.cells_per_group == 0).nonzero().flatten().tolist()
        if empty:
            raise ReferenceDataError(
                f"the solution has no cells of group {listed(empty)}",
                hint="Code 0 is the control; leave perturbations without cells out of the numbering.",
            )
        return reference

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Itself: it never changes, and a copy would double the cells."""
        return self

    def sums(self) -> Tensor:
        """Expression summed over the cells of each group, float64 ``[1 + P, genes]``."""
        if self._sums is not None:
            return self._sums
        sums = group_sums(self.cells, self.group, 1 + self.num_perturbations)
        if self.scale == "counts":  # which have a profile for each target_sum; means need no sums any more
            self._sums = sums
        return sums

    def profiles(self, target_sum: float = 0.0) -> Tensor:
        """Pseudobulks by code, float64 ``[1 + P, genes]``; zero for a group without cells.

        With ``log1p_cp10k``, the mean over cells. With ``counts``, ``log1p(target_sum * sums / total)``.

        Args:
            target_sum: Total for counts; 0 for the median group total, control included.

        Raises:
            InputError: If a total is given for values that are not counts.
            ReferenceDataError: If values are too large for a pseudobulk of them.
        """
        if target_sum not in self._profiles:
            profiles = self.profiles_of(self.sums(), self.cells_per_group, target_sum)
            if wrong := too_large(profiles).nonzero().flatten().tolist():
                raise ReferenceDataError(
                    f"the solution's expression is too large to be scored in group {listed(wrong)}",
                    hint="Code 0 is the control. Are its values what the scale says?",
                )
            self._profiles[target_sum] = profiles
        return self._profiles[target_sum]

    def profiles_of(self, sums: Tensor, cells: Tensor, target_sum: float = 0.0) -> Tensor:
        """Pseudobulks of other cells, formed as this solution's own are.

        Args:
            sums: Expression summed over the cells of each group, float64 ``[groups, genes]``.
            cells: Number of cells, ``[groups]``.
            target_sum: As in :meth:`profiles`.

        Raises:
            InputError: If a total is given for values that are not counts.
        """
        if self.scale == "counts":
            return log_profiles(sums, target_sum or median_total(self.sums()))
        check_target_sum(target_sum, self.scale)
        return mean_profiles(sums, cells)

    def kept_genes(self, exclude: ExcludeTargets) -> Tensor | None:
        """The genes that are compared, on the cells' device.

        Args:
            exclude: ``"own"`` leaves out each perturbation's targets, ``"panel"`` those of all perturbations;
                ``"own_single"`` and ``"panel_single"`` only those of perturbations with one target.

        Returns:
            Boolean ``[P, genes]`` for the own targets, ``[genes]`` for those of the panel; None when all genes are
            compared.
        """
        targets = () if exclude == "none" or self.targets is None else self.targets
        if exclude.endswith("_single"):
            targets = tuple(t if len(t) == 1 else () for t in targets)
        if not any(targets):
            return None
        keep = torch.ones((self.num_perturbations, self.num_genes), dtype=torch.bool, device=self.cells.device)
        for row, columns in enumerate(targets):
            keep[row, list(columns)] = False
        return keep if exclude.startswith("own") else keep.all(dim=0)


def check_scale(scale: str) -> None:
    """Raise InputError unless ``scale`` is a known one."""
    if scale not in get_args(Scale):
        raise InputError(f"unknown scale {scale!r}", hint=f"Choose one of {', '.join(get_args(Scale))}.")


def check_target_sum(target_sum: float, scale: Scale) -> None:
    """Raise InputError if a total is given for values that are not counts."""
    if target_sum and scale != "counts":
        raise InputError(
            f"target_sum={target_sum} has no meaning on scale {scale}",
            hint="It is a total of counts: leave it out, or take metrics that are not for counts.",
        )


def check_codes(group: Tensor, num_perturbations: int) -> None:
    """Raise InputError unless all codes lie within 0 (control) and ``num_perturbations``."""
    if len(group) == 0:
        return
    low, high = (int(v) for v in torch.aminmax(group))
    if low < 0 or high > num_perturbations:
        raise InputError(
            f"group {low if low < 0 else high} is outside 0 to {num_perturbations}",
            hint="Code 0 is the control, 1 to num_perturbations are the perturbations.",
        )


def check_sign(cells: RowMatrix, scale: Scale, rows_per_block: int = 256) -> None:
    """Raise InputError if counts are negative."""
    if scale != "counts":
        return
    for start in range(0, cells.shape[0], rows_per_block):
        positions = torch.arange(start, min(start + rows_per_block, cells.shape[0]), device=cells.device)
        block = cells.take(positions)
        if float(block.min()) < 0:
            row = int(positions[(block < 0).any(dim=1)][0])
            raise InputError(f"counts cannot be negative: row {row} holds {float(block.min())}")


def listed(codes: Sequence[int]) -> str:
    """The first few codes as text."""
    more = len(codes) - _NAMED
    return ", ".join(str(c) for c in codes[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def canonical_order(index: Tensor | SparseRows | None) -> Tensor | None:
    """Ascending positions of ids that must differ; None when there are none."""
    if not isinstance(index, Tensor):
        return None
    ids, order = torch.sort(index, stable=True)
    twice = torch.unique(ids[1:][ids[1:] == ids[:-1]]).tolist()
    if twice:
        raise ReferenceDataError(f"the solution has more than one cell with id {listed(twice)}")
    return order


def checked_targets(
    targets: Sequence[Sequence[int]] | None, num_perturbations: int, num_genes: int
) -> tuple[tuple[int, ...], ...] | None:
    """The target columns of every perturbation, ascending; InputError unless they are genes."""
    if targets is None:
        return None
    if len(targets) != num_perturbations:
        raise InputError(f"{num_perturbations} perturbations need one list of targets each, not {len(targets)}")
    columns = tuple(tuple(sorted({int(c) for c in genes})) for genes in targets)
    for genes in columns:
        if genes and not 0 <= genes[0] <= genes[-1] < num_genes:
            raise InputError(f"target genes {listed(genes)} are outside 0 to {num_genes - 1}")
    return columns
