"""Law 1 over processes: ranks with uneven, empty or repeated shards all compute the result of one process.

Real processes talk over gloo. Each hands in its part for both tasks and every registered metric, then provokes errors
that must be raised on every rank, and scores again.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).parent / "laws_data.py"
SPEC = importlib.util.spec_from_file_location("laws_data", WORKER)
assert SPEC is not None
assert SPEC.loader is not None
laws = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(laws)

WAYS = (
    "uneven",
    "one rank is empty",
    "the first rank is empty",
    "every rank has everything",
    "padded and dealt out",
    "one row at a time",
    "after errors",
)


def spawned(folder: Path, world: int, cases: Sequence[str]) -> list[dict[str, Any]]:
    """What every rank of a group reports."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(folder), str(rank), str(world), *cases],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0] * world, "\n".join(outputs)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return spawned(tmp_path_factory.mktemp("ranks"), 2, laws.CASES)


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    expected = {}
    for case in laws.CASES:
        run = laws.evaluation(case)
        run.update(laws.predictions(case))
        expected[case] = laws.lasting(json.loads(run.compute().to_json()))
    return expected


def same(reports: list[dict[str, Any]], alone: dict[str, dict[str, Any]], case: str, way: str) -> None:
    for report in reports:
        document = report[f"{case}: {way}"]
        assert document["result_digest"] == alone[case]["result_digest"]
        assert laws.lasting(document) == alone[case]
        assert document["provenance"]["world_size"] == len(reports)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", laws.CASES)
def test_every_rank_has_the_result_of_one_process(
    reports: list[dict[str, Any]], alone: dict[str, dict[str, Any]], case: str, way: str
) -> None:
    same(reports, alone, case, way)


def test_three_ranks(alone: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    cases = ("perturbation, counts",)
    reports = spawned(tmp_path, 3, cases)
    for case in cases:
        for way in WAYS:
            same(reports, alone, case, way)


@pytest.mark.parametrize("case", laws.CASES)
def test_repeats_are_counted_over_all_ranks(reports: list[dict[str, Any]], case: str) -> None:
    document = reports[0][f"{case}: every rank has everything"]
    rows = len(laws.predictions(case))
    # Control cells are kept here, and repeated, because one metric of the panel uses them.
    assert document["predictions"]["duplicates_dropped"] == rows * (len(reports) - 1)


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("conflict", "came more than once with different content"),
        ("missing", "not predicted|without predicted cells: 'one cell'"),
        ("another solution", "rank"),
    ],
)
@pytest.mark.parametrize("case", laws.CASES)
def test_errors_are_raised_on_every_rank(reports: list[dict[str, Any]], case: str, name: str, seen: str) -> None:
    for report in reports:
        message = report[f"{case}: {name}"]
        assert message.startswith("PredictionError: ")
        assert re.search(seen, message), message


def test_labels_on_one_rank_and_scores_on_another(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert report["labels: another form"].startswith("PredictionError: ")
