"""The gene space: which columns a prediction must have. Their order is free, their names are exact."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from prima_bench.tasks.errors import DataError, PredictionError, counted, first_few
from prima_bench.tasks.inputs.ids import Ids, as_ids, repeated

ColumnOrder = npt.NDArray[np.int64]


class GeneSpace:
    """The solution's genes.

    Args:
        genes: The solution's gene names in the order of its columns, [G].
        ordered: Keep that order; else rows are laid out by gene name, so that the order of a file decides nothing.

    Attributes:
        genes: The gene names in the order in which rows are laid out, [G].

    Raises:
        DataError: If a name occurs twice or is missing.
    """

    def __init__(self, genes: Any, *, ordered: bool = True) -> None:
        given = as_ids(genes, what="gene names", error=DataError)
        if twice := repeated(given):
            raise DataError(
                f"the solution names {counted(len(twice), 'gene')} more than once: {first_few(twice)}",
                hint="Gene names must be unique; drop or merge the repeated columns (AnnData.var_names_make_unique()).",
            )
        order = np.arange(len(given)) if ordered else np.argsort(given.astype(str), kind="stable")
        self.genes: Ids = given[order]
        self._given: ColumnOrder | None = None if np.array_equal(order, np.arange(len(given))) else order
        self._index = pd.Index(self.genes, dtype=object)

    def __len__(self) -> int:
        return len(self.genes)

    def positions(self, genes: Any) -> npt.NDArray[np.int64]:
        """The column of each gene, -1 where it is unknown."""
        return np.asarray(self._index.get_indexer(pd.Index(genes, dtype=object)), dtype=np.int64)

    def order_of(self, genes: Any, width: int) -> ColumnOrder | None:
        """For each gene, the prediction's column that holds it, int64 [G].

        Args:
            genes: The prediction's gene names, [width]; None when its columns have no names and so must lie in the
                order of the solution's columns.
            width: Its number of columns.

        Returns:
            None when the columns already lie as rows are laid out.

        Raises:
            PredictionError: If genes are missing, superfluous or named twice, or the width is wrong.
        """
        if genes is None:
            if width != len(self):
                raise PredictionError(
                    f"predictions have {width} columns, the solution has {len(self)} genes",
                    hint="Without gene names the columns must be exactly the solution's genes, in their order.",
                )
            return self._given
        names = as_ids(genes, what="gene names")
        if twice := repeated(names):
            raise PredictionError(
                f"predictions name {counted(len(twice), 'gene')} more than once: {first_few(twice)}",
                hint="Gene names must be unique; drop or merge the repeated columns.",
            )
        index = pd.Index(names, dtype=object)
        missing = self.genes[index.get_indexer(self._index) < 0]
        extra = names[self._index.get_indexer(index) < 0]
        if len(missing) or len(extra):
            raise self._mismatch(missing, extra)
        if np.array_equal(names, self.genes):
            return None
        return np.asarray(index.get_indexer(self._index), dtype=np.int64)

    def _mismatch(self, missing: Ids, extra: Ids) -> PredictionError:
        parts = []
        if len(missing):
            parts.append(f"lack {len(missing)} of the solution's {len(self)} genes: {first_few(missing)}")
        if len(extra):
            parts.append(f"hold {counted(len(extra), 'gene')} that the solution lacks: {first_few(extra)}")
        folded = {_fold(str(gene)): str(gene) for gene in missing}
        near = [(str(gene), folded[_fold(str(gene))]) for gene in extra if _fold(str(gene)) in folded]
        hint = "Give exactly the solution's genes, in any order; a registered dataset's test split has them."
        if near:
            hint += f" {near[0][0]!r} looks like {near[0][1]!r}: names are compared exactly."
        return PredictionError(f"predictions {' and '.join(parts)}", hint=hint)


def _fold(gene: str) -> str:
    return gene.casefold().strip().partition(".")[0]
