"""Which files a command line names: paths, and patterns that the shell was kept from expanding."""

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from prima_bench.tasks.errors import UsageError


def files_named(values: Iterable[str], what: str) -> list[Path]:
    """The files that paths and patterns name, each once; those of a pattern in the order of their names.

    Args:
        values: Paths, or patterns with ``*``, ``?``, ``[...]`` and ``**`` for folders of any depth.
        what: The option or argument that they were given as.

    Raises:
        UsageError: If a path is no file, or no file matches a pattern.
    """
    found: dict[Path, None] = {}
    for value in values:
        if os.path.isfile(value):  # noqa: PTH113 (unlike Path.is_file it does not raise for a name that is too long)
            found[Path(value)] = None
        elif os.path.isdir(value):  # noqa: PTH112
            raise UsageError(f"{what} {value}: is a folder", hint=f'Name its files: "{Path(value) / "*"}".')
        elif not glob.has_magic(value):
            raise UsageError(
                f"{what} {value}: there is no such file", hint="Check the path; it is relative to the working folder."
            )
        else:
            matches = sorted(filter(os.path.isfile, glob.glob(value, recursive=True)))  # noqa: PTH207 (any path)
            if not matches:
                raise UsageError(f"{what} {value}: no file matches", hint="Check the pattern, and the working folder.")
            found |= dict.fromkeys(map(Path, matches))
    return list(found)
