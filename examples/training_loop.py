"""Metrics in a plain training loop, with prima-bench-metrics alone (torch and torchmetrics).

    python examples/training_loop.py
    torchrun --nproc-per-node 2 examples/training_loop.py

Several processes each see a part of the validation cells, padded so that all get the same number. The index, a cell's
position in the dataset, lets a padded repeat count once: the values are those of one process, to the last bit.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from prima_bench.metrics import Brier, F1Macro, Panel

CLASSES = 4


class Numbered(TensorDataset):
    """Cells with their position in the dataset."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, ...]:
        return (*super().__getitem__(i), torch.tensor(i))


def cells(n: int, seed: int) -> Numbered:
    """Simulated cells: the class with the largest marker."""
    x = torch.randn(n, 16, generator=torch.Generator().manual_seed(seed))
    return Numbered(x, x[:, :CLASSES].argmax(1))


def main(epochs: int, n: int) -> None:
    several = "RANK" in os.environ
    if several:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(16, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train, held_out = cells(n, seed=1), cells(n // 2 + 1, seed=2)
    # To keep the example short every process trains on all cells; with DistributedDataParallel nothing below changes.
    batches = DataLoader(train, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(0))
    sampler = DistributedSampler(held_out, shuffle=False) if several else None
    validation = DataLoader(held_out, batch_size=32, sampler=sampler)

    metrics = Panel({"f1_macro": F1Macro(num_classes=CLASSES), "brier": Brier(num_classes=CLASSES)})
    for epoch in range(epochs):
        for x, y, _ in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, y, index in validation:
                metrics.update(index=index, target=y, score=model(x).softmax(1))
        values = metrics.compute()  # exchanges the rows of all processes
        metrics.reset()
        if not several or dist.get_rank() == 0:
            print(f"epoch {epoch}:", ", ".join(f"{name} {value.item():.12f}" for name, value in values.items()))
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--cells", type=int, default=2000)
    asked = parser.parse_args()
    main(asked.epochs, asked.cells)
