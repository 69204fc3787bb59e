"""A LightningModule: a metric while training, and the benchmark's own result in the test loop.

    python examples/lightning_module.py --output lightning.json
    python examples/lightning_module.py --devices 2 --output lightning.json

It classifies the cells of the task's default dataset. On several devices Lightning starts a process for each; the
result is that of one.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

import prima_bench as pb
from prima_bench.metrics import F1Macro

TASK = "cell_type_annotation"


class Classifier(LightningModule):
    """A linear model of log counts.

    Args:
        genes: Number of genes.
        classes: The classes, in the order of its outputs.
        names: Names of the test cells, by their position.
    """

    def __init__(self, genes: int, classes: list[str], names: list[str]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(genes, len(classes))
        self.classes, self.names = np.asarray(classes), np.asarray(names)
        self.f1 = F1Macro(num_classes=len(classes))
        self.result: pb.EvalResult | None = None

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, index = batch
        logits = self.layer(x)
        self.f1.update(logits.argmax(1), y, index)
        self.log("train_f1", self.f1, on_epoch=True)  # exchanged, computed and reset by Lightning
        return torch.nn.functional.cross_entropy(logits, y)

    def on_test_epoch_start(self) -> None:
        self.evaluation = pb.Evaluation(TASK, metrics="labels", model="linear", device="cpu", sync_to="rank0")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        x, index = batch
        called = self.classes[self.layer(x).argmax(1).cpu().numpy()]
        self.evaluation.update(called, ids=self.names[index.cpu().numpy()])

    def on_test_epoch_end(self) -> None:
        self.result = self.evaluation.compute()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def tensor(cells: Any) -> torch.Tensor:
    """Log counts per 10,000."""
    x = torch.from_numpy(cells.X.toarray()).float()
    return torch.log1p(1e4 * x / x.sum(dim=1, keepdim=True))


def main(output: Path, epochs: int, devices: int) -> None:
    seed_everything(0)
    paths = pb.fetch_data(task=TASK)
    train, test = (pb.load(p, task=TASK, split=s) for p, s in zip(paths, ("train", "test"), strict=True))
    classes = sorted(train.obs["cell_type"].unique())
    codes = torch.tensor([classes.index(name) for name in train.obs["cell_type"]])
    model = Classifier(train.n_vars, classes, list(test.obs_names))
    seen = TensorDataset(tensor(train), codes, torch.arange(train.n_obs))
    unseen = TensorDataset(tensor(test), torch.arange(test.n_obs))
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(seen, batch_size=64, shuffle=True))
    trainer.test(model, DataLoader(unseen, batch_size=50), verbose=False)
    if trainer.is_global_zero and model.result is not None:
        model.result.save(output)
        print(model.result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("lightning.json"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--devices", type=int, default=1)
    asked = parser.parse_args()
    main(asked.output, asked.epochs, asked.devices)
