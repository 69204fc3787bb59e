"""Pseudobulks of predicted cells, made once for all metrics of a panel."""

import torch
from torch import Tensor

from prima_bench.metrics.batch import Batch
from prima_bench.metrics.numerics import group_sums
from prima_bench.metrics.perturbation.reference import PerturbationReference


def predicted_sums(batch: Batch, groups: int) -> tuple[Tensor, Tensor]:
    """Predicted expression summed by code, float64 ``[groups, genes]``, and the number of cells; made once."""
    return batch.memo(("perturbation sums", groups), lambda: _sums(batch, groups))


def predicted_profiles(batch: Batch, reference: PerturbationReference, target_sum: float) -> tuple[Tensor, Tensor]:
    """Pseudobulks of the predicted cells, formed as the reference forms its own; once for all metrics of a panel.

    Args:
        batch: Predicted cells ``x`` and their codes ``group``.
        reference: Gives the scale, the number of groups and, for counts, the default total.
        target_sum: Total for counts; 0 for the reference's median group total.

    Returns:
        Float64 ``[1 + perturbations, genes]`` by code, and the number of predicted cells by code.
    """
    groups = 1 + reference.num_perturbations

    def profiles() -> tuple[Tensor, Tensor]:
        # Sums are kept where one batch has several profiles: for counts, one for each target_sum.
        summed, cells = predicted_sums(batch, groups) if reference.scale == "counts" else _sums(batch, groups)
        return reference.profiles_of(summed, cells, target_sum), cells

    return batch.memo(("perturbation profiles", reference, target_sum), profiles)


def _sums(batch: Batch, groups: int) -> tuple[Tensor, Tensor]:
    group = batch.tensor("group")
    return group_sums(batch.rows("x"), group, groups), torch.bincount(group, minlength=groups)
