"""Why no answer came, in words: which host and port was asked, and what became of it; nothing else of the address."""

import ssl
import urllib.parse
from collections.abc import Iterator

from botocore.exceptions import (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ProxyConnectionError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.exceptions import NameResolutionError

_PORTS = {"http": 80, "https": 443}


def reason(error: Exception) -> str:
    """What a request without an answer came to.

    >>> reason(ReadTimeoutError(endpoint_url="https://store.example.org/bucket/key?secret"))
    'store.example.org:443 does not answer'
    >>> reason(OSError(5, "Input/output error"))
    'OSError while talking to the store'
    """
    details = getattr(error, "kwargs", {})
    url = details.get("proxy_url") if isinstance(error, ProxyConnectionError) else details.get("endpoint_url")
    place = _place(str(url))
    if place is None:
        return f"{type(error).__name__} while talking to the store"
    if isinstance(error, ProxyConnectionError):
        return f"the proxy {place} cannot be reached: {_cause(error)}"
    if isinstance(error, SSLError):
        return f"no secure connection to {place}: {_cause(error)}"
    if isinstance(error, ConnectTimeoutError):
        return f"no connection to {place}: it timed out"
    if isinstance(error, EndpointConnectionError):
        return f"no connection to {place}: {_cause(error)}"
    if isinstance(error, ReadTimeoutError):
        return f"{place} does not answer"
    if isinstance(error, ConnectionClosedError):
        return f"{place} closed the connection without an answer"
    return f"{type(error).__name__} while talking to {place}"


def _place(url: str) -> str | None:
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not host or not host.isprintable():
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _cause(error: Exception) -> str:
    for cause in _causes(error):
        if isinstance(cause, NameResolutionError):
            return "its name was not found"
        if isinstance(cause, ConnectionRefusedError):
            return "it was refused"
        if isinstance(cause, TimeoutError):
            return "it timed out"
        if isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_message:
            return f"certificate verify failed: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError) and cause.reason:
            return cause.reason.replace("_", " ").lower()
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
    return type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What led to an error, from it down; each library wraps it in a way of its own."""
    seen: list[BaseException] = []
    left: list[object] = [error]
    while left and len(seen) < 20:
        each = left.pop()
        if not isinstance(each, BaseException) or any(each is other for other in seen):
            continue
        seen.append(each)
        yield each
        details = getattr(each, "kwargs", {})
        left += [each.__context__, each.__cause__, *each.args, getattr(each, "reason", None), details.get("error")]
