"""The usage example of the README, line by line but for the model, for both tasks: in one shot and in shards."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import prima_bench as pb
from prima_bench.tasks.registry import get_dataset, get_task

MODELS = {"perturbation_prediction": "paste_control", "cell_type_annotation": "logistic_regression"}


class Model:
    """Stands in for anyone's model: the baseline of a task behind ``fit`` and a call."""

    def __init__(self, task: str) -> None:
        self.predict = getattr(get_task(task).module, MODELS[task])
        self.options = dict(get_dataset(task=task).spec.options)

    def fit(self, train: Any) -> None:
        self.train = train

    def __call__(self, test: Any) -> Any:
        return self.predict(self.train, test, **self.options)


def in_shards(preds: Any) -> Iterator[Any]:
    for rows in np.array_split(np.random.default_rng(0).permutation(preds.n_obs), 5):
        yield preds[rows]


@pytest.mark.parametrize("task", MODELS)
def test_one_shot_and_shards(task: str) -> None:
    assert task in pb.list_tasks()
    assert pb.list_datasets(task=task)
    assert pb.list_metrics(task=task)

    train_path, test_path = pb.fetch_data(task=task)
    train = pb.load(train_path, task=task, split="train")
    test = pb.load(test_path, task=task, split="test")

    model = Model(task)
    model.fit(train)
    preds = model(test)

    run = pb.Evaluation(task=task)
    run.update(predictions=preds)
    result = run.compute()
    assert isinstance(result, pb.EvalResult)
    assert all(score.status == "ok" for score in result.scores.values())

    prediction_shards = in_shards(preds)
    run = pb.Evaluation(task=task)
    for shard in prediction_shards:
        run.update(predictions=shard)
    assert run.compute().result_digest == result.result_digest
