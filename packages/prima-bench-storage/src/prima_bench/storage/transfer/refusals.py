"""Errors of the client put into ours, with what to do about each.

botocore's errors are looked at and dropped, never chained: its frames hold the secret.
"""

import logging
import re
from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, ProxyConnectionError, SSLError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from prima_bench.storage.client import ENDPOINT_VARIABLES
from prima_bench.storage.credentials import KEY_ID, REGION, SECRET
from prima_bench.storage.errors import AccessError, IntegrityError, NotFoundError, TransferError
from prima_bench.storage.transfer.retry import Failure
from prima_bench.storage.transfer.unreachable import reason
from prima_bench.storage.uri import ObjectUri

_NOT_FOUND = frozenset({"NoSuchKey", "NoSuchBucket", "NoSuchVersion", "NotFound"})
_KEYPAIR = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity", "AuthFailure"})
_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_BUSY = frozenset(
    {
        "ConditionalRequestConflict",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "TooManyRequests",
    }
)
_NEVER = frozenset({501, 505})

# What botocore, dateutil and we ourselves come to over an answer that no store gives: nested without end, without a
# field that it must have, with a date or a number that is none. Not MemoryError and such: no answer is to blame there.
_STUMBLES = (
    ResponseParserError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)

_log = logging.getLogger("prima_bench.storage")

_CODE = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,79}")


def asked(address: ObjectUri, request: Callable[[], Any]) -> Any:
    """The outcome of one request of the client, or the :class:`Failure` that it came to.

    Args:
        address: What it is about.
        request: Makes it.
    """
    try:
        return request()
    except ClientError as error:
        return refused(address, error)
    except (BotoCoreError, HTTPError, OSError) as error:
        return broken_off(address, error)
    except _STUMBLES as error:
        _log.debug("%s: %s over an answer", address, type(error).__name__)
        return nonsense(address)


def refused(address: ObjectUri, refusal: ClientError) -> Failure:
    """What an answer other than success means."""
    status = int(refusal.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(refusal.response.get("Error", {}).get("Code", ""))
    # botocore puts the status there where there is none; and where an error comes with status 200, it is anything.
    code = code if _CODE.fullmatch(code) else ""
    told = f"the store answers {status}" if not code else f"the store answers {status} {code}"
    if status == 404 or code in _NOT_FOUND:
        return Failure(NotFoundError(f"{address}: {told}", hint="Check the bucket and the name of the object."))
    if status == 412:
        hint = "It was replaced while it was read; try again."
        return Failure(TransferError(f"{address}: {told}", hint=hint), None, replaced=True, event="object was replaced")
    if status == 416:
        hint = "The object is shorter than the pin says: it is another one, or an upload that was cut off."
        return Failure(IntegrityError(f"{address}: {told}", hint=hint))
    if status == 407:
        hint = "Put the name and the password for the proxy into the proxy variables."
        return Failure(TransferError(f"{address}: a proxy answers {status}", hint=hint))
    # What stands before a store has numbers of its own, such as 522.
    if status in (408, 425, 429) or (500 <= status < 600 and status not in _NEVER) or code in _BUSY:
        error = TransferError(f"{address}: {told}", hint="The store is busy; try again later.")
        return Failure(error, None, event="store is busy")
    if 300 <= status < 400 or code in _REGION:
        hint = f"Set {REGION} to the bucket's region, or check {ENDPOINT_VARIABLES[address.scheme]}."
        return Failure(AccessError(f"{address}: {told}", hint=hint))
    if code == "RequestTimeTooSkewed":
        return Failure(AccessError(f"{address}: {told}", hint="Set this machine's clock right."))
    if code in _KEYPAIR:
        return Failure(AccessError(f"{address}: {told}", hint=f"Check {KEY_ID} and {SECRET}."))
    hint = f"The keypair in {KEY_ID} may not do this."
    if status not in (401, 403):
        hint = f"Check {ENDPOINT_VARIABLES[address.scheme]}, and what the keypair in {KEY_ID} may do there."
    return Failure(AccessError(f"{address}: {told}", hint=hint))


def nonsense(address: ObjectUri) -> Failure:
    """What an answer means that botocore cannot read, such as a date or a number that is none."""
    hint = f"Check {ENDPOINT_VARIABLES[address.scheme]}: what answers there is no store, or a proxy garbles it."
    return Failure(TransferError(f"{address}: the answer is none that a store gives", hint=hint))


def broken_off(address: ObjectUri, error: Exception) -> Failure:
    """What a request without an answer means."""
    hopeless = isinstance(error, (ProxyConnectionError, SSLError))
    hint = f"Check the network, the proxy variables and {ENDPOINT_VARIABLES[address.scheme]}, then try again."
    if isinstance(error, SSLError):
        hint += (
            " REQUESTS_CA_BUNDLE may name a file with the certificates to trust, such as those of your organisation."
        )
    return Failure(TransferError(f"{address}: {reason(error)}", hint=hint), 1 if hopeless else None, event="no answer")
