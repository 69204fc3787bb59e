"""Against what cell-eval 0.8.2 and cell-eval2 0.20.0 say about differential expression in real screens."""

from pathlib import Path
from typing import NamedTuple

import anndata
import numpy as np
import pandas as pd
import pytest
import torch

from prima_bench.metrics.base import Score
from prima_bench.metrics.catalog import load_metric, parse_ref
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.de.convention import convention_of
from prima_bench.metrics.perturbation.de.rank_sums import true_tests
from prima_bench.metrics.perturbation.de.table import true_table
from prima_bench.metrics.perturbation.reference import PerturbationReference, Scale
from prima_bench.metrics.rows import SparseRows

FOLDER = Path(__file__).parents[4] / "shared" / "data" / "perturbation"
CONTROL = "non-targeting"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the reference data are not part of the repository")

CELL_EVAL = {
    **{
        f"{kind}_at_{k}": f"de_{kind}_at_n(table=cell_eval{'' if k == 'N' else f', k={k}'})"
        for kind in ("overlap", "precision")
        for k in ("N", "50", "100", "200", "500")
    },
    "de_spearman_sig": "de_count_spearman(table=cell_eval)",
    "de_direction_match": "de_direction_match(table=cell_eval)",
    "de_spearman_lfc_sig": "de_lfc_spearman(table=cell_eval)",
    "de_sig_genes_recall": "de_recall(table=cell_eval)",
    "roc_auc": "de_auroc(table=cell_eval, score=fdr)",
    "pr_auc": "de_auprc(table=cell_eval, score=fdr)",
}
VCC2026 = {
    "direction_fidelity_yield_raw": "de_direction_fidelity(table=vcc2026)",
    "direction_reach_raw": "de_direction_reach(table=vcc2026)",
    "sig_jaccard": "de_sig_jaccard(table=vcc2026)",
    "lfc_nmae": "de_lfc_nmae(table=vcc2026)",
}
_ALL_GENES = "table=vcc2026, exclude_targets=none"
FULL = {
    **VCC2026,
    **{
        f"{kind}{'' if k == 0 else f'_top{k}'}": f"de_{kind}_at_n({_ALL_GENES}{'' if k == 0 else f', k={k}'})"
        for kind in ("overlap", "precision")
        for k in (0, 50, 100, 200, 500)
    },
    "sig_recall": f"de_recall({_ALL_GENES})",
    "sig_mcc": f"de_sig_mcc({_ALL_GENES})",
    "direction_match": f"de_direction_match({_ALL_GENES})",
    "lfc_spearman": f"de_lfc_spearman({_ALL_GENES})",
    "nsig_spearman": f"de_count_spearman({_ALL_GENES})",
    "roc_auc": f"de_auroc({_ALL_GENES}, score=fdr)",
    "pr_auc": f"de_auprc({_ALL_GENES}, score=fdr)",
}


class Pair(NamedTuple):
    """A solution and a prediction, with the labels of codes 1 to P and the names of the genes."""

    reference: PerturbationReference
    preds: SparseRows
    codes: torch.Tensor
    labels: list[str]
    genes: list[str]

    def scores(self, refs: dict[str, str]) -> dict[str, Score]:
        parsed = {column: parse_ref(ref) for column, ref in refs.items()}
        panel = Panel({c: load_metric(ref.name)(self.reference, **ref.params) for c, ref in parsed.items()})
        panel.update(x=self.preds, group=self.codes)
        return panel.results()


def _sparse(adata: anndata.AnnData) -> SparseRows:
    x = adata.X
    lengths = torch.from_numpy(np.diff(x.indptr))
    return SparseRows(torch.from_numpy(x.data), torch.from_numpy(x.indices), lengths, x.shape[1])


def _pair(name: str, suffix: str, scale: Scale) -> Pair:
    real, pred = (anndata.read_h5ad(FOLDER / f"{name}_{side}{suffix}.h5ad") for side in ("real", "pred"))
    labels = sorted(set(real.obs["target_gene"].astype(str)) - {CONTROL})
    code = {label: i for i, label in enumerate([CONTROL, *labels])}
    genes = list(real.var_names)
    column = {gene: i for i, gene in enumerate(genes)}
    codes = [torch.tensor([code[label] for label in a.obs["target_gene"].astype(str)]) for a in (real, pred)]
    reference = PerturbationReference.from_cells(
        _sparse(real),
        codes[0],
        num_perturbations=len(labels),
        scale=scale,
        targets=[[column[label]] if label in column else [] for label in labels],
    )
    return Pair(reference, _sparse(pred), codes[1], labels, genes)


def _cell_eval2(name: str, profile: str, labels: list[str]) -> pd.DataFrame:
    table = pd.read_csv(FOLDER / "reference" / f"cell_eval2_0.20.0_{name}" / f"results_{profile}.csv")
    wide = table.pivot(index="perturbation", columns="metric", values="value").loc[labels]
    return wide.rename(columns=lambda c: c.removeprefix("de_wilcoxon_"))


def _assert_equal_where_both_are_defined(scores: dict[str, Score], table: pd.DataFrame) -> dict[str, int]:
    compared = {}
    for column, score in scores.items():
        theirs = table[column].to_numpy(float) if column in table else np.full(len(table), np.nan)
        ours = np.full(len(theirs), score.value) if score.units is None else score.units.numpy()
        both = ~np.isnan(ours) & ~np.isnan(theirs)
        np.testing.assert_allclose(ours[both], theirs[both], rtol=0, atol=1e-6, err_msg=column)
        compared[column] = int(both.sum())
    return compared


@pytest.fixture(scope="module", params=["papalexi", "k562"])
def log_pair(request: pytest.FixtureRequest) -> tuple[str, Pair]:
    return request.param, _pair(request.param, "", "log1p_cp10k")


@pytest.fixture(scope="module")
def counts_pair() -> Pair:
    return _pair("papalexi", "_counts", "counts")


def test_columns_equal_cell_eval(log_pair: tuple[str, Pair]) -> None:
    name, pair = log_pair
    table = pd.read_csv(FOLDER / "reference" / f"cell_eval_0.8.2_{name}" / "results.csv")
    table = table.set_index("perturbation").loc[pair.labels]
    compared = _assert_equal_where_both_are_defined(pair.scores(CELL_EVAL), table)
    called = int((table["de_nsig_counts_real"] > 0).sum())
    # Without true calls cell-eval gives 0 where a perturbation is undefined here; a correlation needs two genes.
    assert {k: n for k, n in compared.items() if n != called} == {
        "de_spearman_sig": len(table),
        "de_spearman_lfc_sig": int(table["de_spearman_lfc_sig"].notna().sum()),
    }


def test_the_true_table_equals_cell_evals(log_pair: tuple[str, Pair]) -> None:
    name, pair = log_pair
    theirs = pd.read_csv(FOLDER / "reference" / f"cell_eval_0.8.2_{name}" / "real_de.csv.gz")
    row = [pair.labels.index(label) for label in theirs["target"]]
    place = {gene: i for i, gene in enumerate(pair.genes)}
    column = [place[gene] for gene in theirs["feature"]]
    assert len(theirs) == len(pair.labels) * len(pair.genes)
    ours = true_table(pair.reference, convention_of("cell_eval"))
    u = true_tests(pair.reference)[0].sums.u
    assert (u[row, column].numpy() == theirs["statistic"].to_numpy()).all()
    np.testing.assert_allclose(ours.p_value[row, column], theirs["p_value"], rtol=1e-10)
    np.testing.assert_allclose(ours.fdr[row, column], theirs["fdr"], rtol=1e-10)
    # Their means are added in float32.
    lfc = ours.log_fold_change[row, column].numpy()
    np.testing.assert_allclose(lfc, theirs["log2_fold_change"], rtol=1e-4, atol=1e-4)
    assert ours.tested.all()


@pytest.mark.parametrize(("profile", "refs"), [("vcc2026", VCC2026), ("full", FULL)])
def test_columns_equal_cell_eval2_on_counts(counts_pair: Pair, profile: str, refs: dict[str, str]) -> None:
    table = _cell_eval2("papalexi", profile, counts_pair.labels)
    scores = counts_pair.scores(refs)
    compared = _assert_equal_where_both_are_defined(scores, table)
    for column in VCC2026:  # its own members are defined for the same perturbations, too
        assert compared[column] == int(table[column].notna().sum()) == int((~scores[column].units.isnan()).sum())
    assert min(compared.values()) >= 5


def test_columns_equal_cell_eval2_on_logs() -> None:
    pair = _pair("k562", "", "log1p_cp10k")
    table = _cell_eval2("k562", "full", pair.labels)
    scores = pair.scores(FULL)
    compared = _assert_equal_where_both_are_defined(scores, table)
    # No perturbation has the ten true calls that most of its columns and the error of fold changes need.
    assert {c for c, n in compared.items() if n} == {
        *(c for c in FULL if c.startswith(("overlap", "precision"))),
        *("direction_fidelity_yield_raw", "direction_reach_raw", "sig_jaccard", "nsig_spearman"),
    }
    assert scores["lfc_nmae"].value is None
