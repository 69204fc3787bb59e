"""Ranks of a real gloo group exchange any rows, agree on every bit, and refuse together what does not fit together."""

import json
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
TOYS = runpy.run_path(str(HERE / "kernel_toys.py"))
WORLD = 3
N_ROWS = 301


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> list[dict]:
    """What each of three processes saw in every case."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE", "GLOO_SOCKET_IFNAME": "lo"}
    reports = [folder / f"{r}.json" for r in range(WORLD)]
    command = [sys.executable, str(HERE / "sync_worker.py"), str(WORLD), str(folder / "meeting")]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ranks = [subprocess.Popen([*command, str(r), str(path)], env=environment, **pipe) for r, path in enumerate(reports)]
    try:
        logs = [rank.communicate(timeout=180)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * WORLD, "\n".join(logs)
    return [json.loads(path.read_text()) for path in reports]


@pytest.fixture(scope="module")
def alone() -> str:
    """The digest of one process that was given all rows at once."""
    rows = torch.arange(301)
    metric = TOYS["panel"]()
    metric.update(index=rows, **TOYS["some"](rows, TOYS["data"](301, 37, seed=1)))
    return TOYS["digest"](metric.results())


def test_any_sharding_over_three_ranks_gives_the_bits_of_one_process(seen, alone):
    assert {(r, c): d for r, rank in enumerate(seen) for c, d in rank.items() if c.startswith("sharded")} == {
        (r, f"sharded {seed}"): alone for r in range(WORLD) for seed in range(12)
    }


def test_a_group_of_two_exchanges_without_the_third(seen, alone):
    for rank in (0, 2):
        assert [seen[rank][f"pair {seed}"] for seed in range(6)] == [alone] * 6


@pytest.mark.parametrize("case", ["everything_everywhere", "large_windows"])
def test_all_rows_on_all_ranks_and_tensors_of_many_windows(seen, alone, case):
    assert [rank[case] for rank in seen] == [alone] * WORLD


def test_one_rank_gets_the_rows_of_all_and_the_others_hold_no_more(seen, alone):
    """The first rank has none of its own at first, so that some rows are missing on whichever rank gathers."""
    present = N_ROWS - len(range(0, N_ROWS, WORLD))
    for rank in range(WORLD):
        *gathered, own, digest = seen[rank]["on_one_rank"]
        assert gathered == [[present, present] if to == rank else None for to in range(WORLD)]
        assert own
        assert digest == alone


def test_a_rank_gets_its_own_rows_back_by_reference(seen):
    for rank in seen:
        assert rank["local_rows_come_back"] == [301, 301, True, True, 301, 6, True, 307, False]


def test_a_move_while_synced_takes_the_ranks_own_rows_along(seen):
    assert [rank["moved_while_synced"] for rank in seen] == [["meta", "meta"]] * WORLD


def test_a_conflict_between_ranks_is_raised_on_all_and_leaves_them_usable(seen):
    for rank in seen:
        message, rows, synced, n, names = rank["conflict_then_mend"]
        assert message.startswith("1 row came more than once with different content: 5\nhint: ")
        assert (rows, synced, n, names) == ([5], False, 301, ["first", "means"])


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("other_width", "number of columns: {'index': 0, 'x': 3, 'group': 0} on rank 0"),
        ("other_tag", "tag: solution 0 on rank 0, solution 1 on rank 2"),
        ("other_tag_of_a_member", "first=WeightedFirst reference 1) on rank 1"),
        ("other_fields", "given fields"),
        ("other_destination", "rank to gather on: 0 on rank 0, 1 on rank 1"),
        ("other_metric", "metric: Correlation on rank 0, GroupMeans on rank 1"),
    ],
)
def test_ranks_that_disagree_get_one_error_and_keep_their_rows(seen, case, words):
    messages = {rank[case][0] for rank in seen}
    assert len(messages) == 1
    assert words in messages.pop()
    assert [rank[case][2] for rank in seen] == [False] * WORLD
    assert [rank[case][1] for rank in seen] == [
        0 if case.startswith(("other_tag", "other_metric", "other_dest")) else 2
    ] * WORLD


def test_no_rows_anywhere_is_undefined_without_a_warning(seen):
    for rank in seen:
        value, reason = rank["no_rows"]
        assert math.isnan(value)
        assert reason == "no rows were given"


def test_rows_need_ids_when_several_processes_share_a_metric(seen):
    for rank in seen:
        message, hint = rank["no_index"]
        assert "rows need ids" in message
        assert "index=" in hint


def test_a_metric_that_does_not_sync_may_number_its_rows_but_then_cannot_be_exchanged(seen):
    for number, rank in enumerate(seen):
        value, refusal = rank["own_rows_only"]
        assert value == (1.0 if number == 0 else -1.0)
        assert "rank 0 numbered its rows itself" in refusal


def test_forward_is_local_unless_asked_and_compute_is_global(seen):
    for rank in seen:
        batches, rows, *values = rank["in_a_loop"]
        assert (batches, rows) == (2, 10)
        assert len(set(values)) == 1


def test_a_subclass_state_is_reduced_and_empty_sparse_rows_travel(seen):
    for rank in seen:
        assert rank["extra_state"] == [6, 6]
        assert rank["sparse_without_values"] == 0.0
