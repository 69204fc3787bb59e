"""What recipes share: one way to write an artifact, so that the same content is the same bytes, and one way to rebuild.

A recipe itself, ``build(directory)``, stands in its dataset's file.
"""

import hashlib
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from prima_bench.storage import StorageError
from prima_bench.tasks.artifacts import artifact_path
from prima_bench.tasks.errors import DataError, raised_as
from prima_bench.tasks.registry import get_dataset
from prima_bench.tasks.specs import ArtifactSpec, ManifestSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData

ROLES = ("train", "test", "solution")


@dataclass(frozen=True, slots=True)
class BuiltArtifact:
    """A file that a recipe wrote.

    Attributes:
        path: Where it is.
        sha256: Digest, lower-case hexadecimal.
        size: Bytes.
    """

    path: Path
    sha256: str
    size: int


def build_dataset(name: str, directory: str | Path) -> dict[str, BuiltArtifact]:
    """Run a dataset's recipe and measure what it wrote; the pins of a new dataset are read off here.

    Args:
        name: ``name`` or ``name@version``.
        directory: An existing, empty folder.

    Returns:
        The artifacts by role.

    Raises:
        UnknownNameError: If there is no such dataset.
        DataError: If its raw source is missing or is not the known one, or the folder is not empty.
    """
    module = get_dataset(name).module
    folder = Path(directory)
    if not folder.is_dir() or any(folder.iterdir()):
        raise DataError(f"{folder} is not an empty folder", hint="A recipe writes into a fresh folder.")
    module.build(folder)
    return {role: _measure(folder / f"{role}.h5ad") for role in ROLES}


def is_pinned(name: str) -> bool:
    """Whether a dataset's spec holds digests; that of a new one holds zeros in their place.

    Raises:
        UnknownNameError: If there is no such dataset.

    >>> is_pinned("perturbsim")
    True
    """
    return any(set(artifact.sha256) != {"0"} for artifact in get_dataset(name).spec.artifacts)


def differences(name: str, built: dict[str, BuiltArtifact]) -> list[str]:
    """How rebuilt artifacts differ from the pinned ones, a sentence each; empty when they are the same bytes.

    Raises:
        UnknownNameError: If there is no such dataset.
    """
    spec = get_dataset(name).spec
    return [
        f"{spec.key} {role}: pinned sha256 {spec.artifact(role).sha256}, size {spec.artifact(role).size}; "
        f"the recipe gives sha256 {artifact.sha256}, size {artifact.size}"
        for role, artifact in built.items()
        if (artifact.sha256, artifact.size) != (spec.artifact(role).sha256, spec.artifact(role).size)
    ]


@dataclass(frozen=True, slots=True)
class Publication:
    """A dataset version that lies in a store.

    Attributes:
        uris: All its objects, the manifest last.
        manifest: What a spec pins it by.
        artifacts: What the spec's artifacts become.
    """

    uris: list[str]
    manifest: ManifestSpec
    artifacts: tuple[ArtifactSpec, ...]

    def as_source(self) -> str:
        """The lines that go into the dataset's spec, in the place of its artifacts."""
        lines = [
            "    manifest=ManifestSpec(",
            f'        sha256="{self.manifest.sha256}",',
            f"        size={self.manifest.size:_},",
            "    ),",
            "    artifacts=(",
        ]
        for a in self.artifacts:
            lines += ["        ArtifactSpec(", f'            role="{a.role}",', f'            uri="{a.uri}",']
            lines += [f'            sha256="{a.sha256}",', f"            size={a.size:_},"]
            lines += [f"            contents={a.contents!r},", "        ),"]
        return "\n".join([*lines, "    ),"])


def publish_dataset(name: str, to: str, step: "Callable[[str], None]" = lambda text: None) -> Publication:
    """Upload a dataset version, as it is registered, below ``to``; see ``prima-bench recipes publish``.

    Args:
        name: ``name`` or ``name@version``.
        to: A data root: ``gs://bucket/prefix`` or ``s3://bucket/prefix``.
        step: Told what begins now.

    Raises:
        UnknownNameError: If there is no such dataset.
        DataError: If a file cannot be had, other bytes lie there already, or the store refuses.
    """
    from prima_bench.storage.manifest.publish import describe, publish
    from prima_bench.storage.manifest.roots import Root

    spec = get_dataset(name).spec
    with raised_as(DataError, StorageError):
        # Before anything is fetched or read for it.
        root = Root.parse(to)
    files, artifacts = {}, []
    for artifact in spec.artifacts:
        file = artifact.uri if spec.manifest else artifact.uri.rpartition("/")[2]
        if file in files:
            raise DataError(f"{spec.key}: two artifacts are called {file}", hint="Give their files different names.")
        files[file] = artifact_path(spec, artifact.role)
        artifacts.append(replace(artifact, uri=file))
    with raised_as(DataError, StorageError):
        manifest = describe(spec.name, spec.version, files, licence=spec.licence)
        uris = publish(manifest, files, root, step)
    return Publication(uris, ManifestSpec(sha256=manifest.sha256, size=len(manifest.to_bytes())), tuple(artifacts))


def write_artifact(cells: "AnnData", path: Path) -> None:
    """Write an AnnData file whose bytes depend on the content and the library versions alone.

    Row and column names are stored as plain strings, the encoding that every anndata since 0.7 reads.
    """
    import h5py
    from anndata.io import write_elem

    stored = cells.copy()
    uns, stored.uns = dict(stored.uns), {}
    for frame in (stored.obs, stored.var):
        frame.index = frame.index.astype(object).rename(None)
    with h5py.File(path, "w") as file:
        write_elem(file, "/", stored, dataset_kwargs={"compression": "gzip", "compression_opts": 9, "shuffle": True})
        write_elem(file, "uns", uns)  # apart, since HDF5 filters do not apply to single strings
        if stored.raw is None:
            file.pop("raw", None)  # some versions of anndata write that there is nothing


def installed_file(package: str, path: str, *, sha256: str) -> Path:
    """A raw source that another package ships, verified; the package is not imported.

    Args:
        package: Top-level name of the package.
        path: Path below its folder.
        sha256: What the file must be.

    Raises:
        DataError: If the package or file is missing, or is another file.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise DataError(f"the recipe needs a file of {package}, which is not installed", hint=f"Install {package}.")
    file = Path(spec.origin).parent / path
    if not file.is_file():
        raise DataError(f"raw source {file} is missing")
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != sha256:
        raise DataError(f"raw source {file} has sha256 {found}, not {sha256}", hint="The recipe knows another file.")
    return file


def _measure(path: Path) -> BuiltArtifact:
    content = path.read_bytes()
    return BuiltArtifact(path, hashlib.sha256(content).hexdigest(), len(content))
