"""Files of states: what is in them, what they refuse, and that nothing in a hostile one does harm."""

import hashlib
import io
import json
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prima_bench.tasks.errors import DataError, IncomparableError, PredictionError, UsageError
from prima_bench.tasks.evaluation import Evaluation
from prima_bench.tasks.states.container import Stack, read_arrays_of, read_head, write_container

TRUTH = pd.DataFrame({"type": list("BTTB")}, index=["c1", "c2", "c3", "c4"])
GUESS = pd.Series(list("BTBB"), index=TRUTH.index)


def labels(**changes: Any) -> Evaluation:
    arguments: dict[str, Any] = {"solution": TRUTH, "label_key": "type", "metrics": "accuracy", "device": "cpu"}
    return Evaluation("cell_type_annotation", **arguments | changes)


def cells() -> anndata.AnnData:
    x = np.random.default_rng(0).poisson(3.0, (9, 4)).astype(np.float32)
    obs = pd.DataFrame({"target": ["ctrl"] * 4 + ["g0"] * 3 + ["g1"] * 2}, index=[f"c{i}" for i in range(9)])
    return anndata.AnnData(x, obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(4)]))


def screen(**changes: Any) -> Evaluation:
    own = {"solution": cells(), "perturbation_key": "target", "control": "ctrl", "scale": "counts", "metrics": "mae"}
    return Evaluation("perturbation_prediction", device="cpu", **own | changes)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    run = labels(model="m")
    run.update(GUESS)
    return run.save(tmp_path / "run.pbstate")


def contents(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Head and arrays of a state."""
    head, digests = read_head(path, "prima-bench state", 1)
    return head, read_arrays_of(path, "prima-bench state", digests)


def forged(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], version: int = 1) -> Path:
    """A state with other contents and right digests, as an attacker would write it."""
    head, arrays = contents(path)
    change(head, arrays)
    write_container(path, "prima-bench state", version, head, {n: Stack([a]) for n, a in arrays.items()})
    return path


def test_the_same_rows_are_the_same_bytes_but_for_the_time_taken(tmp_path: Path, state: Path) -> None:
    run = labels(model="m")
    run.update(GUESS)
    again = run.save(tmp_path / "again.pbstate")
    for path in (state, again):
        forged(path, lambda head, _: head.update(seconds=0.0))
    assert again.read_bytes() == state.read_bytes()


def test_a_state_that_cannot_be_written_leaves_the_old_one(state: Path) -> None:
    before = state.read_bytes()
    run = labels()
    run.update(GUESS)
    broken = Stack([np.zeros(2, dtype=np.int64)])
    broken.parts.append("no array")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        write_container(state, "prima-bench state", 1, {}, {"x": broken})
    assert state.read_bytes() == before
    assert [p.name for p in state.parent.iterdir()] == [state.name]
    with pytest.raises(DataError, match="cannot write"):
        run.save(state.parent / "missing" / "run.pbstate")
    for name in ("run.json", ""):
        with pytest.raises(UsageError, match="names no state"):
            run.save(name)


def test_an_empty_run_can_be_saved_and_merged(tmp_path: Path, state: Path) -> None:
    empty = labels(model="m").save(tmp_path / "empty.pbstate")
    run = Evaluation.merge([empty, state], solution=TRUTH, device="cpu")
    assert run.compute().predictions.n_rows == 4
    with pytest.raises(PredictionError, match="no predictions"):
        Evaluation.resume(empty, solution=TRUTH, device="cpu").compute()


def test_control_cells_alone_are_remembered(tmp_path: Path) -> None:
    run = screen()
    run.update(cells()[:4].copy())
    again = Evaluation.resume(run.save(tmp_path / "run.pbstate"), solution=cells(), device="cpu")
    with pytest.raises(PredictionError, match="only control cells"):
        again.compute()


def test_two_contents_of_one_row_are_refused_by_name(tmp_path: Path, state: Path) -> None:
    other = labels(model="m")
    other.update(pd.Series(["T"], index=["c1"]))
    with pytest.raises(PredictionError, match=r"other\.pbstate: 1 row came more than once .*'c1'"):
        Evaluation.merge([state, other.save(tmp_path / "other.pbstate")], solution=TRUTH, device="cpu")
    first, second = screen(), screen()
    first.update(cells())
    shifted = cells()
    shifted.X = shifted.X + 1
    second.update(shifted[5:6].copy())
    paths = [first.save(tmp_path / "a.pbstate"), second.save(tmp_path / "b.pbstate")]
    with pytest.raises(PredictionError, match="'c5'"):
        Evaluation.merge(paths, solution=cells(), device="cpu")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"metrics": "f1_macro"}, "panel"),
        ({"model": "n"}, "model"),
        ({"solution": TRUTH.iloc[:3]}, "dataset"),
        ({"classes": ["T", "B"]}, "dataset"),
        ({"scores": "logit"}, "options"),
    ],
)
def test_states_of_other_questions_do_not_merge(
    state: Path, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    other = labels(**{"model": "m"} | changes).save(tmp_path / "other.pbstate")
    with pytest.raises(IncomparableError, match=rf"other\.pbstate cannot be merged with .*: its {named}"):
        Evaluation.merge([state, other], solution=TRUTH, device="cpu")


def test_a_state_of_another_task_or_solution_is_refused(state: Path, tmp_path: Path) -> None:
    with pytest.raises(IncomparableError, match="its task is perturbation_prediction"):
        Evaluation.merge([state, screen().save(tmp_path / "cells.pbstate")], solution=TRUTH, device="cpu")
    with pytest.raises(IncomparableError, match="saved with another solution"):
        Evaluation.resume(state, solution=TRUTH.iloc[::-1].replace("B", "T"), device="cpu")
    with pytest.raises(UsageError, match="a solution of your own"):
        Evaluation.resume(state)
    with pytest.raises(UsageError, match="'label_key' cannot be given"):
        Evaluation.resume(state, solution=TRUTH, label_key="type")
    for nothing in ([], str(state)):
        with pytest.raises(UsageError, match="list of states"):
            Evaluation.merge(nothing)


def test_a_table_of_targets_must_be_given_again(tmp_path: Path) -> None:
    table = tmp_path / "targets.csv"
    table.write_text("label,gene\ng0,g0\ng1,g1\n")
    run = screen(target_map=str(table))
    run.update(cells())
    path = run.save(tmp_path / "run.pbstate")
    assert str(tmp_path).encode() not in path.read_bytes()
    with pytest.raises(UsageError, match="target_map= must be given again"):
        Evaluation.resume(path, solution=cells(), device="cpu")
    again = Evaluation.resume(path, solution=cells(), device="cpu", target_map=str(table))
    assert again.compute().result_digest == run.compute().result_digest
    with pytest.raises(IncomparableError, match="another solution"):
        Evaluation.resume(path, solution=cells(), device="cpu", target_map="none")


@settings(max_examples=60)
@given(data=st.data())
def test_any_damage_is_refused_or_changes_nothing(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Cut anywhere, or with any one byte changed: an error, or the same rows (zip keeps a few bytes for nobody)."""
    folder = tmp_path_factory.mktemp("damage")
    run = labels(model="m")
    run.update(GUESS)
    path = run.save(folder / "run.pbstate")
    whole, raw = contents(path), path.read_bytes()
    place = data.draw(st.integers(0, 2**20)) % len(raw)
    if data.draw(st.booleans()):
        path.write_bytes(raw[:place])
    else:
        path.write_bytes(raw[:place] + bytes([raw[place] ^ data.draw(st.integers(1, 255))]) + raw[place + 1 :])
    with suppress(DataError):
        head, arrays = contents(path)
        assert head == whole[0]
        assert all(np.array_equal(arrays[name], array) for name, array in whole[1].items())


def test_every_byte_of_the_rows_is_vouched_for(state: Path) -> None:
    """A change that also mends zip's own checksum does not pass."""
    with zipfile.ZipFile(state) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    for name, raw in members.items():
        with zipfile.ZipFile(state, "w") as archive:
            for other, kept in members.items():
                archive.writestr(other, raw[:-1] + bytes([raw[-1] ^ 1]) if other == name else kept)
        with pytest.raises(DataError, match="digest"):
            contents(state)


def test_what_is_newer_is_told_from_what_is_damaged(state: Path) -> None:
    with pytest.raises(DataError, match="version 2; this release reads versions up to 1") as caught:
        Evaluation.resume(forged(state, lambda head, _: head.update(invented=1), version=2), solution=TRUTH)
    assert "upgrade" in caught.value.hint


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


class Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("code of a state was run",))


def test_objects_are_never_loaded(state: Path) -> None:
    with zipfile.ZipFile(state, "a") as archive:
        archive.writestr("trap.npy", npy(np.array([Trap()], dtype=object)))
    with pytest.raises(DataError, match="Python objects"):
        contents(state)
    state.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match="cannot be read"):
        contents(state)


@pytest.mark.parametrize("bomb", ["inflated", "claimed", "long header"])
def test_a_bomb_is_refused_before_it_goes_off(state: Path, bomb: str) -> None:
    zeros = np.zeros(1 << 24, dtype=np.uint8)
    with zipfile.ZipFile(state, "a", zipfile.ZIP_DEFLATED) as archive:
        if bomb == "inflated":
            archive.writestr("bomb.npy", npy(zeros))
        elif bomb == "claimed":
            raw = npy(zeros[:8])
            archive.writestr("bomb.npy", raw.replace(b"(8,), }         ", b"(99999999999,), }"[:16]))
        else:
            archive.writestr("bomb.npy", b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little"))
    tracemalloc.start()
    with pytest.raises(DataError, match="cannot be read"):
        contents(state)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def replaced(name: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda _, arrays: arrays.update({name: np.asarray(value)})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (replaced("0.target", [0, 0, 0, 0]), "true labels other than the solution's"),
        (replaced("0.index", [0, 1, 2, 9]), "rows that the solution does not have|not those that it names"),
        (replaced("0.label", [0, 1, 2, 3]), "classes that the solution does not have"),
        (replaced("0.label", [0, 1]), "no classes"),
        (replaced("rows.index", [0, 1, 2, 2]), "not those that it names"),
        (replaced("rows.name_lengths", [2, 2, 2, 2**62]), "not as long as they say"),
        (replaced("rows.name_lengths", [-2, 6, 2, 2]), "not as long as they say"),
        (replaced("rows.names", np.full(8, 255, dtype=np.uint8)), "fit together"),
        (lambda head, arrays: arrays.pop("0.index"), "fit together"),
        (lambda head, arrays: head.update(form=None), "not those that it names"),
        (lambda head, arrays: head.update(n_rows=-1), "n_rows"),
        (lambda head, arrays: head.update(extra=1), "extra"),
        (lambda head, arrays: head["options"].update(target_map="/etc/passwd"), "names a file to read"),
        (lambda head, arrays: head["task"].update(digest="sha256:0"), "task.digest"),
        (lambda head, arrays: head.update(runs=[{"index": 0, "invented": 0}]), "fit together"),
    ],
)  # fmt: skip
def test_forged_labels_are_refused(state: Path, change: Any, named: str) -> None:
    with pytest.raises(DataError, match=named):
        Evaluation.resume(forged(state, change), solution=TRUTH, device="cpu")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (replaced("0.group", [0, 1, 2, 3, 1]), "perturbations that the solution does not have"),
        (replaced("0.x", np.ones((5, 3), dtype=np.float32)), "expression of other than 4 genes"),
        (replaced("0.x", np.full((5, 4), np.inf, dtype=np.float32)), "row 0, column 0 is inf"),
        (replaced("0.x", np.ones((5, 4), dtype=np.complex64)), "x must hold real numbers"),
        (replaced("0.x", np.ones((4, 4), dtype=np.float32)), "same number of rows"),
    ],
)
def test_forged_cells_are_refused(tmp_path: Path, change: Any, named: str) -> None:
    run = screen()
    run.update(cells()[4:].copy())
    path = run.save(tmp_path / "run.pbstate")
    assert contents(path)[1]["0.x"].shape == (5, 4)
    with pytest.raises(DataError, match=named):
        Evaluation.resume(forged(path, change), solution=cells(), device="cpu")


def test_forged_places_of_a_registered_dataset_are_refused(tmp_path: Path) -> None:
    from prima_bench.tasks.baselines import run_baseline

    run = Evaluation("perturbation_prediction", metrics="mae", device="cpu")
    run.update(run_baseline("perturbation_prediction", "paste_control")[:40])
    path = run.save(tmp_path / "run.pbstate")
    group = next(name for name in contents(path)[1] if name.endswith(".group"))
    forged(path, lambda _, arrays: arrays.update({group: np.roll(arrays[group], 20) * 0 + 1}))
    with pytest.raises(DataError, match="another perturbation than in the solution"):
        Evaluation.resume(path, device="cpu")


def test_a_file_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    for name in ("absent.pbstate", "nul\0.pbstate"):
        with pytest.raises(DataError, match="there is no file"):
            Evaluation.resume(tmp_path / name)
    np.savez(tmp_path / "arrays.npz", x=np.zeros(3))
    (tmp_path / "arrays.npz").rename(tmp_path / "arrays.pbstate")
    with pytest.raises(DataError, match="is no prima-bench state"):
        Evaluation.resume(tmp_path / "arrays.pbstate")
    raw = json.dumps({"form": "other", "version": 1, "head": {}, "arrays": {}}).encode()
    head, digest = (np.frombuffer(b, dtype=np.uint8) for b in (raw, hashlib.sha256(raw).digest()))
    with (tmp_path / "other.pbstate").open("wb") as file:
        np.savez(file, head=head, head_sha256=digest)
    with pytest.raises(DataError, match="is no prima-bench state"):
        Evaluation.resume(tmp_path / "other.pbstate")


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_between_rows_and_their_names_leaves_neither(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = labels()
    run.update(GUESS[:2])
    ledger = run._held.ledger
    real = ledger.add

    def interrupted(rows: Any) -> None:
        if late:
            real(rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.update(GUESS[2:])
    monkeypatch.undo()
    again = Evaluation.resume(run.save(tmp_path / "run.pbstate"), solution=TRUTH)
    assert again._panel.n_rows == 2
    for evaluation in (run, again):
        evaluation.update(GUESS[2:])
        assert evaluation.compute().scores["accuracy"].value == 0.75


def test_a_state_of_another_release_says_what_changed(state: Path) -> None:
    def older(head: dict[str, Any], _: dict[str, Any]) -> None:
        head["metrics"][0]["version"] = 99

    said = "another panel: 'accuracy, version 99'; here it is 'accuracy, version 1'"
    with pytest.raises(IncomparableError, match=said):
        Evaluation.resume(forged(state, older), solution=TRUTH)


def test_a_metric_that_is_named_twice_is_refused(state: Path) -> None:
    def twice(head: dict[str, Any], _: dict[str, Any]) -> None:
        head["metrics"] *= 2

    with pytest.raises(DataError, match="names a metric twice"):
        Evaluation.resume(forged(state, twice), solution=TRUTH)
