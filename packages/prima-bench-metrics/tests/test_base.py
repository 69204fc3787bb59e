"""The laws of every buffered metric: one score for one set of rows, each row once, and nothing undefined passed off."""

import math
import runpy
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics import MetricCollection

from prima_bench.metrics.base import Batch, BufferedMetric, Field, Score
from prima_bench.metrics.errors import ConflictingRowsError, InputError
from prima_bench.metrics.numerics import tree_mean
from prima_bench.metrics.rows import RowMatrix, SparseRows

TOYS = runpy.run_path(str(Path(__file__).with_name("kernel_toys.py")))
some, digest, LAYOUTS = TOYS["some"], TOYS["digest"], TOYS["LAYOUTS"]
GroupMeans, Correlation = TOYS["GroupMeans"], TOYS["Correlation"]


@st.composite
def shardings(draw, n: int) -> list[tuple[torch.Tensor, str]]:
    """All rows in any order, some of them again, cut into shards of any sizes, each in some layout."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(draw(st.integers(0, 9999))))
    again = torch.tensor(draw(st.lists(st.integers(0, n - 1), max_size=n)), dtype=torch.int64)
    place = draw(st.integers(0, n))
    rows = torch.cat([order[:place], again, order[place:]])
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    shards = rows.tensor_split(cuts)
    return [(shard, draw(st.sampled_from(LAYOUTS))) for shard in shards]


@given(st.data())
def test_any_sharding_order_padding_layout_and_thread_count_gives_the_same_bits(data):
    n = data.draw(st.integers(1, 60))
    fields = TOYS["data"](n, data.draw(st.integers(1, 9)), data.draw(st.integers(0, 9999)))
    whole = TOYS["panel"]()
    whole.update(**some(torch.arange(n), fields))
    before = torch.get_num_threads()
    torch.set_num_threads(data.draw(st.sampled_from([1, 2])))
    shards = data.draw(shardings(n))
    metric = TOYS["panel"]()
    for rows, layout in shards:
        metric.update(index=rows, **some(rows, fields, layout))
    assert digest(metric.results()) == digest(whole.results())
    torch.set_num_threads(before)
    with metric.synced() as batch:
        assert batch.index.tolist() == list(range(n))
        assert batch.duplicates_dropped == sum(len(rows) for rows, _ in shards) - n


def test_large_inputs_too():
    n, width = 400, 300
    fields = TOYS["data"](n, width, seed=0)
    seen = set()
    before = torch.get_num_threads()
    for seed in range(8):
        torch.set_num_threads(1 + seed % 2)
        metric = TOYS["panel"]()
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        for i, rows in enumerate(order.split(1 + 90 * seed)):
            metric.update(index=rows, **some(rows, fields, LAYOUTS[(seed + i) % len(LAYOUTS)]))
        seen.add(digest(metric.results()))
    torch.set_num_threads(before)
    assert len(seen) == 1


def test_rows_are_scored_in_the_order_of_their_ids():
    class First(Correlation):
        def score(self, batch):
            return Score(float(batch.tensor("a")[0]))

    metric = First()
    metric.update(torch.tensor([5.0, 7.0, 6.0]), torch.zeros(3), torch.tensor([30, -4, 20]))
    assert float(metric.compute()) == 7.0


def test_a_row_that_comes_again_at_once_is_one_row():
    metric = Correlation()
    a = torch.tensor([1.0, 1.0, 2.0, 4.0, 4.0])
    metric.update(a, a * a, torch.tensor([0, 0, 1, 2, 2]))
    with metric.synced() as batch:
        assert (batch.index.tolist(), batch.tensor("a").tolist()) == ([0, 1, 2], [1.0, 2.0, 4.0])
        assert batch.duplicates_dropped == 2


def test_ids_need_not_be_contiguous_and_do_not_enter_the_score():
    a, b = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 3.0, 2.0])
    sparse_ids, plain = Correlation(), Correlation()
    sparse_ids.update(a, b, torch.tensor([5, 2**40, 2**41]))
    plain.update(a, b)
    assert sparse_ids.compute() == plain.compute()


@pytest.mark.parametrize("field", ["x", "group", "weight", "extra"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_id_with_two_contents_is_an_error_that_names_the_rows(field, layout):
    n = 20
    fields = TOYS["data"](n, 4, seed=1, density=1.0)
    other = {name: value.clone() for name, value in fields.items()}
    wrong = torch.tensor([0, 5, 7, 11, 13, 19])
    other[field][wrong] += 1
    metric = TOYS["panel"]()
    metric.update(index=torch.arange(n), **some(torch.arange(n), fields))
    metric.update(index=torch.arange(n).flip(0), **some(torch.arange(n).flip(0), other, layout))
    for _ in range(2):
        with pytest.raises(ConflictingRowsError, match=r"6 rows came.*: 0, 5, 7, 11, 13 and 1 more") as caught:
            metric.compute()
        assert caught.value.rows == (0, 5, 7, 11, 13)
        assert caught.value.hint
    metric.reset()
    metric.update(index=torch.arange(n), **some(torch.arange(n), fields))
    assert digest(metric.results())


def test_a_conflict_is_found_among_three_copies():
    metric = Correlation()
    for value in (1.0, 1.0, 2.0):
        metric.update(torch.tensor([value, 0.0]), torch.tensor([0.0, 1.0]), torch.tensor([8, 9]))
    with pytest.raises(ConflictingRowsError, match="1 row came more than once with different content: 8"):
        metric.compute()


def test_equal_values_of_another_dtype_are_the_same_row():
    fields = TOYS["data"](5, 3, seed=2)
    metric = GroupMeans()
    for layout in LAYOUTS:
        part = some(torch.arange(5), fields, layout)
        metric.update(part["x"], part["group"].to(torch.int32), torch.arange(5))
    with metric.synced() as batch:
        assert (batch.n, batch.duplicates_dropped) == (5, 20)
    double = fields["x"].double()
    double[0, 0] += 1e-12
    metric.update(double, fields["group"], torch.arange(5))
    with pytest.raises(ConflictingRowsError):
        metric.compute()


def test_an_undefined_score_is_nan_for_loggers_and_says_why():
    metric = Correlation()
    metric.update(torch.ones(3), torch.arange(3.0))
    assert math.isnan(metric.compute())
    assert metric.compute().dtype == torch.float64
    assert metric.compute().shape == ()
    assert metric.result().value is None
    assert metric.result().reason == "one side is constant"


def test_no_rows_are_undefined_without_a_warning():
    assert math.isnan(GroupMeans().compute())
    assert GroupMeans().result().reason == "no rows were given"


def test_units_that_are_undefined_leave_the_mean_alone():
    metric = GroupMeans()
    metric.update(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 2]))
    score = metric.result()
    assert score.value == 2.0
    assert score.units.isnan().tolist() == [False, True, False]
    assert score.undefined == {1: "no rows"}


def test_from_units_insists_on_reasons_and_sums_in_order():
    nan = float("nan")
    with pytest.raises(ValueError, match=r"units \[1\] are NaN and units \[\] have a reason"):
        Score.from_units(torch.tensor([1.0, nan]))
    with pytest.raises(ValueError, match="have a reason"):
        Score.from_units(torch.tensor([1.0]), {0: "but it has a value"})
    assert Score.from_units(torch.tensor([nan, nan]), {1: "b", 0: "a"}).reason == "a"
    assert Score.from_units(torch.tensor([])).reason == "there are no units"
    units = torch.tensor([1e16, 1.0, -1e16, 1.0], dtype=torch.float64)
    assert Score.from_units(units).value == float(tree_mean(units))


class Failing(Correlation):
    """Raises while it is told to."""

    broken = True

    def score(self, batch: Batch) -> Score:
        if self.broken:
            raise RuntimeError("cannot score")
        return super().score(batch)


def test_a_score_that_raises_leaves_the_metric_usable():
    metric = Failing()
    a = torch.arange(3.0)
    metric.update(a, a)
    with pytest.raises(RuntimeError, match="cannot score"):
        metric.compute()
    with pytest.raises(RuntimeError, match="cannot score"):
        metric(a, -a)
    metric.update(a + 1, a)
    assert metric.n_rows == 6
    metric.broken = False
    assert 0 < float(metric.compute()) < 1


def test_a_value_is_computed_once_until_rows_are_added():
    calls = []

    class Counting(Correlation):
        def score(self, batch):
            calls.append(batch.n)
            return super().score(batch)

    metric, a = Counting(), torch.arange(3.0)
    metric.update(a, a)
    for _ in range(3):
        metric.compute()
        metric.result()
    metric.update(a, a)
    metric.compute()
    assert calls == [3, 6]
    fresh = Counting(compute_with_cache=False)
    fresh.update(a, a)
    fresh.compute()
    assert fresh.result().value == 1.0
    assert calls == [3, 6, 3, 3]


def test_a_batch_knows_its_fields():
    metric = TOYS["panel"]()
    part = some(torch.arange(4), TOYS["data"](4, 3, seed=0), "sparse")
    del part["extra"]
    metric.update(index=torch.tensor([3, 1, 0, 2]), **part)
    with metric.synced() as batch:
        assert ("x" in batch, "extra" in batch, "nothing" in batch) == (True, False, False)
        assert isinstance(batch["x"], RowMatrix)
        assert batch["x"] is batch.rows("x")
        assert batch["group"] is batch.tensor("group")
        assert batch.tensor("group").tolist() == part["group"][[2, 1, 3, 0]].tolist()
        assert batch.device == torch.device("cpu")
        for read, name in ((batch.rows, "group"), (batch.tensor, "x"), (batch.tensor, "extra")):
            with pytest.raises(KeyError):
                read(name)


def test_the_memo_builds_once_and_keeps_no_failure():
    batch = Batch((), [], torch.device("cpu"))
    built = []

    def build() -> int:
        built.append(1)
        if len(built) == 1:
            raise RuntimeError("first time")
        return len(built)

    with pytest.raises(RuntimeError):
        batch.memo("key", build)
    assert [batch.memo("key", build), batch.memo("key", build), batch.memo(("key", 2), build)] == [2, 2, 3]


def test_a_collection_gives_what_its_metrics_give_alone():
    fields = TOYS["data"](30, 4, seed=6)

    class Spread(GroupMeans):
        def score(self, batch):
            return Score(float(super().score(batch).units.std()))

    collection = MetricCollection({"mean": GroupMeans(), "spread": Spread()})
    alone = {"mean": GroupMeans(), "spread": Spread()}
    for rows in torch.arange(30).split(8):
        args = fields["x"][rows], fields["group"][rows], rows
        collection.update(*args)
        for metric in alone.values():
            metric.update(*args)
    assert collection.compute() == {name: metric.compute() for name, metric in alone.items()}
    collection.reset()
    assert collection(fields["x"], fields["group"]) == collection.compute()


def test_values_are_read_from_sparse_updates_without_a_dense_copy():
    metric = GroupMeans()
    metric.update(SparseRows.from_dense(torch.eye(3)), torch.tensor([0, 1, 2]))
    assert [t.shape for t in (metric.x_chunks[0], metric.x_values[0])] == [(0, 3), (3,)]


def test_a_metric_must_say_what_it_scores():
    class Incomplete(BufferedMetric):
        fields = (Field("a", "real", "scalar"),)

        def update(self, a):
            self._append({"a": a}, None)

    with pytest.raises(TypeError, match=r"abstract method '?score'?"):
        Incomplete()
    with pytest.raises(ValueError, match="Unexpected keyword arguments"):
        GroupMeans(colour="red")
    with pytest.raises(InputError):
        GroupMeans().update(torch.ones(1, 1), torch.ones(1))
