"""Task: predict the expression of cells under perturbations that were not seen in training.

Holds the contract, the loader and the naive baselines; how predictions are parsed and scored lives elsewhere.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from prima_bench.tasks.specs import BaselineSpec, TaskSpec

if TYPE_CHECKING:
    import numpy as np
    from anndata import AnnData

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
            "pearson_delta_pertmean",
            "pearson_delta",
            "r2_delta",
            "mae",
            "mse",
            "rmse",
            "spearman_delta",
            "cosine_delta",
            "top_k_delta_pearson",
            "pds_l1",
            "pds_l2",
        ),
        "fast": ("pds_cosine", "pearson_delta_pertmean", "pearson_delta", "mae"),
    },
    primary=("pds_cosine", "r2_delta"),
    unit="perturbation",
    baselines=(
        BaselineSpec(
            name="mean_response",
            function="mean_response",
            summary="Every cell is drawn around the average profile of the training perturbations.",
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
    from scipy.sparse import csr_matrix

    labels = train.obs[perturbation_key].astype(str).to_numpy()
    x = csr_matrix(train.X, dtype=np.float64)
    cells = _cells_to_predict(test)
    perturbations = np.unique(labels[labels != control])
    sums = np.stack([np.asarray(x[labels == p].sum(axis=0)).ravel() for p in perturbations])
    if scale == "counts":
        profile = (sums / sums.sum(axis=1, keepdims=True)).mean(axis=0)
        totals = np.sort(np.asarray(x[labels == control].sum(axis=1)).ravel())
        random = np.random.RandomState(0)
        depth = random.choice(totals, size=len(cells))
        values = random.poisson(depth[:, None] * profile)
    else:
        sizes = np.array([(labels == p).sum() for p in perturbations])
        values = np.broadcast_to((sums / sizes[:, None]).mean(axis=0), (len(cells), x.shape[1]))
    return _predictions(test, cells, csr_matrix(values, dtype=np.float32))


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
    return _predictions(test, cells, csr_matrix(csr_matrix(source.X)[donors], dtype=np.float32))


def _cells_to_predict(test: "AnnData") -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Positions of the cells to predict, in the order of their names, so that row order decides nothing."""
    import numpy as np

    rows = np.flatnonzero(test.obs["to_predict"].to_numpy(dtype=bool))
    return rows[np.argsort(test.obs_names[rows].to_numpy(dtype=str), kind="stable")]


def _predictions(test: "AnnData", rows: "np.ndarray[tuple[int], np.dtype[np.int64]]", x: Any) -> "AnnData":
    from anndata import AnnData

    return AnnData(X=x, obs=test.obs.iloc[rows].copy(), var=test.var.copy())  # type: ignore[arg-type]  # in memory
