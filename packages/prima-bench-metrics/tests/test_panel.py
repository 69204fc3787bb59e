"""A panel shares one buffer and one set of derived quantities, and moves no bit of any of its metrics."""

import json
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prima_bench.metrics import Accuracy, CohenKappa
from prima_bench.metrics.base import Field, Score
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.rows import SparseRows

TOYS = runpy.run_path(str(Path(__file__).with_name("kernel_toys.py")))
some, digest, LAYOUTS = TOYS["some"], TOYS["digest"], TOYS["LAYOUTS"]
GroupMeans, WeightedFirst, Correlation = TOYS["GroupMeans"], TOYS["WeightedFirst"], TOYS["Correlation"]
N = 50
FIELDS = TOYS["data"](N, 5, seed=9)

MEMORY = """
import json, runpy, sys, threading, time
import torch
toys = runpy.run_path(sys.argv[1])
n, width = 8000, 6400
x, rows, group = torch.rand(n, width), torch.randperm(n), torch.arange(n) % 3
make = lambda: toys["Panel"]({str(i): toys["GroupMeans"]() for i in range(15)})
def whole(panel):
    panel.extend([(rows, {"x": x, "group": group})])
    panel.compute()
def shards(panel):
    for part in torch.arange(n).split(100):
        panel.update(index=rows[part], x=x[part], group=group[part])
    panel.compute()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def peak_above(run):
    panel, base, peak, done = make(), resident(), 0, False
    def watch():
        nonlocal peak
        while not done:
            peak = max(peak, resident())
            time.sleep(0.001)
    watcher = threading.Thread(target=watch)
    watcher.start()
    run(panel)
    done = True
    watcher.join()
    return (peak - base) / x.nbytes
small = make()
small.update(x=x[:300, :50], group=group[:300])
small.compute()
print(json.dumps([peak_above(whole), peak_above(shards)]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_fifteen_metrics_hold_the_rows_once():
    toys = str(Path(__file__).with_name("kernel_toys.py"))
    command = [sys.executable, "-c", MEMORY, toys]
    taken, copied = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=180).stdout)
    assert taken < 0.15
    assert copied < 1.3


def test_a_metric_gives_the_same_bits_alone_and_in_a_panel():
    panel, means, first = TOYS["panel"](), GroupMeans(), WeightedFirst()
    for i, rows in enumerate(torch.randperm(N, generator=torch.Generator().manual_seed(0)).split(11)):
        part = some(rows, FIELDS, LAYOUTS[i])
        panel.update(index=rows, **part)
        means.update(part["x"], part["group"], rows)
        first.update(part["x"], part["weight"], part["extra"], rows)
    assert digest(panel.results()) == digest({"means": means.result(), "first": first.result()})
    assert panel.compute() == {"means": means.compute(), "first": first.compute()}


def test_extend_keeps_what_it_is_given_and_changes_no_result():
    streamed, taken = TOYS["panel"](), TOYS["panel"]()
    streamed.update(**some(torch.arange(N), FIELDS))
    chunks = [(rows, some(rows, FIELDS, LAYOUTS[i])) for i, rows in enumerate(torch.arange(N).split(13))]
    taken.extend(iter(chunks))
    assert taken.x_chunks[0].data_ptr() == chunks[0][1]["x"].data_ptr()
    assert taken.x_values[3].data_ptr() == chunks[3][1]["x"].values.data_ptr()
    assert digest(taken.results()) == digest(streamed.results())
    assert taken.update_count == 1


def test_extend_takes_all_chunks_or_none():
    panel = TOYS["panel"]()
    panel.update(index=torch.arange(10), **some(torch.arange(10), FIELDS))
    value, rows = panel.compute(), panel.n_rows
    bad = some(torch.arange(20, 30), FIELDS)
    bad["x"][4, 2] = torch.nan
    with pytest.raises(InputError, match="x: row 4, column 2 is nan"):
        panel.extend([(torch.arange(10, 20), some(torch.arange(10, 20), FIELDS)), (torch.arange(20, 30), bad)])

    def interrupted():
        yield torch.arange(10, 20), some(torch.arange(10, 20), FIELDS)
        raise OSError("the file ends here")

    with pytest.raises(OSError, match="ends here"):
        panel.extend(interrupted())
    assert (panel.n_rows, panel.update_count) == (rows, 1)
    assert panel.compute() is value
    panel.extend([(torch.arange(10, 20), some(torch.arange(10, 20), FIELDS))])
    assert panel.compute() != value


def test_what_metrics_share_is_computed_once():
    built = []

    class Sharing(Correlation):
        def score(self, batch):
            return Score(batch.memo("shared", lambda: built.append(1) or 1.0))

    panel = Panel({"a": Sharing(), "b": Sharing(), "c": Sharing()})
    panel.update(a=torch.ones(2), b=torch.ones(2))
    panel.compute()
    assert built == [1]
    panel.update(a=torch.ones(2), b=torch.ones(2))
    panel.results()
    assert built == [1, 1]


def test_fields_are_the_union_and_optional_only_where_nobody_needs_them():
    class Needs(Correlation):
        fields = (Field("extra", "real", "row"),)

    class Differs(Correlation):
        fields = (Field("x", "integer", "scalar"),)

    rows = some(torch.arange(3), FIELDS)
    del rows["extra"]
    TOYS["panel"]().update(**rows)
    for metrics in ({"a": WeightedFirst(), "b": Needs()}, {"b": Needs(), "a": WeightedFirst()}):
        with pytest.raises(InputError, match="field 'extra' is missing"):
            Panel(metrics).update(x=rows["x"], weight=rows["weight"])
    with pytest.raises(InputError, match="d reads x as integer scalar, another metric does not"):
        Panel({"m": GroupMeans(), "d": Differs()})
    with pytest.raises(InputError, match="at least one metric"):
        Panel({})


def test_a_panel_in_a_loop_and_without_rows():
    panel = TOYS["panel"]()
    assert {name: s.reason for name, s in panel.results().items()} == dict.fromkeys(
        ("means", "first"), "no rows were given"
    )
    for rows in torch.arange(N).split(20):
        values = panel(index=rows, **some(rows, FIELDS))
        assert sorted(values) == ["first", "means"]
    whole = TOYS["panel"]()
    whole.update(**some(torch.arange(N), FIELDS))
    assert panel.compute() == whole.compute()
    assert list(panel.metrics) == ["means", "first"]


def test_a_panel_can_be_pickled_and_goes_on():
    panel = Panel({"accuracy": Accuracy(num_classes=2), "kappa": CohenKappa(num_classes=2)})
    panel.update(index=torch.arange(4), label=torch.tensor([0, 1, 1, 0]), target=torch.tensor([0, 1, 0, 0]))
    again = pickle.loads(pickle.dumps(panel))  # noqa: S301
    assert again.compute() == panel.compute()
    again.update(index=torch.arange(4, 6), label=torch.tensor([1, 1]), target=torch.tensor([0, 1]))
    assert (again.n_rows, panel.n_rows) == (6, 4)
    assert again.compute() != panel.compute()


def test_a_panel_of_one_row_of_sparse_nothing():
    panel = Panel({"means": GroupMeans()})
    panel.update(x=SparseRows.from_dense(torch.zeros(1, 4)), group=torch.tensor([1]))
    assert float(panel.compute()["means"]) == 0.0
