"""Names that may become files: of a dataset, of its version, and of an artifact inside it.

What one file system takes for another file, a device or another folder is refused on every system, so that a manifest
means the same everywhere.
"""

import re
from collections import Counter

from prima_bench.storage.errors import ManifestError
from prima_bench.storage.uri import is_device

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")
_LONGEST_PATH = 512
_MOST_PARTS = 32


def check_plain_name(name: object, what: str) -> str:
    """A name without folders: letters, digits and ``. _ + -``, not beginning with a dot nor ending in one.

    Raises:
        ManifestError: If it is none, or is the name of a device on Windows.

    >>> check_plain_name("train.h5ad", "name")
    'train.h5ad'
    >>> check_plain_name("aux.h5ad", "name")
    Traceback (most recent call last):
    ...
    prima_bench.storage.errors.ManifestError: name 'aux.h5ad' is the name of a device on Windows
    hint: Choose another name.
    """
    if not isinstance(name, str) or not _PLAIN.fullmatch(name) or name.endswith("."):
        raise ManifestError(
            f"{what} {shown(name)} is not a plain name",
            hint="Use letters, digits and . _ + - only, with a letter, a digit or _ first and no dot last.",
        )
    if is_device(name):
        raise ManifestError(f"{what} {name!r} is the name of a device on Windows", hint="Choose another name.")
    return name


def check_relative_path(path: object, what: str) -> str:
    """Plain names with ``/`` in between.

    Raises:
        ManifestError: If it is absolute, empty, leads upwards, or has a part that is no plain name.
    """
    if not isinstance(path, str) or len(path) > _LONGEST_PATH:
        raise ManifestError(f"{what} {shown(path)} is not a relative path", hint="Write it as folder/name.")
    parts = path.split("/")
    if len(parts) > _MOST_PARTS:
        raise ManifestError(f"{what} {shown(path)} lies in more than {_MOST_PARTS - 1} folders")
    label = f"{what} {shown(path)}:"
    for part in parts:
        check_plain_name(part, label)
    return path


def check_no_clash(paths: list[str], what: str) -> None:
    """Refuse paths of which one file system would make one file, or a file and a folder of the same name.

    Raises:
        ManifestError: If there are such paths.
    """
    folded = [path.lower() for path in paths]
    seen = set(folded)
    if len(seen) < len(folded):
        twice, _ = Counter(folded).most_common(1)[0]
        raise ManifestError(f"{what} {shown(twice)} is there twice, at least up to upper and lower case")
    for path in folded:
        above = path.rpartition("/")[0]
        while above:
            if above in seen:
                raise ManifestError(f"{what} {shown(above)} is a file and a folder")
            above = above.rpartition("/")[0]


def shown(value: object) -> str:
    """A value as an error shows it: no more than a line, whatever it is."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
