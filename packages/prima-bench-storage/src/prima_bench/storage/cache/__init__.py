"""The local cache: where it is, what is in it, how verified bytes enter it. It knows no URI scheme and no network."""

from prima_bench.storage.cache.layout import DIRECTORY
from prima_bench.storage.cache.store import SHARED, Cache

__all__ = ["DIRECTORY", "SHARED", "Cache"]
