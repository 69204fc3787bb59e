"""The cache: one immutable file per verified content, named by its sha256. It knows no URI scheme and no network.

::

    <root>/CACHEDIR.TAG
    <root>/v1/blobs/ab/abcd...               a file here is complete and verified: existence says so
    <root>/v1/blobs/ab/.abcd....<random>     being written; never looked at by readers

Bytes reach a blob only through :class:`BlobWriter`, and a blob gets its name only after the writer has seen exactly the
pinned bytes. Nothing here depends on a lock: writers of the same content replace one right file by another.
"""

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from prima_bench.storage.errors import CacheError
from prima_bench.storage.settings import setting
from prima_bench.storage.verify import check_sha256, check_size

DIRECTORY = "PRIMA_BENCH_CACHE_DIR"

_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Downloads of prima-bench; safe to delete.\n"
_HINT = f"Free some space, or point {DIRECTORY} at a folder that can be written."


class BlobWriter:
    """Takes the bytes of one blob, and knows at every moment whether they can still be the pinned ones."""

    def __init__(self, stream: FileIO, *, uri: str, sha256: str, size: int) -> None:
        self._stream = stream
        self._uri = uri
        self._sha256 = sha256
        self._size = size
        self._hash = hashlib.sha256()
        self.written = 0

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            IntegrityError: If there are now more than the pin allows.
            CacheError: If they cannot be written.
        """
        if self.written + len(data) > self._size:
            check_size(self.written + len(data), uri=self._uri, size=self._size)
        with _cache_errors(self._uri):
            view = memoryview(data)
            while view:
                view = view[self._stream.write(view) :]
        self._hash.update(data)
        self.written += len(data)

    def restart(self) -> None:
        """Forget what was written.

        Raises:
            CacheError: If the file cannot be truncated.
        """
        with _cache_errors(self._uri):
            self._stream.seek(0)
            self._stream.truncate()
        self._hash = hashlib.sha256()
        self.written = 0

    def finish(self) -> None:
        """Check all that was written against the pin, then make it durable.

        Raises:
            IntegrityError: If size or digest differ.
            CacheError: If the bytes cannot be flushed.
        """
        check_size(self.written, uri=self._uri, size=self._size)
        check_sha256(self._hash.hexdigest(), uri=self._uri, sha256=self._sha256)
        with _cache_errors(self._uri):
            os.fsync(self._stream.fileno())


class Cache:
    """A folder of verified files.

    Attributes:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def from_environment(cls) -> "Cache":
        """The cache at ``PRIMA_BENCH_CACHE_DIR``, else in the user's cache directory."""
        value = setting(DIRECTORY)
        if value is not None:
            return cls(Path(value).expanduser().absolute())
        import platformdirs

        return cls(platformdirs.user_cache_path("prima-bench", appauthor=False))

    def path(self, sha256: str) -> Path:
        """Where the blob of that digest is or would be."""
        return self.root / "v1" / "blobs" / sha256[:2] / sha256

    def find(self, sha256: str, size: int) -> Path | None:
        """The blob, if it is here; one look at the file system, nothing is read.

        Raises:
            CacheError: If the cache cannot be looked into.
        """
        path = self.path(sha256)
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CacheError(f"the cache at {self.root} cannot be read: {error.strerror}", hint=_HINT) from error
        return path if stat.S_ISREG(status.st_mode) and status.st_size == size else None

    @contextlib.contextmanager
    def add(self, *, uri: str, sha256: str, size: int) -> Iterator[BlobWriter]:
        """Write a blob; it appears when the block ends, if and only if the bytes are the pinned ones.

        Raises:
            IntegrityError: If they are not.
            CacheError: If the cache cannot be written.
        """
        path = self.path(sha256)
        with _cache_errors(uri):
            self._create(path.parent)
            handle, name = tempfile.mkstemp(prefix=f".{sha256[:16]}.", dir=path.parent)
        temporary = Path(name)
        try:
            # Unbuffered: a full disk is told by the write that meets it, not by the close.
            with os.fdopen(handle, "wb", buffering=0) as stream:
                writer = BlobWriter(stream, uri=uri, sha256=sha256, size=size)
                yield writer
                writer.finish()
            with _cache_errors(uri):
                self._publish(temporary, path, size)
        finally:
            temporary.unlink(missing_ok=True)

    def _create(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tag = self.root / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(_TAG, encoding="utf-8")

    def _publish(self, temporary: Path, path: Path, size: int) -> None:
        temporary.chmod(0o444)
        try:
            temporary.replace(path)
        except PermissionError:
            # Windows lets nobody replace a file that another process has open; that file has the same content.
            if self.find(path.name, size) is None:
                raise
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems refuse this for folders; then the name is durable when the server says so.
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _cache_errors(uri: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(f"{uri}: cannot be written to the cache: {error}", hint=_HINT) from error
