"""Names: what is found, what is refused, and what a broken or foreign plugin does to the rest."""

import pickle
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prima_bench.metrics.spec import MetricRef
from prima_bench.tasks import registry as r
from prima_bench.tasks.errors import UnknownNameError, UsageError
from prima_bench.tasks.names import select_metrics, version_order

DATASET = """
from prima_bench.tasks.specs import ArtifactSpec, DatasetSpec

SPEC = DatasetSpec(
    name="{name}", version="{version}", task="{task}", title="t", summary="s",
    artifacts=(
        ArtifactSpec(role="train", uri="package://plugged/train.h5ad", sha256="0", size=1, contents="c"),
        ArtifactSpec(role="test", uri="package://plugged/test.h5ad", sha256="0", size=1, contents="c"),
        ArtifactSpec(role="solution", uri="package://plugged/solution.h5ad", sha256="0", size=1, contents="c"),
    ),
    options={{"label_key": "cell_type"}}, source="s", licence="MIT", licence_url="u", citation="c",
    organism="o", modality="m", split="s",
)
"""

Plug = Callable[..., None]


@pytest.fixture
def plug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plug]:
    """Install a distribution of modules, with entry points, the way an installer would leave it on disk."""

    def install(files: dict[str, str], datasets: tuple[str, ...] = (), tasks: tuple[str, ...] = ()) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        info = tmp_path / "plugged-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
        groups = {"prima_bench.datasets": datasets, "prima_bench.tasks": tasks}
        lines = [f"[{g}]\n" + "".join(f"e{i} = {m}\n" for i, m in enumerate(ms)) for g, ms in groups.items() if ms]
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(str(tmp_path))
        r.registry.cache_clear()

    yield install
    monkeypatch.undo()
    for name in [name for name in sys.modules if name.partition(".")[0] == "plugged"]:
        del sys.modules[name]
    r.registry.cache_clear()


def test_built_ins_are_found_whole_and_sorted() -> None:
    assert r.list_tasks() == ["cell_type_annotation", "perturbation_prediction"]
    assert r.list_datasets() == ["pbmc68k@1.0.0", "perturbsim@1.0.0"]
    assert r.list_datasets("perturbation_prediction") == ["perturbsim@1.0.0"]
    assert r.list_metrics() == sorted(r.list_metrics())
    assert set(r.list_metrics("cell_type_annotation")).isdisjoint(r.list_metrics("perturbation_prediction"))
    assert r.broken_modules() == ()


@pytest.mark.parametrize("entry", [*r.registry().tasks.values(), *r.registry().datasets.values()], ids=str)
def test_what_is_listed_equals_what_is_imported(entry: r.TaskEntry | r.DatasetEntry) -> None:
    assert entry.spec == entry.module.SPEC


@pytest.mark.parametrize(
    ("call", "kind", "first"),
    [
        (lambda: r.get_task("pertubation_prediction"), "task", "perturbation_prediction"),
        (lambda: r.list_datasets("cell_type"), "task", "cell_type_annotation"),
        (lambda: r.list_metrics("cell_type"), "task", "cell_type_annotation"),
        (lambda: r.get_dataset("pbmc"), "dataset", "pbmc68k"),
        (lambda: r.get_dataset("pbmc68k@2.0.0"), "dataset", "pbmc68k@1.0.0"),
        (lambda: r.resolve_metrics("cell_type_annotation", "f1_makro"), "metric or preset", "f1_macro"),
        (lambda: r.resolve_metrics("cell_type_annotation", "defalt"), "metric or preset", "default"),
    ],
)
def test_unknown_names_tell_the_nearest(call: Callable[[], object], kind: str, first: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown {kind}") as caught:
        call()
    assert caught.value.nearest[0] == first
    assert len(caught.value.nearest) <= 3
    assert first in caught.value.hint
    assert caught.value.exit_code == 3


def test_a_dataset_is_found_by_name_by_version_and_by_default() -> None:
    spec = r.get_dataset("pbmc68k@1.0.0").spec
    assert r.get_dataset("pbmc68k").spec is spec
    assert r.get_dataset(task="cell_type_annotation").spec is spec
    assert r.get_dataset("pbmc68k", task="cell_type_annotation").spec is spec
    with pytest.raises(UsageError, match="neither"):
        r.get_dataset()


def test_a_dataset_of_another_task_is_a_wrong_argument() -> None:
    with pytest.raises(UsageError, match="belongs to task cell_type_annotation") as caught:
        r.get_dataset("pbmc68k", task="perturbation_prediction")
    assert "perturbsim@1.0.0" in caught.value.hint


def test_a_plugin_adds_versions_and_the_newest_wins(plug: Plug) -> None:
    files = {
        f"plugged/v{i}.py": DATASET.format(name="mine", version=version, task="cell_type_annotation")
        for i, version in enumerate(["1.9.0", "1.10.0", "1.10.0-rc1"])
    }
    plug({"plugged/__init__.py": "", **files}, datasets=("plugged",))
    assert r.list_datasets("cell_type_annotation") == [
        "mine@1.10.0", "mine@1.10.0-rc1", "mine@1.9.0", "pbmc68k@1.0.0",
    ]  # fmt: skip
    assert r.get_dataset("mine").spec.version == "1.10.0"
    assert r.get_dataset("mine@1.9.0").module.SPEC.version == "1.9.0"


def test_listing_runs_no_code_of_a_plugin(plug: Plug) -> None:
    bomb = "raise KeyboardInterrupt\n"
    spec = DATASET.format(name="bomb", version="1.0.0", task="cell_type_annotation")
    plug({"plugged/__init__.py": bomb, "plugged/sub/__init__.py": bomb, "plugged/sub/d.py": bomb + spec},
         datasets=("plugged.sub.d",))  # fmt: skip
    assert "bomb@1.0.0" in r.list_datasets()
    assert r.broken_modules() == ()


def test_broken_plugins_are_told_and_hide_nothing(plug: Plug) -> None:
    good = DATASET.format(name="good", version="1.0.0", task="cell_type_annotation")
    plug(
        {
            "plugged/__init__.py": "",
            "plugged/a_syntax.py": "SPEC = (",
            "plugged/b_computed.py": "from x import y\nSPEC = y()",
            "plugged/c_field.py": 'SPEC = DatasetSpec(nam="x")',
            "plugged/d_positional.py": 'SPEC = DatasetSpec("x")',
            "plugged/e_other.py": "SPEC = 3",
            "plugged/e_text.py": re.sub(r"artifacts=\(.*?\n    \),", 'artifacts="none",', good, flags=re.DOTALL),
            "plugged/f_clash.py": DATASET.format(name="pbmc68k", version="1.0.0", task="cell_type_annotation"),
            "plugged/g_orphan.py": DATASET.format(name="orphan", version="1.0.0", task="no_such_task"),
            "plugged/h_helper.py": "def helper(): ...",
            "plugged/z_good.py": good,
        },
        datasets=("plugged", "plugged.z_good", "plugged.h_helper", "not_installed.anywhere"),
    )
    assert r.list_datasets() == ["good@1.0.0", "pbmc68k@1.0.0", "perturbsim@1.0.0"]
    assert r.get_dataset("pbmc68k").module_name == "prima_bench.tasks.datasets.pbmc68k"
    reasons = {b.module: b.reason for b in r.broken_modules()}
    told = {
        "plugged.a_syntax": "SyntaxError",
        "plugged.b_computed": "b_computed.py:2: y() is not a literal",
        "plugged.c_field": "TypeError",
        "plugged.d_positional": "name every field of DatasetSpec",
        "plugged.e_other": "holds no SPEC = DatasetSpec",
        "plugged.e_text": "AttributeError",
        "plugged.f_clash": "already defined by prima_bench.tasks.datasets.pbmc68k",
        "plugged.g_orphan": "unknown task 'no_such_task'",
        "plugged.h_helper": "holds no SPEC = DatasetSpec",
        "not_installed.anywhere": "no module or package not_installed is installed",
    }
    assert sorted(reasons) == sorted(told)
    for module, part in told.items():
        assert part in reasons[module]


@pytest.mark.parametrize("value", ["", ":attr", "two words", "plugged..twice", ".leading", "sys", "plugged.data"])
def test_a_malformed_entry_point_is_told_and_hides_nothing(plug: Plug, value: str) -> None:
    plug({"plugged/__init__.py": "", "plugged/data": "no module"}, datasets=(value,))
    assert r.list_datasets() == ["pbmc68k@1.0.0", "perturbsim@1.0.0"]
    assert len(r.broken_modules()) == 1


def test_a_plugin_adds_a_task(plug: Plug) -> None:
    text = Path(r.get_task("cell_type_annotation").module.__file__ or "").read_text()
    mine = text.replace('name="cell_type_annotation"', 'name="my_annotation"', 1)
    plug({"my_annotation_task.py": mine}, tasks=("my_annotation_task",))
    assert "my_annotation" in r.list_tasks()
    assert r.list_datasets("my_annotation") == []
    assert r.list_metrics("my_annotation") == r.list_metrics("cell_type_annotation")


def test_versions_are_ordered_as_numbers() -> None:
    versions = ["1.10.0", "2.0.0", "1.0.0", "0.9", "1.2.0", "1.0.0-rc1"]
    assert sorted(versions, key=version_order) == ["0.9", "1.0.0-rc1", "1.0.0", "1.2.0", "1.10.0", "2.0.0"]


TASK = "cell_type_annotation"


def test_metrics_are_selected_by_preset_text_or_list() -> None:
    spec = r.get_task(TASK).spec
    assert [str(ref) for ref in r.resolve_metrics(TASK)] == list(spec.presets["default"])
    assert r.resolve_metrics(TASK, "fast") == r.resolve_metrics(TASK, list(spec.presets["fast"]))
    assert [str(m) for m in r.resolve_metrics(TASK, "mcc, top_k_accuracy(k=2),fast")][:3] == [
        "mcc", "top_k_accuracy(k=2)", "f1_macro",
    ]  # fmt: skip
    assert r.resolve_metrics(TASK, ["mcc", MetricRef("mcc"), "mcc"]) == [MetricRef("mcc")]


def test_a_preset_may_say_what_another_tool_calls_its_members() -> None:
    presets = {"default": ("mcc",), "peer": {"F1": "f1_macro", "top-2": "top_k_accuracy(k=2)"}}
    task = replace(r.get_task(TASK).spec, presets=presets)
    refs = select_metrics(task, "peer, mcc")
    assert [(str(ref), ref.alias) for ref in refs] == [
        ("f1_macro", "F1"),
        ("top_k_accuracy(k=2)", "top-2"),
        ("mcc", None),
    ]
    assert select_metrics(task, refs) == refs
    assert [ref.alias for ref in select_metrics(task, refs)] == ["F1", "top-2", None]
    assert refs[0] == MetricRef("f1_macro")
    assert pickle.loads(pickle.dumps(refs[0])).alias == "F1"  # noqa: S301
    assert task.digest == r.get_task(TASK).spec.digest


def test_a_parameter_equal_to_its_default_is_no_other_metric() -> None:
    assert r.resolve_metrics(TASK, "top_k_accuracy(k=3), top_k_accuracy") == [MetricRef("top_k_accuracy")]
    assert r.resolve_metrics(TASK, "ece(bins=10, binning=equal_width)") == [
        MetricRef("ece", {"bins": 10, "binning": "equal_width"})
    ]


@pytest.mark.parametrize("text", ["ece(bin=10)", "ece(bins=ten)", "ece(binning=round)", "ece(bins)", "ece)("])
def test_bad_parameters_end_with_the_exit_code_of_names(text: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        r.resolve_metrics(TASK, text)
    assert caught.value.exit_code == 3
    assert caught.value.hint


@pytest.mark.parametrize(
    ("task", "text"),
    [(TASK, f"ece(bins={n})") for n in (0, -1, 2**31)]
    + [(TASK, f"top_k_accuracy(k={n})") for n in (0, -1, 2**31)]
    + [("perturbation_prediction", f"top_k_delta_pearson(k={n})") for n in (0, 1, -1, 2**31)],
)
def test_a_number_out_of_range_is_a_usage_error(task: str, text: str) -> None:
    from prima_bench.tasks.evaluation import Evaluation

    with pytest.raises(UsageError, match=r"cannot be|must be") as caught:
        Evaluation(task, metrics=text, device="cpu")
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize("text", ["ece(bins=1_0)", "ece(bins=\u0661\u0660)", "ece(bins=\u00a010)", "\u00a0ece"])
def test_what_only_python_reads_as_a_number_is_refused(text: str) -> None:
    with pytest.raises(UnknownNameError):
        r.resolve_metrics(TASK, text)


def test_an_unknown_name_mentions_what_could_not_be_read(plug: Plug) -> None:
    plug({"plugged/__init__.py": "", "plugged/a.py": "SPEC = y()"}, datasets=("plugged",), tasks=("plugged.b",))
    for call in (lambda: r.get_task("mine"), lambda: r.get_dataset("mine"), lambda: r.list_metrics("mine")):
        with pytest.raises(UnknownNameError) as caught:
            call()
        assert "Not read: plugged.b (ImportError: plugged has no module b) and 1 more." in caught.value.hint


def test_an_entry_point_that_names_something_else_says_so(plug: Plug) -> None:
    plug({"plugged.py": DATASET.format(name="m", version="1", task=TASK)}, datasets=("plugged:SPECS",))
    (broken,) = r.broken_modules()
    assert broken.reason == "entry point e0 names SPECS, but what is read of a module is its SPEC"


@pytest.mark.parametrize("nothing", ["", " , ", []])
def test_selecting_nothing_is_an_error(nothing: str | list[str]) -> None:
    with pytest.raises(UsageError, match="no metric is selected"):
        r.resolve_metrics(TASK, nothing)


def test_a_metric_of_another_family_is_a_wrong_argument() -> None:
    with pytest.raises(UsageError, match="mae does not score predictions of cell_type_annotation"):
        r.resolve_metrics(TASK, "accuracy,mae")
