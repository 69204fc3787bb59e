"""Wilcoxon rank-sum (Mann-Whitney) tests of every group of cells against the control, gene by gene."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from prima_bench.metrics.differential.cells import Matrix, read_cells
from prima_bench.metrics.differential.keys import KEY_BITS, VALUE_BITS, order
from prima_bench.metrics.differential.means import group_means
from prima_bench.metrics.differential.normal import two_sided
from prima_bench.metrics.differential.spans import Columns, Nonzeros, columns_of, held_blocks, lie_on_disk, plan_spans
from prima_bench.metrics.differential.ties import MOST_CELLS, rank_block
from prima_bench.metrics.elements import repeat_each
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.primitives import plus_
from prima_bench.metrics.threads import Workers

# Nonzeros that are sorted at once, and that are ranked at once. On the CPU the second must fit into its caches; the
# first is as small as reading so few columns of long rows allows.
_SPAN, _BLOCK = 1 << 20, 1 << 17
_DEVICE_SPAN = 1 << 24
_LEAST_SPAN = 1 << 16

Linear = Literal["identity", "expm1"]


@dataclass(frozen=True, slots=True, eq=False)
class RankSums:
    """Rank-sum tests of P groups of cells against a control, for each gene.

    Attributes:
        u: The Mann-Whitney U of the group over the control, exact half integers, float64 ``[P, genes]``: how many
            pairs of a cell of the group and a control cell have the larger value in the group, ties counting half.
        z: The signed z score with tie and continuity correction, float64 ``[P, genes]``; 0 without variance.
        p_value: Two-sided, float64 ``[P, genes]``; 1 without variance.
        mean: Mean of linear expression by group code, the control first, float64 ``[1 + P, genes]``.
        n_cells: Number of cells by group code, int64 ``[1 + P]``.
    """

    u: Tensor
    z: Tensor
    p_value: Tensor
    mean: Tensor
    n_cells: Tensor


def rank_sum_test(
    x: Matrix,
    group: Tensor,
    n_groups: int,
    *,
    control: Matrix | None = None,
    total: Tensor | None = None,
    control_total: Tensor | None = None,
    linear: Linear = "identity",
) -> RankSums:
    """Test every group of cells against the control, two-sided, gene by gene.

    U and p equal ``scipy.stats.mannwhitneyu(group, control, method="asymptotic")``. U and the tie term are exact
    integers, and the means are sums that do not depend on their order, so no bit of the result depends on the order
    of cells, how they are cut into chunks, dense or sparse storage, or the number of threads.

    Values are compared exactly, in float64, which holds those of every smaller dtype and integers up to 2^53; with
    ``total``, what is compared is the quotient in float64. Two values are tied when they are equal there. Zeros that
    are not stored are ranked as one tie. Of the matrix, a million nonzeros at a time are copied for each thread.

    Args:
        x: Expression, real ``[cells, genes]``.
        group: The group of each cell, integer ``[cells]``: 0 for the control, 1 to P; negative to leave a cell out.
        n_groups: 1 + P.
        control: The control cells, ``[control cells, genes]``; given, rows of ``x`` with group 0 are left out.
        total: What every value of a cell is divided by before ranks and means, positive, float64 ``[cells]``: for
            counts, what they add up to. One division is correctly rounded, so equal shares stay tied.
        control_total: The same for ``control``.
        linear: How values become linear expression for the means: as they are, or by ``expm1``.

    Returns:
        A group without cells has u = 0, z = 0, p = 1 and mean = 0, and so has every group where there is no control;
        ``n_cells`` tells.

    Raises:
        InputError: If shapes or dtypes do not fit, a group is not below ``n_groups``, a value is NaN or infinite, or
            the control and a group have more than 2,097,152 cells together.

    Example:
        >>> x = torch.tensor([[0.0, 1.0], [0.0, 2.0], [3.0, 1.0], [4.0, 1.0]])
        >>> result = rank_sum_test(x, torch.tensor([0, 0, 1, 1]), 2)
        >>> result.u, result.mean
        (tensor([[4., 1.]], dtype=torch.float64), tensor([[0.0000, 1.5000],
                [3.5000, 1.0000]], dtype=torch.float64))
    """
    if n_groups < 1:
        raise InputError(f"n_groups must count the control and the groups, not be {n_groups}")
    if linear not in ("identity", "expm1"):
        raise InputError(f"linear={linear!r} is neither identity nor expm1")
    if control is None and control_total is not None:
        raise InputError("control_total needs a control", hint="Without a control, total holds for all cells of x.")
    if control is not None and (control.shape[1:] != x.shape[1:] or control.device != x.device):
        raise InputError(
            f"control must have the genes and the device of x, {tuple(x.shape[1:])} on {x.device}, "
            f"not {tuple(control.shape[1:])} on {control.device}"
        )
    with Workers(x.device) as workers:
        cells = read_cells(x, group, total, n_groups, "x", control=control is None)
        if control is not None:
            cells += read_cells(control, torch.zeros(control.shape[0], dtype=torch.int64), control_total, 1, "control")
        n_cells = torch.zeros(n_groups, dtype=torch.int64, device=x.device)
        for part in cells:
            n_cells += torch.bincount(part.group, minlength=n_groups)
        together = int(n_cells[0] + n_cells[1:].max()) if n_groups > 1 else 0
        if together > MOST_CELLS:
            raise InputError(
                f"the control and a group have {together} cells together, more than {MOST_CELLS}",
                hint="Test against a sample of the control.",
            )
        sources = [columns_of(part) for part in cells]
        if not lie_on_disk(sources):
            return _Tests(n_cells, x.shape[1], linear).run(sources, workers)
        results = _blank(n_cells, x.shape[1])
        for genes, held in held_blocks(sources, x.shape[1], workers):
            some = _Tests(n_cells, genes.stop - genes.start, linear).run(held, workers, first=genes.start)
            for every, own in zip(_by_gene(results), _by_gene(some), strict=True):
                every[:, genes] = own
        return results


class _Tests:
    """The results of one call while spans of genes fill them in."""

    def __init__(self, n_cells: Tensor, genes: int, linear: Linear) -> None:
        self._n_cells = n_cells
        self._genes = genes
        self._linear = linear
        self._named_from = 0
        self._group_bits = (len(n_cells) - 1).bit_length()
        self._results = _blank(n_cells, genes)
        on_cpu = n_cells.device.type == "cpu"
        self._span, self._block = (_SPAN, _BLOCK) if on_cpu else (_DEVICE_SPAN, _DEVICE_SPAN)

    def run(self, sources: list[Columns], workers: Workers, first: int = 0) -> RankSums:
        """The results of genes that error messages number from ``first``."""
        self._named_from = first
        if not sources:
            return self._results
        while True:
            try:
                self._run(sources, workers)
            except torch.OutOfMemoryError:
                if self._span <= _LEAST_SPAN:
                    raise
                # No bit depends on how genes are cut: begin anew with a quarter of the memory.
                self._span //= 4
                self._block = min(self._block, self._span)
            else:
                return self._results

    def _run(self, sources: list[Columns], workers: Workers) -> None:
        widest = 1 << (KEY_BITS - VALUE_BITS - self._group_bits)
        spans = plan_spans(sources, self._genes, self._span, widest, workers)

        def work(number: int) -> None:
            first, last = spans[number]
            self._span_of([part for s in sources for part in s.take(number, first, last)], first, last)

        workers.for_each(work, range(len(spans)))

    def _span_of(self, stored: list[Nonzeros], first: int, last: int) -> None:
        ordered = order(stored, last - first, self._group_bits)
        for genes, part in self._blocks(ordered.edges.tolist()):
            edges = ordered.edges[genes.start : genes.stop + 1] - part.start
            self._block_of(*ordered.block(part), edges, slice(first + genes.start, first + genes.stop))

    def _blocks(self, edges: list[int]) -> Iterator[tuple[slice, slice]]:
        """Some of a span's genes at a time, few enough to stay in the processor's cache, and their nonzeros."""
        most = max(1, self._block // len(self._n_cells))
        first = 0
        for last in range(1, len(edges)):
            if last + 1 == len(edges) or last - first == most or edges[last + 1] - edges[first] > self._block:
                yield slice(first, last), slice(edges[first], edges[last])
                first = last

    def _block_of(self, keys: Tensor, values: Tensor, edges: Tensor, genes: slice) -> None:
        """Fill in the results of some genes."""
        width, out, device = len(edges) - 1, self._results, keys.device
        group, groups = keys & ((1 << self._group_bits) - 1), len(self._n_cells)
        stored = edges.diff()
        index = plus_(repeat_each(torch.arange(0, width * groups, groups, device=device), stored, len(keys)), group)
        ends = _ends(values, edges)
        negative = values < 0 if bool((ends < 0).any()) else None
        n_cells = self._n_cells.expand(width, -1)
        two_u, ties = rank_block(keys, self._group_bits, group, index, values, negative, n_cells)
        z, p = two_sided(two_u[:, 1:], ties[:, 1:], self._n_cells)
        if self._linear == "expm1":
            values, ends = values.expm1_(), ends.expm1_()
        largest = ends.abs().amax(dim=0)
        self._check(largest, genes)
        out.mean[:, genes] = group_means(values, index, stored, largest, self._n_cells).T
        out.u[:, genes] = two_u[:, 1:].to(torch.float64).T / 2
        out.z[:, genes] = z.T
        out.p_value[:, genes] = p.T

    def _check(self, largest: Tensor, genes: slice) -> None:
        wrong = (~largest.isfinite()).nonzero().flatten()
        if len(wrong):
            named = (self._named_from + genes.start + wrong[:5]).tolist()
            what = "NaN or infinity" if self._linear == "identity" else "NaN, infinity, or what expm1 makes infinite"
            raise InputError(f"genes {named} hold {what}", hint="Replace such values, or leave out those cells.")


def _blank(n_cells: Tensor, genes: int) -> RankSums:
    groups = len(n_cells)
    u, z, mean = (
        torch.zeros((rows, genes), dtype=torch.float64, device=n_cells.device)
        for rows in (groups - 1, groups - 1, groups)
    )
    return RankSums(u, z, torch.ones_like(u), mean, n_cells)


def _by_gene(results: RankSums) -> tuple[Tensor, ...]:
    return results.u, results.z, results.p_value, results.mean


def _ends(values: Tensor, edges: Tensor) -> Tensor:
    """The least and the greatest value of each gene, ``[2, genes]``; zero for a gene that has none."""
    if not len(values):
        return torch.zeros((2, len(edges) - 1), dtype=torch.float64, device=values.device)
    first, last = edges[:-1], edges[1:]
    at = torch.stack([first, last - 1]).clamp_(0, len(values) - 1)
    return values[at].masked_fill_(first == last, 0.0)
