"""Task: predict the expression of cells under perturbations that were not seen in training.

Holds the contract, the loader and the naive baselines; how predictions are parsed and scored lives elsewhere.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from prima_bench.tasks.specs import BaselineSpec, TaskSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt
    from anndata import AnnData

    Floats = npt.NDArray[np.float64]

SPEC = TaskSpec(
    name="perturbation_prediction",
    version="1.0.0",
    title="Perturbation prediction",
    summary="Predict the expression of single cells after genetic perturbations that training never showed.",
    question=(
        "Given control cells and cells under some perturbations, what do cells look like under other perturbations, "
        "or under combinations of known ones? A useful model gets the perturbation-specific part of the response "
        "right, not only the response that all perturbations share."
    ),
    problem="perturbation",
    artifact="anndata",
    prediction=(
        'An AnnData with one row for each cell of `test` whose `obs["to_predict"]` is true, under the same '
        "`obs_names`, in any order and in any number of shards. `X` is on the scale that the dataset declares "
        "(`counts`: non-negative integers; `log1p_cp10k`: log1p of counts per 10,000), dense or sparse, over exactly "
        "the genes of `test`, in any order. Control cells are taken from the solution, so none need be predicted. "
        "On your own data the number of cells per perturbation is free, and `obs` names each cell's perturbation.\n\n"
        "A model that predicts means on a dataset of counts draws counts around them, as in the example; do not round "
        "the means, since small ones become 0. If it predicts `log1p_cp10k`, take `expm1`, scale each row to the depth "
        "of a cell, then draw.\n\n"
        "Scores compare pseudobulks: the true `m_p` and the predicted `q_p` of perturbation p, and the true `m_c` of "
        "the control. On counts a pseudobulk is `log1p(T * summed counts / total count)` of its cells, T being the "
        "median total of the solution's groups; on `log1p_cp10k` it is the mean over cells."
    ),
    example="""\
import numpy as np

cells = test[test.obs["to_predict"].to_numpy()].copy()
profile = np.asarray(train.X.mean(axis=0)).ravel()
cells.X = np.random.RandomState(0).poisson(profile, size=cells.shape).astype("float32")
preds = cells
""",
    default_dataset="perturbsim@1.0.0",
    presets={
        "default": (
            "pds_cosine",
            "mse_debiased_ratio",
            "pearson_delta_pertmean",
            "weighted_r2_delta_pertmean",
            "energy_ratio",
            "de_overlap_at_n",
            "de_sig_mcc",
            "de_auprc_signed",
            "de_direction_fidelity",
            "de_lfc_nmae",
            "pearson_delta",
            "r2_delta",
            "pds_l1",
            "wmse",
            "mae",
        ),
        "fast": ("pds_cosine", "pearson_delta_pertmean", "r2_delta", "pearson_delta", "mae"),
        "vcc2026": {
            "pds_cosine": "pds_cosine(exclude_targets=panel_single, target_sum=50000.0)",
            "expr_mse_unbiased_capped_norm": (
                "mse_debiased_ratio(convention=vcc2026, exclude_targets=own_single, target_sum=50000.0)"
            ),
            "direction_fidelity_yield_raw": "de_direction_fidelity(table=vcc2026)",
            "direction_reach_raw": "de_direction_reach(table=vcc2026)",
            "sig_jaccard": "de_sig_jaccard(table=vcc2026)",
            "lfc_nmae": "de_lfc_nmae(table=vcc2026)",
        },
        "cell_eval": {
            "mse": "mse",
            "mae": "mae",
            "mse_delta": "mse_delta(control_source=prediction)",
            "mae_delta": "mae_delta(control_source=prediction)",
            "pearson_delta": "pearson_delta(control_source=prediction)",
            "discrimination_score_l1": (
                "pds_l1(control_source=prediction, exclude_targets=own_single, ranking=position)"
            ),
            "discrimination_score_l2": (
                "pds_l2(control_source=prediction, exclude_targets=own_single, ranking=position)"
            ),
            "discrimination_score_cosine": (
                "pds_cosine(control_source=prediction, exclude_targets=own_single, ranking=position)"
            ),
            "overlap_at_N": "de_overlap_at_n(table=cell_eval)",
            "overlap_at_50": "de_overlap_at_n(k=50, table=cell_eval)",
            "overlap_at_100": "de_overlap_at_n(k=100, table=cell_eval)",
            "overlap_at_200": "de_overlap_at_n(k=200, table=cell_eval)",
            "overlap_at_500": "de_overlap_at_n(k=500, table=cell_eval)",
            "precision_at_N": "de_precision_at_n(table=cell_eval)",
            "precision_at_50": "de_precision_at_n(k=50, table=cell_eval)",
            "precision_at_100": "de_precision_at_n(k=100, table=cell_eval)",
            "precision_at_200": "de_precision_at_n(k=200, table=cell_eval)",
            "precision_at_500": "de_precision_at_n(k=500, table=cell_eval)",
            "de_spearman_sig": "de_count_spearman(table=cell_eval)",
            "de_direction_match": "de_direction_match(table=cell_eval)",
            "de_spearman_lfc_sig": "de_lfc_spearman(table=cell_eval)",
            "de_sig_genes_recall": "de_recall(table=cell_eval)",
            "roc_auc": "de_auroc(score=fdr, table=cell_eval)",
            "pr_auc": "de_auprc(score=fdr, table=cell_eval)",
            "pearson_edistance": "edistance_pearson(control_source=prediction)",
        },
    },
    primary=("pds_cosine", "mse_debiased_ratio"),
    null="mean_response",
    unit="perturbation",
    baselines=(
        BaselineSpec(
            name="mean_response",
            function="mean_response",
            summary="Every cell is drawn around the average profile of the training perturbations.",
        ),
        BaselineSpec(
            name="mean_response_tiled",
            function="mean_response_tiled",
            summary="Every cell is the average profile of the training perturbations, without any spread.",
        ),
        BaselineSpec(
            name="linear",
            function="linear",
            summary="Ridge regression of training effects on how the targets are co-expressed in control cells.",
            trivial=False,
        ),
        BaselineSpec(
            name="paste_control",
            function="paste_control",
            summary="Every cell is a copy of a real control cell, of the same batch where batches are named.",
        ),
    ),
)


def load(path: Path, split: str) -> "AnnData":
    """Read one artifact.

    Args:
        path: The ``train`` or ``test`` artifact.
        split: ``"train"`` or ``"test"``.

    Returns:
        ``X`` [cells, genes] on the dataset's scale. ``obs`` names each cell's perturbation; in ``test`` the column
        ``to_predict`` marks the cells to predict, whose ``X`` is censored to zero, beside real control cells.

    Raises:
        DataError: If the file cannot be read.
        UsageError: If it is an artifact of the other split.
    """
    from prima_bench.tasks.artifacts import read_h5ad

    return read_h5ad(path, split)


def mean_response(
    train: "AnnData",
    test: "AnnData",
    *,
    perturbation_key: str = "perturbation",
    control: str = "control",
    scale: str = "counts",
    **_: Any,
) -> "AnnData":
    """The mean of the training perturbations, the same for every perturbation.

    On counts, a perturbation's profile is its share of all counts per gene; the prediction draws each cell from a
    Poisson distribution around the unweighted mean of those profiles times the total count of a random training
    control cell (seed 0, cells in the order of their names). On log scale each cell is the mean of the perturbations'
    mean expression.

    Args:
        train: Training cells.
        test: Cells to predict, marked by ``obs["to_predict"]``.
        perturbation_key: Column of ``obs`` that names the perturbation.
        control: Label of control cells.
        scale: ``"counts"`` or ``"log1p_cp10k"``.

    Returns:
        One row per cell to predict, CSR float32.
    """
    import numpy as np

    cells = _cells_to_predict(test)
    profile = _profiles(train, perturbation_key, control, scale)[1:].mean(axis=0)
    profiles = np.broadcast_to(profile, (len(cells), len(profile)))
    return _predictions(test, cells, _drawn(profiles, train, perturbation_key, control, scale))


def mean_response_tiled(
    train: "AnnData",
    test: "AnnData",
    *,
    perturbation_key: str = "perturbation",
    control: str = "control",
    scale: str = "counts",
    **_: Any,
) -> "AnnData":
    """The mean of the training perturbations as every cell: right in the mean, wrong as a population.

    On counts the profile is scaled to a million and rounded, so that hardly anything is lost.

    Args:
        train: Training cells.
        test: Cells to predict, marked by ``obs["to_predict"]``.
        perturbation_key: Column of ``obs`` that names the perturbation.
        control: Label of control cells.
        scale: ``"counts"`` or ``"log1p_cp10k"``.

    Returns:
        One row per cell to predict, CSR float32.
    """
    import numpy as np

    cells = _cells_to_predict(test)
    profile = _profiles(train, perturbation_key, control, scale)[1:].mean(axis=0)
    row = np.rint(1e6 * profile) if scale == "counts" else profile
    return _predictions(test, cells, np.broadcast_to(row, (len(cells), len(row))))


def linear(
    train: "AnnData",
    test: "AnnData",
    *,
    perturbation_key: str = "perturbation",
    control: str = "control",
    scale: str = "counts",
    **_: Any,
) -> "AnnData":
    """Ridge regression from the targets of a perturbation to its effect.

    A gene is described by its loadings on the first principal components of the training control cells, a perturbation
    by the sum over its targets (``A+B`` has two; labels that name no gene are described by the average). The effects of
    the training perturbations, differences of log profiles to control, are regressed on those descriptions; the penalty
    is chosen by leave-one-out error. Cells are drawn around the predicted profile as in ``mean_response``.

    Args:
        train: Training cells.
        test: Cells to predict, marked by ``obs["to_predict"]``.
        perturbation_key: Column of ``obs`` that names the perturbation.
        control: Label of control cells.
        scale: ``"counts"`` or ``"log1p_cp10k"``.

    Returns:
        One row per cell to predict, CSR float32.
    """
    import numpy as np
    from sklearn.linear_model import RidgeCV

    profiles = _profiles(train, perturbation_key, control, scale)
    if scale == "counts":
        profiles = np.log1p(1e4 * profiles)
    names = _perturbations(train, perturbation_key, control)
    cells = _cells_to_predict(test)
    wanted = test.obs[perturbation_key].astype(str).to_numpy()[cells]
    describe = _descriptions(train, perturbation_key, control, scale)
    model = RidgeCV(alphas=np.logspace(-3, 3, 13)).fit(
        np.stack([describe(name) for name in names]), profiles[1:] - profiles[0]
    )
    distinct, which = np.unique(wanted, return_inverse=True)
    predicted = profiles[0] + model.predict(np.stack([describe(name) for name in distinct]))
    if scale == "counts":
        predicted = np.expm1(predicted.clip(min=0))
        predicted /= predicted.sum(axis=1, keepdims=True)
    else:
        predicted = predicted.clip(min=0)
    return _predictions(test, cells, _drawn(predicted[which], train, perturbation_key, control, scale))


def paste_control(
    train: "AnnData",
    test: "AnnData",
    *,
    perturbation_key: str = "perturbation",
    control: str = "control",
    **_: Any,
) -> "AnnData":
    """Real control cells, as if no perturbation did anything.

    The control cells of ``test`` (of ``train`` where it has none) are shuffled with seed 0 and dealt out in turn to
    the cells to predict, in the order of their names; where ``obs["batch"]`` exists, within each batch that has
    controls.

    Args:
        train: Training cells.
        test: Cells to predict, marked by ``obs["to_predict"]``.
        perturbation_key: Column of ``obs`` that names the perturbation.
        control: Label of control cells.

    Returns:
        One row per cell to predict, CSR float32.
    """
    import numpy as np
    from scipy.sparse import csr_matrix

    source = test if (test.obs[perturbation_key].astype(str) == control).any() else train
    controls = np.flatnonzero((source.obs[perturbation_key].astype(str) == control).to_numpy())
    controls = controls[np.argsort(source.obs_names[controls].to_numpy(dtype=str), kind="stable")]
    controls = np.random.RandomState(0).permutation(controls)
    cells = _cells_to_predict(test)
    has_batches = "batch" in test.obs and "batch" in source.obs
    wanted = test.obs["batch"].astype(str).to_numpy()[cells] if has_batches else np.full(len(cells), "")
    offered = source.obs["batch"].astype(str).to_numpy()[controls] if has_batches else np.full(len(controls), "")
    donors = np.resize(controls, len(cells))
    for batch in np.unique(wanted):
        if (offered == batch).any():
            rows = np.flatnonzero(wanted == batch)
            donors[rows] = np.resize(controls[offered == batch], len(rows))
    return _predictions(test, cells, csr_matrix(source.X)[donors])


def _perturbations(train: "AnnData", perturbation_key: str, control: str) -> list[str]:
    return sorted(set(train.obs[perturbation_key].astype(str)) - {control})


def _profiles(train: "AnnData", perturbation_key: str, control: str, scale: str) -> "Floats":
    """Of the control and of each training perturbation: each gene's share of all counts, or its mean log value."""
    import numpy as np
    from scipy.sparse import csr_matrix

    labels = train.obs[perturbation_key].astype(str).to_numpy()
    x = csr_matrix(train.X, dtype=np.float64)
    groups = [labels == name for name in (control, *_perturbations(train, perturbation_key, control))]
    sums = np.stack([np.asarray(x[group].sum(axis=0)).ravel() for group in groups])
    total = sums.sum(axis=1) if scale == "counts" else np.array([group.sum() for group in groups])
    profiles: Floats = sums / np.maximum(total, 1)[:, None]
    return profiles


def _drawn(profiles: "Floats", train: "AnnData", perturbation_key: str, control: str, scale: str) -> "Floats":
    """A cell around each profile: Poisson counts at the depth of a random control cell; on log scale the profile."""
    import numpy as np
    from scipy.sparse import csr_matrix

    if scale != "counts":
        return profiles
    x = csr_matrix(train.X, dtype=np.float64)[(train.obs[perturbation_key].astype(str) == control).to_numpy()]
    totals = np.sort(np.asarray(x.sum(axis=1)).ravel())
    random = np.random.RandomState(0)
    depth = random.choice(totals, size=len(profiles))
    return random.poisson(depth[:, None] * profiles).astype(np.float64)


def _descriptions(train: "AnnData", perturbation_key: str, control: str, scale: str) -> "Callable[[str], Floats]":
    """What describes a perturbation: the summed loadings of its targets on the control cells' principal components."""
    import numpy as np
    from scipy.sparse import csr_matrix

    x = csr_matrix(train.X)[(train.obs[perturbation_key].astype(str) == control).to_numpy()].toarray().astype(float)
    if scale == "counts":
        x = np.log1p(1e4 * x / np.maximum(x.sum(axis=1, keepdims=True), 1))
    x -= x.mean(axis=0)
    spread = x.std(axis=0)
    correlated = (x / np.where(spread > 0, spread, 1)).T
    values, vectors = np.linalg.eigh(correlated.T @ correlated / len(correlated))
    top = np.argsort(-values, kind="stable")[:10]
    loadings = correlated @ vectors[:, top] / np.sqrt(len(correlated))
    gene = {name: i for i, name in enumerate(map(str, train.var_names))}
    average = loadings.mean(axis=0)

    def describe(label: str) -> "Floats":
        targets = [gene[part] for part in label.split("+") if part in gene]
        described: Floats = loadings[targets].sum(axis=0) if targets else average
        return described

    return describe


def _cells_to_predict(test: "AnnData") -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Positions of the cells to predict, in the order of their names, so that row order decides nothing."""
    import numpy as np

    rows = np.flatnonzero(test.obs["to_predict"].to_numpy(dtype=bool))
    return rows[np.argsort(test.obs_names[rows].to_numpy(dtype=str), kind="stable")]


def _predictions(test: "AnnData", rows: "np.ndarray[tuple[int], np.dtype[np.int64]]", x: Any) -> "AnnData":
    import numpy as np
    from anndata import AnnData
    from scipy.sparse import csr_matrix

    x = csr_matrix(x, dtype=np.float32)
    return AnnData(X=x, obs=test.obs.iloc[rows].copy(), var=test.var.copy())  # type: ignore[arg-type]  # in memory
