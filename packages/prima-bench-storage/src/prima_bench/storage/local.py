"""Artifacts that are files already: inside an installed package (``package://``) or on a disk (``file://``).

They are verified where they lie and never copied; no credentials, no cache and no network are involved.
"""

import importlib.util
from pathlib import Path

from prima_bench.storage.errors import AccessError, NotFoundError
from prima_bench.storage.uri import FileUri, PackageUri
from prima_bench.storage.verify import verify_file


def fetch_local(address: PackageUri | FileUri, *, uri: str, sha256: str, size: int) -> Path:
    """Locate and verify a local artifact; returns the file's own path.

    Raises:
        NotFoundError: If the package is not installed or the file does not exist.
        AccessError: If the file cannot be read.
        IntegrityError: If its bytes are not the pinned ones.
    """
    try:
        path = address.path if isinstance(address, FileUri) else _inside_package(address, uri)
        if not path.is_file():
            raise NotFoundError(f"{uri}: no such file", hint=f"Looked for {path}.")
        verify_file(path, uri=uri, sha256=sha256, size=size)
    except OSError as error:
        raise AccessError(f"{uri}: cannot be read: {error}") from error
    return path


def _inside_package(address: PackageUri, uri: str) -> Path:
    folders = _folders(address.package)
    if not folders:
        raise NotFoundError(
            f"{uri}: the package {address.package!r} is not installed",
            hint="Install the distribution that ships this dataset.",
        )
    candidates = [folder / address.path for folder in folders]
    return next((path for path in candidates if path.is_file()), candidates[0])


def _folders(package: str) -> list[Path]:
    # find_spec imports the parents only: naming a package in a URI does not run its code.
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # ValueError: a module without a spec, as a script is
        return []
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(location) for location in spec.submodule_search_locations]
