"""Which true effects lie how near to a predicted one: the drill-down behind the discrimination scores.

The scores are computed in ``discrimination``, with ties and rounding in mind; these distances are there to be read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch
from prima_bench.metrics.perturbation.profiles.discrimination import pds
from prima_bench.metrics.perturbation.profiles.distances import Distance
from prima_bench.metrics.perturbation.profiles.predicted import predicted_profiles
from prima_bench.metrics.perturbation.reference import ExcludeTargets, PerturbationReference


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Distances from predicted to true effects, over perturbations that have true cells.

    Attributes:
        perturbations: Which perturbations, from 0, int64 ``[k]``.
        distance: From predicted effect ``i`` to true effect ``j``, float64 ``[k, k]``.
        score: The discrimination score of each, float64 ``[k]``, NaN where undefined.
    """

    perturbations: Tensor
    distance: Tensor
    score: Tensor


def retrieve(
    batch: Batch,
    reference: PerturbationReference,
    *,
    distance: Distance = "cosine",
    exclude_targets: ExcludeTargets = "panel",
    target_sum: float = 0.0,
) -> Retrieval:
    """Distances between all predicted and all true effects of a panel.

    Args:
        batch: Predicted cells ``x`` with their codes ``group``.
        reference: The truth.
        distance: ``"cosine"``, ``"l1"`` or ``"l2"``.
        exclude_targets: Whose target genes are left out; ``"own"`` leaves out those of the predicted perturbation.
        target_sum: As in the metrics of pseudobulks.

    Example:
        >>> from prima_bench.metrics.perturbation.base import PerturbationMetric
        >>> from prima_bench.metrics.rows import RowMatrix
        >>> x = torch.tensor([[1.0, 1.0], [3.0, 1.0], [1.0, 4.0]])
        >>> codes = torch.arange(3)
        >>> reference = PerturbationReference.from_cells(x, codes, num_perturbations=2, scale="log1p_cp10k")
        >>> cells = Batch.of(PerturbationMetric.fields, {"x": RowMatrix([x]), "group": codes})
        >>> retrieve(cells, reference, distance="l1").distance
        tensor([[0., 5.],
                [5., 0.]], dtype=torch.float64)
    """
    pred = predicted_profiles(batch, reference, target_sum)[0]
    true = reference.profiles(target_sum).to(pred.device)
    chosen = (reference.cells_per_group[1:] > 0).nonzero().flatten().to(pred.device)
    keep = reference.kept_genes(exclude_targets)
    keep = None if keep is None else keep.to(pred.device)
    mask = keep if keep is None or keep.dim() == 1 else keep[chosen]
    e, d = pred[1:][chosen] - true[0], true[1:][chosen] - true[0]
    score = torch.full((len(chosen),), torch.nan, dtype=torch.float64)
    if len(chosen) > 1:
        score = pds(pred[1:][chosen], true[1:][chosen], true[0], distance=distance, keep=mask)
    rows = [
        _distances(row, d, distance, mask if mask is None or mask.dim() == 1 else mask[i]) for i, row in enumerate(e)
    ]
    return Retrieval(chosen, torch.stack(rows), score)


def _distances(row: Tensor, d: Tensor, distance: Distance, keep: Tensor | None) -> Tensor:
    if keep is not None:
        row, d = row[keep], d[:, keep]
    if distance == "cosine":
        norms = row.norm() * d.norm(dim=1)
        return torch.where(norms > 0, 1.0 - d @ row / torch.where(norms > 0, norms, 1.0), 1.0)
    gap = d - row
    return gap.abs().sum(dim=1) if distance == "l1" else gap.norm(dim=1)
