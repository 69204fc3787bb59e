"""Errors and effects of pseudobulks free of sampling noise, and the share of the effect that a prediction misses.

A squared distance of two pseudobulks holds the noise of both: with few cells even a replicate looks wrong, and an
effect looks large. What the cells' own spread says about that noise is subtracted here; estimating it is ``noise``'s.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast, get_args

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch, Score
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.base import ABSENT
from prima_bench.metrics.perturbation.params import DEBIASED_CONVENTION, EXCLUDE_OWN_TARGETS, TARGET_SUM
from prima_bench.metrics.perturbation.profiles.metric import ProfileMetric, Rows
from prima_bench.metrics.perturbation.profiles.noise import predicted_noise, true_noise
from prima_bench.metrics.perturbation.reference import ExcludeTargets, PerturbationReference
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="mse_debiased_ratio",
        version=1,
        inputs="perturbation",
        implementation="MSEDebiasedRatio",
        title="Debiased squared error over debiased effect size",
        summary="How much of the true effects, as a share of their squared size, a prediction gets wrong.",
        formula=(
            "max(0, sum_p N_p / sum_p D_p); N_p = (|q_p - m_p|^2 - min(C(q_p), C(m_p)) - C(m_p)) / G, "
            "D_p = (|m_p - m_c|^2 - C(m_p) - C(m_c)) / G; C = summed sampling variance of a pseudobulk over its genes"
        ),
        direction="min",
        range=(None, None),
        perfect=0.0,
        chance=1.0,
        level="global",
        unit=None,
        undefined="The debiased effect sizes of the solution do not sum to more than zero.",
        references=(
            "cell-eval2 0.20 `expr_mse_unbiased_capped_norm` (convention=vcc2026, target_sum=50000)",
            "Efron and Stein 1981, doi:10.1214/aos/1176345462",
        ),
        params=(DEBIASED_CONVENTION, EXCLUDE_OWN_TARGETS, TARGET_SUM),
        notes=(
            "A ratio of sums: weak perturbations do not blow up. The solution's own control cells, pasted for every "
            "perturbation, score exactly 1 where C(m_c) is at most every C(m_p), and "
            "1 + sum of (C(m_c) - C(m_p)) / sum of G D_p over the others where it is not. Below zero there is noise "
            "alone, so the value stops there; vcc2026 lets it go on. Cells whose scatter cancels in their mean gain up "
            "to C(m_p); vcc2026 takes that back by the spread between predicted perturbations, and pasted control "
            "then scores above 1. vcc2026 also subtracts the noise of excluded genes. cell-eval2 gives up where this "
            "is undefined."
        ),
    ),
    MetricSpec(
        name="mse_debiased",
        version=1,
        inputs="perturbation",
        implementation="MSEDebiased",
        title="Debiased mean squared error of the pseudobulk",
        summary="How far the predicted mean expression lies from the true one, squared, beyond sampling noise.",
        formula="(|q_p - m_p|^2 - min(C(q_p), C(m_p)) - C(m_p)) / G, C = summed sampling variance over the G genes",
        direction="min",
        range=(None, None),
        perfect=0.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation whose genes are all excluded.",
        references=("cell-eval2 0.20 `expr_mse_unbiased_capped` (convention=vcc2026, target_sum=50000)",),
        params=(DEBIASED_CONVENTION, EXCLUDE_OWN_TARGETS, TARGET_SUM),
        notes=(
            "Zero is what other cells of the same kind score on average, so about half of them score below. The "
            "solution's own cells score below zero, -2 C(m_p) / G: they share its noise, which no sample of the same "
            "cells does. The predicted side's noise counts up to the true side's, or scattering cells would pay; cells "
            "repeated seem to have less of it, which never gains. A single cell has none."
        ),
    ),
    MetricSpec(
        name="effect_size_debiased",
        version=1,
        inputs="perturbation",
        implementation="EffectSizeDebiased",
        title="Debiased size of the true effect",
        summary="How far the true effect moves mean expression, squared, beyond sampling noise; not about predictions.",
        formula="(|m_p - m_c|^2 - C(m_p) - C(m_c)) / G, C = summed sampling variance over the G genes",
        direction="max",
        range=(None, None),
        perfect=0.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation whose genes are all excluded.",
        references=("cell-eval2 0.20 `expr_distance_unbiased` (convention=vcc2026, target_sum=50000)",),
        params=(DEBIASED_CONVENTION, EXCLUDE_OWN_TARGETS, TARGET_SUM),
        notes=(
            "A property of the solution, the same whatever is predicted: what mse_debiased_ratio divides by. Around or "
            "below zero, the cells do not tell the effect from noise; their number, not biology, may be why."
        ),
    ),
)

Convention = Literal["default", "vcc2026"]

_BLOCK_ELEMENTS = 1 << 18


def mse_debiased(
    pred: Tensor,
    target: Tensor,
    pred_noise: Tensor,
    noise: Tensor,
    *,
    keep: Tensor | None = None,
    convention: Convention = "default",
) -> Tensor:
    """Mean squared error of each pseudobulk minus what sampling noise adds to it.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        pred_noise: Sampling variance of ``pred``, of the same shape; it counts up to that of ``target``.
        noise: Sampling variance of ``target``, of the same shape.
        keep: Genes that count, boolean ``[genes]`` or ``[perturbations, genes]``; all of them when None.
        convention: ``"vcc2026"``: noise is that of all genes, and the predicted side's counts no more in total than
            the predictions differ among themselves.

    Returns:
        float64 ``[perturbations]``, below zero where there is less error than noise explains; NaN where no gene counts.

    Example:
        >>> pred, target = torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 1.0]])
        >>> mse_debiased(pred, target, torch.tensor([[0.5, 0.0]]), torch.tensor([[0.5, 0.5]]))
        tensor([1.2500], dtype=torch.float64)
    """
    counted = None if convention == "vcc2026" else keep
    true = _sum(noise, counted)
    own = torch.minimum(_sum(pred_noise, counted), true)
    if convention == "vcc2026":
        own = own * _entitled(pred, own, keep)
    return (_squared_distance(pred, target, keep) - (own + true)) / _genes(target, keep)


def effect_size_debiased(
    target: Tensor,
    control: Tensor,
    noise: Tensor,
    control_noise: Tensor,
    *,
    keep: Tensor | None = None,
    convention: Convention = "default",
) -> Tensor:
    """Mean squared effect of each perturbation minus what sampling noise adds to it.

    Args:
        target: True pseudobulks, float64 ``[perturbations, genes]``.
        control: True control pseudobulk ``[genes]``.
        noise: Sampling variance of ``target``, of the same shape.
        control_noise: Sampling variance of ``control``, ``[genes]``.
        keep: Genes that count, boolean ``[genes]`` or ``[perturbations, genes]``; all of them when None.
        convention: ``"vcc2026"``: noise is that of all genes.

    Returns:
        float64 ``[perturbations]``; NaN where no gene counts.

    Example:
        >>> effect_size_debiased(torch.tensor([[3.0, 1.0]]), torch.ones(2), torch.full((1, 2), 0.5), torch.ones(2))
        tensor([0.5000], dtype=torch.float64)
    """
    counted = None if convention == "vcc2026" else keep
    both = _sum(noise, counted) + _sum(control_noise.expand_as(target), counted)
    return (_squared_distance(target, control.expand_as(target), keep) - both) / _genes(target, keep)


def mse_debiased_ratio(error: Tensor, effect: Tensor, *, convention: Convention = "default") -> Tensor:
    """Sum of debiased errors over the sum of debiased effect sizes.

    Args:
        error: What :func:`mse_debiased` gives, float64 ``[perturbations]``; NaN where undefined.
        effect: What :func:`effect_size_debiased` gives for the same perturbations.
        convention: ``"default"`` lets no value be better than no error at all, zero.

    Returns:
        0-d float64; NaN where the effect sizes do not sum to more than zero.

    Example:
        >>> mse_debiased_ratio(torch.tensor([0.5, 0.0]), torch.tensor([1.0, 1.0]))
        tensor(0.2500, dtype=torch.float64)
    """
    n, d = _sums(error, effect)
    ratio = torch.where(d > 0, n / d, torch.nan)
    return ratio if convention == "vcc2026" else ratio.clamp(min=0.0)


def _sums(error: Tensor, effect: Tensor) -> tuple[Tensor, Tensor]:
    defined = ~effect.isnan()
    return tree_sum(error[defined]), tree_sum(effect[defined])


def _blocks(x: Tensor, keep: Tensor | None) -> Iterator[tuple[slice, Tensor | None]]:
    """A few rows at a time, to bound memory, with their mask."""
    step = max(1, _BLOCK_ELEMENTS // x.shape[1])
    for start in range(0, len(x), step):
        part = slice(start, min(start + step, len(x)))
        if keep is not None and keep.dim() == 1:
            yield part, keep.expand_as(x[part])
        else:
            yield part, None if keep is None else keep[part]


def _squared_distance(x: Tensor, y: Tensor, keep: Tensor | None) -> Tensor:
    """Summed over the genes that count, float64 ``[rows]``."""
    parts = [
        tree_sum(rowwise.kept((x[p].double() - y[p].double()).square(), mask), dim=1) for p, mask in _blocks(x, keep)
    ]
    return torch.cat(parts)


def _sum(x: Tensor, keep: Tensor | None) -> Tensor:
    return torch.cat([tree_sum(rowwise.kept(x[p].double(), mask), dim=1) for p, mask in _blocks(x, keep)])


def _genes(x: Tensor, keep: Tensor | None) -> Tensor:
    """How many genes count, float64 ``[rows]``; NaN for none."""
    n = torch.cat([rowwise.count(x[part], mask) for part, mask in _blocks(x, keep)])
    return torch.where(n > 0, n, torch.nan)


def _entitled(pred: Tensor, noise: Tensor, keep: Tensor | None) -> Tensor:
    """The share of the noise claimed that the spread between predictions can hold, at most 1; both per gene counted."""
    weight = (1.0 / _genes(pred, keep)).nan_to_num(nan=0.0)
    claimed = tree_sum(weight * noise)
    spread = []
    step = max(1, _BLOCK_ELEMENTS // len(pred))
    for start in range(0, pred.shape[1], step):
        q = pred[:, start : start + step].double()
        columns = None if keep is None else keep[..., start : start + step].expand_as(q)
        w = rowwise.kept(weight.unsqueeze(1).expand_as(q), columns)
        mean = tree_sum(w * q) / tree_sum(w)
        squares = tree_sum(w * (q - mean).square())
        # One prediction alone does not differ from others.
        spread.append(torch.where((w > 0).sum(dim=0) > 1, squares, 0.0))
    held = tree_sum(torch.cat(spread))
    return torch.where(held < claimed, held / claimed, 1.0)


@dataclass(frozen=True, slots=True)
class NoisyRows(Rows):
    """Some perturbations with the sampling variance of their pseudobulks, all float64.

    Attributes:
        pred_noise: That of the predicted ones ``[rows, genes]``; zero where the metric reads none.
        noise: That of the true ones ``[rows, genes]``.
        control_noise: That of the true control, ``[genes]``.
    """

    pred_noise: Tensor
    noise: Tensor
    control_noise: Tensor


class DebiasedMetric(ProfileMetric):
    """A metric that knows the noise of pseudobulks.

    Args:
        *args: As in ``PerturbationMetric``.
        convention: ``"default"``, or ``"vcc2026"`` for parity with cell-eval2.
        **kwargs: As in ``ProfileMetric``.

    Raises:
        InputError: If an argument is wrong, or has no meaning beside the others.
    """

    default_exclude_targets: ClassVar[ExcludeTargets] = "own"
    reads_predicted_noise: ClassVar[bool] = True

    def __init__(self, *args: Any, convention: Convention = "default", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if convention not in get_args(Convention):
            raise InputError(
                f"convention cannot be {convention!r}", hint=f"Choose one of {', '.join(get_args(Convention))}."
            )
        if self.uses_predicted_control:
            raise InputError(
                f"{type(self).__name__} measures effects from the solution's control alone",
                hint="Leave control_source out.",
            )
        self.convention: Convention = convention

    def rows(self, batch: Batch, reference: PerturbationReference, chosen: Tensor) -> NoisyRows:
        """The pseudobulks of some perturbations, with their noise."""
        rows = super().rows(batch, reference, chosen)
        part = slice(None) if len(chosen) == reference.num_perturbations else chosen  # which copies nothing
        noise = true_noise(reference, self.target_sum).to(batch.device)
        true = noise[1:][part]
        if self.reads_predicted_noise:
            pred = predicted_noise(batch, reference, self.target_sum)[1:][part]
        else:
            pred = true.new_zeros(()).expand_as(true)
        return NoisyRows(
            rows.pred,
            rows.true,
            rows.origin,
            rows.pred_origin,
            rows.keep,
            pred_noise=pred,
            noise=true,
            control_noise=noise[0],
        )

    def undefined(self, rows: Rows, positions: Tensor) -> Tensor:
        """Whether a perturbation has no genes left to compare."""
        return _genes(rows.true, rows.keep)[positions].isnan()


class MSEDebiased(DebiasedMetric):
    """Mean squared error beyond sampling noise; see :func:`mse_debiased`."""

    higher_is_better = False
    origin = "none"

    def values(self, rows: Rows) -> Tensor:
        """The value of each perturbation."""
        return _error(cast(NoisyRows, rows), self.convention)


class EffectSizeDebiased(DebiasedMetric):
    """Size of the true effect beyond sampling noise; see :func:`effect_size_debiased`."""

    higher_is_better = True
    reads_predicted_noise = False

    def values(self, rows: Rows) -> Tensor:
        """The value of each perturbation."""
        return _effect(cast(NoisyRows, rows), self.convention)


class MSEDebiasedRatio(DebiasedMetric):
    """Debiased errors over debiased effect sizes; see :func:`mse_debiased_ratio`."""

    higher_is_better = False

    def values(self, rows: Rows) -> Tensor:
        """The debiased error of each perturbation."""
        return _error(cast(NoisyRows, rows), self.convention)

    def score_against(self, batch: Batch, reference: PerturbationReference) -> Score:
        """The ratio; undefined where the solution's cells show no effect at all beyond noise."""
        chosen = (reference.cells_per_group[1:] > 0).nonzero().flatten().to(batch.device)
        reason = self.common_reason(reference) if len(chosen) else ABSENT
        if reason is not None:
            return Score(None, reason)
        rows = self.rows(batch, reference, chosen)
        error, effect = self.values(rows), _effect(rows, self.convention)
        value = float(mse_debiased_ratio(error, effect, convention=self.convention))
        if not math.isnan(value):
            return Score(value)
        n, d = _sums(error, effect)
        return Score(None, f"debiased effect sizes sum to {float(d):.6g}, not above zero; errors to {float(n):.6g}")


def _error(rows: NoisyRows, convention: Convention) -> Tensor:
    return mse_debiased(rows.pred, rows.true, rows.pred_noise, rows.noise, keep=rows.keep, convention=convention)


def _effect(rows: NoisyRows, convention: Convention) -> Tensor:
    return effect_size_debiased(
        rows.true, rows.origin, rows.noise, rows.control_noise, keep=rows.keep, convention=convention
    )
