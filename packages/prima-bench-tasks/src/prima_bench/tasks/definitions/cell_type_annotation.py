"""Task: name the type of each cell from its expression.

Holds the contract, the loader and the naive baselines; how predictions are parsed and scored lives elsewhere.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from prima_bench.tasks.specs import BaselineSpec, TaskSpec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from anndata import AnnData

SPEC = TaskSpec(
    name="cell_type_annotation",
    version="1.0.0",
    title="Cell type annotation",
    summary="Name the type of each single cell from its expression.",
    question=(
        "Given labelled cells, which type is each unlabelled cell? Rare types matter as much as common ones, so the "
        "leaderboard is ordered by macro F1 before accuracy."
    ),
    problem="classification",
    artifact="anndata",
    prediction=(
        "One row for each cell of `test`, under the same `obs_names`, in any order and in any number of shards. Either "
        "labels: an AnnData or DataFrame with the column `cell_type`, or a Series, spelled as in the training labels; "
        'or class probabilities: `obsm["cell_type_scores"]`, one column per class and a sum of 1 in each row, as a '
        'DataFrame whose columns are the class names, or as an array whose columns `uns["classes"]` names. Where '
        "there are scores they decide, labels beside them must agree, and only then are metrics of probabilities "
        "defined. The label `unknown` abstains."
    ),
    example="""\
from sklearn.neighbors import KNeighborsClassifier

model = KNeighborsClassifier(15).fit(train.X, train.obs["cell_type"])
preds = test.copy()
preds.obsm["cell_type_scores"] = model.predict_proba(test.X)
preds.uns["classes"] = model.classes_.astype(object)
""",
    default_dataset="pbmc68k@1.0.0",
    presets={
        "default": (
            "f1_macro",
            "accuracy",
            "balanced_accuracy",
            "f1_weighted",
            "f1_per_class",
            "precision_macro",
            "recall_macro",
            "cohen_kappa",
            "mcc",
            "top_k_accuracy",
            "auroc_macro",
            "auprc_macro",
            "log_loss",
            "brier",
            "ece",
            "unknown_rate",
            "coverage_accuracy",
        ),
        "labels": (
            "f1_macro",
            "accuracy",
            "balanced_accuracy",
            "f1_weighted",
            "f1_per_class",
            "precision_macro",
            "recall_macro",
            "cohen_kappa",
            "mcc",
            "unknown_rate",
            "coverage_accuracy",
        ),
        "fast": ("f1_macro", "accuracy", "balanced_accuracy", "mcc"),
    },
    primary=("f1_macro", "accuracy"),
    unit="class",
    baselines=(
        BaselineSpec(
            name="majority_class",
            function="majority_class",
            summary="Every cell gets the most frequent training class; its scores are the training frequencies.",
        ),
        BaselineSpec(
            name="nearest_centroid",
            function="nearest_centroid",
            summary="The class whose mean training profile is nearest; scores are the softmax of negative distances.",
        ),
        BaselineSpec(
            name="logistic_regression",
            function="logistic_regression",
            summary="Multinomial logistic regression on standardised genes, with its probabilities.",
        ),
    ),
    abstain=("unknown",),
)


def load(path: Path, split: str) -> "AnnData":
    """Read one artifact.

    Args:
        path: The ``train`` or ``test`` artifact.
        split: ``"train"`` or ``"test"``.

    Returns:
        ``X`` [cells, genes]; ``obs["cell_type"]`` in ``train`` only.

    Raises:
        DataError: If the file cannot be read.
        UsageError: If it is an artifact of the other split.
    """
    from prima_bench.tasks.artifacts import read_h5ad

    return read_h5ad(path, split)


def majority_class(train: "AnnData", test: "AnnData", *, label_key: str = "cell_type", **_: Any) -> "AnnData":
    """The most frequent training class for every cell, the first by name among equals.

    Args:
        train: Labelled cells.
        test: Cells to annotate.
        label_key: Column of ``obs`` that holds the labels.

    Returns:
        Labels, and as scores the training frequencies of the classes.
    """
    import numpy as np

    classes, counts = np.unique(_labels(train, label_key), return_counts=True)
    return _predictions(test, classes, np.tile(counts / counts.sum(), (test.n_obs, 1)), label_key)


def nearest_centroid(train: "AnnData", test: "AnnData", *, label_key: str = "cell_type", **_: Any) -> "AnnData":
    """The class whose mean training expression is nearest by Euclidean distance.

    Args:
        train: Labelled cells.
        test: Cells to annotate.
        label_key: Column of ``obs`` that holds the labels.

    Returns:
        Labels, and as scores softmax(-distance) over classes: they rank as the distances do and are no calibrated
        probabilities.
    """
    import numpy as np

    labels = _labels(train, label_key)
    classes = np.unique(labels)
    known, x = _dense(train), _dense(test)
    distance = np.stack([np.linalg.norm(x - known[labels == c].mean(axis=0), axis=1) for c in classes], axis=1)
    weight = np.exp(distance.min(axis=1, keepdims=True) - distance)
    return _predictions(test, classes, weight / weight.sum(axis=1, keepdims=True), label_key)


def logistic_regression(train: "AnnData", test: "AnnData", *, label_key: str = "cell_type", **_: Any) -> "AnnData":
    """scikit-learn's multinomial logistic regression (L2, C = 0.1, L-BFGS) on genes scaled to unit variance.

    The objective is convex and solved to a tight tolerance from a fixed start, so nothing is random.

    Args:
        train: Labelled cells.
        test: Cells to annotate.
        label_key: Column of ``obs`` that holds the labels.

    Returns:
        Labels, and as scores the class probabilities.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, solver="lbfgs", tol=1e-6, max_iter=1000))
    model.fit(_dense(train), _labels(train, label_key))
    return _predictions(test, model.classes_, model.predict_proba(_dense(test)), label_key)


def _labels(cells: "AnnData", label_key: str) -> "npt.NDArray[np.str_]":
    return cells.obs[label_key].astype(str).to_numpy(dtype=str)


def _dense(cells: "AnnData") -> "npt.NDArray[np.float64]":
    import numpy as np
    from scipy.sparse import issparse

    x: Any = cells.X
    return np.asarray(x.toarray() if issparse(x) else x, dtype=np.float64)


def _predictions(
    test: "AnnData", classes: "npt.NDArray[np.str_]", scores: "npt.NDArray[np.float64]", label_key: str
) -> "AnnData":
    """Scores in float32 beside the labels that they imply; class names may hold '/', which no h5ad key may."""
    import numpy as np
    import pandas as pd
    from anndata import AnnData

    stored = scores.astype(np.float32)
    labels = pd.Categorical.from_codes(stored.argmax(axis=1), categories=pd.Index(classes, dtype=object))
    predictions = AnnData(obs=pd.DataFrame({label_key: labels}, index=test.obs_names))
    predictions.obsm[f"{label_key}_scores"] = stored
    predictions.uns["classes"] = classes.astype(object)
    return predictions
