"""Publishing a dataset version: its files first, the manifest last, each read back; other bytes are never overwritten.

As long as there is no manifest there is no version, so an upload that breaks off is simply done again: what is there
already and right is left as it is.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from prima_bench.storage.content import Content
from prima_bench.storage.errors import AddressError, IntegrityError, NotFoundError
from prima_bench.storage.manifest.model import MANIFEST, Artifact, Manifest
from prima_bench.storage.manifest.roots import Root
from prima_bench.storage.transfer.gate import connect, permit
from prima_bench.storage.uri import ObjectUri, parse_uri
from prima_bench.storage.verify import measure


def describe(name: str, version: str, files: Mapping[str, Path], *, licence: str) -> Manifest:
    """The manifest of files as they are now.

    Args:
        name: Name of the dataset.
        version: Its version.
        files: Paths by the names that they are to have.
        licence: SPDX identifier or name.

    Raises:
        ManifestError: If a name cannot be used.
        NotFoundError: If a file is not there.
    """
    artifacts = []
    for file, path in files.items():
        try:
            content = measure(path)
        except OSError as error:
            raise NotFoundError(f"{path}: cannot be read: {error.strerror}", hint="Build or fetch it first.") from error
        artifacts.append(Artifact(file, file, content, Path(file).suffix.lstrip(".").lower() or "binary", licence))
    return Manifest(name, version, tuple(artifacts))


def publish(
    manifest: Manifest, files: Mapping[str, Path], root: Root, step: Callable[[str], None] = lambda text: None
) -> list[str]:
    """Upload a dataset version below a root.

    Args:
        manifest: What :func:`describe` returned.
        files: Paths of its artifacts by name.
        root: Where it goes.
        step: Told what begins now.

    Returns:
        The URIs of all objects, those that lay there before included; the manifest's is the last.

    Raises:
        ConflictError: If other bytes lie at one of these URIs. Nothing was overwritten.
        IntegrityError: If a file changed since it was described, or reading back gives other bytes.
        AccessError: If the store refuses the keypair or the upload.
        NotFoundError: If there is no such bucket.
        TransferError: If the store could not be reached or broke off.
        OfflineError: If ``PRIMA_BENCH_OFFLINE`` is set.
        CredentialsError: If there is no keypair.
        AddressError: If the root is no object store.
    """
    plan = [(_address(root, manifest, a.name), files[a.name], a.content) for a in manifest.artifacts]
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder, MANIFEST)
        document.write_bytes(manifest.to_bytes())
        last = (_address(root, manifest, MANIFEST), document, measure(document))
        client = connect(last[0], permit(last[0], reason="is to be uploaded", instead=""))
        from prima_bench.storage.transfer.upload import lies_there, put

        def bring(address: ObjectUri, path: Path, content: Content) -> None:
            step(f"checking {address}")
            if lies_there(client, address, content):
                return
            step(f"uploading {address}")
            put(client, address, path, content)
            step(f"reading back {address}")
            if not lies_there(client, address, content):
                raise IntegrityError(
                    f"{address}: is not there after it was uploaded",
                    hint="The store loses objects, or lists them late; publish again.",
                )

        # A version that is there already says so before anything is uploaded.
        step(f"checking {last[0]}")
        lies_there(client, last[0], last[2])
        for each in [*plan, last]:
            bring(*each)
    return [str(address) for address, _, _ in [*plan, last]]


def _address(root: Root, manifest: Manifest, path: str) -> ObjectUri:
    uri = root.of(manifest.name, manifest.version, path)
    address = parse_uri(uri)
    if not isinstance(address, ObjectUri):
        raise AddressError(
            f"{uri!r}: datasets are published to gs:// or s3://", hint="Copy files to a folder yourself."
        )
    return address
