"""Law 1 over files: however rows are split over states, merging them gives the result of one process, bit for bit.

So does going on from a state, also when the run before it was killed in the middle.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prima_bench.tasks.baselines import run_baseline
from prima_bench.tasks.evaluation import Evaluation

SPEC = importlib.util.spec_from_file_location("laws_data", Path(__file__).parent / "laws_data.py")
assert SPEC is not None
assert SPEC.loader is not None
laws = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(laws)

LAYOUTS = ("dense", "csr", "csc")


def document(run: Evaluation) -> dict[str, Any]:
    return dict(laws.lasting(json.loads(run.compute().to_json())))


@pytest.fixture(scope="module", params=laws.CASES)
def own(request: pytest.FixtureRequest) -> tuple[Evaluation, Any, Any, dict[str, Any]]:
    run, rows, solution = laws.evaluation(request.param), laws.predictions(request.param), laws.solution(request.param)
    run.update(rows)
    return run, rows, solution, document(run)


@settings(max_examples=max(6, settings.default.max_examples // 4))
@given(data=st.data())
def test_states_of_any_split_give_the_result_of_one_process(
    own: tuple[Evaluation, Any, Any, dict[str, Any]], data: st.DataObject
) -> None:
    """Parts in any number, empty ones and repeated rows among them, each handed in by one or two updates."""
    run, rows, solution, once = own
    n = len(rows)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    owner = random.integers(0, data.draw(st.integers(1, 4)), n)
    repeated = random.choice(n, data.draw(st.integers(0, 3)), replace=False)
    order = random.permutation(4)
    layout = data.draw(st.sampled_from(LAYOUTS))
    with tempfile.TemporaryDirectory() as folder:
        states = []
        for part in order:
            run.reset()
            which = np.flatnonzero(owner == part)
            for half in (which[::2], which[1::2], repeated):
                if len(half):
                    run.update(laws.take(rows, half, layout))
            states.append(run.save(Path(folder) / f"{part}.pbstate"))
        merged = Evaluation.merge(states, solution=solution, device="cpu")
        again = Evaluation.resume(merged.save(Path(folder) / "all.pbstate"), solution=solution, device="cpu")
    assert document(again) == once


@pytest.mark.parametrize(
    ("task", "baseline"), [("perturbation_prediction", "paste_control"), ("cell_type_annotation", "nearest_centroid")]
)
def test_embedded_datasets_need_no_solution(task: str, baseline: str, tmp_path: Path) -> None:
    rows = run_baseline(task, baseline)
    metrics = ["fast"] if task.startswith("pert") else None
    parts = np.array_split(np.random.default_rng(0).permutation(len(rows)), 3)
    for number, part in enumerate(parts):
        run = Evaluation(task, metrics=metrics, device="cpu", model={"name": "m", "params": {"size": 3}})
        run.update(rows[part])
        run.save(tmp_path / f"{number}.pbstate")
    once = Evaluation(task, metrics=metrics, device="cpu", model={"name": "m", "params": {"size": 3}})
    once.update(rows)
    merged = Evaluation.merge(sorted(tmp_path.iterdir()), device="cpu")
    assert merged.compute().result_digest == once.compute().result_digest


CHECKPOINTED = """
import sys, time, runpy
from pathlib import Path
from prima_bench.tasks.evaluation import Evaluation
laws = runpy.run_path(sys.argv[1])
case, state = sys.argv[2], Path(sys.argv[3])
known = {"solution": laws["solution"](case), "device": "cpu"}
run = Evaluation.resume(state, **known) if state.exists() else laws["evaluation"](case, metrics="fast")
rows = laws["predictions"](case)
for start in range(0, len(rows), 4):
    run.update(laws["take"](rows, list(range(start, min(start + 4, len(rows))))))
    if start == 12 and not sys.argv[4:]:
        print("not in the checkpoint", flush=True)
        time.sleep(600)
    run.save(state)
print(run.compute().result_digest)
"""


def test_a_run_that_is_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    case = "perturbation, log"
    once = laws.evaluation(case, metrics="fast")
    once.update(laws.predictions(case))
    command = [sys.executable, "-c", CHECKPOINTED, str(Path(laws.__file__)), case, str(tmp_path / "run.pbstate")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "not in the checkpoint\n"
    killed.send_signal(signal.SIGKILL)
    assert killed.wait(60) == -signal.SIGKILL
    killed.stdout.close()
    held = Evaluation.resume(tmp_path / "run.pbstate", solution=laws.solution(case), device="cpu")
    assert ": 5 rows;" in repr(held)  # and seven control cells, which this panel does not use
    done = subprocess.run([*command, "to the end"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == once.compute().result_digest
    assert [p.name for p in tmp_path.iterdir()] == ["run.pbstate"]
