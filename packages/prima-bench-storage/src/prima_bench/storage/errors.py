"""What storage raises. Every error says what failed, for which URI, and (in ``hint``) what to do about it.

::

    StorageError             root; exit code 4
    ├── AddressError         a URI, or the sha256 and size that pin it, has the wrong form
    ├── SettingsError        an environment variable or .env file that cannot be used
    │   └── CredentialsError no HMAC keypair, or half of one
    ├── OfflineError         the network is needed and PRIMA_BENCH_OFFLINE forbids it
    ├── NotFoundError        nothing lies at the URI
    ├── AccessError          the store or the file system refuses to let us read it
    ├── TransferError        the bytes could not be brought over; trying again may help
    ├── IntegrityError       bytes came, and they are not the pinned ones
    ├── ManifestError        a manifest that is none
    ├── ConflictError        other bytes lie already where something was to be published
    └── CacheError           the cache directory cannot be written
"""


class StorageError(Exception):
    """Root of the storage errors.

    Attributes:
        hint: How to mend it, in one or two sentences; empty when there is nothing to add.
        exit_code: What a command line ends with when this error reaches it.
    """

    exit_code: int = 4

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    @property
    def message(self) -> str:
        """What failed, without the hint."""
        return str(self.args[0])


class AddressError(StorageError):
    """A URI, or the sha256 and size that pin it, has the wrong form."""


class SettingsError(StorageError):
    """An environment variable or a ``.env`` file that cannot be used."""


class CredentialsError(SettingsError):
    """No HMAC keypair is configured, or only half of one."""


class OfflineError(StorageError):
    """The network is needed, and ``PRIMA_BENCH_OFFLINE`` forbids it."""


class NotFoundError(StorageError):
    """Nothing lies at the URI: no such bucket, object, package or file."""


class AccessError(StorageError):
    """The store or the file system refuses to let us read what the URI names."""


class TransferError(StorageError):
    """The bytes could not be brought over; trying again may help."""


class IntegrityError(StorageError):
    """Bytes came, and they are not the ones that the sha256 and size name."""


class ManifestError(StorageError):
    """A manifest, or a part of one, has the wrong form."""


class ConflictError(StorageError):
    """Other bytes lie already where something was to be published; nothing was overwritten."""


class CacheError(StorageError):
    """The cache directory cannot be created, written or read."""
