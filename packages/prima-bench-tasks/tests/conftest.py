"""Small data of one's own for both tasks: a screen of expression, and labelled cells."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from prima_bench.tasks.evaluation import Evaluation

PERTURBATIONS = ("AHR", "KLF1", "AHR+KLF1", "drug X")
GENES = ("AHR", "KLF1", *(f"gene{i:02d}" for i in range(10)))


@dataclass
class Data:
    """A solution, predictions for it, and how they are evaluated."""

    task: str
    solution: Any
    predictions: Any
    options: dict[str, Any]
    metrics: list[str]
    others: dict[str, Any] = field(default_factory=dict)

    def evaluation(self, **changes: Any) -> Evaluation:
        arguments = {"solution": self.solution, "metrics": self.metrics, "device": "cpu", **self.options, **changes}
        return Evaluation(self.task, **arguments)

    def result(self, *shards: Any, **changes: Any) -> Any:
        run = self.evaluation(**changes)
        for shard in shards or (self.predictions,):
            run.update(shard)
        return run.compute()


def cells_like(random: np.random.Generator, sizes: dict[str, int], prefix: str, log: bool) -> anndata.AnnData:
    """Cells of a control and perturbations; each perturbation shifts genes of its own."""
    labels = [label for label, n in sizes.items() for _ in range(n)]
    shift = {label: np.random.default_rng(len(label)).gamma(2.0, 1.0, len(GENES)) for label in sizes}
    x = random.poisson(np.array([3.0 * shift[label] for label in labels])).astype(np.float32)
    if log:
        x = np.log1p(1e4 * x / x.sum(axis=1, keepdims=True))
    obs = pd.DataFrame({"target": labels}, index=[f"{prefix}{i}" for i in range(len(labels))])
    return anndata.AnnData(sp.csr_matrix(x), obs=obs, var=pd.DataFrame(index=list(GENES)))


def make_screen(scale: str) -> Data:
    random = np.random.default_rng(5)
    log = scale == "log1p_cp10k"
    real = cells_like(random, {"ctrl": 9, **dict.fromkeys(PERTURBATIONS, 6)}, "real", log)
    predicted = cells_like(random, dict(zip(PERTURBATIONS, (5, 4, 1, 7), strict=True)), "pred", log)
    targets = {"AHR": "AHR", "KLF1": ["KLF1"], "AHR+KLF1": "AHR+KLF1", "drug X": []}
    options = {"perturbation_key": "target", "control": "ctrl", "scale": scale, "target_map": targets}
    metrics = ["pds_cosine", "pearson_delta", "mae", "top_k_delta_pearson(k=5)"]
    return Data("perturbation_prediction", real, predicted, options, metrics)


@pytest.fixture
def screen() -> Data:
    """A screen of counts: 4 perturbations of 6 real cells, 17 predicted cells, 12 genes."""
    return make_screen("counts")


@pytest.fixture
def log_screen() -> Data:
    """The same on log scale."""
    return make_screen("log1p_cp10k")


@pytest.fixture
def labelled() -> Data:
    """24 cells of 3 classes, one of them unseen, with predicted labels."""
    random = np.random.default_rng(2)
    classes = ["B cell", "CD4+/CD25 T", "NK"]
    ids = [f"c{i:02d}" for i in range(24)]
    truth = random.choice(classes, 24)
    guess = np.where(random.random(24) < 0.7, truth, random.choice(classes, 24))
    solution = anndata.AnnData(obs=pd.DataFrame({"type": truth}, index=ids))
    scores = random.dirichlet(np.ones(4), 24).astype(np.float32)
    return Data(
        "cell_type_annotation",
        solution,
        pd.Series(guess, index=ids, name="type"),
        {"label_key": "type", "classes": [*classes, "Treg"]},
        ["f1_macro", "accuracy", "mcc", "unknown_rate"],
        {"scores": pd.DataFrame(scores, index=ids, columns=[*classes, "Treg"])},
    )


@pytest.fixture
def refused() -> Callable[..., Any]:
    """Hand in something wrong: the error, after checking that earlier updates still count and nothing else does."""
    from prima_bench.tasks.errors import PredictionError

    def hand_in(data: Data, wrong: Any, **arguments: Any) -> PredictionError:
        run = data.evaluation()
        run.update(data.predictions)
        before = run.compute().result_digest
        with pytest.raises(PredictionError) as caught:
            run.update(wrong, **arguments)
        assert run.compute().result_digest == before
        assert caught.value.exit_code == 5
        assert caught.value.hint
        return caught.value

    return hand_in
