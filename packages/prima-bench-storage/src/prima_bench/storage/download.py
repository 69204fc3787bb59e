"""One object, from a store into a blob. It trusts nothing that the transport says: lengths are compared, encodings are
refused, bytes are counted and hashed by the writer, and every error of the client becomes one of ours.

There is one retry layer, here. botocore's errors are looked at and dropped, never chained: its frames hold the secret.
"""

import contextlib
import random
import time
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, ProxyConnectionError, SSLError

from prima_bench.storage.cache import BlobWriter
from prima_bench.storage.client import ENDPOINT_VARIABLES, object_client
from prima_bench.storage.credentials import KEY_ID, REGION, SECRET, Credentials
from prima_bench.storage.errors import AccessError, IntegrityError, NotFoundError, StorageError, TransferError
from prima_bench.storage.uri import ObjectUri
from prima_bench.storage.verify import CHUNK, check_size


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often to try, and how long to wait in between.

    Attributes:
        attempts: Tries in all.
        first: Seconds before the second try; doubled for each further one, then shortened by up to a half at random.
        longest: Seconds that no wait exceeds.
    """

    attempts: int = 5
    first: float = 0.5
    longest: float = 8.0

    def wait(self, attempt: int) -> float:
        """Seconds to wait after the failed try number ``attempt`` (from 1)."""
        whole = min(self.longest, self.first * 2.0 ** (attempt - 1))
        return whole * random.SystemRandom().uniform(0.5, 1.0)


BACKOFF = Backoff()

_NOT_FOUND = frozenset({"NoSuchKey", "NoSuchBucket", "NoSuchVersion", "NotFound"})
_KEYPAIR = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity", "AuthFailure"})
_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_BUSY = frozenset({"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "TooManyRequests"})


def download(address: ObjectUri, writer: BlobWriter, *, size: int, credentials: Credentials) -> None:
    """Read the whole object into ``writer``.

    Raises:
        NotFoundError: If the object or its bucket does not exist.
        AccessError: If the store refuses the keypair or the read.
        IntegrityError: If the store announces or sends something else than ``size`` plain bytes.
        TransferError: If the store could not be reached or broke off, several times in a row.
        SettingsError: If the endpoint is malformed.
    """
    client = object_client(address.scheme, credentials)
    for attempt in range(1, BACKOFF.attempts + 1):
        failure, again = _attempt(client, address, writer, size)
        if failure is None:
            return
        if not again or attempt == BACKOFF.attempts:
            raise failure
        writer.restart()
        time.sleep(BACKOFF.wait(attempt))


def _attempt(client: Any, address: ObjectUri, writer: BlobWriter, size: int) -> tuple[StorageError | None, bool]:
    # Returns the failure instead of raising it, so that it is raised outside botocore's frames and has no context.
    try:
        response = client.get_object(Bucket=address.bucket, Key=address.key)
        with contextlib.closing(response["Body"]) as body:
            _check_announced(response, address, size)
            while data := body.read(CHUNK):
                writer.write(data)
    except ClientError as error:
        return _refused(address, error)
    except BotoCoreError as error:
        return _broken_off(address, error)
    if writer.written < size:
        return TransferError(f"{address}: broke off after {writer.written} of {size} bytes"), True
    return None, False


def _check_announced(response: dict[str, Any], address: ObjectUri, size: int) -> None:
    encoding = response.get("ContentEncoding") or "identity"
    if encoding != "identity":
        raise IntegrityError(
            f"{address}: is served with Content-Encoding {encoding!r}, so its bytes are not the stored ones",
            hint="Whoever publishes it must upload it without a Content-Encoding.",
        )
    if response.get("ContentLength") is not None:
        check_size(int(response["ContentLength"]), uri=str(address), size=size)


def _refused(address: ObjectUri, error: ClientError) -> tuple[StorageError, bool]:
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(error.response.get("Error", {}).get("Code", ""))
    told = f"the store answers {status}" if code in ("", str(status)) else f"the store answers {status} {code}"
    if status == 404 or code in _NOT_FOUND:
        return NotFoundError(f"{address}: {told}", hint="Check the bucket and the name of the object."), False
    if status in (429, 500, 502, 503, 504) or code in _BUSY:
        return TransferError(f"{address}: {told}", hint="The store is busy; try again later."), True
    if 300 <= status < 400 or code in _REGION:
        hint = f"Set {REGION} to the bucket's region, or check {ENDPOINT_VARIABLES[address.scheme]}."
        return AccessError(f"{address}: {told}", hint=hint), False
    if code == "RequestTimeTooSkewed":
        return AccessError(f"{address}: {told}", hint="Set this machine's clock right."), False
    if code in _KEYPAIR:
        return AccessError(f"{address}: {told}", hint=f"Check {KEY_ID} and {SECRET}."), False
    return AccessError(f"{address}: {told}", hint=f"The keypair in {KEY_ID} may not read this object."), False


def _broken_off(address: ObjectUri, error: BotoCoreError) -> tuple[StorageError, bool]:
    hopeless = isinstance(error, (ProxyConnectionError, SSLError))
    hint = f"Check the network, the proxy variables and {ENDPOINT_VARIABLES[address.scheme]}, then try again."
    return TransferError(f"{address}: {type(error).__name__} while reading from the store", hint=hint), not hopeless
