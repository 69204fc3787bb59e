"""Predictions in many files, dealt out to the ranks of torchrun, with a checkpoint after every file.

    torchrun --nproc-per-node 4 examples/torchrun_evaluation.py "shards/*.h5ad" --output result.json

A job that was ended in the middle is started again with the same line: every rank goes on from its last checkpoint.
Without checkpoints the command line does the same:

    torchrun --nproc-per-node 4 -m prima_bench.cli evaluate --task TASK -p "shards/*.h5ad" --output result.json
"""

import argparse
from glob import glob
from pathlib import Path

import torch.distributed as dist

import prima_bench as pb


def main(task: str, pattern: str, output: Path, checkpoints: Path) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    files = sorted(glob(pattern, recursive=True))[rank::world]  # noqa: PTH207 (a path from the root too)

    checkpoint = checkpoints / f"{rank}-of-{world}.pbstate"
    if checkpoint.exists():
        run = pb.Evaluation.resume(checkpoint, device="cpu", sync_to="rank0")
    else:
        checkpoints.mkdir(parents=True, exist_ok=True)
        run = pb.Evaluation(task, model="my model", device="cpu", sync_to="rank0")
    for file in files:
        run.update(predictions=file)  # what a checkpoint holds already counts once
        run.save(checkpoint)

    result = run.compute()  # a rank without files takes part too
    if rank == 0:
        result.save(output)
        print(result)
    dist.barrier()  # checkpoints are kept until the result is
    checkpoint.unlink(missing_ok=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern")
    parser.add_argument("--task", default="cell_type_annotation")
    parser.add_argument("--output", type=Path, default=Path("result.json"))
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    asked = parser.parse_args()
    main(asked.task, asked.pattern, asked.output, asked.checkpoints)
