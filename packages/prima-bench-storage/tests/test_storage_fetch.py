"""Fetching from a store over real HTTP: what arrives, what is kept, what is asked for and in which order."""

import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from prima_bench.storage import (
    AccessError,
    CacheError,
    Credentials,
    CredentialsError,
    IntegrityError,
    NotFoundError,
    OfflineError,
    StorageError,
    TransferError,
    fetch,
)
from prima_bench.storage.credentials import KEY_ID, SECRET

Put = Callable[[str, bytes], str]
DATA = bytes(range(256)) * 12_000 + b"tail"


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_an_object_arrives_verified_and_stays(store: Put, pin, isolated: Path, monkeypatch, scheme: str) -> None:
    wanted = pin(DATA + scheme.encode())
    uri = store("folder/with space/ü.bin", wanted.data).replace("gs://", f"{scheme}://")
    path = fetch(uri, sha256=wanted.sha256, size=wanted.size)
    assert path.read_bytes() == wanted.data
    assert files(isolated) == ["CACHEDIR.TAG", f"v1/blobs/{wanted.sha256[:2]}/{wanted.sha256}"]
    assert path.stat().st_mode & 0o222 == 0
    # A hit needs no keypair, no network and no boto3.
    monkeypatch.delenv(KEY_ID)
    monkeypatch.delenv(SECRET)
    monkeypatch.setenv("PRIMA_BENCH_OFFLINE", "1")
    monkeypatch.setenv("PRIMA_BENCH_GCS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert fetch(uri, sha256=wanted.sha256, size=wanted.size) == path


def test_an_empty_object(store: Put, pin) -> None:
    empty = pin(b"")
    assert fetch(store("empty", b""), sha256=empty.sha256, size=0).read_bytes() == b""


def test_a_missing_object_and_a_missing_bucket(store: Put, pin, isolated: Path) -> None:
    wanted = pin(b"x")
    for uri in ("gs://bucket_of.tests/nothing-here", "gs://no-such-bucket/key"):
        with pytest.raises(NotFoundError, match=uri):
            fetch(uri, sha256=wanted.sha256, size=1)
    assert files(isolated) == ["CACHEDIR.TAG"]


@pytest.mark.parametrize("found", [b"x" * 11, b"x" * 9, b"y" * 10])
def test_other_bytes_under_the_uri(store: Put, pin, isolated: Path, found: bytes) -> None:
    wanted = pin(b"x" * 10)
    with pytest.raises(IntegrityError) as caught:
        fetch(store("changed", found), sha256=wanted.sha256, size=10)
    assert caught.value.hint
    assert caught.value.exit_code == 4
    assert files(isolated) == ["CACHEDIR.TAG"]


def test_without_a_keypair_nothing_is_created(isolated: Path, pin) -> None:
    wanted = pin(b"x")
    with pytest.raises(CredentialsError, match="no HMAC keypair") as caught:
        fetch("gs://bucket/key", sha256=wanted.sha256, size=1)
    assert KEY_ID in caught.value.hint
    assert SECRET in caught.value.hint
    assert "gcloud storage hmac create" in caught.value.hint
    assert not isolated.exists()


def test_offline_is_said_before_the_keypair_is_asked_for(isolated: Path, pin, monkeypatch) -> None:
    monkeypatch.setenv("PRIMA_BENCH_OFFLINE", "yes")
    with pytest.raises(OfflineError, match="PRIMA_BENCH_OFFLINE"):
        fetch("s3://bucket/key", sha256=pin(b"x").sha256, size=1)
    assert not isolated.exists()


def test_a_truncated_cache_entry_is_fetched_again(store: Put, pin) -> None:
    wanted = pin(b"z" * 1000)
    uri = store("again", wanted.data)
    path = fetch(uri, sha256=wanted.sha256, size=1000)
    path.chmod(0o644)
    path.write_bytes(b"z" * 10)
    assert fetch(uri, sha256=wanted.sha256, size=1000).read_bytes() == wanted.data


def test_a_cache_that_cannot_be_created(store: Put, pin, tmp_path: Path, monkeypatch) -> None:
    wanted = pin(b"abc")
    (tmp_path / "a file").write_text("in the way")
    monkeypatch.setenv("PRIMA_BENCH_CACHE_DIR", str(tmp_path / "a file" / "cache"))
    with pytest.raises(CacheError) as caught:
        fetch(store("abc", b"abc"), sha256=wanted.sha256, size=3)
    assert "PRIMA_BENCH_CACHE_DIR" in caught.value.hint


def test_nothing_of_aws_is_obeyed(scripted, reply, pin, tmp_path: Path, monkeypatch) -> None:
    garbage = tmp_path / "config"
    garbage.write_text("[profile decoy\nregion = = moon\n\x00")
    decoys = {
        "AWS_ACCESS_KEY_ID": "AKIADECOY",
        "AWS_SECRET_ACCESS_KEY": "decoy",
        "AWS_SESSION_TOKEN": "decoytoken",
        "AWS_PROFILE": "decoy",
        "AWS_DEFAULT_PROFILE": "decoy",
        "AWS_REGION": "decoy-region-1",
        "AWS_DEFAULT_REGION": "decoy-region-1",
        "AWS_CONFIG_FILE": str(garbage),
        "AWS_SHARED_CREDENTIALS_FILE": str(garbage),
        "AWS_CA_BUNDLE": "/nowhere/bundle.pem",
        "AWS_DATA_PATH": str(tmp_path),
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9/decoy",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9/decoy",
        "AWS_USE_FIPS_ENDPOINT": "true",
        "AWS_USE_DUALSTACK_ENDPOINT": "true",
        "AWS_MAX_ATTEMPTS": "no number",
        "AWS_RETRY_MODE": "decoy",
        "AWS_DEFAULTS_MODE": "auto",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "decoy",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "decoy",
        "AWS_SIGV4A_SIGNING_REGION_SET": "decoy",
        "AWS_AUTH_SCHEME_PREFERENCE": "decoy",
        "AWS_CSM_ENABLED": "true",
        "HOME": str(tmp_path),
    }
    for name, value in decoys.items():
        monkeypatch.setenv(name, value)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(garbage.read_text())
    wanted = pin(b"right")
    scripted.replies = [reply(wanted.data)]
    assert fetch("s3://bucket/key", sha256=wanted.sha256, size=5).read_bytes() == b"right"
    ((path, headers),) = scripted.requests
    assert path == "/bucket/key"
    assert headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=GOOGTESTACCESSID/")
    assert "/auto/s3/aws4_request" in headers["Authorization"]
    assert "decoy" not in json.dumps(headers).lower()
    assert "X-Amz-Security-Token" not in headers


def test_only_aws_keys_are_no_keypair(isolated: Path, pin, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIADECOY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "decoy")
    with pytest.raises(CredentialsError):
        fetch("s3://bucket/key", sha256=pin(b"x").sha256, size=1)


def test_aws_itself_is_the_endpoint_of_s3_uris(keypair: Credentials, monkeypatch) -> None:
    from prima_bench.storage.client import object_client

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9/decoy")
    client = object_client("s3", keypair)
    assert client.meta.endpoint_url == "https://s3.us-east-1.amazonaws.com"
    assert object_client("gs", keypair).meta.endpoint_url == "https://storage.googleapis.com"
    assert object_client("s3", keypair) is client


def test_a_busy_store_is_asked_again(scripted, reply, pin) -> None:
    wanted = pin(DATA)
    scripted.replies = [
        reply(b"<Error><Code>SlowDown</Code></Error>", status=503),
        reply(DATA[:5000], announced=len(DATA)),
        reply(DATA),
    ]
    assert fetch("gs://bucket/key", sha256=wanted.sha256, size=wanted.size).read_bytes() == DATA
    assert len(scripted.requests) == 3


@pytest.mark.parametrize(
    ("answer", "error", "requests"),
    [
        ({"body": b"<Error><Code>SlowDown</Code></Error>", "status": 503}, TransferError, 3),
        ({"body": b"", "status": 500}, TransferError, 3),
        ({"body": b"righ", "announced": 5}, TransferError, 3),
        ({"body": b"wrong"}, IntegrityError, 2),
        ({"body": b"rightright"}, IntegrityError, 1),
        ({"body": b"right", "headers": {"Content-Encoding": "gzip"}}, IntegrityError, 1),
        ({"body": b"<Error><Code>AccessDenied</Code></Error>", "status": 403}, AccessError, 1),
        ({"body": b"<Error><Code>SignatureDoesNotMatch</Code></Error>", "status": 403}, AccessError, 1),
        ({"body": b"<Error><Code>RequestTimeTooSkewed</Code></Error>", "status": 403}, AccessError, 1),
        ({"body": b"", "status": 307, "headers": {"Location": "http://127.0.0.1:9/elsewhere"}}, AccessError, 1),
        ({"body": b"<html>not found</html>", "status": 404}, NotFoundError, 1),
    ],
)
def test_a_misbehaving_store(scripted, reply, pin, isolated: Path, answer, error, requests: int) -> None:
    wanted = pin(b"right")
    scripted.replies = [reply(**answer)]
    with pytest.raises(error) as caught:
        fetch("gs://bucket/key", sha256=wanted.sha256, size=5)
    assert str(caught.value).startswith("gs://bucket/key: ")
    assert len(scripted.requests) == requests
    assert files(isolated) == ["CACHEDIR.TAG"]


def test_no_store_at_the_address(keypair: Credentials, pin, monkeypatch) -> None:
    monkeypatch.setenv("PRIMA_BENCH_S3_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(TransferError) as caught:
        fetch("s3://bucket/key", sha256=pin(b"x").sha256, size=1)
    assert "PRIMA_BENCH_S3_ENDPOINT_URL" in caught.value.hint


@pytest.mark.parametrize("status", [403, 404, 503, 307])
def test_the_secret_is_shown_nowhere(scripted, reply, pin, caplog, keypair: Credentials, status: int) -> None:
    caplog.set_level(logging.DEBUG)
    scripted.replies = [reply(b"", status=status)]
    with pytest.raises(StorageError) as caught:
        fetch("gs://bucket/key", sha256=pin(b"x").sha256, size=1)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    told = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "botocore/client.py" not in told
    sent = json.dumps(scripted.requests)
    for place in (told, caplog.text, repr(keypair), repr(caught.value), sent):
        assert keypair.secret.reveal() not in place
    assert "botocore" in caplog.text


def test_a_half_set_keypair_shows_no_secret(isolated: Path, monkeypatch) -> None:
    monkeypatch.setenv(SECRET, "very-secret-value")
    with pytest.raises(CredentialsError, match=f"half set: {KEY_ID} is missing") as caught:
        Credentials.from_environment()
    told = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "very-secret-value" not in told


def test_processes_at_once_get_one_right_file(store: Put, pin, isolated: Path) -> None:
    wanted = pin(os.urandom(1 << 20))
    uri = store("shared", wanted.data)
    code = (
        "import sys; from prima_bench.storage import fetch; print(fetch(sys.argv[1], sha256=sys.argv[2], size=1 << 20))"
    )
    command = [sys.executable, "-c", code, uri, wanted.sha256]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)]
    told = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0] * 4
    (path,) = told
    assert Path(path).read_bytes() == wanted.data
    assert len(files(isolated)) == 2
