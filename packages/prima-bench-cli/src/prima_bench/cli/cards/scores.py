"""The baselines' scores that the cards show, by the same evaluation that users run."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from prima_bench.tasks import registry
from prima_bench.tasks.specs import DatasetSpec

if TYPE_CHECKING:
    from prima_bench.tasks.results.schema import EvalResult

Results = Mapping[str, Mapping[str, "EvalResult"]]
"""By dataset key, then by baseline, in the order of the task's spec."""


def baseline_results(say: Callable[[str], None]) -> Results:
    """Score every baseline on every dataset that is embedded in a package.

    Datasets in object storage are left out whether or not they could be fetched here: what a card says may not depend
    on who writes it. The device is always the CPU for the same reason.

    Args:
        say: Is told each step.
    """
    from prima_bench.tasks.baselines import run_baseline
    from prima_bench.tasks.evaluation import Evaluation

    results: dict[str, dict[str, EvalResult]] = {}
    for key in registry.list_datasets():
        spec = registry.get_dataset(key).spec
        if not embedded(spec):
            continue
        results[key] = {}
        run: Evaluation | None = None
        for baseline in registry.get_task(spec.task).spec.baselines:
            say(f"scoring {baseline.name} on {key}")
            predictions = run_baseline(task=spec.task, name=baseline.name, dataset=key)
            # The run before is held until this one is made, so that both share one solution.
            run = Evaluation(task=spec.task, dataset=key, device="cpu", model=baseline.name)
            run.update(predictions=predictions)
            results[key][baseline.name] = run.compute()
    return results


def embedded(dataset: DatasetSpec) -> bool:
    """Whether all of a dataset lies inside packages, so that it needs neither network nor credentials."""
    return all(artifact.uri.startswith("package://") for artifact in dataset.artifacts)
