"""Specs are read from syntax trees: literals, constructors, and names of such values here or in another file."""

import pytest

from prima_bench.metrics.spec import Param
from prima_bench.metrics.specfiles import modules_under, read_constant

CONSTRUCTORS = {"Param": Param}


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def read(**files: str):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return read_constant(tmp_path / "main_file.py", "X", CONSTRUCTORS)

    return read


def test_literals_constructors_and_shared_names(read):
    shared = "raise RuntimeError\nSIDE = Param(name='side', default=1)\nBOTH: tuple = (SIDE, 2)\n"
    value = read(
        main_file="from shared_file import BOTH, SIDE as S\nHERE = -1\nX = (HERE, S, BOTH, {'k': (HERE,)}, 'a' 'b')\n",
        shared_file=shared,
    )
    side = Param(name="side", default=1)
    assert value == (-1, side, (side, 2), {"k": (-1,)}, "ab")


def test_a_file_without_the_name_has_none(read):
    assert read(main_file="Y = 1\nfrom elsewhere import X\n") is None


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"main_file": "X = Y\n"}, "main_file.py:1: Y is not a literal"),
        ({"main_file": "X = (1,\n print())\n"}, r"main_file.py:2: print\(\) is not a literal"),
        ({"main_file": "X = Param('side')\n"}, "name every field of Param"),
        ({"main_file": "X = X\n"}, "X is defined by itself"),
        ({"main_file": "Y = Z\nZ = Y\nX = Y\n"}, "is defined by itself"),
        (
            {"main_file": "from loop_file import Y\nX = Y\n", "loop_file": "from main_file import X\nY = X\n"},
            "is defined by itself",
        ),
        ({"main_file": "from other_file import Y\nX = Y\n", "other_file": "Z = 1\n"}, "other_file assigns no Y"),
        ({"main_file": "from . import Y\nX = Y\n"}, "Y is not a literal"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(read, files, words):
    with pytest.raises(ValueError, match=words):
        read(**files)


def test_modules_are_found_without_running_their_parents(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("found/deep/b.py", "found/deep/a.py", "found/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise RuntimeError\n")
    assert [name for name, _ in modules_under("found.deep")] == ["found.deep.a", "found.deep.b"]
    assert [name for name, _ in modules_under("found.deep.a")] == ["found.deep.a"]
    for name, error, cause in (
        ("found.dep", ImportError, "found has no module dep; nearest: deep$"),
        ("found.deep.zzz", ImportError, "found.deep has no module zzz$"),
        ("found.deep.a.b", ImportError, "found.deep.a has no module b$"),
        ("none_such", ImportError, "no module or package none_such is installed$"),
        ("sys", ImportError, "sys is not made of Python source$"),
        ("found..a", ValueError, "empty part"),
    ):
        with pytest.raises(error, match=cause):
            list(modules_under(name))
