"""URIs of artifacts, taken apart and judged before anything is opened. Nothing here touches a disk or a network.

Four schemes exist::

    package://prima_bench.tasks/data/pbmc68k/train.h5ad   a file inside an installed package
    file:///data/own/solution.h5ad                        a file by its absolute path
    s3://bucket/key   gs://bucket/key                     an object in a store; the key is taken literally

A URI is data that others may have written, so what could lead elsewhere than it says is refused: ``..``, absolute
paths inside a package, backslashes, drive letters, control characters, hosts, queries and fragments.
"""

import re
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from prima_bench.storage.errors import AddressError

SCHEMES = ("file", "gs", "package", "s3")

_PACKAGE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(10))})
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_KEY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class PackageUri:
    """A file inside an installed package.

    Attributes:
        package: Dotted name of the package.
        path: Relative path below the package's folder, with forward slashes.
    """

    package: str
    path: str


@dataclass(frozen=True, slots=True)
class FileUri:
    """A file by its absolute path."""

    path: Path


@dataclass(frozen=True, slots=True)
class ObjectUri:
    """An object in an S3-compatible store.

    Attributes:
        scheme: ``"s3"`` or ``"gs"``; it decides the endpoint.
        bucket: Name of the bucket.
        key: Name of the object, exactly as written.
    """

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"


def parse_uri(uri: str) -> PackageUri | FileUri | ObjectUri:
    """Take a URI apart.

    Raises:
        AddressError: If the scheme is unknown, or a part has a form that is refused.

    >>> parse_uri("gs://bucket/pbmc/train.h5ad")
    ObjectUri(scheme='gs', bucket='bucket', key='pbmc/train.h5ad')
    >>> parse_uri("package://prima_bench.tasks/../secret")
    Traceback (most recent call last):
    ...
    prima_bench.storage.errors.AddressError: 'package://prima_bench.tasks/../secret': '..' in a path is refused
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme not in SCHEMES:
        raise AddressError(
            f"{uri!r}: not a URI that prima-bench reads",
            hint="Start it with package://, file://, s3:// or gs://.",
        )
    if _CONTROL.search(uri):
        raise AddressError(f"{uri!r}: control characters are refused")
    if scheme == "package":
        return _parse_package(uri, rest)
    if scheme == "file":
        return _parse_file(uri, rest)
    return _parse_object(uri, scheme, rest)


def check_pin(uri: str, sha256: str, size: int) -> None:
    """Check the form of the digest and size that pin ``uri``.

    Raises:
        AddressError: If ``sha256`` is not 64 lower-case hexadecimal digits, or ``size`` is not a count of bytes.
    """
    if not is_sha256(sha256):
        raise AddressError(f"{uri!r}: sha256 must be 64 lower-case hexadecimal digits, not {sha256!r}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise AddressError(f"{uri!r}: size must be a number of bytes, not {size!r}")


def is_sha256(value: object) -> bool:
    """Whether a value is a sha256 as it is written here: 64 lower-case hexadecimal digits."""
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def is_device(name: str) -> bool:
    """Whether Windows takes a file of that name for a device, whatever folder it is in.

    >>> is_device("aux.h5ad"), is_device("auxiliary.h5ad")
    (True, False)
    """
    return name.partition(".")[0].rstrip(" ").lower() in _DEVICES


def _parse_package(uri: str, rest: str) -> PackageUri:
    package, _, path = rest.partition("/")
    if not _PACKAGE.fullmatch(package):
        raise AddressError(f"{uri!r}: {package!r} is not the dotted name of a package")
    return PackageUri(package, _relative(uri, path))


def _parse_file(uri: str, rest: str) -> FileUri:
    host, slash, _ = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise AddressError(f"{uri!r}: a file URI holds an absolute path", hint="Write file:///folder/name.")
    if "?" in rest or "#" in rest:
        raise AddressError(f"{uri!r}: queries and fragments are refused", hint="Write ? as %3F and # as %23.")
    path = urllib.request.url2pathname(rest[len(host) :])
    if _CONTROL.search(path):
        raise AddressError(f"{uri!r}: control characters are refused")
    if ".." in PurePosixPath(urllib.parse.unquote(rest)).parts:
        raise AddressError(f"{uri!r}: '..' in a path is refused")
    return FileUri(Path(path))


def _parse_object(uri: str, scheme: str, rest: str) -> ObjectUri:
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise AddressError(f"{uri!r}: {bucket!r} is not the name of a bucket")
    if not key or key.endswith("/") or len(key.encode()) > _MAX_KEY_BYTES:
        raise AddressError(f"{uri!r}: the name of the object is empty, ends in '/' or exceeds {_MAX_KEY_BYTES} bytes")
    if any(part in (".", "..") for part in key.split("/")):
        raise AddressError(f"{uri!r}: '..' in a path is refused")
    return ObjectUri(scheme, bucket, key)


def _relative(uri: str, path: str) -> str:
    parts = path.split("/")
    if ".." in parts:
        raise AddressError(f"{uri!r}: '..' in a path is refused")
    if not all(parts) or "." in parts:
        raise AddressError(f"{uri!r}: the path inside the package is empty, absolute or has empty parts")
    if "\\" in path or ":" in path:
        raise AddressError(f"{uri!r}: backslashes and drive letters are refused")
    if any(is_device(part) or part.endswith((".", " ")) for part in parts):
        raise AddressError(f"{uri!r}: a part of the path is the name of a device on Windows, or ends in '.' or ' '")
    if "%" in path or "?" in path or "#" in path:
        raise AddressError(f"{uri!r}: '%', '?' and '#' are refused in the path inside a package")
    return path
