"""Maximum mean discrepancy between predicted and true cells, with one Gaussian kernel for the whole solution."""

from collections.abc import Mapping

import torch
from torch import Tensor

from prima_bench.metrics.base import Batch
from prima_bench.metrics.perturbation.cells.metric import ALIKE, CellMetric, typical_distance
from prima_bench.metrics.perturbation.cells.pairwise import pair_sum
from prima_bench.metrics.perturbation.reference import PerturbationReference
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="mmd_rbf",
        version=1,
        inputs="perturbation",
        implementation="MMDRBF",
        title="Squared maximum mean discrepancy, Gaussian kernel",
        summary="How far the distribution of predicted cells lies from that of the true ones, by any of its moments.",
        formula=(
            "mean k(x, x') + mean k(y, y') - 2 mean k(x, y) over all pairs of true cells x and predicted cells y, "
            "k(x, y) = exp(-|x - y|^2 / (2 s^2)), Euclidean in the solution's principal components, s = median "
            "distance between cells of the solution; then mean over perturbations"
        ),
        direction="min",
        range=(0.0, 2.0),
        perfect=0.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="All cells of the solution are alike.",
        references=(
            "Gretton et al. 2012, A kernel two-sample test, JMLR 13",
            "Bunne et al. 2023, CellOT, doi:10.1038/s41592-023-01969-x",
        ),
        notes=(
            "The biased statistic, each cell with itself included: never negative, 0 only for the same cells, and no "
            "choice of few predicted cells can make it gain. A replicate of n cells on both sides scores about "
            "2 (1 - mean k) / n. Squared, as CellOT gives it, who averages over several bandwidths. The bandwidth is "
            "one for all perturbations: the median distance over pairs of up to 2,000 cells of the solution at even "
            "steps, control included, cells that are alike left out. Space as in energy_ratio."
        ),
    ),
)


def mmd_rbf(pred: Tensor, target: Tensor, *, bandwidth: float) -> Tensor:
    """Squared maximum mean discrepancy of two sets of cells.

    Args:
        pred: Coordinates of predicted cells, float64 ``[m, d]``.
        target: Coordinates of true cells, ``[n, d]``.
        bandwidth: The kernel's standard deviation, in units of the coordinates.

    Returns:
        float64, 0-d, within 0 and 2.

    Example:
        >>> x = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
        >>> mmd_rbf(x, x, bandwidth=1.0), mmd_rbf(x + 100, x, bandwidth=1.0)
        (tensor(0., dtype=torch.float64), tensor(1.1353, dtype=torch.float64))
    """

    def kernel(d: Tensor) -> Tensor:
        return d.div_(bandwidth).square_().mul_(-0.5).exp_()

    n, m = len(target), len(pred)
    own = pair_sum(target, target, kernel) / (n * n) + pair_sum(pred, pred, kernel) / (m * m)
    return (own - 2.0 * pair_sum(target, pred, kernel) / (n * m)).clamp(0.0, 2.0)


class MMDRBF(CellMetric):
    """Squared maximum mean discrepancy with one Gaussian kernel; see :func:`mmd_rbf`."""

    higher_is_better = False
    degenerate = ALIKE

    def unit_values(
        self, batch: Batch, reference: PerturbationReference, chosen: Tensor
    ) -> tuple[Tensor, Mapping[int, str]]:
        """The values of the perturbations that have true cells."""
        pred, true = self.clouds(batch, reference)
        bandwidth = typical_distance(reference)
        if bandwidth == 0.0:
            return torch.full_like(chosen, torch.nan, dtype=torch.float64), {}
        return torch.stack([mmd_rbf(pred[p], true[p], bandwidth=bandwidth) for p in (1 + chosen).tolist()]), {}
