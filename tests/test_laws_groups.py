"""Law 1 over process groups of one to four ranks: hypothesis deals the rows, every rank has the digest of one process.

Uneven, empty and single ranks, rows on several or all ranks as samplers pad, any order and layout; every registered
metric; every rank scores, or the first one for all.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SPEC = importlib.util.spec_from_file_location("laws_data", Path(__file__).parent / "laws_data.py")
assert SPEC is not None
assert SPEC.loader is not None
laws = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(laws)

Group = Callable[[dict[str, Any]], list[tuple[int, str, str]]]


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """Lets a group follow a plan: exit code, stdout and stderr of every rank."""
    worker = Path(__file__).parent / "laws_rank.py"
    environment = os.environ | {"OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "lo"}
    with subprocess.Popen(
        [sys.executable, str(worker)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as host:

        def follow(plan: dict[str, Any]) -> Any:
            assert host.stdin is not None
            assert host.stdout is not None
            host.stdin.write(json.dumps(plan) + "\n")
            host.stdin.flush()
            return [tuple(rank) for rank in json.loads(host.stdout.readline())]

        yield follow


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    """The digest of one process that was handed everything at once, by case."""
    digests = {}
    for case in laws.CASES:
        run = laws.evaluation(case)
        run.update(laws.predictions(case))
        digests[case] = run.compute().result_digest
    return digests


@st.composite
def deals(draw: st.DrawFn, n: int, world: int) -> list[list[tuple[str, list[int]]]]:
    """The shards of every rank: each row is on one rank at least."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    order = random.permutation(n)
    way = draw(
        st.sampled_from(["uneven", "uneven", "one rank has all", "everything everywhere", "padded", "dealt out"])
    )
    if way == "everything everywhere":
        held = [random.permutation(n) for _ in range(world)]
    elif way == "one rank has all":
        lucky = draw(st.integers(0, world - 1))
        held = [order if rank == lucky else order[:0] for rank in range(world)]
    elif way == "padded":
        held = list(np.resize(order, -(-n // world) * world).reshape(-1, world).T)
    elif way == "dealt out":
        held = [order[rank::world] for rank in range(world)]
    else:
        cuts = sorted(draw(st.lists(st.integers(0, n), min_size=world - 1, max_size=world - 1)))
        held = [np.concatenate([part, random.choice(order, 2)]) for part in np.split(order, cuts)]
    layout = st.sampled_from(["dense", "csr", "csc"])
    size = draw(st.integers(1, n))
    return [
        [(draw(layout), list(dict.fromkeys(part.tolist()))) for part in np.split(rows, range(size, len(rows), size))]
        if len(rows) else []
        for rows in held
    ]  # fmt: skip


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("case", laws.CASES)
@settings(max_examples=max(2, settings.default.max_examples // 16))
@given(data=st.data())
def test_every_rank_has_the_digest_of_one_process(
    group: Group, alone: dict[str, str], case: str, world: int, data: st.DataObject
) -> None:
    plan = {
        "case": case,
        "sync_to": data.draw(st.sampled_from(["all", "rank0"])),
        "threads": data.draw(st.integers(1, 2)),
        "shards": data.draw(deals(len(laws.predictions(case)), world)),
    }
    ended = group(plan)
    assert [(code, digest) for code, digest, _ in ended] == [(0, alone[case])] * world, [said for *_, said in ended]
