"""Ranks that each hand in some rows and compute; started by ``test_laws_groups.py``.

    python laws_rank.py < COMMANDS

Each line of the input is a plan in JSON: a case, who scores, threads, and for each rank its shards, each a layout and
numbers of rows. The answer is a line of JSON with the exit code, stdout (the digest) and stderr of every rank.
"""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

HERE = Path(__file__).parent
laws, ranks = (SimpleNamespace(**runpy.run_path(str(HERE / name))) for name in ("laws_data.py", "forked_ranks.py"))


def main() -> None:
    runs = {(case, to): laws.evaluation(case, sync_to=to) for case in laws.CASES for to in ("all", "rank0")}
    for line in sys.stdin:
        plan: dict[str, Any] = json.loads(line)
        rows = laws.predictions(plan["case"])
        run = runs[plan["case"], plan["sync_to"]]

        def take_part(rank: int, plan: dict[str, Any] = plan, rows: Any = rows, run: Any = run) -> None:
            torch.set_num_threads(plan["threads"])
            for layout, which in plan["shards"][rank]:
                run.update(laws.take(rows, which, layout))
            sys.stdout.write(run.compute().result_digest)

        sys.stdout.write(json.dumps(ranks.run(len(plan["shards"]), take_part, 120)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
