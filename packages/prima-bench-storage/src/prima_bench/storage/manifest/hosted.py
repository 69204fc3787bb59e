"""A dataset version that is hosted, found by the digest of its manifest and nothing else.

The chain of trust: a spec in the registry pins the manifest, the manifest pins every part of every file.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from prima_bench.storage.cache.store import Cache
from prima_bench.storage.content import Content
from prima_bench.storage.errors import AccessError, IntegrityError, ManifestError
from prima_bench.storage.fetching import fetch_content
from prima_bench.storage.manifest.model import MANIFEST, MAX_BYTES, Artifact, Manifest, parsed
from prima_bench.storage.manifest.names import check_plain_name
from prima_bench.storage.manifest.roots import Root, data_roots, from_first
from prima_bench.storage.verify import check_sha256


@dataclass(frozen=True, slots=True)
class HostedDataset:
    """One version of a dataset below the data roots.

    Attributes:
        name: Its name.
        version: Its version.
        sha256: Digest of its manifest.
        size: Bytes of its manifest.
    """

    name: str
    version: str
    sha256: str
    size: int

    def __post_init__(self) -> None:
        check_plain_name(self.name, "dataset")
        check_plain_name(self.version, "version")
        if self.size > MAX_BYTES:
            raise ManifestError(f"a manifest has at most {MAX_BYTES} bytes, not {self.size}")

    def manifest(self) -> Manifest:
        """The manifest, from the cache or a root.

        Raises:
            StorageError: If it cannot be had; see :func:`prima_bench.storage.fetch`.
            ManifestError: If what is pinned is no manifest, or that of another dataset.
        """
        content = Content.pinned(f"{self.name}@{self.version}", self.sha256, self.size)
        path = from_first(data_roots(), lambda root: fetch_content(self._uri(root, MANIFEST), content))
        try:
            data = path.read_bytes()
        except OSError as error:
            raise AccessError(f"{path}: cannot be read: {error.strerror}", hint="Fetch it again.") from error
        # What is read is what counts: everything else is trusted because of it.
        check_sha256(hashlib.sha256(data).hexdigest(), uri=str(path), sha256=self.sha256)
        manifest = parsed(data)
        if (manifest.name, manifest.version) != (self.name, self.version):
            raise ManifestError(
                f"the manifest pinned for {self.name}@{self.version} is that of {manifest.name}@{manifest.version}"
            )
        return manifest

    def fetch(self, name: str, *, sha256: str | None = None, size: int | None = None) -> Path:
        """Bring one of its files to this machine, verified.

        Args:
            name: Name of the artifact.
            sha256: What the manifest must say its digest is, where that is known.
            size: The same for its size.

        Returns:
            The path of the file, under its own name where the cache can link. Treat it as read-only.

        Raises:
            StorageError: If it cannot be had; see :func:`prima_bench.storage.fetch`.
            IntegrityError: If the manifest pins something else than ``sha256`` and ``size`` too.
            ManifestError: If the manifest does not name it, or is none.
        """
        artifact = self.manifest().artifact(name)
        content = artifact.content
        if (sha256 or content.sha256, content.size if size is None else size) != (content.sha256, content.size):
            raise IntegrityError(
                f"{self.name}@{self.version} {name}: the manifest pins sha256 {content.sha256} and {content.size} "
                f"bytes, where {sha256} and {size} are registered",
                hint="Whoever registered the dataset must pin the manifest that was published with these files.",
            )
        path = self._fetch(artifact)
        return Cache.from_environment().view(f"{self.name}@{self.version}-{self.sha256[:12]}", artifact.name, path)

    def _fetch(self, artifact: Artifact) -> Path:
        if not artifact.is_relative:
            return fetch_content(artifact.uri, artifact.content)
        return from_first(data_roots(), lambda root: fetch_content(self._uri(root, artifact.uri), artifact.content))

    def _uri(self, root: Root, path: str) -> str:
        return root.of(self.name, self.version, path)
