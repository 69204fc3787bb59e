"""Metrics in a real Lightning training loop: logged, aggregated over batches, reset each epoch, in checkpoints."""

import logging
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from prima_bench.metrics import Accuracy, Panel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Lightning's own imports warn
    from lightning.pytorch import LightningModule, Trainer, seed_everything

pytestmark = pytest.mark.filterwarnings("ignore")
N, CLASSES = 50, 3


class Classifier(LightningModule):
    """A linear classifier that keeps what its metrics said and what they should have said."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, CLASSES)
        self.train_accuracy = Accuracy(num_classes=CLASSES)
        self.accuracy = Accuracy(num_classes=CLASSES)
        self.panel = Panel({"accuracy": Accuracy(num_classes=CLASSES)})
        self.right: list[int] = []
        self.seen: list[tuple[float, float, float]] = []

    def training_step(self, batch, _):
        x, y, rows = batch
        logits = self.layer(x)
        self.train_accuracy(logits.argmax(1), y, rows)
        self.log("train_accuracy", self.train_accuracy, on_step=True, on_epoch=True)
        return torch.nn.functional.cross_entropy(logits, y)

    def on_validation_epoch_start(self) -> None:
        self.right = []

    def validation_step(self, batch, _):
        x, y, rows = batch
        guess = self.layer(x).argmax(1)
        self.accuracy.update(guess, y, rows)
        self.log("accuracy", self.accuracy, on_epoch=True)
        self.panel.update(index=rows, label=guess, target=y)
        self.right += (guess == y).tolist()

    def on_validation_epoch_end(self) -> None:
        logged = self.panel.compute()
        self.log_dict({f"panel_{name}": value for name, value in logged.items()})
        self.seen.append((float(self.accuracy.compute()), float(logged["accuracy"]), sum(self.right) / len(self.right)))
        self.panel.reset()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0, verbose=False)
    x = torch.randn(N, 4)
    y = x[:, :CLASSES].argmax(1)
    loader = DataLoader(TensorDataset(x, y, torch.arange(N)), batch_size=8, shuffle=False)
    folder = tmp_path_factory.mktemp("lightning")
    model = Classifier()
    trainer = Trainer(
        max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, num_sanity_val_steps=1,
    )  # fmt: skip
    trainer.fit(model, loader, loader)
    trainer.save_checkpoint(folder / "last.ckpt")
    return model, trainer, folder / "last.ckpt"


def test_the_logged_value_is_the_value_over_the_whole_epoch(trained):
    model, trainer, _ = trained
    assert len(model.seen) == 4
    assert all(alone == panel == right for alone, panel, right in model.seen)
    assert float(trainer.callback_metrics["accuracy"]) == model.seen[-1][0]
    assert float(trainer.callback_metrics["panel_accuracy"]) == model.seen[-1][0]
    assert {"train_accuracy_step", "train_accuracy_epoch"} <= trainer.callback_metrics.keys()


def test_each_epoch_starts_afresh(trained):
    model, *_ = trained
    assert model.seen[0] != model.seen[-1]
    assert (model.accuracy.n_rows, model.train_accuracy.n_rows) == (0, 0)


def test_a_checkpoint_loads_strictly(trained):
    model, _, path = trained
    again = Classifier.load_from_checkpoint(path, weights_only=True)
    assert torch.equal(again.layer.weight, model.layer.weight)


def test_a_checkpoint_taken_in_the_middle_of_an_epoch_carries_the_rows(trained):
    model, _, path = trained
    state = torch.load(path, weights_only=True)["state_dict"]
    assert {"accuracy.index_chunks", "panel.label_chunks"} <= state.keys()
    model.accuracy.update(torch.tensor([0, 1]), torch.tensor([0, 2]), torch.tensor([4, 5]))
    again = Classifier()
    again.load_state_dict(model.state_dict())
    assert float(again.accuracy.compute()) == 0.5
    model.accuracy.reset()
