"""The five distributions: what they declare against what they hold. Static checks; nothing is built or installed."""

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PARTS = {
    "prima-bench": "prima_bench",
    "prima-bench-cli": "prima_bench.cli",
    "prima-bench-metrics": "prima_bench.metrics",
    "prima-bench-storage": "prima_bench.storage",
    "prima-bench-tasks": "prima_bench.tasks",
}
LINES = 400

# What a distribution needs without importing it, and why.
UNIMPORTED = {
    "prima-bench": {"prima-bench-metrics", "prima-bench-storage"},  # it stands for all of them
    "prima-bench-metrics": {"numpy"},  # Tensor.numpy() needs it, and torch does not bring it
}


def project(name: str) -> dict:
    """The ``[project]`` table of a distribution."""
    return tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(name: str) -> dict[str, Requirement]:
    """What a distribution depends on, extras aside, by canonical name."""
    parsed = [Requirement(text) for text in project(name)["dependencies"]]
    return {canonicalize_name(each.name): each for each in parsed}


def sources(name: str) -> list[Path]:
    """The Python files that a distribution ships."""
    return sorted((ROOT / "packages" / name / "src").rglob("*.py"))


def imported_modules(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def installed_modules() -> Mapping[str, list[str]]:
    """The distributions that bring each module; asked once, since it reads every installed distribution."""
    return packages_distributions()


def distribution_of(module: str) -> str | None:
    """The distribution that a dotted name comes from; ``None`` for the standard library."""
    first, _, rest = module.partition(".")
    if first in sys.stdlib_module_names:
        return None
    if first != "prima_bench":
        return canonicalize_name(installed_modules()[first][0])
    part = f"prima-bench-{rest.split('.')[0]}"
    return part if part in PARTS else "prima-bench"


def test_the_distributions_are_the_ones_checked_here() -> None:
    assert sorted(PARTS) == sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))


@pytest.mark.parametrize("name", PARTS)
def test_siblings_fit_each_other(name: str) -> None:
    for sibling in PARTS.keys() & requirements(name).keys():
        specifier = requirements(name)[sibling].specifier
        version = Version(project(sibling)["version"])
        assert version in specifier, f"{name} wants {sibling}{specifier}, and {version} is here"
        floors = [Version(each.version) for each in specifier if each.operator == ">="]
        assert len(floors) == 1, f"{name}: {sibling}{specifier} needs one floor"
        breaking = f"{floors[0].major + 1}" if floors[0].major else f"0.{floors[0].minor + 1}"
        assert specifier == SpecifierSet(f">={floors[0]},<{breaking}"), f"{name}: {sibling} up to its next break"


@pytest.mark.parametrize("name", PARTS)
def test_what_is_imported_is_declared_and_the_reverse(name: str) -> None:
    used = {distribution_of(module) for path in sources(name) for module in imported_modules(path)} - {None, name}
    declared = set(requirements(name))
    assert sorted(used - declared) == [], "imported, not declared"
    assert sorted(declared - used - UNIMPORTED.get(name, set())) == [], "declared, not imported"


@pytest.mark.parametrize("name", PARTS)
def test_a_distribution_ships_its_own_part_of_the_namespace(name: str) -> None:
    source = ROOT / "packages" / name / "src"
    part = source.joinpath(*PARTS[name].split("."))
    assert (source / "prima_bench" / "__init__.py").exists() == (name == "prima-bench")
    assert (part / "py.typed").exists()
    assert [path.name for path in source.iterdir() if path.name != "__pycache__"] == ["prima_bench"]
    if name != "prima-bench":
        children = [p.name for p in (source / "prima_bench").iterdir() if p.name != "__pycache__"]
        assert children == [part.name]
    build = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text(encoding="utf-8"))
    assert build["build-system"]["build-backend"] == "uv_build"
    assert build["tool"]["uv"]["build-backend"]["module-name"] == PARTS[name]


@pytest.mark.parametrize("name", PARTS)
def test_what_every_distribution_says_alike(name: str) -> None:
    folder = ROOT / "packages" / name
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project(name)["name"] == name
    assert project(name)["requires-python"] == workspace["requires-python"]
    data = "src/prima_bench/tasks/data/README.md"  # says what the data are and whose, where a distribution has some
    carries_data = (folder / data).exists()
    assert project(name)["license"] == "Apache-2.0" + " AND CC-BY-4.0" * carries_data
    assert project(name)["license-files"] == ["LICENSE", *[data] * carries_data]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (folder / project(name)["readme"]).read_text(encoding="utf-8").startswith(f"# {name}\n")
    assert name in workspace["dependencies"]


def test_every_way_to_install_the_command_has_it() -> None:
    scripts = {name: project(name).get("scripts") for name in PARTS}
    command = {"prima-bench": "prima_bench.cli.main:run"}
    assert scripts == dict.fromkeys(PARTS) | {"prima-bench": command, "prima-bench-cli": command}


@pytest.mark.parametrize("name", PARTS)
def test_the_changelog_is_up_to_date(name: str) -> None:
    text = (ROOT / "packages" / name / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert headings[0] == project(name)["version"]
    versions = [Version(heading) for heading in headings]
    assert versions == sorted(set(versions), reverse=True)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", heading) for heading in headings)


@pytest.mark.parametrize("name", sorted(PARTS.keys() - {"prima-bench"}))
def test_nothing_below_imports_the_facade(name: str) -> None:
    for path in sources(name):
        for module in imported_modules(path):
            assert distribution_of(module) != "prima-bench", f"{path} imports {module}"


@pytest.mark.parametrize("leaf", ["metrics", "storage"])
def test_the_leaves_import_no_other_part(leaf: str) -> None:
    for path in sources(f"prima-bench-{leaf}"):
        for module in imported_modules(path):
            assert distribution_of(module) in (None, f"prima-bench-{leaf}") or not module.startswith("prima_bench"), (
                path
            )


def test_no_file_is_too_long_to_read() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for name in PARTS for path in sources(name)}
    too_long = {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > LINES}
    assert len(lengths) > 50
    assert too_long == {}


def test_the_editor_sees_every_part() -> None:
    # pyright does not follow the facade's search path, so links stand where it looks.
    links = ROOT / ".ide" / "prima_bench"
    for name, part in PARTS.items():
        folder = (ROOT / "packages" / name / "src").joinpath(*part.split("."))
        if name == "prima-bench":
            for path in folder.iterdir():
                assert path.name == "__pycache__" or (links / path.name).resolve() == path, path
        else:
            assert (links / folder.name).resolve() == folder


def test_the_example_of_settings_names_them_all() -> None:
    names = r"\b(?:HMAC_BOTO_PRIMA_MENTE_BENCHMARK|PRIMA_BENCH)_[A-Z0-9_]+\b"
    example = set(re.findall(names, (ROOT / ".env.example").read_text(encoding="utf-8")))
    code = "".join(path.read_text(encoding="utf-8") for path in sources("prima-bench-storage"))
    assert example == set(re.findall(names, code))
