"""Whether predicted cells vary as much as the true ones, gene by gene: a tiled mean does not vary at all."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch
from prima_bench.metrics.numerics import tree_sum
from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.base import PerturbationMetric
from prima_bench.metrics.perturbation.cells.expression import CellExpression, predicted_expression, true_expression
from prima_bench.metrics.perturbation.cells.latent import variable_genes
from prima_bench.metrics.perturbation.cells.metric import ONE_CELL
from prima_bench.metrics.perturbation.params import EXCLUDE_TARGETS
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="variance_ratio",
        version=1,
        inputs="perturbation",
        implementation="VarianceRatio",
        title="Deviation of cell-to-cell variance",
        summary="Whether genes vary from cell to cell as much in the prediction as in truth, neither less nor more.",
        formula=(
            "median over genes of |ln(s2_pred / s2_true)|, at most ln 1000, s2 = variance over the cells of a "
            "perturbation; then mean over perturbations"
        ),
        direction="min",
        range=(0.0, 6.907755278982137),
        perfect=0.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation of one true cell, or in which no gene compared varies.",
        references=("F statistic of two variances, in its logarithm: too little and too much cost the same",),
        params=(EXCLUDE_TARGETS,),
        notes=(
            "Over the 2,000 genes that vary most between all cells of the solution; on rarely detected genes a "
            "variance would be that of a few cells. Genes without variance in a perturbation's true cells are left "
            "out there. A tiled mean, or a single predicted cell, has the largest value, ln 1000 = 6.9. The absolute "
            "value is taken gene by gene, so that genes with too much variance cannot make up for others, and a "
            "replicate of n cells has about 1 / sqrt(n) to 3 / sqrt(n). Counts as log1p of counts per 10,000."
        ),
    ),
)

LIMIT = math.log(1000.0)
"""The largest value: a variance a thousand times too small or too large, or more."""

_BLOCK_ROWS = 256


def variance_ratio(pred: Tensor, target: Tensor, *, keep: Tensor | None = None) -> Tensor:
    """Median over genes of the absolute log ratio of two variances.

    Args:
        pred: Variance of predicted cells, float64 ``[perturbations, genes]``.
        target: Variance of true cells, of the same shape.
        keep: Genes that count, boolean of the same shape; all of them when None.

    Returns:
        float64 ``[perturbations]``, at most ln 1000; NaN where no true variance that counts is positive.

    Example:
        >>> target = torch.tensor([[1.0, 4.0, 2.0, 0.0]], dtype=torch.float64)
        >>> variance_ratio(target * math.e, target), variance_ratio(target * 0, target)
        (tensor([1.], dtype=torch.float64), tensor([6.9078], dtype=torch.float64))
    """
    counted = target > 0 if keep is None else (target > 0) & keep
    ratio = (pred / target).log().abs().clamp(max=LIMIT)
    ratio = torch.sort(torch.where(counted, ratio, torch.inf), dim=1).values
    count = counted.sum(dim=1, keepdim=True)
    middle = [
        ratio.gather(1, place.clamp(min=0)) for place in ((count - 1) // 2, (count // 2).clamp(max=ratio.shape[1] - 1))
    ]
    return torch.where(count > 0, (middle[0] + middle[1]) / 2, torch.nan).squeeze(1)


def cell_variance(cells: CellExpression, positions: Tensor, genes: Tensor) -> Tensor:
    """Variance of some genes over some cells, ``n - 1`` in the denominator; zero where cells agree up to rounding.

    Args:
        cells: Cells.
        positions: Which of them, int64 ``[n]``.
        genes: Which genes, int64 ``[k]``.

    Returns:
        float64 ``[k]``; zero for one cell.
    """
    means, squares, largest, counts = [], [], [], []
    for part in torch.split(positions, _BLOCK_ROWS):
        x = cells.take(part, genes)
        means.append(tree_sum(x) / len(part))
        squares.append(tree_sum((x - means[-1]).square()))
        largest.append(x.abs().amax(dim=0))
        counts.append(float(len(part)))
    weight = torch.tensor(counts, dtype=torch.float64, device=positions.device).unsqueeze(1)
    mean = torch.stack(means)
    apart = mean - tree_sum(weight * mean) / len(positions)
    variance = (tree_sum(torch.stack(squares)) + tree_sum(weight * apart.square())) / max(1, len(positions) - 1)
    return torch.where(variance.sqrt() <= rowwise.ROUNDING * torch.stack(largest).amax(dim=0), 0.0, variance)


class VarianceRatio(PerturbationMetric):
    """Absolute log ratio of predicted to true variance over cells, median over genes; see :func:`variance_ratio`."""

    higher_is_better = False
    needs_control = False
    degenerate = "no gene varies between the cells of the target"

    def unit_values(
        self, batch: Batch, reference: PerturbationReference, chosen: Tensor
    ) -> tuple[Tensor, Mapping[int, str]]:
        """The values of the perturbations that have true cells."""
        genes = variable_genes(reference).genes
        keep = self.kept_genes(reference)
        if keep is not None:
            keep = keep.to(batch.device)[..., genes.to(batch.device)]
            keep = keep[chosen] if keep.dim() == 2 else keep.expand(len(chosen), -1)
        codes = (1 + chosen).tolist()
        true = _variances(true_expression(reference), reference.group, genes, codes).to(batch.device)
        pred = _variances(predicted_expression(batch, reference), batch.tensor("group"), genes.to(batch.device), codes)
        alone = reference.cells_per_group.to(batch.device)[1 + chosen] < 2
        return variance_ratio(pred, true, keep=keep), dict.fromkeys(chosen[alone].tolist(), ONE_CELL)


def _variances(cells: CellExpression, group: Tensor, genes: Tensor, codes: list[int]) -> Tensor:
    """Variance by perturbation, float64 ``[len(codes), genes]``."""
    order = torch.sort(group, stable=True).indices
    members = torch.split(order, torch.bincount(group, minlength=1 + max(codes)).tolist())
    return torch.stack([cell_variance(cells, members[code], genes) for code in codes])
