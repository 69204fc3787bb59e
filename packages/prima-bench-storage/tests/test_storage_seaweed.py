"""Against SeaweedFS, a real store that checks signatures and dates, directly and behind the manners of GCS."""

import datetime
import time
from pathlib import Path
from random import Random
from typing import Any

import botocore.auth
import pytest
from botocore.exceptions import ClientError

from prima_bench.storage import (
    AccessError,
    ConflictError,
    Credentials,
    HostedDataset,
    IntegrityError,
    NotFoundError,
    OfflineError,
    TransferError,
    fetch,
)
from prima_bench.storage.client import object_client
from prima_bench.storage.content import PART_SIZE
from prima_bench.storage.credentials import KEY_ID, SECRET
from prima_bench.storage.fetching import fetch_content
from prima_bench.storage.manifest import publish as publishing
from prima_bench.storage.manifest.roots import Root
from prima_bench.storage.transfer import upload
from prima_bench.storage.transfer.retry import Failure
from prima_bench.storage.uri import ObjectUri

SMALL = b"a few bytes\n"
LARGE = Random(8).randbytes(2 * PART_SIZE + 5)  # noqa: S311 - seeded data


def client() -> Any:
    return object_client("gs", Credentials.from_environment())


def put(bucket: str, key: str, data: bytes, **more: str) -> str:
    client().put_object(Bucket=bucket, Key=key, Body=data, ContentType="application/octet-stream", **more)
    return f"gs://{bucket}/{key}"


@pytest.mark.parametrize("key", ["plain", "with space/ü+&=%20.h5ad", "a..b/c~d"])
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_put_and_get(bucket: str, content, scheme: str, key: str) -> None:
    uri = put(bucket, key, SMALL + key.encode()).replace("gs://", f"{scheme}://")
    wanted = content(SMALL + key.encode())
    assert fetch(uri, sha256=wanted.sha256, size=wanted.size).read_bytes() == SMALL + key.encode()
    listed = client().list_objects_v2(Bucket=bucket)
    assert [entry["Key"] for entry in listed["Contents"]] == [key]


@pytest.mark.parametrize("by_part", [True, False])
def test_ranges_of_a_large_object(bucket: str, content, by_part: bool) -> None:
    uri = put(bucket, "large", LARGE)
    assert fetch_content(uri, content(LARGE, by_part=by_part)).read_bytes() == LARGE


@pytest.mark.parametrize("by_part", [True, False])
def test_an_object_that_was_uploaded_in_pieces(
    bucket: str, content, tmp_path: Path, monkeypatch, by_part: bool
) -> None:
    monkeypatch.setattr(upload, "SINGLE", 1 << 20)
    (tmp_path / "large").write_bytes(LARGE)
    address = ObjectUri("gs", bucket, "large")
    upload.put(client(), address, tmp_path / "large", content(LARGE))
    assert "-" in client().get_object(Bucket=bucket, Key="large", Range="bytes=0-0")["ETag"]
    assert upload.lies_there(client(), address, content(LARGE))
    assert fetch_content(str(address), content(LARGE, by_part=by_part)).read_bytes() == LARGE


def test_a_file_that_changes_while_it_is_published(bucket: str, content, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(upload, "SINGLE", 1 << 20)
    (tmp_path / "large").write_bytes(LARGE[:-1] + b"x")
    with pytest.raises(IntegrityError, match="the file for gs://"):
        upload.put(client(), ObjectUri("gs", bucket, "large"), tmp_path / "large", content(LARGE))
    assert "Contents" not in client().list_objects_v2(Bucket=bucket)
    assert not client().list_multipart_uploads(Bucket=bucket).get("Uploads")


@pytest.mark.parametrize("by_part", [True, False])
def test_a_download_resumes(bucket: str, content, isolated: Path, monkeypatch, by_part: bool) -> None:
    uri = put(bucket, "large", LARGE)
    wanted = content(LARGE, by_part=by_part)
    from prima_bench.storage.transfer import parts

    honest, asked = parts.read_range, []

    def kept() -> int:
        return sum(path.stat().st_blocks * 512 for path in (isolated / "v1" / "partial").iterdir())

    def cut_at_the_end(source, arriving, *rest):
        if arriving.part.start != 2 * PART_SIZE:
            return honest(source, arriving, *rest)
        while kept() < 2 * PART_SIZE:
            time.sleep(0.01)
        return Failure(TransferError("cut"))

    monkeypatch.setattr(parts, "read_range", cut_at_the_end)
    with pytest.raises(TransferError, match="cut"):
        fetch_content(uri, wanted)
    asked.clear()
    monkeypatch.setattr(parts, "read_range", lambda *a: (asked.append((a[1].part.start, a[2])), honest(*a))[1])
    assert fetch_content(uri, wanted).read_bytes() == LARGE
    assert [start for start, _ in asked] == [2 * PART_SIZE]
    if not by_part:
        assert asked[0][1] == client().get_object(Bucket=bucket, Key="large", Range="bytes=0-0")["ETag"]


def test_a_wrong_key_a_wrong_secret_and_a_wrong_clock(bucket: str, content, monkeypatch) -> None:
    uri, wanted = put(bucket, "key", SMALL), content(SMALL)
    with monkeypatch.context() as patched:
        patched.setenv(KEY_ID, "GOOGNOBODY")
        with pytest.raises(AccessError, match=r"403 InvalidAccessKeyId") as caught:
            fetch_content(uri, wanted)
        assert KEY_ID in caught.value.hint
    with monkeypatch.context() as patched:
        patched.setenv(SECRET, "wrong-secret")
        with pytest.raises(AccessError, match=r"403 SignatureDoesNotMatch") as caught:
            fetch_content(uri, wanted)
        assert SECRET in caught.value.hint
        assert "wrong-secret" not in str(caught.value)
    with monkeypatch.context() as patched:
        now = botocore.auth.get_current_datetime
        patched.setattr(botocore.auth, "get_current_datetime", lambda *a, **k: now() - datetime.timedelta(hours=3))
        with pytest.raises(AccessError, match=r"403 RequestTimeTooSkewed") as caught:
            fetch_content(uri, wanted)
        assert "clock" in caught.value.hint
    assert fetch_content(uri, wanted).read_bytes() == SMALL


def test_a_missing_bucket_and_a_missing_object(bucket: str, content) -> None:
    for uri, code in ((f"gs://{bucket}/nothing", "NoSuchKey"), ("gs://no-such-bucket/key", "NoSuchBucket")):
        with pytest.raises(NotFoundError, match=f"{uri}: the store answers 404 {code}") as caught:
            fetch_content(uri, content(SMALL))
        assert caught.value.hint


def test_who_may_only_read_reads(bucket: str, content, reader, tmp_path: Path, monkeypatch) -> None:
    uri = put(bucket, "key", SMALL)
    for name, value in reader.items():
        monkeypatch.setenv(name, value)
    assert fetch_content(uri, content(SMALL)).read_bytes() == SMALL
    (tmp_path / "file").write_bytes(SMALL)
    manifest = publishing.describe("sim", "1.0.0", {"file": tmp_path / "file"}, licence="CC0-1.0")
    with pytest.raises(AccessError, match="403"):
        publishing.publish(manifest, {"file": tmp_path / "file"}, Root(f"gs://{bucket}"))


def test_what_gcs_does_to_other_clients(gcs_like, content, isolated: Path, monkeypatch, seaweed_url: str) -> None:
    import boto3

    ours = {KEY_ID: "GOOGSEAWEEDTESTS", SECRET: "s3cr3t/of+the=real$server"}
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PRIMA_BENCH_GCS_ENDPOINT_URL", gcs_like.url)
    client().create_bucket(Bucket="gcs.manners")
    usual = boto3.client(
        "s3",
        endpoint_url=gcs_like.url,
        region_name="auto",
        aws_access_key_id=ours[KEY_ID],
        aws_secret_access_key=ours[SECRET],
    )
    # boto3 as it comes adds checksums of AWS's own, and asks with HEAD before it reads.
    gcs_like.seen.clear()
    usual.put_object(Bucket="gcs.manners", Key="key", Body=SMALL)
    assert any("checksum" in name for name in gcs_like.seen[0][1])
    with pytest.raises(ClientError, match="403"):
        usual.download_file("gcs.manners", "key", str(isolated.parent / "copy"))
    gcs_like.seen.clear()
    uri = put("gcs.manners", "key", SMALL)
    assert fetch_content(uri, content(SMALL)).read_bytes() == SMALL
    assert [method for method, _ in gcs_like.seen] == ["PUT", "GET"]
    assert not [name for _, headers in gcs_like.seen for name in headers if "checksum" in name or "trailer" in name]
    assert not any("accept-encoding" in headers["authorization"] for _, headers in gcs_like.seen)


def test_an_object_that_gcs_unpacks_is_refused(bucket: str, content) -> None:
    import gzip

    packed = gzip.compress(SMALL * 100, mtime=0)
    uri = put(bucket, "packed", packed, ContentEncoding="gzip")
    for data in (packed, SMALL * 100):
        with pytest.raises(IntegrityError):
            fetch_content(uri, content(data))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "files"
    folder.mkdir()
    made = {"train.h5ad": LARGE, "test.h5ad": SMALL, "more/labels.csv": b"", "anchors.json": b"{}"}
    for i, data in enumerate(made.values()):
        (folder / str(i)).write_bytes(data)
    return {name: folder / str(i) for i, name in enumerate(made)}


def test_a_version_is_published_once_and_fetched_by_its_manifest(
    bucket: str, files: dict[str, Path], isolated: Path, monkeypatch, caplog
) -> None:
    manifest = publishing.describe("sim", "1.0.0", files, licence="CC-BY-4.0")
    root = Root.parse(f"gs://{bucket}/deep/er/")
    steps: list[str] = []
    uris = publishing.publish(manifest, files, root, steps.append)
    assert uris == [f"{root.uri}/sim/1.0.0/{name}" for name in [*sorted(files), "manifest.json"]]
    listed = client().list_objects_v2(Bucket=bucket)["Contents"]
    assert sorted(f"gs://{bucket}/{entry['Key']}" for entry in listed) == sorted(uris)
    assert steps[-2:] == [f"uploading {uris[-1]}", f"reading back {uris[-1]}"]
    # Again: the same bytes are left as they are.
    times = {entry["Key"]: entry["LastModified"] for entry in listed}
    again: list[str] = []
    assert publishing.publish(manifest, files, root, again.append) == uris
    assert not any(step.startswith("uploading") for step in again)
    assert {e["Key"]: e["LastModified"] for e in client().list_objects_v2(Bucket=bucket)["Contents"]} == times
    # From a root that has nothing, and then from its mirror.
    hosted = HostedDataset("sim", "1.0.0", manifest.sha256, len(manifest.to_bytes()))
    monkeypatch.setenv("PRIMA_BENCH_DATA_ROOT", f"s3://{bucket}/nothing/here")
    with pytest.raises(NotFoundError):
        hosted.manifest()
    monkeypatch.setenv("PRIMA_BENCH_DATA_MIRRORS", f"gs://no-such-bucket, {root.uri}")
    assert hosted.manifest() == manifest
    assert " instead" in caplog.text
    paths = {name: hosted.fetch(name) for name in files}
    for name, path in paths.items():
        assert path.read_bytes() == files[name].read_bytes()
        assert path.as_posix().endswith(f"/sim@1.0.0-{manifest.sha256[:12]}/{name}")
    # And again without keypair, network or write.
    monkeypatch.delenv(KEY_ID)
    monkeypatch.setenv("PRIMA_BENCH_OFFLINE", "1")
    monkeypatch.setenv("PRIMA_BENCH_GCS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert {name: hosted.fetch(name) for name in files} == paths
    with pytest.raises(OfflineError):
        HostedDataset("sim", "1.0.1", manifest.sha256, 17).manifest()
    with pytest.raises(OfflineError):
        publishing.publish(manifest, files, root)


def test_a_version_with_other_bytes_is_never_overwritten(bucket: str, files: dict[str, Path]) -> None:
    root = Root(f"gs://{bucket}")
    manifest = publishing.describe("sim", "1.0.0", files, licence="CC0-1.0")
    publishing.publish(manifest, files, root)
    before = {e["Key"]: e["ETag"] for e in client().list_objects_v2(Bucket=bucket)["Contents"]}
    files["test.h5ad"].write_bytes(b"other bytes\n")
    for licence in ("CC0-1.0", "MIT"):
        other = publishing.describe("sim", "1.0.0", files, licence=licence)
        with pytest.raises(ConflictError, match="other bytes lie there already") as caught:
            publishing.publish(other, files, root)
        assert "new version" in caught.value.hint
    assert {e["Key"]: e["ETag"] for e in client().list_objects_v2(Bucket=bucket)["Contents"]} == before


def test_a_stray_object_in_the_way_is_not_overwritten_either(bucket: str, files: dict[str, Path]) -> None:
    put(bucket, "sim/1.0.0/test.h5ad", b"not these")
    manifest = publishing.describe("sim", "1.0.0", files, licence="CC0-1.0")
    with pytest.raises(ConflictError):
        publishing.publish(manifest, files, Root(f"gs://{bucket}"))
    keys = [e["Key"] for e in client().list_objects_v2(Bucket=bucket)["Contents"]]
    assert "sim/1.0.0/manifest.json" not in keys


@pytest.mark.parametrize("single", [1 << 26, 1])
def test_two_publishers_at_once(bucket: str, content, tmp_path: Path, monkeypatch, single: int) -> None:
    monkeypatch.setattr(upload, "SINGLE", single)
    # Both found nothing there; the second upload is refused by the store, and reading back tells it.
    address = ObjectUri("gs", bucket, "key")
    for name in (b"first", b"other"):
        (tmp_path / "file").write_bytes(name)
        upload.put(client(), address, tmp_path / "file", content(name))
    assert upload.lies_there(client(), address, content(b"first"))
    with pytest.raises(ConflictError):
        upload.lies_there(client(), address, content(b"other"))
