"""A rank that fails: every other rank ends too, soon, with one error that names the rank and the cause.

The ranks are real processes that talk over gloo, with nothing above them that would end the others.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).parent / "failing_rank.py"
WORLD = 3

Run = Callable[..., list[tuple[int | None, str, str]]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Exit code, stdout and stderr of every rank; no code for one that had not ended after a minute."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with subprocess.Popen(
        [sys.executable, str(WORKER)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as host:

        def answer(what: str, world: int = WORLD) -> Any:
            assert host.stdin is not None
            assert host.stdout is not None
            host.stdin.write(f"{world} {what}\n")
            host.stdin.flush()
            return [tuple(rank) for rank in json.loads(host.stdout.readline())]

        yield answer


def last_error(stderr: str) -> str:
    """The message of an uncaught error, whatever torch puts before each line."""
    lines = [re.sub(r"^\[rank\d\]: ?", "", line) for line in stderr.splitlines()]
    return "\n".join(lines).rpartition("prima_bench.tasks.errors.")[2]


@pytest.mark.parametrize(
    ("what", "others", "own"),
    [
        ("raises in update", "rank 1 gave up: PredictionError: .*'unheard of'", "'unheard of'"),
        ("raises in update, scored on rank0", "rank 1 gave up: PredictionError: .*'unheard of'", "'unheard of'"),
        ("raises at once", "rank 1 gave up: UsageError: only a solution of your own", "only a solution of your own"),
        ("raises elsewhere", "rank 1 gave up: ValueError: the model has no more memory", None),
        ("killed", "rank 1 ended without a word", None),
        ("killed, scored on rank0", "rank 1 ended without a word", None),
        ("dies in the exchange", "rank 1 ended without a word", None),
        ("dies in the exchange, scored on rank0", "rank 1 ended without a word", None),
        ("stuck", "rank 1 ended without a word, or cannot be reached", None),
        ("never computes", "rank 1 ended without coming to share its rows", None),
        ("other dtype", "rank 1 gave up: PredictionError: .*complex", "complex"),
    ],
)
def test_the_others_name_the_rank_and_the_cause(run: Run, what: str, others: str, own: str | None) -> None:
    told = run(what)
    ends = {"killed": -signal.SIGKILL, "dies": -signal.SIGKILL, "never": 0, "stuck": None}
    code, _, err = told[1]
    assert code == ends.get(re.split(r"\W", what)[0], 1), err
    assert own is None or own in last_error(err)
    for code, out, err in (told[0], *told[2:]):
        assert (code, out) == (1, ""), err
        assert re.match(f"PredictionError: {others}", last_error(err)), err
        assert "hint: Mend that rank" in last_error(err)
    assert len({last_error(err) for rank, (_, _, err) in enumerate(told) if rank != 1}) == 1


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("other version", r"ranks disagree about the dataset: pbmc68k@1\.0\.0 .* rank 0, pbmc68k@1\.0\.1 .* rank 1"),
        ("other cells", r"ranks disagree about the dataset: local@\w+ .* on rank 0, local@\w+ .* on rank 1"),
        ("other genes", r"ranks disagree about the dataset: local@\w+ .* on rank 0, local@\w+ .* on rank 1"),
        ("other panel", r"ranks disagree about the panel: .* on rank 0, mae 1 {} on rank 1"),
        ("other sync_to", r"ranks disagree about the rank to gather on: None on rank 0, 0 on rank 1"),
    ],
)  # fmt: skip
def test_ranks_that_ask_different_things_all_say_so(run: Run, what: str, named: str) -> None:
    told = run(what)
    assert [code for code, _, _ in told] == [1] * WORLD
    messages = {last_error(err) for _, _, err in told}
    assert len(messages) == 1, messages
    assert re.match(f"PredictionError: {named}", messages.pop())


@pytest.mark.parametrize(
    "what", ["raises in update, goes on", "slow", "slow, scored on rank0", "genes in another order"]
)
def test_a_rank_that_goes_on_or_is_slow_is_one_as_any_other(run: Run, what: str) -> None:
    told = run(what)
    assert [code for code, _, _ in told] == [0] * WORLD, told
    assert len({out for _, out, _ in told}) == 1
