"""The buffer keeps rows as they were given, all or nothing, through the whole life of a torchmetrics metric."""

import copy
import io
import pickle
import runpy
from pathlib import Path

import pytest
import torch
import torchmetrics
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from prima_bench.metrics import Accuracy, buffer
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.fields import Field, check_chunk
from prima_bench.metrics.rows import SparseRows

TOYS = runpy.run_path(str(Path(__file__).with_name("kernel_toys.py")))
some, digest, LAYOUTS = TOYS["some"], TOYS["digest"], TOYS["LAYOUTS"]
GroupMeans, WeightedFirst, Correlation = TOYS["GroupMeans"], TOYS["WeightedFirst"], TOYS["Correlation"]
N = 40
FIELDS = TOYS["data"](N, 6, seed=3)


def filled(chunk: int = 7, layouts=LAYOUTS, **kwargs):
    metric = TOYS["panel"](**kwargs)
    for i, rows in enumerate(torch.arange(N).split(chunk)):
        metric.update(index=rows, **some(rows, FIELDS, layouts[i % len(layouts)]))
    return metric


EXPECTED = digest(filled().results())


def held(metric) -> dict[str, list]:
    return {name: list(state) for name, state in metric.metric_state.items()}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(
        len(a[k]) == len(b[k]) and all(torch.equal(x, y) for x, y in zip(a[k], b[k], strict=True)) for k in a
    )


# What is refused, and that nothing is kept of it

X, G, IDS = torch.ones(3, 2), torch.zeros(3, dtype=torch.int64), torch.arange(3)


@pytest.mark.parametrize(
    ("x", "group", "index", "words"),
    [
        (X[:, 0], G, IDS, r"x must have shape \[n, w\]"),
        (X[:, :0], G, IDS, r"x must have shape \[n, w\], w > 0"),
        (X[None], G, IDS, "x must have shape"),
        (X, X, IDS, r"group must have shape \[n\]"),
        (X, G.float(), IDS, "group must hold integers, not torch.float32"),
        (X.bool(), G, IDS, "x must hold real numbers, not torch.bool"),
        (X.to(torch.complex64), G, IDS, "x must hold real numbers"),
        (X.tolist(), G, IDS, "x must be a dense tensor or SparseRows"),
        (X, G.tolist(), IDS, "group must be a dense tensor"),
        (X, SparseRows.from_dense(X), IDS, "group cannot be sparse"),
        (X[:2], G, IDS, "same number of rows, not index: 3, x: 2, group: 3"),
        (X, G, IDS[:2], "same number of rows"),
        (X, G, IDS.float(), "index must hold integers"),
        (X, G, IDS[:, None], "index must have shape"),
        (torch.tensor([[1.0, 2.0], [3.0, torch.nan], [0.0, 0.0]]), G, IDS, "x: row 1, column 1 is nan"),
        (torch.tensor([[1.0, 2.0], [3.0, 0.0], [-torch.inf, 0.0]]), G, IDS, "x: row 2, column 0 is -inf"),
        (SparseRows.from_dense(torch.tensor([[0, 1.0], [0, 0], [0, torch.inf]])), G, IDS, "x: row 2, column 1 is inf"),
        (torch.full((3, 2), 2**53 + 1), G, IDS, "which float64 cannot represent exactly"),
        (torch.ones(3, 5), G, IDS, "x has 5 columns; earlier updates had 2"),
        (SparseRows(X[0, :0], IDS[:0], G, 0), G, IDS, "at least one column"),
        (None, G, IDS, "field 'x' is missing"),
    ],
)
def test_bad_rows_are_refused_whole(x, group, index, words):
    metric = GroupMeans()
    metric.update(X, G, index=IDS + 10)
    value, before = metric.compute(), held(metric)
    with pytest.raises(InputError, match=words):
        metric.update(x, group, index=index)
    assert same(held(metric), before)
    assert metric.update_count == 1
    assert metric._computed is value


def test_a_panel_refuses_unknown_fields_and_a_change_of_fields():
    metric = TOYS["panel"]()
    part = some(torch.arange(4), FIELDS)
    with pytest.raises(InputError, match="unknown field 'y'") as caught:
        metric.update(index=torch.arange(4), y=X, **part)
    assert "x, group, weight, extra" in caught.value.hint
    metric.update(index=torch.arange(4), **part)
    del part["extra"]
    with pytest.raises(InputError, match="earlier updates gave index, x, group, weight, extra; this one gives"):
        metric.update(index=torch.arange(4, 8), **part)


def test_fields_need_distinct_names():
    class Twice(GroupMeans):
        fields = (Field("x", "real", "rows"), Field("x", "real", "scalar"))

    class Reserved(GroupMeans):
        fields = (Field("index", "integer", "scalar"),)

    for cls in (Twice, Reserved):
        with pytest.raises(InputError, match="distinct names"):
            cls()


def test_a_subclass_cannot_declare_lists_beside_its_fields():
    with pytest.raises(TypeError, match="declare per-row inputs as a Field"):
        GroupMeans().add_state("rows", [], dist_reduce_fx="cat")


# How values are kept


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (torch.tensor([[1, 2**24]]), torch.float32),
        (torch.tensor([[1, 2**24 + 1]]), torch.float64),
        (torch.tensor([[-(2**24) - 1, 0]]), torch.float64),
        (torch.tensor([[1, 255]], dtype=torch.uint8), torch.float32),
        (torch.tensor([[1, 65535]], dtype=torch.uint16), torch.float32),
        (torch.tensor([[1, 2**32 - 1]], dtype=torch.uint32), torch.float64),
        (torch.tensor([[1.5, 2]], dtype=torch.float16), torch.float32),
        (torch.tensor([[1.5, 2]], dtype=torch.bfloat16), torch.float32),
        (torch.tensor([[0.1, 2]], dtype=torch.float64), torch.float64),
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_values_are_kept_exactly(given, kept, sparse):
    value = SparseRows.from_dense(given) if sparse and given.dtype not in (torch.uint16, torch.uint32) else given
    field = Field("x", "real", "rows")
    chunk = check_chunk((field,), {"x": value}, device=torch.device("cpu"), owned=False)
    values = chunk["x"].values if isinstance(chunk["x"], SparseRows) else chunk["x"]
    assert values.dtype == kept
    assert values.double().flatten().tolist() == [float(v) for v in given.flatten().tolist() if v or not sparse]


def test_negative_zero_and_ids_beyond_float_survive():
    metric = GroupMeans()
    ids = torch.tensor([2**62 + 1, 2**62, -5])
    metric.update(torch.tensor([[-0.0], [1.0], [-0.0]]), torch.tensor([True, False, True]), ids)
    assert not torch.signbit(metric.x_chunks[0]).any()
    with metric.synced() as batch:
        assert batch.index.tolist() == [-5, 2**62, 2**62 + 1]
        assert batch.tensor("group").tolist() == [1, 0, 1]


def test_the_callers_tensors_are_neither_kept_nor_changed():
    x, group, rows = torch.tensor([[-0.0, 1.0]] * 3), torch.zeros(3, dtype=torch.int64), torch.arange(3)
    weight = SparseRows.from_dense(torch.eye(3))
    metric, sparse = GroupMeans(), GroupMeans()
    metric.update(x, group, rows)
    sparse.update(weight, group, rows)
    before = metric.compute().clone(), sparse.compute().clone()
    assert torch.signbit(x[:, 0]).all()
    for t in (x, group, rows, weight.values, weight.columns, weight.lengths):
        t.zero_()
    metric._computed = sparse._computed = None
    assert (metric.compute(), sparse.compute()) == before


def test_no_autograd_graph_is_kept():
    x = torch.ones(3, 2, requires_grad=True)
    metric = TOYS["panel"]()
    fields = {"group": G, "weight": torch.ones(3, requires_grad=True)}
    value = metric(index=IDS, x=x * 2, **fields)
    metric.extend([(IDS + 3, {"x": x * 3, **fields})])
    assert not any(v.requires_grad for v in value.values())
    assert not any(t.requires_grad for t in metric.x_chunks + metric.weight_chunks)


def test_an_update_of_no_rows_is_no_chunk():
    metric = GroupMeans()
    metric.update(X[:0], G[:0], IDS[:0])
    metric.update(X[:0, :1], G[:0], IDS[:0])
    assert held(metric) == {name: [] for name in metric.metric_state}
    metric.update(X, G, IDS)
    assert metric.n_rows == 3


# How rows are numbered


def test_rows_are_numbered_as_they_come():
    metric = Correlation()
    metric.update(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
    metric(torch.tensor([2.0, 4.0]), torch.tensor([9.0, 1.0]))
    metric.update(torch.tensor([5.0]), torch.tensor([0.0]))
    with metric.synced() as batch:
        assert batch.index.tolist() == [0, 1, 2, 3, 4]
        assert batch.tensor("a").tolist() == [1.0, 2.0, 2.0, 4.0, 5.0]


@pytest.mark.parametrize("ids_first", [True, False])
def test_ids_are_given_always_or_never(ids_first):
    metric = Correlation()
    a, ids = torch.arange(3.0), torch.arange(3) + 10
    metric.update(a, a, ids if ids_first else None)
    for step in (metric.update, metric.forward):
        with pytest.raises(InputError, match=r"index is (given|missing) here, unlike in earlier updates"):
            step(a, a, None if ids_first else ids)
    assert metric.n_rows == 3
    metric.reset()
    metric.update(a, a, None if ids_first else ids)


def test_a_resumed_metric_goes_on_numbering_or_naming_as_before():
    a = torch.arange(3.0)
    numbered, named = Correlation(), Correlation()
    numbered.update(a, a)
    named.update(a, a, torch.tensor([4, 5, 6]))
    for metric, index in ((numbered, None), (named, torch.tensor([7, 8, 9]))):
        resumed = Correlation()
        resumed.load_state_dict(metric.state_dict())
        resumed.update(a, a, index)
        with resumed.synced() as batch:
            assert batch.n == 6
    with pytest.raises(InputError, match="index is missing here"):
        resumed.update(a, a)


# forward


@given(st.integers(1, 9), st.lists(st.booleans(), min_size=40, max_size=40))
def test_forward_adds_a_batch_and_returns_its_own_value(size, by_forward):
    metric = GroupMeans()
    for rows, forward in zip(torch.arange(N).split(size), by_forward, strict=False):
        args = FIELDS["x"][rows], FIELDS["group"][rows], rows
        if forward:
            alone = GroupMeans()
            alone.update(*args)
            assert metric(*args).nan_to_num(9) == alone.compute().nan_to_num(9)
        else:
            metric.update(*args)
    whole = GroupMeans()
    whole.update(FIELDS["x"], FIELDS["group"])
    assert metric.compute() == whole.compute()
    assert metric.update_count == len(torch.arange(N).split(size))


def test_forward_costs_its_batch_alone(monkeypatch):
    metric = GroupMeans()
    metric.update(torch.ones(1000, 4), torch.zeros(1000, dtype=torch.int64), torch.arange(1000))
    first = metric.x_chunks[0]
    metric(X.repeat(1, 2), G, IDS + 1000)
    assert metric.x_chunks[0] is first


def test_a_forward_that_raises_adds_and_loses_nothing():
    metric = Correlation()
    metric.update(torch.arange(3.0), torch.arange(3.0), IDS)
    before, value = held(metric), metric.compute()
    with pytest.raises(InputError, match="is nan"):
        metric(torch.full((3,), torch.nan), torch.arange(3.0), IDS + 3)
    with pytest.raises(ValueError, match="came more than once"):
        metric(torch.arange(3.0), torch.arange(3.0), torch.zeros(3, dtype=torch.int64))
    assert same(held(metric), before)
    assert (metric.update_count, metric._computed) == (1, value)
    metric.update(torch.arange(3.0), torch.arange(3.0), IDS + 3)
    assert metric.n_rows == 6


def test_many_small_chunks_become_few(monkeypatch):
    monkeypatch.setattr(buffer, "_LOOSE_CHUNKS", 8)
    metric = filled(chunk=1)
    assert metric.n_rows == N
    assert digest(metric.results()) == EXPECTED
    alike, forwarded = filled(chunk=1, layouts=["dense"]), TOYS["panel"]()
    for rows in torch.arange(N).split(1):
        forwarded(index=rows, **some(rows, FIELDS))
    for joined in (alike, forwarded):
        assert len(joined.index_chunks) == 5
        assert digest(joined.results()) == EXPECTED
    monkeypatch.setattr(buffer, "_SLAB_BYTES", 300)
    assert max(len(c) for c in filled(chunk=1, layouts=["dense"]).index_chunks) < 8


# Checkpoints, copies, moves


@pytest.mark.parametrize("cut", [0, 1, 4])
def test_a_run_goes_on_from_a_checkpoint_with_the_same_bits(cut):
    parts = torch.arange(N).split(9)
    first = TOYS["panel"]()
    for i, rows in enumerate(parts[:cut]):
        first.update(index=rows, **some(rows, FIELDS, LAYOUTS[i]))
    stream = io.BytesIO()
    torch.save(first.state_dict(), stream)
    stream.seek(0)
    second = TOYS["panel"]()
    second.load_state_dict(torch.load(stream, weights_only=True))
    assert second.update_called == (cut > 0)
    for i, rows in enumerate(parts[cut:]):
        second.update(index=rows, **some(rows, FIELDS, LAYOUTS[i]))
    assert digest(second.results()) == EXPECTED


def test_loading_forgets_a_value_computed_before_and_shares_no_memory():
    metric, other = filled(), TOYS["panel"]()
    part = some(torch.arange(5), FIELDS)
    other.update(index=torch.arange(5), **part)
    other.compute()
    state = metric.state_dict()
    other.load_state_dict(state)
    assert digest(other.results()) == EXPECTED
    for chunk in state["x_chunks"]:
        chunk.zero_()
    other._computed = metric._computed = None
    assert digest(other.results()) == digest(metric.results()) == EXPECTED


def test_a_checkpoint_without_the_states_is_refused_unless_asked_otherwise():
    metric = filled()
    parent = torch.nn.ModuleDict({"metric": metric})
    with pytest.raises(RuntimeError, match=r"Missing key\(s\).*metric.index_chunks"):
        parent.load_state_dict({})
    parent.load_state_dict({}, strict=False)
    assert digest(metric.results()) == EXPECTED
    with pytest.raises(RuntimeError, match="Unexpected key"):
        parent.load_state_dict({**parent.state_dict(), "metric.more": torch.ones(1)})
    metric.persistent(False)
    assert parent.state_dict() == {}
    parent.load_state_dict({})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda s: s["group_chunks"].pop(), "do not fit together"),
        (lambda s: s["x_lengths"].pop(), "do not fit together"),
        (lambda s: s["x_chunks"].clear(), "do not fit together"),
        (lambda s: s.update(group_chunks=[g.float() for g in s["group_chunks"]]), "group must hold integers"),
        (lambda s: s.update(x_columns=[c + 99 for c in s["x_columns"]]), "is outside 0 to 5"),
        (lambda s: s.update(weight_chunks=[w[1:] for w in s["weight_chunks"]]), "same number of rows"),
        (lambda s: s.update(weight_chunks=torch.ones(3)), "weight_chunks must be a list of tensors"),
        (lambda s: s.update(weight_chunks=[1.0]), "weight_chunks must be a list of tensors"),
        (lambda s: s.update(x_chunks=[c[:, :2] for c in s["x_chunks"]]), "column . is outside 0 to 1"),
    ],
)
def test_a_damaged_checkpoint_is_refused_whole(damage, words):
    state = filled().state_dict()
    damage(state)
    metric = filled()
    before = held(metric)
    with pytest.raises(RuntimeError, match=words):
        metric.load_state_dict(state)
    assert same(held(metric), before)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda m: m.clone(), lambda m: pickle.loads(pickle.dumps(m))])  # noqa: S301
def test_copies_go_their_own_way(make):
    metric = Accuracy(num_classes=2)
    target = torch.tensor([0, 1, 1, 0])
    metric.update(torch.tensor([0, 1, 0, 0]), target, torch.arange(4))
    value = metric.compute()
    twin = make(metric)
    assert twin.compute() == value == 0.75
    twin.update(torch.tensor([1, 0, 0, 1]), target, torch.arange(4, 8))
    assert (float(twin.compute()), float(metric.compute())) == (0.375, 0.75)
    assert (twin.n_rows, metric.n_rows) == (8, 4)


@pytest.mark.parametrize(
    "cast",
    [
        lambda m: m.half(),
        lambda m: m.bfloat16(),
        lambda m: m.double(),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.to(torch.float64),
        lambda m: m.to("cpu"),
        lambda m: m.cpu(),
        lambda m: m.to(torch.device("cpu"), torch.float16),
    ],
)
def test_no_cast_of_a_parent_changes_a_state(cast):
    metric = filled()
    before = {name: [t.dtype for t in state] for name, state in held(metric).items()}
    parent = torch.nn.Sequential(torch.nn.Linear(1, 1), metric)
    cast(parent)
    assert {name: [t.dtype for t in state] for name, state in held(metric).items()} == before
    assert metric.set_dtype(torch.float16) is metric
    assert metric.device == torch.device("cpu")
    assert digest(metric.results()) == EXPECTED


def test_a_move_takes_states_values_and_members_along():
    metric = filled()
    metric.compute()
    moved = metric.to("meta")
    assert moved.device == torch.device("meta")
    assert {t.device.type for state in held(moved).values() for t in state} == {"meta"}
    assert {v.device.type for v in moved._computed.values()} == {"meta"}
    assert {m.device.type for m in moved.metrics.values()} == {"meta"}


def test_rows_may_be_kept_on_the_cpu():
    metric = filled(compute_on_cpu=True)
    assert digest(metric.results()) == EXPECTED
    metric(index=torch.arange(N, N + 2), **some(torch.arange(2), FIELDS))
    assert metric.n_rows == N + 2


def test_reset_forgets_everything():
    metric = filled()
    metric.compute()
    metric.reset()
    assert (metric.n_rows, metric.update_called, metric._computed) == (0, False, None)
    assert all(s.reason == "no rows were given" for s in metric.results().values())
    for rows in torch.arange(N).split(7):
        metric.update(index=rows, **some(rows, FIELDS))
    assert digest(metric.results()) == EXPECTED


# Merging and syncing by hand


@pytest.mark.parametrize("as_states", [True, False])
def test_merging_is_adding_the_rows(as_states):
    a, b = TOYS["panel"](), TOYS["panel"]()
    for metric, rows in ((a, torch.arange(0, 25)), (b, torch.arange(20, N))):
        metric.update(index=rows, **some(rows, FIELDS))
    a.compute()
    a.merge_state(b.metric_state if as_states else b)
    assert digest(a.results()) == EXPECTED
    assert a.update_count == 2
    b.update(index=torch.arange(3), **some(torch.arange(3), FIELDS))
    assert (a.n_rows, b.n_rows) == (45, 23)


def test_what_does_not_belong_together_is_not_merged():
    metric = Correlation()
    metric.update(torch.arange(3.0), torch.arange(3.0))
    other = Correlation()
    other.update(torch.arange(3.0), torch.arange(3.0))
    with pytest.raises(InputError, match="numbered from 0 by two metrics"):
        metric.merge_state(other)
    with pytest.raises(ValueError, match="GroupMeans cannot be merged into Correlation"):
        metric.merge_state(GroupMeans())
    with pytest.raises(ValueError, match="int cannot be merged"):
        metric.merge_state(3)
    with pytest.raises(InputError, match="state index_chunks must be a list"):
        metric.merge_state({})
    wide, narrow = GroupMeans(), GroupMeans()
    wide.update(torch.ones(3, 5), G, IDS)
    narrow.update(X, G, IDS)
    with pytest.raises(InputError, match="x has 5 columns"):
        narrow.merge_state(wide)
    assert narrow.n_rows == metric.n_rows == 3
    Correlation().merge_state(metric)


def test_outside_a_process_group_sync_does_nothing():
    metric = filled()
    metric.sync()
    with pytest.raises(TorchMetricsUserError, match="already been un-synced"):
        metric.unsync()
    with metric.sync_context():
        assert metric.n_rows == N
    with pytest.raises(InputError, match="dist_sync_fn cannot be replaced"):
        metric.sync(dist_sync_fn=torchmetrics.utilities.distributed.gather_all_tensors)


def test_a_subclass_may_count_in_a_tensor_state():
    class Counted(Correlation):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.add_state("seen", torch.tensor(0), dist_reduce_fx="sum", persistent=True)

        def update(self, preds, target, index=None):
            super().update(preds, target, index)
            self.seen = self.seen + len(preds)

    metric, other = Counted(), Counted()
    metric.update(torch.arange(3.0), torch.arange(3.0), IDS)
    metric(torch.arange(3.0), torch.arange(3.0), IDS + 3)
    other.load_state_dict(metric.state_dict())
    metric.merge_state(other)
    assert (int(other.seen), int(metric.seen), metric.n_rows) == (6, 12, 12)
    metric.reset()
    assert int(metric.seen) == 0
