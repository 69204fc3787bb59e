"""Datasets by URI: verified fetching, a local cache, credentials and S3-compatible object stores.

>>> from prima_bench.storage import fetch
>>> path = fetch("gs://bucket/pbmc68k/1.0.0/train.h5ad", sha256="...", size=1234)  # doctest: +SKIP

Names are loaded when first used, so importing this package imports no boto3.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prima_bench.storage.cache.store import Cache
    from prima_bench.storage.credentials import Credentials
    from prima_bench.storage.errors import (
        AccessError,
        AddressError,
        CacheError,
        ConflictError,
        CredentialsError,
        IntegrityError,
        ManifestError,
        NotFoundError,
        OfflineError,
        SettingsError,
        StorageError,
        TransferError,
    )
    from prima_bench.storage.fetching import fetch
    from prima_bench.storage.manifest.hosted import HostedDataset
    from prima_bench.storage.manifest.model import Manifest

_HOMES = {
    "AccessError": "errors",
    "AddressError": "errors",
    "Cache": "cache.store",
    "CacheError": "errors",
    "ConflictError": "errors",
    "Credentials": "credentials",
    "CredentialsError": "errors",
    "HostedDataset": "manifest.hosted",
    "IntegrityError": "errors",
    "Manifest": "manifest.model",
    "ManifestError": "errors",
    "NotFoundError": "errors",
    "OfflineError": "errors",
    "SettingsError": "errors",
    "StorageError": "errors",
    "TransferError": "errors",
    "fetch": "fetching",
}

__all__ = [
    "AccessError",
    "AddressError",
    "Cache",
    "CacheError",
    "ConflictError",
    "Credentials",
    "CredentialsError",
    "HostedDataset",
    "IntegrityError",
    "Manifest",
    "ManifestError",
    "NotFoundError",
    "OfflineError",
    "SettingsError",
    "StorageError",
    "TransferError",
    "fetch",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
