"""One boto3 client for every S3-compatible store, closed to everything AWS keeps lying about on a machine.

Explicit keys alone do not keep AWS out: botocore would still obey, or fail on, ``AWS_PROFILE``, ``AWS_ENDPOINT_URL``,
``AWS_CA_BUNDLE``, a malformed ``~/.aws/config`` and more. So the session below answers every question about its
configuration with botocore's built-in default, knows no configuration file and no other source of credentials.
"""

import functools
import hashlib
import ipaddress
import os
import threading
import urllib.parse
import urllib.request
from typing import Any

from boto3.session import Session as Boto3Session
from botocore.config import Config
from botocore.configprovider import ConfigValueStore, ConstantProvider
from botocore.exceptions import BotoCoreError
from botocore.loaders import Loader
from botocore.session import Session

from prima_bench.storage.answers import bound
from prima_bench.storage.credentials import REGION, Credentials
from prima_bench.storage.errors import SettingsError
from prima_bench.storage.settings import setting

GCS_ENDPOINT = "https://storage.googleapis.com"
ENDPOINT_VARIABLES = {"gs": "PRIMA_BENCH_GCS_ENDPOINT_URL", "s3": "PRIMA_BENCH_S3_ENDPOINT_URL"}

_clients: dict[tuple[int, str | None, Credentials, bytes], Any] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    # Another thread of the parent may have held it, and no thread of the child will ever let go of it.
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def object_client(scheme: str, credentials: Credentials) -> Any:
    """The boto3 S3 client for ``s3`` or ``gs`` URIs; one per process, endpoint, keypair and proxies.

    Raises:
        SettingsError: If the configured endpoint is not an ``http://`` or ``https://`` address, or the region is none.
    """
    endpoint = endpoint_url(scheme)
    # The process is part of the key: a forked child must not share its parent's connections.
    key = (os.getpid(), endpoint, credentials, _proxies())
    with _lock:
        if key not in _clients:
            client = _new_client(endpoint, credentials)
            if client is None:
                raise SettingsError(
                    f"{ENDPOINT_VARIABLES[scheme]} or {REGION} cannot be used",
                    hint="Give the address of the store as https://store.example.org, and a region such as us-east-1.",
                )
            _clients[key] = client
        return _clients[key]


def _proxies() -> bytes:
    # A client asks for its proxies once. The hash, since the variables may hold a password.
    found = urllib.request.getproxies_environment()
    return hashlib.sha256(repr(sorted(found.items())).encode(errors="surrogateescape")).digest()


def endpoint_url(scheme: str) -> str | None:
    """The address that URIs of ``scheme`` are read from; ``None`` is AWS.

    Raises:
        SettingsError: If the configured endpoint is not an ``http://`` or ``https://`` address.
    """
    name = ENDPOINT_VARIABLES[scheme]
    value = setting(name)
    if value is None:
        return GCS_ENDPOINT if scheme == "gs" else None
    if not _is_address(value):
        raise SettingsError(
            f"{name} is not the address of a store",
            hint="Give scheme and host, such as https://store.example.org, without a keypair or a query.",
        )
    return value


def _is_address(value: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(value)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and "@" not in parts.netloc
            and not (parts.query or parts.fragment)
        )
    except ValueError:  # brackets that do not match, a port that is no number
        return False


class _HermeticSession(Session):  # type: ignore[misc]  # botocore ships no types
    def __init__(self) -> None:
        super().__init__()
        constants = {name: ConstantProvider(entry[2]) for name, entry in self.SESSION_VARIABLES.items()}
        self.register_component("config_store", ConfigValueStore(mapping=constants))
        builtin = Loader(extra_search_paths=[Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)
        self.register_component("data_loader", builtin)

    @property
    def full_config(self) -> dict[str, Any]:
        return {"profiles": {}}

    def get_scoped_config(self) -> dict[str, Any]:
        return {}

    def get_credentials(self) -> None:
        return None

    def get_auth_token(self, **_: Any) -> None:
        return None


@functools.cache
def _session() -> Boto3Session:
    # One for all clients, and for the children of a fork: it holds no connection, but megabytes of models once read.
    return Boto3Session(botocore_session=_HermeticSession())


def _new_client(endpoint: str | None, credentials: Credentials) -> Any:
    config = Config(
        signature_version="s3v4",
        # Bucket names with dots or underscores are no host names; only AWS insists on them.
        s3={
            "addressing_style": "path" if endpoint else "auto",
            "use_accelerate_endpoint": False,
            "us_east_1_regional_endpoint": "regional",
        },
        # The newer default checksums make other stores refuse the request.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        use_dualstack_endpoint=False,
        use_fips_endpoint=False,
        ignore_configured_endpoint_urls=True,
        proxies={} if _is_loopback(endpoint) else None,
        # For several downloads at once, each with threads of its own; urllib3 warns of connections above that.
        max_pool_connections=64,
        connect_timeout=10,
        read_timeout=60,
        # Retrying is done in one place, around the whole download.
        retries={"mode": "standard", "total_max_attempts": 1},
    )
    region = credentials.region
    if region == "auto" and endpoint is None:
        region = "us-east-1"
    try:
        client = _session().client(
            "s3",
            region_name=region,
            endpoint_url=endpoint,
            aws_access_key_id=credentials.key_id,
            aws_secret_access_key=credentials.secret.reveal(),
            config=config,
        )
    except (BotoCoreError, ValueError):
        return None  # its frames hold the secret, so the error stays here
    bound(client)
    return client


def _is_loopback(endpoint: str | None) -> bool:
    host = urllib.parse.urlsplit(endpoint or "").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
