"""The one door to the network: whatever wants to talk to a store asks here first.

``PRIMA_BENCH_OFFLINE`` is looked at here and nowhere else, then the keypair. Only what has passed is connected, and
only then is boto3 imported.
"""

from typing import Any

from prima_bench.storage.credentials import Credentials
from prima_bench.storage.errors import OfflineError
from prima_bench.storage.settings import OFFLINE, offline
from prima_bench.storage.uri import ObjectUri


def permit(
    address: ObjectUri, *, reason: str, instead: str = ", or fetch it once where there is a network"
) -> Credentials:
    """The keypair for the store that ``address`` names, if the network may be used at all.

    Args:
        address: An object.
        reason: Why the network is needed, after the address, for the error that says it may not be used.
        instead: What else one can do than allow it, for its hint.

    Raises:
        OfflineError: If ``PRIMA_BENCH_OFFLINE`` is set.
        CredentialsError: If there is no keypair.
        SettingsError: If a setting cannot be used.
    """
    if offline():
        raise OfflineError(
            f"{address}: {reason}, and {OFFLINE} is set",
            hint=f"Unset {OFFLINE}{instead}.",
        )
    return Credentials.from_environment()


def connect(address: ObjectUri, credentials: Credentials) -> Any:
    """The boto3 client for the store that ``address`` names; no request is made yet.

    Args:
        address: An object.
        credentials: What :func:`permit` returned.

    Raises:
        SettingsError: If the endpoint is malformed.
    """
    # boto3 costs a second to import, and a cache hit needs none of it.
    from prima_bench.storage.client import object_client

    return object_client(address.scheme, credentials)
