"""Pearson correlation of effects over the genes that respond most: the true effect alone chooses them."""

from typing import Any

from torch import Tensor

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.perturbation import rowwise
from prima_bench.metrics.perturbation.params import CONTROL_SOURCE, EXCLUDE_TARGETS, TARGET_SUM
from prima_bench.metrics.perturbation.profiles.delta_correlation import pearson_delta
from prima_bench.metrics.perturbation.profiles.metric import Rows, RowwiseMetric
from prima_bench.metrics.spec import MetricSpec, Param

SPECS = (
    MetricSpec(
        name="top_k_delta_pearson",
        version=1,
        inputs="perturbation",
        implementation="TopKDeltaPearson",
        title="Pearson correlation of the k largest effects",
        summary="Whether the genes that change most are predicted to change in the right proportions.",
        formula=(
            "Pearson of (q_p - m_c) and (m_p - m_c) over the k genes with the largest |m_p - m_c|, "
            "then mean over perturbations"
        ),
        direction="max",
        range=(-1.0, 1.0),
        perfect=1.0,
        chance=0.0,
        level="unit",
        unit="perturbation",
        undefined="A perturbation whose true effect is the same for all genes chosen.",
        references=("Roohani et al. 2024, GEARS, doi:10.1038/s41587-023-01905-6",),
        params=(
            Param(
                name="k",
                default=20,
                range=(2, None),
                summary="Number of genes, at least 2; all genes when there are fewer.",
            ),
            CONTROL_SOURCE,
            EXCLUDE_TARGETS,
            TARGET_SUM,
        ),
        notes=(
            "GEARS ranks genes by a test statistic; here the size of the effect decides, ties by the order of the "
            "solution's genes. Genes that were chosen for being extreme favour predictions that shrink nothing."
        ),
    ),
)


def top_k_genes(effect: Tensor, k: int, *, keep: Tensor | None = None) -> Tensor:
    """The ``k`` genes with the largest absolute effect, ties by column, lowest first.

    Args:
        effect: ``[perturbations, genes]``.
        k: How many; all that count, when they are fewer.
        keep: Genes that count, boolean of the same shape; all of them when None.

    Returns:
        Boolean ``[perturbations, genes]``.

    Example:
        >>> import torch
        >>> top_k_genes(torch.tensor([[1.0, -3.0, 2.0, 2.0]]), 2)
        tensor([[False,  True,  True, False]])
    """
    size = rowwise.kept(effect.abs(), keep, -1.0)
    least = size.topk(min(k, size.shape[1]), dim=1).values[:, -1:]
    above, level = size > least, size == least
    chosen = above | (level & (level.cumsum(dim=1) <= k - above.sum(dim=1, keepdim=True)))
    return chosen if keep is None else chosen & keep


def top_k_delta_pearson(
    pred: Tensor,
    target: Tensor,
    control: Tensor,
    *,
    k: int = 20,
    pred_control: Tensor | None = None,
    keep: Tensor | None = None,
) -> Tensor:
    """Pearson correlation of ``pred - control`` and ``target - control`` over the ``k`` largest true effects.

    Args:
        pred: Predicted pseudobulks, float64 ``[perturbations, genes]``.
        target: True pseudobulks, of the same shape.
        control: True control pseudobulk ``[genes]``.
        k: Number of genes.
        pred_control: Control that is subtracted from ``pred``; ``control`` when None.
        keep: Genes that count, boolean ``[perturbations, genes]``; all of them when None.

    Returns:
        float64 ``[perturbations]``: NaN where the chosen true effects are equal, else 0 where the predicted ones are.

    Example:
        >>> import torch
        >>> target = torch.tensor([[5.0, -4.0, 0.1, 0.2]])
        >>> pred = torch.tensor([[5.0, -4.0, 9.0, -9.0]])
        >>> top_k_delta_pearson(pred, target, torch.zeros(4), k=2)
        tensor([1.], dtype=torch.float64)
    """
    chosen = top_k_genes(rowwise.difference(target, control), k, keep=keep)
    return pearson_delta(pred, target, control, pred_control=pred_control, keep=chosen)


class TopKDeltaPearson(RowwiseMetric):
    """Pearson correlation of the largest effects; see :func:`top_k_delta_pearson`.

    Args:
        *args: As in ``PerturbationMetric``.
        k: Number of genes, at least 2.
        **kwargs: As in ``PerturbationMetric``.

    Raises:
        InputError: If ``k`` is below 2, or another argument is wrong.
    """

    higher_is_better = True
    degenerate = "constant solution effect among the chosen genes"

    def __init__(self, *args: Any, k: int = 20, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if k < 2:
            raise InputError(f"k must be at least 2, not {k}", hint="One gene has no correlation.")
        self.k = int(k)

    def row_values(self, rows: Rows) -> Tensor:
        """The value of each of some perturbations."""
        return top_k_delta_pearson(
            rows.pred, rows.true, rows.origin, k=self.k, pred_control=rows.pred_origin, keep=rows.keep
        )
