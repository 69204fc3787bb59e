"""The one door to data: a pinned URI in, the path of a verified file out.

It decides which way an artifact comes, and in which order things are asked; how each way works is told in the modules
it calls.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from prima_bench.storage.cache.layout import cache_errors
from prima_bench.storage.cache.lock import one_at_a_time
from prima_bench.storage.cache.store import Cache
from prima_bench.storage.content import Content
from prima_bench.storage.credentials import Credentials
from prima_bench.storage.local import fetch_local
from prima_bench.storage.transfer.gate import connect, permit
from prima_bench.storage.uri import ObjectUri, parse_uri


def fetch(uri: str, *, sha256: str, size: int, parts: Sequence[str] = ()) -> Path:
    """Bring an artifact to this machine, verified.

    Args:
        uri: ``package://``, ``file://``, ``s3://`` or ``gs://``.
        sha256: Digest of the whole file, 64 lower-case hexadecimal digits.
        size: Its number of bytes.
        parts: The sha256 of each 16 MiB of it, where they are known, as they are from a manifest. Then a download
            verifies each part as it comes and resumes at any part; then too they alone are compared, not the digest
            of the whole.

    Returns:
        The path of a file with exactly those bytes. Treat it as read-only: a local artifact is the original, a remote
        one is shared by everything that uses the cache.

    Raises:
        AddressError: If the URI or the pin has the wrong form.
        SettingsError: If a setting or the ``.env`` file cannot be used.
        CredentialsError: If it must be downloaded and no HMAC keypair is configured.
        OfflineError: If it must be downloaded and ``PRIMA_BENCH_OFFLINE`` is set.
        NotFoundError: If nothing lies there.
        AccessError: If it may not be read.
        TransferError: If the store could not be reached or broke off.
        IntegrityError: If its bytes are not the pinned ones.
        CacheError: If the cache cannot be read or written.

    >>> import hashlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = Path(folder, "a.txt")
    ...     _ = data.write_bytes(b"abc")
    ...     fetch(data.as_uri(), sha256=hashlib.sha256(b"abc").hexdigest(), size=3) == data
    True
    """
    return fetch_content(uri, Content.pinned(uri, sha256, size, tuple(parts)))


def fetch_content(uri: str, content: Content) -> Path:
    """Bring an artifact to this machine whose pin was checked; see :func:`fetch`."""
    address = parse_uri(uri)
    if not isinstance(address, ObjectUri):
        return fetch_local(address, uri=uri, sha256=content.sha256, size=content.size)
    cache = Cache.from_environment()
    return cache.find(content) or _fetch_object(address, content, cache)


def _fetch_object(address: ObjectUri, content: Content, cache: Cache) -> Path:
    # Before anything is created: without a keypair a fetch leaves no trace.
    credentials = permit(address, reason=f"is not in the cache at {cache.root}")
    layout = cache.layout
    with cache_errors(str(address)):
        layout.create(layout.partial)
    with contextlib.suppress(OSError):
        layout.create(layout.locks)

    with one_at_a_time(
        layout.lock_file(content.name),
        finished=lambda: cache.find(content) is not None,
        progress=lambda: layout.growth(content.name),
    ) as alone:
        return cache.find(content) or _download(address, content, cache, credentials, alone=alone)


def _download(address: ObjectUri, content: Content, cache: Cache, credentials: Credentials, *, alone: bool) -> Path:
    client = connect(address, credentials)
    from prima_bench.storage.transfer.download import download

    return download(client, address, content, cache, alone=alone)
