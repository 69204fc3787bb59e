"""Every ``prima-bench`` command that the documents show exists, with the options they give it."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from prima_bench.cli.main import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "packages/*/README.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
_FENCE = re.compile(r"^ *```(?P<language>[^\n]*)\n(?P<block>.*?)^ *```", flags=re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:uv run )?prima-bench [^`]*)`")


def commands(text: str) -> Iterator[str]:
    """The command lines that a document shows, in blocks and in running text."""
    for fence in _FENCE.finditer(text):
        if fence["language"] not in ("bash", "console", "sh", "shell"):
            continue
        for line in fence["block"].replace("\\\n", " ").splitlines():
            if re.match(r"\s*\$? ?(uv run |uvx )?prima-bench( |$)", line):
                yield line
    yield from _INLINE.findall(_FENCE.sub("", text))


def check(line: str) -> str | None:
    """What is wrong with a command line; ``None`` when it names only what exists."""
    words = shlex.split(line.split("prima-bench", 1)[1], comments=True)
    command: Any = typer.main.get_command(app)
    options = set()
    while words:
        options |= {name for parameter in command.params for name in parameter.opts} | {"--help", "-h"}
        word = words.pop(0)
        if word in (">", "|", "&&", ";"):
            break
        if word.startswith("-") and word.split("=")[0] not in options:
            return f"{line.strip()!r}: {command.name} has no option {word}"
        if hasattr(command, "commands") and not word.startswith("-"):
            if word not in command.commands:
                return f"{line.strip()!r}: {command.name} has no command {word}"
            command, options = command.commands[word], set()
    return None


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documented_commands_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [wrong for line in commands(text) if (wrong := check(line))] == []


def test_the_documents_show_the_main_commands() -> None:
    shown = " ".join(line for path in DOCUMENTS for line in commands(path.read_text(encoding="utf-8")))
    for command in ("demo", "list", "fetch", "evaluate", "leaderboard", "docs build"):
        assert f"prima-bench {command}" in shown


def test_what_does_not_exist_is_seen() -> None:
    text = (
        "```console\nuv run prima-bench lst tasks\n```\nand `prima-bench list tasks --tsak x`, `prima-bench list tasks`"
    )
    first, second, third = [check(line) for line in commands(text)]
    assert first is not None
    assert "no command lst" in first
    assert second is not None
    assert "no option --tsak" in second
    assert third is None
