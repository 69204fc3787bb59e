"""What people and stores may do to hurt: an error of ours, without a secret, and nothing foreign is touched."""

import contextlib
import json
import traceback
from pathlib import Path
from random import Random
from typing import Any

import pytest

from prima_bench.storage import (
    AccessError,
    AddressError,
    Cache,
    Credentials,
    HostedDataset,
    IntegrityError,
    ManifestError,
    SettingsError,
    StorageError,
    fetch,
)
from prima_bench.storage.cache import upkeep
from prima_bench.storage.cache.layout import STAMP
from prima_bench.storage.client import object_client
from prima_bench.storage.credentials import REGION
from prima_bench.storage.fetching import fetch_content
from prima_bench.storage.manifest import publish as publishing
from prima_bench.storage.manifest.model import MAX_BYTES, Manifest
from prima_bench.storage.manifest.names import check_relative_path
from prima_bench.storage.uri import parse_uri

# urllib3 leaves a connection open where a server breaks the protocol; nothing else is let through.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")

URI = "gs://bucket/key"


def told(error: BaseException) -> str:
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


@pytest.mark.parametrize("region", ["a/b", "no.region!", "-", "x" * 100, "é"])
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_region_that_is_none(keypair: Credentials, content: Any, monkeypatch, scheme: str, region: str) -> None:
    monkeypatch.setenv(REGION, region)
    with pytest.raises(SettingsError, match=REGION) as caught:
        fetch_content(f"{scheme}://bucket/key", content(b"data"))
    assert caught.value.hint
    assert caught.value.__context__ is None
    shown = told(caught.value)
    assert keypair.secret.reveal() not in shown


@pytest.mark.parametrize("url", ["http://[::1", "http://a b", "http://host:port", "http://host:99999", "http://a_b.c!"])
def test_an_endpoint_that_cannot_be_one(keypair: Credentials, content: Any, monkeypatch, url: str) -> None:
    monkeypatch.setenv("PRIMA_BENCH_GCS_ENDPOINT_URL", url)
    with pytest.raises(StorageError, match=r"PRIMA_BENCH_GCS_ENDPOINT_URL") as caught:
        fetch_content(URI, content(b"data"))
    assert caught.value.__context__ is None
    shown = told(caught.value)
    assert keypair.secret.reveal() not in shown


@pytest.mark.parametrize(
    "headers",
    [
        {"Last-Modified": "yesterday"},
        {"Content-Length": "many"},
        {"x-amz-missing-meta": "some"},
        {"Expires": "x"},
        {"x-amz-mp-parts-count": "\u00e9"},
    ],
)
@pytest.mark.parametrize("status", [206, 200])
def test_an_answer_whose_headers_are_nonsense(
    faulty, fault, keypair, content: Any, status: int, headers: dict[str, str]
) -> None:
    faulty.objects["/bucket/key"] = b"data"
    faulty.script = lambda request: fault(headers=headers, whole=status == 200)
    # Some are of no consequence.
    with contextlib.suppress(StorageError):
        assert fetch_content(URI, content(b"data")).read_bytes() == b"data"
        return
    with pytest.raises(StorageError) as caught:
        fetch_content(URI, content(b"data"))
    assert caught.value.hint
    assert caught.value.__context__ is None
    shown = told(caught.value)
    assert keypair.secret.reveal() not in shown


def test_a_body_in_chunks_is_counted_too(faulty, fault, content: Any) -> None:
    faulty.objects["/bucket/key"] = b"data" * 1000
    faulty.script = lambda request: fault(chunked=True)
    assert fetch_content(URI, content(b"data" * 1000)).read_bytes() == b"data" * 1000
    faulty.objects["/bucket/key"] = b"datadatadata"
    faulty.script = lambda request: fault(chunked=True, body=b"data" * 1001)
    with pytest.raises(IntegrityError, match="more than the 12 bytes"):
        fetch_content(URI, content(b"datadatadata"))


def test_one_connection_serves_many_ranges(faulty, content: Any) -> None:
    data = Random(13).randbytes(100_000)  # noqa: S311 - seeded data
    faulty.objects["/bucket/key"] = data
    assert fetch_content(URI, content(data, part_size=2_000)).read_bytes() == data
    from prima_bench.storage.transfer.pool import THREADS

    assert len(faulty.requests) == 50
    assert len({request.peer for request in faulty.requests}) <= THREADS


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    cache = Cache(tmp_path / "cache")
    cache.layout.create(cache.layout.blobs)
    return cache


@pytest.mark.parametrize("where", ["blobs/ab", "partial", "quarantine", "locks", "views", "blobs"])
def test_cleaning_leaves_alone_what_a_link_leads_to(cache: Cache, tmp_path: Path, where: str) -> None:
    home = tmp_path / "home"
    (home / "ab").mkdir(parents=True)
    for path in (home / "thesis.tex", home / "ab" / "thesis.tex", home / f"{'a' * 64}.tex"):
        path.write_text("years of work")
    link = cache.root / "v1" / where
    if link.is_dir():
        link.rmdir()
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(home, target_is_directory=True)
    upkeep.check_is_cache(cache)
    assert upkeep.damaged(cache) == []
    assert upkeep.remove(cache, upkeep.removable(cache, everything=True)) == []
    assert len([path for path in home.rglob("*") if path.is_file()]) == 3


def test_the_tag_is_not_written_through_a_link(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.root.mkdir()
    (cache.root / "CACHEDIR.TAG").symlink_to(tmp_path / "elsewhere")
    cache.layout.create(cache.layout.blobs)
    assert not (tmp_path / "elsewhere").exists()


def test_a_damaged_file_gives_its_room_back(cache: Cache, content: Any) -> None:
    from prima_bench.storage.cache.partial import VerifiedParts

    wanted = content(b"data")
    with VerifiedParts(cache.layout, wanted, uri=URI) as file:
        file.write(next(wanted.parts()), memoryview(b"data"))
        path = file.publish()
    view = cache.view("sim@1.0.0-abc", "train.h5ad", path)
    path.chmod(0o600)
    path.write_bytes(b"dat?")
    assert cache.find(wanted) is None
    upkeep.remove(cache, upkeep.removable(cache))
    assert not view.exists()


def test_a_manifest_that_is_damaged_on_the_disk_is_not_believed(faulty, tmp_path: Path, monkeypatch) -> None:
    import os

    (tmp_path / "file").write_bytes(b"data")
    manifest = publishing.describe("sim", "1.0.0", {"file": tmp_path / "file"}, licence="MIT")
    data = manifest.to_bytes()
    faulty.objects["/bucket/sim/1.0.0/manifest.json"] = data
    monkeypatch.setenv("PRIMA_BENCH_DATA_ROOT", "gs://bucket")
    hosted = HostedDataset("sim", "1.0.0", manifest.sha256, len(data))
    assert hosted.manifest() == manifest
    path = Cache.from_environment().path(manifest.sha256)
    path.chmod(0o600)
    path.write_bytes(data.replace(b'"MIT"', b'"BSD"'))
    os.utime(path, (STAMP, STAMP))
    with pytest.raises(IntegrityError):
        hosted.manifest()


@pytest.mark.parametrize("name", ["PRIMA_BENCH_CACHE_DIR", "PRIMA_BENCH_SHARED_CACHE_DIR"])
@pytest.mark.parametrize("value", ["~nobody-of-that-name/cache", "a\0b"])
def test_a_cache_that_is_no_folder_of_ours(isolated: Path, monkeypatch, name: str, value: str) -> None:
    monkeypatch.delenv(name, raising=False)
    Path(".env").write_text(f"{name}={value}\n")
    with pytest.raises(SettingsError, match=name) as caught:
        fetch("gs://bucket/key", sha256="0" * 64, size=1)
    assert caught.value.message.isprintable()
    assert [path.name for path in Path.cwd().iterdir()] == [".env"]


def test_a_shared_cache_gives_names_that_people_know(faulty, isolated: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "train.h5ad").write_bytes(b"train")
    manifest = publishing.describe("sim", "1.0.0", {"train.h5ad": tmp_path / "train.h5ad"}, licence="MIT")
    folder = "/prima-mente-benchmark/sim/1.0.0"
    faulty.objects |= {f"{folder}/manifest.json": manifest.to_bytes(), f"{folder}/train.h5ad": b"train"}
    hosted = HostedDataset("sim", "1.0.0", manifest.sha256, len(manifest.to_bytes()))
    first = hosted.fetch("train.h5ad")
    monkeypatch.setenv("PRIMA_BENCH_SHARED_CACHE_DIR", str(isolated))
    monkeypatch.setenv("PRIMA_BENCH_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("PRIMA_BENCH_OFFLINE", "1")
    before = sorted(isolated.rglob("*"))
    assert hosted.fetch("train.h5ad") == first
    # Where whoever fills it has no such name, or another file under it, the file itself is as good.
    first.unlink()
    for _ in range(2):
        assert hosted.fetch("train.h5ad").read_bytes() == b"train"
        first.write_bytes(b"other")
    assert sorted(isolated.rglob("*")) == before
    assert not (tmp_path / "own").exists()


LONG = "x" * 3_000_000


def manifest_of(artifacts: list[dict[str, object]]) -> bytes:
    fields = {"schema": "prima-bench/dataset-manifest", "schema_version": "1.0", "name": "sim", "version": "1.0.0"}
    return json.dumps(fields | {"part_size": 1 << 24, "artifacts": artifacts}).encode()


def test_many_keys_of_which_the_last_is_there_twice() -> None:
    keys = [f'"{i}":1' for i in range(800_000)]
    data = ("{" + ",".join([*keys, keys[-1]]) + "}").encode()
    assert len(data) < MAX_BYTES
    with pytest.raises(ManifestError, match="'799999' is there twice"):
        Manifest.parse(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"sha256": LONG},
        {"uri": LONG, "sha256": "0"},
        {"uri": LONG, "parts": ["0" * 64] * 2},
        {"uri": f"gs://bucket/{LONG}"},
        {"uri": f"gs://{LONG}/key"},
        {"uri": f"gs://bucket/{LONG}\x9b"},
        {"uri": "gs://bucket/" + "\U0010ffff" * 300},
        {"name": LONG},
        {"format": LONG},
        {"licence": LONG},
        {LONG: 1},
    ],
    ids=lambda changes: " ".join(key[:10] for key in changes),
)
def test_an_error_does_not_repeat_all_of_a_long_text(changes: dict[str, object]) -> None:
    artifact = {"name": "a", "uri": "a", "sha256": "0" * 64, "size": 5, "parts": ["0" * 64]}
    artifact |= {"format": "h5ad", "licence": "MIT"} | changes
    with pytest.raises(ManifestError) as caught:
        Manifest.parse(manifest_of([artifact]))
    assert len(str(caught.value)) < 1000


def test_names_are_not_nested_without_end() -> None:
    with pytest.raises(ManifestError, match="folders"):
        check_relative_path("/".join("a" * 33), "artifact")
    assert check_relative_path("/".join("a" * 32), "artifact")
    deep = "/".join("a" * 31)
    artifact = {"uri": "a", "sha256": "0" * 64, "size": 5, "parts": ["0" * 64], "format": "h5ad", "licence": "MIT"}
    with pytest.raises(ManifestError, match="is a file and a folder"):
        Manifest.parse(manifest_of([artifact | {"name": deep}, artifact | {"name": f"{deep}/b"}]))


@pytest.mark.parametrize("uri", ["gs://bucket/a\x9b2Jb", "file:///a%C2%9B2Jb", "package://prima_bench.tasks/a\x85b"])
def test_codes_for_terminals_are_refused(uri: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_uri(uri)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("uri", ["file:///" + "a" * 300, "package://prima_bench.storage/" + "a" * 300])
def test_a_path_that_no_disk_takes(uri: str) -> None:
    with pytest.raises(AccessError):
        fetch(uri, sha256="0" * 64, size=1)


def test_a_client_does_not_show_its_keys(keypair: Credentials) -> None:
    client = object_client("gs", keypair)
    for shown in (repr(client), repr(client.meta), repr(client.meta.config), json.dumps(str(vars(client)))):
        assert keypair.secret.reveal() not in shown
