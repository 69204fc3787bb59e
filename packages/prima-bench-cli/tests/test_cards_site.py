"""What the documentation site does to texts before it shows them. The site itself is built strictly by CI."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def hook(repository: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, repository / "docs" / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[guide](GUIDE.md#why)", "[guide](GUIDE.md#why)"),
        ("[cards](docs/cards/index.md)", "[cards](cards/index.md)"),
        ("[cards](docs/cards)", "[cards](cards/index.md)"),
        ("[a [b] c](docs/cards/index.md), [code](packages/x.py).", "[a [b] c](cards/index.md), code."),
        ("[uv](https://docs.astral.sh/uv/) [here](#there)", "[uv](https://docs.astral.sh/uv/) [here](#there)"),
        ("```\n[x](packages/x.py)\n```", "```\n[x](packages/x.py)\n```"),
        ("[changes](packages/prima-bench/CHANGELOG.md)", "[changes](changelog/prima-bench.md)"),
    ],
)
def test_links_of_root_documents_point_into_the_site(repository: Path, written: str, shown: str) -> None:
    pages = {
        "GUIDE.md": "GUIDE.md",
        "docs/cards/index.md": "cards/index.md",
        "packages/prima-bench/CHANGELOG.md": "changelog/prima-bench.md",
    }
    rewrite = hook(repository, "root_documents").rewrite_links
    assert rewrite(written, here="README.md", page="index.md", pages=pages) == shown + "\n"


def test_a_link_from_a_deeper_document(repository: Path) -> None:
    rewrite = hook(repository, "root_documents").rewrite_links
    pages = {"README.md": "index.md"}
    text = rewrite("[up](../../README.md)", here="packages/x/CHANGELOG.md", page="changelog/x.md", pages=pages)
    assert text == "[up](../index.md)\n"


def test_doctests_are_fenced_where_they_stand(repository: Path) -> None:
    pytest.importorskip("griffe")
    fenced = hook(repository, "docstrings").fenced
    assert fenced("Add.\n\n>>> 1 + 1\n2\n\nEnd.") == "Add.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nEnd."
    for title in ("Example", "Examples"):
        assert fenced(f"{title}:\n    >>> [1][:1]\n    [1]") == "Examples:\n    >>> [1][:1]\n    [1]"
    assert fenced("No example.") == "No example."


def test_the_site_shows_the_help_of_today(repository: Path) -> None:
    module = hook(repository, "command_help")
    page = module.on_page_markdown("# CLI\n\n<!-- prima-bench list tasks --help -->\n\n<!-- prima-bench --help -->\n")
    assert "Usage: prima-bench list tasks [OPTIONS]" in page
    assert "Usage: prima-bench [OPTIONS] COMMAND" in page
    with pytest.raises(ValueError, match="no-such-command"):
        module.on_page_markdown("<!-- prima-bench no-such-command --help -->")


def test_every_command_is_on_the_site(repository: Path) -> None:
    from typer.main import get_command

    from prima_bench.cli.main import app

    page = (repository / "docs" / "api" / "cli.md").read_text(encoding="utf-8")
    root = get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        for path in [f"{name} {sub}" for sub in getattr(command, "commands", ())] or [name]:
            assert f"<!-- prima-bench {path} --help -->" in page
