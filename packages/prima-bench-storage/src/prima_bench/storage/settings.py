"""Settings from the environment and from a project's ``.env`` file. It reads; it never writes the environment.

The real environment wins over the file, and an empty value counts as unset. The file is looked for in the working
directory and upwards to the project's root, and never in a home directory or at the root of a disk: what lies there
belongs to no project.
"""

import functools
import io
import os
import stat
from collections.abc import Callable
from pathlib import Path

from prima_bench.storage.errors import SettingsError

OFFLINE = "PRIMA_BENCH_OFFLINE"

_MAX_DOTENV_BYTES = 1 << 16
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def setting(name: str) -> str | None:
    """The value of a variable, without surrounding blanks; ``None`` when it is unset or empty.

    Raises:
        SettingsError: If there is a ``.env`` file that cannot be read.
    """
    return _found(name)[0]


def folder_setting(name: str) -> Path | None:
    """The folder that a variable names; ``None`` when it is unset or empty.

    A relative path in a ``.env`` file is relative to the file, so that it means one folder wherever in the project one
    works; in the environment it is relative to the working directory.

    Raises:
        SettingsError: If the value is no path, or there is a ``.env`` file that cannot be read.
    """
    value, file = _found(name)
    if value is None:
        return None
    path = os.path.expanduser(value)  # noqa: PTH111 - Path.expanduser raises where there is no home
    if "\0" in path:
        raise SettingsError(f"{name} is {value!r}, which is no path")
    if path.startswith("~"):
        # Else a folder of that name would be made in the working directory.
        raise SettingsError(f"{name} is {value!r}: there is no such home", hint="Write the path without ~.")
    folder = _working_directory() if file is None else file.parent
    if folder is None and not Path(path).is_absolute():
        raise SettingsError(
            f"{name} is {value!r}, and there is no working directory for it to be relative to",
            hint="Write the whole path, or change into a folder that exists.",
        )
    return Path(path) if folder is None else folder / path


def _found(name: str) -> tuple[str | None, Path | None]:
    """The value, and the file that it stands in; no file where the environment has it."""
    value = os.environ.get(name, "").strip()
    if value:
        return value, None
    path = find_dotenv()
    if path is None:
        return None, None
    return (_dotenv(path).get(name) or "").strip() or None, path


def offline() -> bool:
    """Whether ``PRIMA_BENCH_OFFLINE`` forbids the network.

    Raises:
        SettingsError: If its value is neither yes (1, true, yes, on) nor no (0, false, no, off).
    """
    value = (setting(OFFLINE) or "0").lower()
    if value not in _TRUE | _FALSE:
        raise SettingsError(f"{OFFLINE} is {value!r}, which is neither yes nor no", hint="Set it to 1 or to 0.")
    return value in _TRUE


def find_dotenv(start: Path | None = None) -> Path | None:
    """The nearest ``.env`` file between ``start`` (the working directory) and its project's root.

    The root is the nearest folder that holds ``.git``, else the nearest that holds ``pyproject.toml``; outside any
    project only ``start`` itself is looked at.
    """
    for folder in _project_folders(start or _working_directory()):
        path = folder / ".env"
        if _lies_there(path, stat.S_ISREG):
            return path
    return None


def _project_folders(start: Path | None) -> list[Path]:
    if start is None:
        return []
    # Neither raises, where there is no home or a loop of links: Path.home() and Path.resolve() do.
    home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111
    folders: list[Path] = []
    for folder in (start, *start.parents):
        if folder in (home, Path(folder.anchor)):
            break
        folders.append(folder)
    for marker in (".git", "pyproject.toml"):
        for depth, folder in enumerate(folders, start=1):
            if _lies_there(folder / marker):
                return folders[:depth]
    return folders[:1]


def _lies_there(path: Path, is_kind: Callable[[int], bool] = lambda mode: True) -> bool:
    try:
        return is_kind(path.stat().st_mode)
    except OSError:
        return False  # a folder that may not be searched, such as another user's above a project, holds nothing for us


def _working_directory() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # deleted, or out of reach
        return None


def _dotenv(path: Path) -> dict[str, str | None]:
    try:
        found = path.stat()
        if found.st_size > _MAX_DOTENV_BYTES:
            raise SettingsError(f"{path} has {found.st_size} bytes, too many for a .env file")
        return _parse(path, found.st_mtime_ns, found.st_size)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error


@functools.lru_cache(maxsize=8)
def _parse(path: Path, mtime_ns: int, size: int) -> dict[str, str | None]:
    # The time and the size are part of the key only: an edited file is read anew.
    del mtime_ns, size
    from dotenv import dotenv_values

    text = _decode(path.read_bytes())
    if text is None:
        raise SettingsError(f"{path} is not UTF-8 text", hint="Save it as UTF-8.")
    # No interpolation: a '$' inside a secret is part of the secret.
    return dotenv_values(stream=io.StringIO(text), interpolate=False)


def _decode(content: bytes) -> str | None:
    # An UnicodeDecodeError carries the whole file, secrets included, so none may travel with an error of ours.
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
