"""Perturbation discrimination: is a predicted effect closer to its own truth than to the other perturbations'?"""

from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.params import CONTROL_SOURCE, EXCLUDE_PANEL_TARGETS, RANKING, TARGET_SUM
from prima_bench.metrics.perturbation.profiles.distances import Distance, closer_and_tied
from prima_bench.metrics.perturbation.profiles.metric import ProfileMetric, Rows
from prima_bench.metrics.perturbation.reference import ExcludeTargets
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="pds_cosine",
        version=1,
        inputs="perturbation",
        implementation="PDSCosine",
        title="Perturbation discrimination score, cosine",
        summary="Whether a predicted effect points towards its own perturbation's true effect more than to others'.",
        formula=(
            "1 - k / (P - 1), k = number of perturbations q whose m_q - m_c lies closer to q_p - m_c than m_p - m_c "
            "does, by 1 - cosine, plus half of those tied with it; then mean over perturbations p"
        ),
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=0.5,
        level="unit",
        unit="perturbation",
        undefined="Fewer than two perturbations; a perturbation without any true effect in the genes compared.",
        references=(
            "cell-eval2 0.20 `pds_cosine`",
            "Wu et al. 2024, PerturBench, arXiv:2408.10609",
            "cell-eval 0.8 `discrimination_score_cosine` (control_source=prediction, ranking=position)",
        ),
        params=(CONTROL_SOURCE, EXCLUDE_PANEL_TARGETS, RANKING, TARGET_SUM),
        notes=(
            "Targets of the whole panel are left out: a knocked-down gene gives its perturbation away, and where only "
            "the own target is left out, spiking the others' is rewarded. No predicted effect scores exactly 0.5; the "
            "cosine distance is 1 when either effect is zero. cell-eval 0.8 divides by P and orders ties by label, as "
            "ranking=position does by code: one prediction for all is then scored by the alphabet. It leaves out "
            "the own target (exclude_targets=own), and only where the label is the name of one gene."
        ),
    ),
    MetricSpec(
        name="pds_l1",
        version=1,
        inputs="perturbation",
        implementation="PDSL1",
        title="Perturbation discrimination score, L1",
        summary="Whether a predicted effect is nearer to its own perturbation's true effect than to others', by L1.",
        formula=(
            "1 - k / (P - 1), k = number of perturbations q whose m_q - m_c lies closer to q_p - m_c than m_p - m_c "
            "does, by sum of absolute differences, plus half of those tied with it; then mean over perturbations p"
        ),
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=0.5,
        level="unit",
        unit="perturbation",
        undefined="Fewer than two perturbations; a perturbation without any true effect in the genes compared.",
        references=(
            "cell-eval2 0.20 `pds_l1`",
            "Wu et al. 2024, PerturBench, arXiv:2408.10609",
            "cell-eval 0.8 `discrimination_score_l1` (control_source=prediction, ranking=position)",
        ),
        params=(CONTROL_SOURCE, EXCLUDE_PANEL_TARGETS, RANKING, TARGET_SUM),
        notes=(
            "Favours shrunken predictions: near the origin, weak true effects are closest whatever the direction. "
            "Effects keep their sign; an early release of cell-eval took absolute values. No predicted effect scores "
            "exactly 0.5."
        ),
    ),
    MetricSpec(
        name="pds_l2",
        version=1,
        inputs="perturbation",
        implementation="PDSL2",
        title="Perturbation discrimination score, L2",
        summary="Whether a predicted effect is nearer to its own perturbation's true effect than to others', by L2.",
        formula=(
            "1 - k / (P - 1), k = number of perturbations q whose m_q - m_c lies closer to q_p - m_c than m_p - m_c "
            "does, by Euclidean distance, plus half of those tied with it; then mean over perturbations p"
        ),
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=0.5,
        level="unit",
        unit="perturbation",
        undefined="Fewer than two perturbations; a perturbation without any true effect in the genes compared.",
        references=(
            "cell-eval2 0.20 `pds_l2`",
            "Wu et al. 2024, PerturBench, arXiv:2408.10609",
            "cell-eval 0.8 `discrimination_score_l2` (control_source=prediction, ranking=position)",
        ),
        params=(CONTROL_SOURCE, EXCLUDE_PANEL_TARGETS, RANKING, TARGET_SUM),
        notes="Decided by the few genes with the largest effects. No predicted effect scores exactly 0.5.",
    ),
)

Ranking = Literal["mid", "position"]

_BLOCK_ELEMENTS = 1 << 18


def pds(
    pred: Tensor,
    target: Tensor,
    control: Tensor,
    *,
    distance: Distance = "cosine",
    pred_control: Tensor | None = None,
    keep: Tensor | None = None,
    ranking: Ranking = "mid",
) -> Tensor:
    """Perturbation discrimination score of each perturbation.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        control: True control pseudobulk ``[genes]``.
        distance: ``"cosine"``, ``"l1"`` or ``"l2"``.
        pred_control: Control that is subtracted from ``pred``; ``control`` when None.
        keep: Genes that count, boolean ``[genes]`` or, by perturbation, ``[perturbations, genes]``; all when None.
        ranking: ``"position"``: ``1 - k / P``, where ``k`` counts earlier perturbations among the ties whole and later
            ones not at all.

    Returns:
        float64 ``[perturbations]``: NaN where the true effect is zero, else 0.5 where the predicted one is; by
        position it then is where ties leave it.

    Raises:
        InputError: If there are fewer than two perturbations.

    Example:
        >>> target = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> pds(target, target, torch.zeros(2))
        tensor([1., 1.], dtype=torch.float64)
        >>> pds(torch.tensor([[0.1, 3.0], [0.0, 0.0]]), target, torch.zeros(2), distance="l1")
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    n = target.shape[0]
    if n < 2:
        raise InputError("discrimination needs at least two perturbations")
    e = _effects(pred, control if pred_control is None else pred_control, keep)
    d = _effects(target, control, keep)
    mask = keep if keep is not None and keep.dim() == 2 else None
    undefined = rowwise.is_zero(d, mask)
    if ranking == "position":
        return torch.where(undefined, torch.nan, 1.0 - closer_and_tied(e, d, distance, mask, ties="order") / n)
    score = 1.0 - closer_and_tied(e, d, distance, mask) / (n - 1)
    return rowwise.graded(score, no_skill=rowwise.is_zero(e, mask), undefined=undefined, worst=0.5)


def _effects(profiles: Tensor, origin: Tensor, keep: Tensor | None) -> Tensor:
    """Effects in the genes that count for all perturbations, formed a few rows at a time to bound memory."""
    columns = slice(None) if keep is None or keep.dim() == 2 else keep
    origin = origin[columns]
    effects = torch.empty((len(profiles), len(origin)), dtype=torch.float64, device=profiles.device)
    step = max(1, _BLOCK_ELEMENTS // profiles.shape[1])
    for start in range(0, len(profiles), step):
        part = slice(start, start + step)
        effects[part] = rowwise.difference(profiles[part][:, columns], origin)
    return effects


class _PDS(ProfileMetric):
    """A discrimination score.

    Args:
        *args: As in ``PerturbationMetric``.
        ranking: ``"mid"``, or ``"position"`` for parity with cell-eval 0.8; see :func:`pds`.
        **kwargs: As in ``ProfileMetric``.

    Raises:
        InputError: If an argument is wrong, or has no meaning beside the others.
    """

    higher_is_better = True
    degenerate = "zero solution effect"
    default_exclude_targets: ClassVar[ExcludeTargets] = "panel"
    needs_others = True
    distance: ClassVar[Distance]

    def __init__(self, *args: Any, ranking: Ranking = "mid", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if ranking not in get_args(Ranking):
            raise InputError(f"ranking cannot be {ranking!r}", hint=f"Choose one of {', '.join(get_args(Ranking))}.")
        self.ranking: Ranking = ranking

    def values(self, rows: Rows) -> Tensor:
        """The value of each perturbation."""
        return pds(
            rows.pred,
            rows.true,
            rows.origin,
            distance=self.distance,
            pred_control=rows.pred_origin,
            keep=rows.keep,
            ranking=self.ranking,
        )

    def undefined(self, rows: Rows, positions: Tensor) -> Tensor:
        """Whether a perturbation has no true effect in the genes that count."""
        keep = rows.keep if rows.keep is None or rows.keep.dim() == 1 else rows.keep[positions]
        return rowwise.is_zero(rowwise.difference(rows.true[positions], rows.origin), keep)


class PDSCosine(_PDS):
    """Perturbation discrimination by cosine distance; see :func:`pds`."""

    distance = "cosine"


class PDSL1(_PDS):
    """Perturbation discrimination by L1 distance; see :func:`pds`."""

    distance = "l1"


class PDSL2(_PDS):
    """Perturbation discrimination by L2 distance; see :func:`pds`."""

    distance = "l2"
