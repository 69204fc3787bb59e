"""The one door to data: a pinned URI in, the path of a verified file out.

It decides which way an artifact comes; how each way works is told in the modules it calls.
"""

from pathlib import Path

from prima_bench.storage.errors import AddressError
from prima_bench.storage.local import fetch_local
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
        NotFoundError: If nothing lies there.
        AccessError: If it may not be read.
        IntegrityError: If its bytes are not the pinned ones.

    >>> import hashlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = Path(folder, "a.txt")
    ...     _ = data.write_bytes(b"abc")
    ...     fetch(data.as_uri(), sha256=hashlib.sha256(b"abc").hexdigest(), size=3) == data
    True
    """
    check_pin(uri, sha256, size)
    address = parse_uri(uri)
    if isinstance(address, ObjectUri):
        raise AddressError(f"{uri!r}: only package:// and file:// are read")
    return fetch_local(address, uri=uri, sha256=sha256, size=size)
