"""The HMAC keypair for object stores: where it comes from, and how it is kept out of everything that is printed.

It comes from three variables of prima-bench's own and from nowhere else. ``AWS_*`` variables, AWS configuration files,
profiles and instance roles are never looked at.
"""

import re
from dataclasses import dataclass, field

from prima_bench.storage.errors import CredentialsError
from prima_bench.storage.settings import setting

KEY_ID = "HMAC_BOTO_PRIMA_MENTE_BENCHMARK_KEY_ID"
SECRET = "HMAC_BOTO_PRIMA_MENTE_BENCHMARK_SECRET"  # noqa: S105 - the name of a variable
REGION = "HMAC_BOTO_PRIMA_MENTE_BENCHMARK_REGION"

_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_HINT = (
    f"Set {KEY_ID} and {SECRET} in the environment or in a .env file of your project (copy .env.example). "
    "Create a keypair with 'gcloud storage hmac create SERVICE_ACCOUNT_EMAIL'. AWS_* variables are never used."
)


class Secret:
    """A string that shows itself only when asked.

    >>> Secret("hunter2")
    Secret(***)
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str:
        raise TypeError("a secret is not stored")

    def reveal(self) -> str:
        """The string itself; call it only in the argument list of what signs requests."""
        return self._value


@dataclass(frozen=True, slots=True)
class Credentials:
    """An HMAC keypair for S3-compatible stores.

    Attributes:
        key_id: The access id; public.
        secret: The secret, wrapped.
        region: What requests are signed for; ``"auto"`` lets the store's address decide.
    """

    key_id: str
    secret: Secret = field(repr=False)
    region: str = "auto"

    @classmethod
    def from_environment(cls) -> "Credentials":
        """The keypair that the environment or the project's ``.env`` configures.

        Raises:
            CredentialsError: If none is configured, or half of one, or one that cannot be a keypair.
        """
        # Each is asked for once: the file may be edited meanwhile. Wrapped: a traceback may show this frame.
        found = {name: Secret(setting(name) or "") for name in (KEY_ID, SECRET, REGION)}
        missing = [name for name in (KEY_ID, SECRET) if not found[name].reveal()]
        if len(missing) == 2:
            raise CredentialsError("no HMAC keypair is configured for object storage", hint=_HINT)
        if missing:
            raise CredentialsError(f"the HMAC keypair is half set: {missing[0]} is missing", hint=_HINT)
        for name, value in found.items():
            if not _PRINTABLE.fullmatch(value.reveal() or "auto"):
                raise CredentialsError(f"{name} holds blanks or characters that no key has", hint=_HINT)
        return cls(found[KEY_ID].reveal(), found[SECRET], found[REGION].reveal() or "auto")
