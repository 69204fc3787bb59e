"""Eight label metrics on a million rows and fifty classes: this package beside scikit-learn, in one run.

    python benchmarks/labels.py [--rows 1000000] [--classes 50] [--repeats 3]

Each case runs in a process of its own. CPU seconds (user and system, all threads), wall time and the growth of peak
memory are those of the best of a few repeats and cover all that lies between the two columns of labels and the eight
values: on our side, for strings, their encoding to codes by the class list, too (integers are codes already). Every
string is an object of its own, as when it is read from a file. ``Evaluation`` is the whole way of a user's own labels:
rows by name, checks, alignment, fingerprint and result. All values must agree to 1e-12.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64] | npt.NDArray[np.object_]
Values = dict[str, float]
METRICS = (
    "accuracy", "balanced_accuracy", "f1_macro", "f1_weighted", "precision_macro", "recall_macro", "cohen_kappa", "mcc",
)  # fmt: skip
OURS = {"string": ("panel", "Evaluation"), "integer": ("panel",)}
TOLERANCE = 1e-12
_LONG_ENOUGH = 10.0  # seconds after which one measurement will do


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        side, kind = args.case
        print(json.dumps(measure(side, kind, args.rows, args.classes, args.repeats)))
        return 0
    print(f"{args.rows:,} rows, {args.classes} classes, {len(METRICS)} metrics, best of {args.repeats}\n")
    print(f"{'labels':<10}{'':<16}{'CPU s':>9}{'wall s':>9}{'memory MB':>11}")
    gaps = [compare(kind, sides, args) for kind, sides in OURS.items()]
    return 0 if max(gaps) <= TOLERANCE else 1


def compare(kind: str, sides: tuple[str, ...], args: argparse.Namespace) -> float:
    """Print our ways beside scikit-learn, and return the largest difference in values."""
    theirs, gap = _in_a_process("scikit-learn", kind, args), 0.0
    _print_line(kind, "scikit-learn", theirs)
    for side in sides:
        ours = _in_a_process(side, kind, args)
        _print_line(kind, side, ours)
        ratios = [theirs[key] / max(ours[key], 1e-9) for key in ("cpu", "wall", "memory")]
        print(f"{'':<10}{'':<16}{ratios[0]:>8.1f}x{ratios[1]:>8.1f}x{ratios[2]:>10.1f}x")
        gap = max(gap, *(abs(ours["values"][name] - theirs["values"][name]) for name in METRICS))
    print(f"{'':<10}values agree to {gap:.1e}\n")
    return gap


def measure(side: str, kind: str, n: int, num_classes: int, repeats: int) -> dict[str, Any]:
    """Run one case in this process."""
    classes, target, preds = columns(kind, n, num_classes)
    run = {"panel": lambda: panel(classes), "Evaluation": lambda: evaluation(n), "scikit-learn": scikit_learn}[side]()
    run(target[:5000], preds[:5000])  # imports and lazy set-up are paid before the clock starts
    before, times, values = _peak_mb(), list[tuple[float, float]](), Values()
    for _ in range(repeats):
        cpu, wall = time.process_time(), time.perf_counter()
        values = run(target, preds)
        times.append((time.process_time() - cpu, time.perf_counter() - wall))
        if times[-1][1] > _LONG_ENOUGH:
            break
    cpu, wall = min(times)
    return {"cpu": cpu, "wall": wall, "memory": _peak_mb() - before, "values": values}


def columns(kind: str, n: int, num_classes: int) -> tuple[Column, Column, Column]:
    """The class list, and true and predicted labels of uneven frequencies that agree in seven of ten rows."""
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, num_classes + 1)
    target = rng.choice(num_classes, n, p=share / share.sum())
    preds = np.where(rng.random(n) < 0.7, target, rng.integers(0, num_classes, n))
    if kind == "integer":
        return np.arange(num_classes), target, preds
    classes = np.array([_name(c) for c in range(num_classes)], dtype=object)
    read = [np.array([_name(c) for c in codes.tolist()], dtype=object) for codes in (target, preds)]
    return classes, read[0], read[1]


def panel(classes: Column) -> Callable[[Column, Column], Values]:
    """The kernel: encode both columns by the class list, then one panel over one buffer."""
    import pandas as pd
    import torch

    from prima_bench.metrics.catalog import load_metric
    from prima_bench.metrics.panel import Panel

    vocabulary = pd.Index(classes)

    def _codes(column: Column) -> torch.Tensor:
        return torch.from_numpy(column if column.dtype == np.int64 else vocabulary.get_indexer(pd.Index(column)))

    def run(target: Column, preds: Column) -> Values:
        metrics = Panel({name: load_metric(name)(num_classes=len(classes)) for name in METRICS})
        metrics.update(target=_codes(target), label=_codes(preds))
        return {name: float(value) for name, value in metrics.compute().items()}

    return run


def evaluation(n: int) -> Callable[[Column, Column], Values]:
    """The public face: a solution and predictions of one's own, strings under row names."""
    import pandas as pd

    import prima_bench as pb

    names = pd.Index([f"cell_{i}" for i in range(n)])

    def run(target: Column, preds: Column) -> Values:
        solution = pd.DataFrame({"label": target}, index=names[: len(target)])
        evaluated = pb.Evaluation(
            "cell_type_annotation", solution=solution, label_key="label", metrics=list(METRICS), device="cpu"
        )
        evaluated.update(pd.Series(preds, index=names[: len(preds)]))
        scores = evaluated.compute().scores
        return {name: float(scores[name].value or 0.0) for name in METRICS}

    return run


def scikit_learn() -> Callable[[Column, Column], Values]:
    """Their side: one call per metric, as its documentation shows."""
    import sklearn.metrics as sk

    def run(target: Column, preds: Column) -> Values:
        return {
            "accuracy": sk.accuracy_score(target, preds),
            "balanced_accuracy": sk.balanced_accuracy_score(target, preds),
            "f1_macro": sk.f1_score(target, preds, average="macro"),
            "f1_weighted": sk.f1_score(target, preds, average="weighted"),
            "precision_macro": sk.precision_score(target, preds, average="macro"),
            "recall_macro": sk.recall_score(target, preds, average="macro"),
            "cohen_kappa": sk.cohen_kappa_score(target, preds),
            "mcc": sk.matthews_corrcoef(target, preds),
        }

    return run


def _name(code: int) -> str:
    return f"CD4+ T cell, subset {code}"


def _in_a_process(side: str, kind: str, args: argparse.Namespace) -> Any:
    sizes = [f"--{name}={getattr(args, name)}" for name in ("rows", "classes", "repeats")]
    command = [sys.executable, __file__, *sizes, "--case", side, kind]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def _print_line(kind: str, side: str, case: Any) -> None:
    print(f"{kind:<10}{side:<16}{case['cpu']:>9.3f}{case['wall']:>9.3f}{case['memory']:>11.0f}", flush=True)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
