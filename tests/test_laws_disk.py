"""Law 1, beyond memory: rows that were kept on disk give the result of rows in memory, to the last bit.

For every registered metric of both tasks with every parameter that has a choice, every chunk in a file of its own map,
pages given back after every read, and differential expression a gene or two at a time.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from prima_bench.metrics import buffer, spill
from prima_bench.metrics.differential import spans
from prima_bench.metrics.spill import is_kept

SPEC = importlib.util.spec_from_file_location("laws_data", Path(__file__).parent / "laws_data.py")
assert SPEC is not None
assert SPEC.loader is not None
laws = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(laws)


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (buffer, "_LEAST_KEPT_BYTES", 1),
        (buffer, "_SLAB_BYTES", 1),
        (spill, "RESIDENT_BYTES", 1),
        (spill, "_BLOCK_BYTES", 64),
        (spans, "_HELD_BYTES", 500),
        (spans, "_COPIED_ROWS", 4),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("case", laws.CASES)
@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_on_disk_and_in_memory(case: str, layout: str) -> None:
    run, rows = laws.evaluation(case), laws.predictions(case)
    once = laws.evaluation(case)
    once.update(rows)
    expected = laws.lasting(json.loads(once.compute().to_json()))
    random = np.random.default_rng(0)
    order = random.permutation(len(rows))
    for seen_before in ([], order[:3]):
        run.reset()
        run._panel.spill_above = 0
        for part in [*np.array_split(order, 3), seen_before]:
            if len(part):
                run.update(laws.take(rows, part, layout))
        assert all(is_kept(c) for name in run._panel._row_states for c in run._panel._state(name) if c.numel())
        assert laws.lasting(json.loads(run.compute().to_json())) == expected
