"""``prima-bench doctor``: what is installed, where things go, and whether the embedded data are whole.

It looks and changes nothing. Whether a secret is there is said; what it is, never.
"""

# ruff: noqa: D301 (a backslash before b keeps the lines of an example together in --help)

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from prima_bench.cli.options import Json
from prima_bench.cli.render import Steps, facts, write, write_json
from prima_bench.metrics.catalog import list_specs
from prima_bench.metrics.errors import MetricError
from prima_bench.storage.cache import Cache
from prima_bench.storage.credentials import KEY_ID, SECRET, Credentials
from prima_bench.storage.errors import CredentialsError, StorageError
from prima_bench.storage.fetching import fetch
from prima_bench.storage.settings import find_dotenv, offline, setting
from prima_bench.tasks import registry
from prima_bench.tasks.errors import IncomparableError

_OURS = ("prima-bench", "prima-bench-cli", "prima-bench-metrics", "prima-bench-storage", "prima-bench-tasks")
_THEIRS = ("torch", "torchmetrics", "anndata", "numpy", "pandas", "scipy", "scikit-learn", "h5py", "boto3")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: What.
        state: ``"ok"``, ``"note"`` (nothing is wrong, but know it) or ``"failed"``.
        detail: What was found.
    """

    check: str
    state: Literal["ok", "note", "failed"]
    detail: str


def doctor(as_json: Json = False) -> None:
    """Check the installation; ends with 6 when something is wrong.

    Shows versions, the device that metrics run on, the cache folder and whether credentials are set (never their
    values); verifies the datasets inside the package; names plugins that cannot be read.

    \b
    Examples:
      prima-bench doctor
      prima-bench doctor --json
    """
    with Steps() as steps:
        steps("looking")
        findings = [*_versions(), *_device(), *_storage(), *_data(), *_plugins()]
    if as_json:
        write_json([asdict(finding) for finding in findings])
    else:
        write(facts((f"{f.state:<6}  {f.check}", f.detail) for f in findings))
    failed = [f.check for f in findings if f.state == "failed"]
    if failed:
        raise IncomparableError(f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)}")


def _versions() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform(terse=True)}")
    for names, label in ((_OURS, "prima-bench"), (_THEIRS, "libraries")):
        found = {name: _version(name) for name in names}
        absent = [name for name, version in found.items() if version is None]
        detail = ", ".join(f"{name} {version}" for name, version in found.items() if version is not None)
        yield Finding(label, "ok", detail)
        if absent:
            yield Finding(label, "note", f"not installed: {', '.join(absent)}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device() -> Iterator[Finding]:
    from prima_bench.metrics.device import resolve_device

    wish = os.environ.get("PRIMA_BENCH_DEVICE")
    try:
        device = resolve_device()
    except MetricError as error:
        yield Finding("device", "failed", _said(error))
    else:
        yield Finding("device", "ok", f"{device}, {'by PRIMA_BENCH_DEVICE' if wish else 'chosen by itself'}")


def _storage() -> Iterator[Finding]:
    try:
        root = Cache.from_environment().root
        writable = os.access(_nearest_existing(root), os.W_OK)
        where = f"{root}{'' if root.exists() else ' (not made yet)'}"
        yield Finding("cache", "ok" if writable else "note", where if writable else f"{where} cannot be written")
        dotenv = find_dotenv()
        yield Finding(
            ".env", "note" if dotenv is None else "ok", "none in this project" if dotenv is None else str(dotenv)
        )
        present = ", ".join(f"{name}: {'yes' if setting(name) else 'no'}" for name in (KEY_ID, SECRET))
        yield Finding("network", "ok", "off, by PRIMA_BENCH_OFFLINE" if offline() else "allowed")
    except StorageError as error:
        yield Finding("settings", "failed", _said(error))
        return
    try:
        Credentials.from_environment()
    except CredentialsError as error:
        half = setting(KEY_ID) or setting(SECRET)
        detail = str(error.args[0]) if half else "none; only datasets in object storage need them"
        yield Finding("credentials", "failed" if half else "note", f"{detail}\n{present}")
    else:
        yield Finding("credentials", "ok", present)


def _nearest_existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _said(error: MetricError | StorageError) -> str:
    return f"{error.args[0]}. {error.hint}" if error.hint else str(error.args[0])


def _data() -> Iterator[Finding]:
    for key in registry.list_datasets():
        artifacts = [a for a in registry.get_dataset(key).spec.artifacts if a.uri.startswith("package://")]
        try:
            for artifact in artifacts:
                fetch(artifact.uri, sha256=artifact.sha256, size=artifact.size)
        except StorageError as error:
            yield Finding(key, "failed", _said(error))
        else:
            if artifacts:
                yield Finding(key, "ok", f"{len(artifacts)} embedded files verified by sha256")
            else:
                yield Finding(key, "note", "not embedded: fetched and verified when first used")


def _plugins() -> Iterator[Finding]:
    broken = registry.broken_modules()
    yield Finding(
        "registry",
        "ok",
        f"{len(registry.list_tasks())} tasks, {len(registry.list_datasets())} datasets, {len(list_specs())} metrics",
    )
    for module in broken:
        yield Finding(module.module, "failed", module.reason)
