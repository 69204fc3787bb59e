"""Shows what ``prima-bench ... --help`` prints, as the command line prints it today.

A line ``<!-- prima-bench evaluate --help -->`` of a page is followed by that text.
"""

import re
from typing import Any

from typer.testing import CliRunner

from prima_bench.cli.main import app

_ASKED = re.compile(r"^<!-- prima-bench (?P<command>.*?) ?--help -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the help behind the lines that ask for it (called by MkDocs)."""
    return _ASKED.sub(lambda match: f"```text\n{help_of(match['command'].split())}\n```", markdown)


def help_of(command: list[str]) -> str:
    """What a command's ``--help`` prints at a width that fits the site."""
    runner = CliRunner(env={"COLUMNS": "88", "TERM": "dumb"})
    result = runner.invoke(app, [*command, "--help"], prog_name="prima-bench")
    if result.exit_code != 0:
        raise ValueError(f"prima-bench {' '.join(command)} --help: {result.output}")
    return result.stdout.strip()
