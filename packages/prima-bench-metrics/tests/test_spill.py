"""Tensors in temporary files: the same values, given back to the system as they are read, and gone with the process."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics import spill as spill_module
from prima_bench.metrics.differential import spans
from prima_bench.metrics.differential.rank_sum import rank_sum_test
from prima_bench.metrics.errors import InputError
from prima_bench.metrics.rows import RowMatrix, SparseRows
from prima_bench.metrics.spill import Spill, is_kept, relieve, row_blocks, take_rows, take_runs

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def kept(spill: Spill, x: SparseRows) -> SparseRows:
    return replace(x, values=spill.keep(x.values), columns=spill.keep(x.columns))


@given(
    shapes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3000)), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int32, torch.int64]),
)
def test_values_come_back_whatever_was_read_meanwhile(shapes: list[tuple[int, int]], dtype: torch.dtype) -> None:
    spill = Spill()
    given_ = [torch.arange(n * w).view(n, w).to(dtype) + 7 * i for i, (n, w) in enumerate(shapes)]
    found = [spill.keep(x) for x in given_]
    for _ in range(2):
        relieve(2 * spill_module.RESIDENT_BYTES)
        assert all(torch.equal(a, b) for a, b in zip(given_, found, strict=True))
    assert all(is_kept(x) for x in found if x.numel())
    assert not any(is_kept(x) for x in given_)
    found[0] += 1  # what is written to one reaches no neighbour, and is not forgotten with the pages
    relieve(2 * spill_module.RESIDENT_BYTES)
    assert torch.equal(given_[0] + 1, found[0])
    assert all(torch.equal(a, b) for a, b in zip(given_[1:], found[1:], strict=True))


def test_parts_make_one_tensor() -> None:
    x = torch.rand(100, 7)
    assert torch.equal(Spill().keep_parts(torch.split(x, 9), x.dtype, (100, 7)), x)


def test_an_empty_tensor_is_filled_in_the_file() -> None:
    spill, x = Spill(), torch.rand(100, 7)
    found, neighbour = spill.empty(x.dtype, (100, 7)), spill.keep(x + 1)
    for rows in range(0, 100, 9):
        found[rows : rows + 9] = x[rows : rows + 9]
        relieve(2 * spill_module.RESIDENT_BYTES)
    assert torch.equal(found, x)
    assert torch.equal(neighbour, x + 1)
    assert is_kept(found)
    assert spill.empty(torch.int64, (0, 3)).shape == (0, 3)


@given(data=st.data())
def test_runs_and_rows_are_those_in_memory(data: st.DataObject) -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 7)))
    kept_x = Spill().keep(torch.cat([x, x]))[40:]
    pieces = data.draw(st.lists(st.tuples(st.integers(0, 280), st.integers(0, 280)).map(sorted), max_size=6))
    starts = torch.tensor([a for a, _ in pieces], dtype=torch.int64)
    lengths = torch.tensor([b - a for a, b in pieces], dtype=torch.int64)
    assert torch.equal(take_runs(kept_x.view(-1), starts, lengths), take_runs(x.view(-1), starts, lengths))
    rows = torch.tensor(data.draw(st.lists(st.integers(0, 39), max_size=6)), dtype=torch.int64)
    assert torch.equal(take_rows(kept_x, rows), x[rows])
    assert not is_kept(take_rows(kept_x, rows))


def test_a_tensor_outlives_its_spill() -> None:
    x = torch.rand(10_000)
    found = Spill().keep(x)
    assert torch.equal(found, x)


@linux
@pytest.mark.parametrize("sparse", [False, True])
def test_scattered_rows_take_no_more_memory_than_they_have(sparse: bool) -> None:
    rows = Spill().keep(torch.ones(64 << 20, dtype=torch.uint8).view(4096, -1).to(torch.float32))
    n, width = rows.shape
    columns = Spill().keep(torch.arange(width, dtype=torch.int32).repeat(n))
    chunk = SparseRows(rows.view(-1), columns, torch.full((n,), width), width) if sparse else rows
    view, before, most = RowMatrix([chunk]), _resident(), 0.0
    for part in np.array_split(np.random.default_rng(0).permutation(n), 1024):
        assert float(view.take(torch.from_numpy(part)).min()) == 1.0
        most = max(most, _resident() - before)
    assert most < rows.nbytes / 8


@linux
def test_pages_that_were_read_from_end_to_end_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_module, "RESIDENT_BYTES", 4 << 20)
    x = Spill().keep(torch.ones(4096, 16 << 10))
    before, most = _resident(), 0.0
    for _, block in row_blocks(x):
        assert float(block.min()) == 1.0
        most = max(most, _resident() - before)
    assert most < x.nbytes / 4


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@linux
def test_nothing_is_left_when_a_process_is_killed(tmp_path: Path) -> None:
    code = """
        import sys, time, torch
        from prima_bench.metrics.spill import Spill
        spill = Spill()
        x = spill.keep(torch.ones(1 << 20))
        print("kept", flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "kept\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []


@linux
def test_a_full_disk_is_told() -> None:
    code = """
        import resource, signal, torch
        from prima_bench.metrics.errors import InputError
        from prima_bench.metrics.spill import Spill
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        for keep in (lambda: Spill().keep(torch.ones(1 << 20)), lambda: Spill().empty(torch.float32, (1 << 20,))):
            try:
                keep()
            except InputError as error:
                print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.count("cannot be kept on disk") == 2
    assert done.stdout.count("TMPDIR") == 2
    assert InputError.__name__ not in done.stderr


@pytest.mark.parametrize("held", [1, 20_000, 1 << 30])
@pytest.mark.parametrize("layout", ["dense", "sparse", "permuted", "two chunks"])
def test_rank_sums_of_cells_on_disk_are_those_in_memory(
    monkeypatch: pytest.MonkeyPatch, held: int, layout: str
) -> None:
    monkeypatch.setattr(spans, "_HELD_BYTES", held)
    monkeypatch.setattr(spans, "_COPIED_ROWS", 64)
    rng, spill = np.random.default_rng(0), Spill()
    x = torch.from_numpy(rng.poisson(0.4, (300, 60)).astype(np.float32))
    group = torch.from_numpy(rng.integers(-1, 6, 300))
    total = x.sum(dim=1).double() + 1
    order = torch.from_numpy(rng.permutation(300))
    cells = {
        "dense": spill.keep(x),
        "sparse": kept(spill, SparseRows.from_dense(x)),
        "permuted": RowMatrix([kept(spill, SparseRows.from_dense(x[order]))], torch.argsort(order)),
        "two chunks": RowMatrix([spill.keep(x[:100]), SparseRows.from_dense(x[100:])]),
    }[layout]
    found, expected = (rank_sum_test(rows, group, 6, total=total) for rows in (cells, x))
    for field in fields(expected):
        assert torch.equal(getattr(found, field.name), getattr(expected, field.name)), field.name


def test_a_gene_on_disk_is_named_by_its_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "_HELD_BYTES", 1)
    x = torch.ones(6, 9)
    x[2, 7] = torch.inf
    with pytest.raises(InputError, match=r"genes \[7\]"):
        rank_sum_test(Spill().keep(x), torch.tensor([0, 0, 0, 1, 1, 1]), 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_keeps_its_rows_elsewhere() -> None:
    spill, x = Spill(), torch.rand(4096)
    before = spill.keep(x)
    asked, answer = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(asked[0], 1)
        ours = spill.keep(x + 1)
        os.write(answer[1], b"y" if torch.equal(ours, x + 1) and torch.equal(before, x) else b"n")
        os._exit(0)
    after = spill.keep(x + 2)
    os.write(asked[1], b"!")
    said = os.read(answer[0], 1)
    os.waitpid(child, 0)
    for end in (*asked, *answer):
        os.close(end)
    relieve(2 * spill_module.RESIDENT_BYTES)
    assert said == b"y"
    assert torch.equal(after, x + 2)
    assert torch.equal(before, x)


@linux
def test_many_tensors_take_few_of_the_files_a_process_may_open() -> None:
    spill, before = Spill(), len(list(Path("/proc/self/fd").iterdir()))
    found = [spill.keep(torch.full((5000,), float(i))) for i in range(600)]
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 20
    assert all(float(x.min()) == float(x.max()) == i for i, x in enumerate(found))


@linux
def test_a_tensor_may_be_larger_than_the_memory_of_the_machine() -> None:
    spill = Spill()
    with Path("/proc/meminfo").open() as lines:
        total = sum(int(line.split()[1]) for line in lines if line.startswith(("MemTotal", "SwapTotal")))
    # A hole in the place of so many bytes: what counts is that the system grants a map of that size.
    assert spill._window_over(0, 2048 * total).nbytes == 2048 * total


def test_no_folder_for_temporary_files_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(InputError, match="rows cannot be kept on disk") as caught:
        Spill()
    assert "TMPDIR" in str(caught.value)
