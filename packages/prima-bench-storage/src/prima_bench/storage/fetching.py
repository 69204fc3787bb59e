"""The one door to data: a pinned URI in, the path of a verified file out.

It decides which way an artifact comes, and in which order things are asked; how each way works is told in the modules
it calls.
"""

from pathlib import Path

from prima_bench.storage.cache import Cache
from prima_bench.storage.credentials import Credentials
from prima_bench.storage.errors import OfflineError
from prima_bench.storage.local import fetch_local
from prima_bench.storage.settings import OFFLINE, offline
from prima_bench.storage.uri import ObjectUri, check_pin, parse_uri


def fetch(uri: str, *, sha256: str, size: int) -> Path:
    """Bring an artifact to this machine, verified.

    Args:
        uri: ``package://``, ``file://``, ``s3://`` or ``gs://``.
        sha256: Digest of the whole file, 64 lower-case hexadecimal digits.
        size: Its number of bytes.

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
    check_pin(uri, sha256, size)
    address = parse_uri(uri)
    if not isinstance(address, ObjectUri):
        return fetch_local(address, uri=uri, sha256=sha256, size=size)
    cache = Cache.from_environment()
    return cache.find(sha256, size) or _fetch_object(address, cache, sha256=sha256, size=size)


def _fetch_object(address: ObjectUri, cache: Cache, *, sha256: str, size: int) -> Path:
    if offline():
        raise OfflineError(
            f"{address}: is not in the cache at {cache.root}, and {OFFLINE} is set",
            hint=f"Unset {OFFLINE}, or fetch it once where there is a network.",
        )
    # Before anything is created: without a keypair a fetch leaves no trace.
    credentials = Credentials.from_environment()
    # boto3 costs a second to import, and a cache hit needs none of it.
    from prima_bench.storage.download import download

    with cache.add(uri=str(address), sha256=sha256, size=size) as writer:
        download(address, writer, size=size, credentials=credentials)
    return cache.path(sha256)
