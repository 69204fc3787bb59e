"""Metrics are listed without being imported, and a plugin can break itself alone."""

import subprocess
import sys
from pathlib import Path

import pytest

import prima_bench.metrics
from prima_bench.metrics import catalog as module
from prima_bench.metrics.base import BufferedMetric
from prima_bench.metrics.catalog import catalog, get_spec, list_specs, load_metric, parse_ref, read_specs
from prima_bench.metrics.errors import MetricError, MetricNameError
from prima_bench.metrics.spec import MetricSpec

GOOD = """
from prima_bench.metrics.spec import MetricSpec, Param
raise RuntimeError("a plugin is not run when metrics are listed")
SPECS{annotation} = (
    MetricSpec(
        name="{name}", version=1, inputs="classification", implementation="Theirs", title="t", summary="s",
        formula="f", direction="max", range=(0.0, 1.0), perfect=1.0, chance=None, level="global", unit=None,
        undefined="never", references=(), params=(Param(name="k", default=-3),),
    ),
)
"""


def spec_text(name: str = "theirs", annotation: str = "") -> str:
    return GOOD.format(name=name, annotation=annotation)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Install a distribution whose entry points name modules, and forget it afterwards."""

    def install(files: dict[str, str], **entry_points: str) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        meta = tmp_path / "theirs-1.0.dist-info"
        meta.mkdir(exist_ok=True)
        (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
        lines = "\n".join(f"{k} = {v}" for k, v in entry_points.items())
        (meta / "entry_points.txt").write_text(f"[prima_bench.metrics]\n{lines}\n")
        catalog.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield install
    monkeypatch.undo()
    catalog.cache_clear()
    for name in [n for n in sys.modules if n.partition(".")[0] == "theirs"]:
        del sys.modules[name]


def reasons() -> dict[str, str]:
    return {b.module: b.reason for b in catalog()[1]}


def test_built_in_metrics_are_what_their_modules_say():
    names = [s.name for s in list_specs()]
    assert names == sorted(names)
    assert {"accuracy", "pearson_delta"} <= set(names)
    for name, entry in catalog()[0].items():
        imported = sys.modules.get(entry.module) or __import__(entry.module, fromlist=["SPECS"])
        assert entry.spec in imported.SPECS
        assert len(imported.SPECS) == len([e for e in catalog()[0].values() if e.module == entry.module])
        cls = load_metric(name)
        assert issubclass(cls, BufferedMetric)
        assert cls.higher_is_better is (entry.spec.direction == "max")
        assert cls.__module__ == entry.module
    assert reasons() == {}


def test_classes_are_exported_by_name():
    classes = {e.spec.implementation for e in catalog()[0].values()}
    assert classes | set(prima_bench.metrics.__all__) == set(dir(prima_bench.metrics))
    assert len(classes) == len({(e.spec.implementation, e.module) for e in catalog()[0].values()})
    for name in dir(prima_bench.metrics):
        assert getattr(prima_bench.metrics, name).__name__ == name
    for name in ("Nothing", "nothing", "_private"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(prima_bench.metrics, name)


def test_listing_imports_neither_torch_nor_a_metric():
    code = (
        "import sys, prima_bench.metrics as m; m.list_specs(); m.get_spec('mae'); m.parse_ref('mae'); dir(m);"
        "print([n for n in ('torch', 'numpy', 'torchmetrics') if n in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_specs_by_family_and_by_name():
    families = sorted({s.inputs for s in list_specs()})
    assert {"classification", "perturbation"} <= set(families)
    assert [s for f in families for s in list_specs(f)] == sorted(list_specs(), key=lambda s: (s.inputs, s.name))
    assert list_specs("nothing") == []
    assert get_spec("accuracy").name == "accuracy"
    with pytest.raises(MetricNameError, match="unknown metric 'acuracy'") as caught:
        get_spec("acuracy")
    assert caught.value.nearest[0] == "accuracy"
    assert len(caught.value.nearest) == 3
    assert caught.value.exit_code == 3
    with pytest.raises(MetricNameError, match="unknown metric 'pearson-delta'") as caught:
        parse_ref("pearson-delta(k=1)")
    assert caught.value.nearest[0] == "pearson_delta"
    assert str(parse_ref(" pds_cosine( exclude_targets = own )")) == "pds_cosine(exclude_targets=own)"
    with pytest.raises(MetricNameError, match="unknown metric"):
        load_metric("none")


@pytest.mark.parametrize(
    ("files", "value"),
    [
        ({"theirs.py": spec_text()}, "theirs"),
        ({"theirs.py": spec_text(annotation=": tuple[MetricSpec, ...]")}, "theirs:SPECS"),
        ({"theirs/__init__.py": "raise RuntimeError", "theirs/sub.py": spec_text()}, "theirs"),
        ({"theirs/__init__.py": "import torch; raise RuntimeError", "theirs/sub.py": spec_text()}, "theirs.sub"),
        ({"theirs/deep/sub.py": spec_text(), "theirs/deep/other.py": "x = 1"}, "theirs.deep"),
    ],
)
def test_a_plugin_adds_metrics_without_being_run(plugin, files, value):
    before = {s.name for s in list_specs()}
    plugin(files, theirs=value)
    assert {s.name for s in list_specs()} == before | {"theirs"}
    assert reasons() == {}
    assert isinstance(get_spec("theirs"), MetricSpec)
    assert get_spec("theirs").params[0].default == -3
    with pytest.raises(RuntimeError):
        load_metric("theirs")


def test_of_two_installed_copies_the_first_counts(plugin, tmp_path, monkeypatch):
    other = tmp_path / "elsewhere"
    for folder in (tmp_path, other):
        (folder / "theirs/sub").mkdir(parents=True)
        (folder / "theirs/sub/__init__.py").touch()
        (folder / "theirs/sub/own.py").write_text(spec_text())
    (other / "theirs/sub/stale.py").write_text(spec_text(name="stale"))
    (other / "theirs/portion.py").write_text(spec_text(name="portion"))
    monkeypatch.syspath_prepend(other)
    monkeypatch.syspath_prepend(tmp_path)
    plugin({}, theirs="theirs.sub", portion="theirs.portion")
    assert {"theirs", "portion"} <= {s.name for s in list_specs()}
    assert "stale" not in {s.name for s in list_specs()}
    assert reasons() == {}


def test_a_plugin_without_its_class_says_so(plugin):
    plugin({"theirs.py": spec_text().replace("raise", "# raise")}, theirs="theirs")
    with pytest.raises(ImportError, match="metric theirs cannot be loaded: theirs has no class Theirs"):
        load_metric("theirs")


def test_a_plugin_that_cannot_be_imported_says_why(plugin):
    text = spec_text().replace("raise RuntimeError", "import no_such_library\nraise RuntimeError")
    plugin({"theirs.py": text}, theirs="theirs")
    with pytest.raises(MetricError, match="importing theirs fails: ModuleNotFoundError: No module named") as caught:
        load_metric("theirs")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_misspelt_class_has_a_nearest_one(plugin):
    text = spec_text().replace("raise", "# raise") + "class Thiers: ...\n"
    plugin({"theirs.py": text}, theirs="theirs")
    with pytest.raises(MetricError) as caught:
        load_metric("theirs")
    assert "nearest: Thiers." in caught.value.hint


def test_an_entry_point_that_names_something_else_says_so(plugin):
    plugin({"theirs.py": spec_text()}, theirs="theirs:SPEX")
    assert reasons() == {"theirs": "entry point theirs names SPEX, but what is read of a module is its SPECS"}


def test_an_unknown_name_mentions_what_could_not_be_read(plugin):
    plugin({"bad.py": spec_text().replace('title="t"', 'title="t".upper()')}, bad="bad", gone="bed")
    with pytest.raises(MetricNameError) as caught:
        get_spec("bad_metric")
    assert "Not read: bad (ValueError: bad.py:6: 't'.upper() is not a literal" in caught.value.hint
    assert caught.value.hint.endswith(" and 1 more.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SPECS = (", "SyntaxError"),
        ("SPECS = make()", "not a literal"),
        ("SPECS = (1,)", "must be a tuple of MetricSpec"),
        ("SPECS = [1]", "must be a tuple of MetricSpec"),
        ("SPECS = (MetricSpec(name='x'),)", "TypeError"),
        ("SPECS = (MetricSpec(**x),)", "name every field of MetricSpec"),
        ("SPECS = (MetricSpec('x'),)", "name every field of MetricSpec"),
        (spec_text().replace("version=1", "version='1'"), "whole number from 1"),
        (spec_text().replace('(Param(name="k", default=-3),)', "(1,)"), "AttributeError"),
        (spec_text().replace('name="theirs"', "name=3"), "TypeError"),
        (spec_text(name="accuracy"), "already defined by prima_bench.metrics.classification.accuracy"),
        (spec_text(), None),
        ("x = 1", "holds no SPECS"),
        ("", "holds no SPECS"),
    ],
)
def test_a_broken_plugin_hides_nothing_else(plugin, text, words):
    before = {s.name for s in list_specs()}
    plugin({"bad.py": text, "fine.py": spec_text(name="fine")}, bad="bad", fine="fine")
    names = {s.name for s in list_specs()}
    assert before | {"fine"} <= names
    if words is None:
        assert reasons() == {}
    else:
        assert list(reasons()) == ["bad"]
        assert words in reasons()["bad"]
        assert names == before | {"fine"}


def test_a_broken_module_of_a_plugin_hides_none_of_its_siblings(plugin):
    files = {"pack/__init__.py": "", "pack/a.py": "SPECS = (", "pack/b.py": spec_text(name="fine")}
    plugin(files, pack="pack", gone="no.such.module", worse="a b")
    assert get_spec("fine").name == "fine"
    assert set(reasons()) == {"pack.a", "no.such.module", "a b"}


def test_two_metrics_of_one_name_in_one_module_are_refused(plugin):
    specs = spec_text().split("SPECS = (")[1].rsplit(")", 1)[0]
    plugin({"twice.py": f"SPECS = ({specs} {specs})"}, t="twice")
    assert "metric theirs is defined twice" in reasons()["twice"]


def test_a_broken_module_of_our_own_is_not_passed_over(tmp_path, monkeypatch):
    (tmp_path / "ours.py").write_text("SPECS = (")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "_BUILT_IN", ("ours",))
    catalog.cache_clear()
    with pytest.raises(SyntaxError):
        catalog()
    monkeypatch.setattr(module, "_BUILT_IN", ("no_such_module",))
    with pytest.raises(ImportError):
        catalog()
    monkeypatch.undo()
    catalog.cache_clear()


def test_a_module_without_specs_holds_none(tmp_path: Path):
    path = tmp_path / "plain.py"
    path.write_text("OTHER = 1\nx: int\nSPECS: tuple\n(a, b) = 1, 2\n")
    assert read_specs(path) == ()
