"""Whether differentially expressed genes come first when genes are ordered by the prediction's own evidence."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from prima_bench.metrics.errors import InputError
from prima_bench.metrics.numerics import average_ranks, tree_sum
from prima_bench.metrics.perturbation.de.metric import DEMetric, Tables, share
from prima_bench.metrics.perturbation.params import DE_SCORE, DE_TABLE, EXCLUDE_DE_TARGETS
from prima_bench.metrics.spec import MetricSpec

SPECS = (
    MetricSpec(
        name="de_auroc",
        version=1,
        inputs="perturbation",
        implementation="DEAuroc",
        title="AUROC of differentially expressed genes",
        summary="Whether genes that respond have stronger predicted evidence than genes that do not.",
        formula=(
            "probability that a true call has a larger score |z| than another tested gene, ties counting half, then "
            "mean over perturbations; z = the prediction's rank-sum statistic"
        ),
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=0.5,
        level="unit",
        unit="perturbation",
        undefined="A perturbation without differentially expressed genes, or with no others.",
        references=(
            "Hanley & McNeil 1982, doi:10.1148/radiology.143.1.7063747",
            "cell-eval 0.8 `roc_auc` (table=cell_eval, score=fdr)",
            "cell-eval2 0.20 `de_wilcoxon_roc_auc` (table=vcc2026, score=fdr, exclude_targets=none)",
        ),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS, DE_SCORE),
        notes=(
            "The direction of change is not seen; de_auprc_signed does. The statistic orders genes where false "
            "discovery rates are tied, as most are at 1 or, with a cut at 1e-10, at the other end. Highly expressed "
            "genes have more evidence in any comparison, so that a mean response already ranks them first."
        ),
    ),
    MetricSpec(
        name="de_auprc",
        version=1,
        inputs="perturbation",
        implementation="DEAuprc",
        title="Average precision of differentially expressed genes",
        summary="Whether the genes with the strongest predicted evidence are those that respond.",
        formula=(
            "sum over thresholds of (recall - previous recall) * precision for true calls among tested genes ranked by "
            "|z|, then mean over perturbations; z = the prediction's rank-sum statistic"
        ),
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation without differentially expressed genes, or with no others.",
        references=(
            "Zhu et al. 2025, doi:10.1093/bib/bbaf426",
            "cell-eval 0.8 `pr_auc` (table=cell_eval, score=fdr)",
            "cell-eval2 0.20 `de_wilcoxon_pr_auc` (table=vcc2026, score=fdr, exclude_targets=none)",
        ),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS, DE_SCORE),
        notes=(
            "Average precision as in scikit-learn, without interpolation. Chance is the share of tested genes that "
            "are true calls, so values of two panels do not compare."
        ),
    ),
    MetricSpec(
        name="de_auprc_signed",
        version=1,
        inputs="perturbation",
        implementation="DEAuprcSigned",
        title="Average precision of up- and downregulated genes",
        summary="Whether the genes with the strongest predicted evidence of a rise, or of a fall, do rise, or fall.",
        formula=(
            "mean of the average precision of true calls with z > 0 among tested genes ranked by the predicted z, and "
            "of those with z < 0 ranked by -z (one of them where the other has no calls), then mean over perturbations"
        ),
        direction="max",
        range=(0.0, 1.0),
        perfect=1.0,
        chance=None,
        level="unit",
        unit="perturbation",
        undefined="A perturbation without differentially expressed genes, or with no others.",
        references=("Zhu et al. 2025, doi:10.1093/bib/bbaf426 (unsigned)",),
        params=(DE_TABLE, EXCLUDE_DE_TARGETS, DE_SCORE),
        notes=(
            "Neither cell-eval nor cell-eval2 has it: their pr_auc is de_auprc, which rewards the right genes with "
            "the wrong sign. Up and down are read off the sign of the test's z on both sides, not off the fold change, "
            "which can differ where few cells carry a mean. Chance is about half the share of tested genes called."
        ),
    ),
)

Evidence = Literal["statistic", "fdr"]

ALL_CALLED = "every tested gene is differentially expressed in the solution"


def de_auroc(score: Tensor, true_called: Tensor, keep: Tensor | None = None) -> Tensor:
    """Area under the receiver operating characteristic: true calls against the other genes.

    Args:
        score: Predicted evidence, float64 ``[perturbations, genes]``, finite.
        true_called: True calls, boolean of the same shape.
        keep: Genes that count, boolean of the same shape; all of them when None.

    Returns:
        float64 ``[perturbations]``, NaN where no gene or every gene is a true call.

    Example:
        >>> true = torch.tensor([[True, False, False]])
        >>> de_auroc(torch.tensor([[2.0, 1.0, 2.0]]), true)
        tensor([0.7500], dtype=torch.float64)
    """
    keep = torch.ones_like(true_called) if keep is None else keep
    n1, n0 = true_called.sum(dim=1), (keep & ~true_called).sum(dim=1)
    # Sums of half integers: exact in any order.
    ranks = (average_ranks(score, keep) * true_called).sum(dim=1)
    return share(ranks - (n1 * (n1 + 1)).double() / 2, n1 * n0)


def de_auprc(score: Tensor, true_called: Tensor, keep: Tensor | None = None) -> Tensor:
    """Average precision of true calls among the genes, largest score first, ties together.

    Args:
        score: Predicted evidence, float64 ``[perturbations, genes]``.
        true_called: True calls, boolean of the same shape.
        keep: Genes that count, boolean of the same shape; all of them when None.

    Returns:
        float64 ``[perturbations]``, NaN where no gene or every gene is a true call.

    Example:
        >>> true = torch.tensor([[True, False, True]])
        >>> de_auprc(torch.tensor([[3.0, 2.0, 1.0]]), true)
        tensor([0.8333], dtype=torch.float64)
    """
    keep = torch.ones_like(true_called) if keep is None else keep
    value, order = torch.sort(torch.where(keep, score.double(), -torch.inf), dim=1, descending=True, stable=True)
    hit = (true_called & keep).gather(1, order)
    # A threshold takes in all that is tied at it: precision is read at the end of the run.
    ends = torch.ones_like(hit)
    ends[:, :-1] = value[:, 1:] != value[:, :-1]
    place = torch.arange(1, hit.shape[1] + 1, device=score.device)
    end = torch.where(ends, place, hit.shape[1]).flip(1).cummin(dim=1).values.flip(1)
    precision = hit.cumsum(dim=1).gather(1, end - 1).double() / end
    n = hit.sum(dim=1)
    average = share(tree_sum(torch.where(hit, precision, 0.0), dim=1), n)
    return torch.where(n < keep.sum(dim=1), average, torch.nan)


def de_auprc_signed(score: Tensor, true_sign: Tensor, true_called: Tensor, keep: Tensor | None = None) -> Tensor:
    """Mean of the average precision of upregulated genes by ``score``, and of downregulated ones by ``-score``.

    Args:
        score: Predicted evidence with its sign, float64 ``[perturbations, genes]``.
        true_sign: Numbers with the sign of the true change, of the same shape.
        true_called: True calls, boolean of the same shape.
        keep: Genes that count, boolean of the same shape; all of them when None.

    Returns:
        float64 ``[perturbations]``: of one direction alone where the other has no calls; NaN where no gene or every
        gene is a true call.

    Example:
        >>> score = torch.tensor([[3.0, 0.0, -3.0]])
        >>> called = torch.tensor([[True, False, True]])
        >>> de_auprc_signed(score, score, called), de_auprc_signed(-score, score, called)
        (tensor([1.], dtype=torch.float64), tensor([0.3333], dtype=torch.float64))
    """
    keep = torch.ones_like(true_called) if keep is None else keep
    up, down = (de_auprc(side * score.double(), true_called & (side * true_sign > 0), keep) for side in (1.0, -1.0))
    both = torch.where(up.isnan(), down, torch.where(down.isnan(), up, (up + down) / 2))
    return torch.where((keep & ~true_called).any(dim=1), both, torch.nan)


class _Ranking(DEMetric):
    """A metric of genes in the order of predicted evidence.

    Args:
        *args: As in ``DEMetric``.
        score: What ranks the genes, ``"statistic"`` or ``"fdr"``.
        **kwargs: As in ``DEMetric``.

    Raises:
        InputError: If an argument is wrong.
    """

    higher_is_better = True
    otherwise = ALL_CALLED

    def __init__(self, *args: Any, score: Evidence = "statistic", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if score not in get_args(Evidence):
            raise InputError(f"score cannot be {score!r}", hint=f"Choose one of {', '.join(get_args(Evidence))}.")
        self.evidence: Evidence = score

    def size(self, tables: Tables) -> Tensor:
        """Predicted evidence that genes change, either way, float64 ``[rows, genes]``."""
        if self.evidence == "statistic":
            return tables.pred.statistic.abs()
        least = max(self.convention.smallest_fdr, torch.finfo(torch.float64).tiny)
        return -torch.log10(tables.pred.fdr.clamp(min=least))


class DEAuroc(_Ranking):
    """AUROC of true calls; see :func:`de_auroc`."""

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        return de_auroc(self.size(tables), tables.true_called, tables.keep)


class DEAuprc(_Ranking):
    """Average precision of true calls; see :func:`de_auprc`."""

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        return de_auprc(self.size(tables), tables.true_called, tables.keep)


class DEAuprcSigned(_Ranking):
    """Average precision of up- and downregulated genes; see :func:`de_auprc_signed`."""

    def row_values(self, tables: Tables) -> Tensor:
        """The value of each of some perturbations."""
        score = tables.pred.statistic.sign() * self.size(tables)
        return de_auprc_signed(score, tables.true.statistic, tables.true_called, tables.keep)
