"""Manifests: what is written is read back alike, and everything else is refused before it can lead anywhere."""

import copy
import json
import re
import string
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prima_bench.storage import (
    Cache,
    HostedDataset,
    IntegrityError,
    Manifest,
    ManifestError,
    NotFoundError,
    SettingsError,
    StorageError,
    TransferError,
)
from prima_bench.storage.content import PART_SIZE, Content, part_count
from prima_bench.storage.manifest import publish as publishing
from prima_bench.storage.manifest import roots
from prima_bench.storage.manifest.model import MANIFEST, MAX_BYTES, Artifact, manifest_at
from prima_bench.storage.manifest.names import check_relative_path
from prima_bench.storage.manifest.roots import Root, data_roots, from_first

HEX = st.text("0123456789abcdef", min_size=64, max_size=64)
NAMES = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=8).map(lambda text: f"f{text}")


@st.composite
def contents(draw: st.DrawFn) -> Content:
    size = draw(st.integers(0, 4 * PART_SIZE))
    count = part_count(size)
    whole = draw(HEX)
    digests = (whole,) if count == 1 else tuple(draw(st.lists(HEX, min_size=count, max_size=count)))
    return Content(whole, size, digests)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.lower))
    artifacts = [
        Artifact(
            name,
            draw(st.sampled_from([name, f"deep/{name}", f"gs://bucket/{name}", f"s3://other.bucket/ü/{name}"])),
            draw(contents()),
            draw(st.sampled_from(["h5ad", "csv.gz", "json"])),
            draw(st.sampled_from(["CC-BY-4.0", "own terms, é"])),
        )
        for name in names
    ]
    return Manifest(draw(NAMES), draw(st.sampled_from(["1.0.0", "2026.1", "3"])), tuple(artifacts))


@given(manifests())
def test_what_is_written_is_read_back(manifest: Manifest) -> None:
    data = manifest.to_bytes()
    assert Manifest.parse(data) == manifest
    assert Manifest.parse(data).to_bytes() == data
    shuffled = Manifest(manifest.name, manifest.version, manifest.artifacts[::-1])
    assert shuffled.sha256 == manifest.sha256


def document() -> dict[str, Any]:
    whole = Artifact("train.h5ad", "train.h5ad", Content("0" * 64, 5, ("0" * 64,)), "h5ad", "MIT")
    parts = Artifact("a/b.csv", "a/b.csv", Content("1" * 64, PART_SIZE + 1, ("2" * 64, "3" * 64)), "csv", "MIT")
    value: dict[str, Any] = json.loads(Manifest("sim", "1.0.0", (whole, parts)).to_bytes())
    return value


def changed(*path: Any, to: Any = None, drop: bool = False) -> bytes:
    value = document()
    inner: Any = value
    for key in path[:-1]:
        inner = inner[key]
    if drop:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return json.dumps(value).encode()


HOSTILE_NAMES = [
    "", ".", "..", "/", "/etc/passwd", "../x", "a/../b", "a/./b", "a//b", "a/", "./a", "a\\b", "..\\x", "C:x", "C:/x",
    "a\x00b", "a\nb", "a\u202eb", "\ud800", "con", "CON", "aux.h5ad", "lpt1", "a/NUL.txt", "com0.csv",
    "trailing.", "trailing ", " leading",
    ".hidden", "-option", "~", "~root/x", "$HOME", "a*b", "a?b", "a|b", "a<b", "a>b", 'a"b', "a:b", "é",
    "x" * 129, "a/" * 300 + "a", "file:///etc/passwd", "http://example.org/x", "https://example.org/x",
    "package://prima_bench.tasks/x", "gs://bucket/../x", "gs://user:pass@bucket/x", "gs://bucket/\ud800", "S3://bucket/x",
    "s3://b/x", "//host/x", "manifest.json", "Manifest.JSON",
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "name"),
    [*(("name", n) for n in HOSTILE_NAMES), *(("uri", n) for n in HOSTILE_NAMES if n.lower() != "manifest.json")],
)
def test_a_hostile_name_is_refused(key: str, name: str) -> None:
    with pytest.raises(ManifestError):
        Manifest.parse(changed("artifacts", 0, key, to=name))


@pytest.mark.parametrize("name", [n for n in HOSTILE_NAMES if "anifest" not in n] + ["a/b", 1, None, True])
@pytest.mark.parametrize("key", ["name", "version"])
def test_a_hostile_dataset_is_refused(key: str, name: Any) -> None:
    with pytest.raises(ManifestError):
        Manifest.parse(changed(key, to=name))
    if isinstance(name, str):
        with pytest.raises(ManifestError):
            HostedDataset(**{"name": "sim", "version": "1.0.0", key: name}, sha256="0" * 64, size=1)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"{}", b"1", b'"x"', b"\xff\xfe", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"NaN",
        b'{"schema": 1, "schema": 1}', b"1" * 5000, json.dumps(document()).encode().decode().encode("utf-16"),
        b"\xef\xbb\xbf" + json.dumps(document()).encode(), json.dumps(document()).encode() + b"x",
        b" " * (MAX_BYTES + 1),
        changed("schema", to="prima-bench/eval-result"), changed("schema_version", to="2.0"),
        changed("schema_version", to=1.0),
        changed("part_size", to=1), changed("part_size", to=True), changed("part_size", to=float(PART_SIZE)),
        changed("artifacts", to=[]), changed("artifacts", to={}), changed("artifacts", to=[1]),
        changed("artifacts", to=[[]]),
        changed("artifacts", to=[{}] * 10_001), changed("more", to=1), changed("name", drop=True),
        *(changed("artifacts", 0, key, drop=True) for key in document()["artifacts"][0]),
        *(changed("artifacts", 0, key, to=value) for key in ("name", "uri", "sha256", "format", "licence")
          for value in (1, None, [], {}, "")),
        changed("artifacts", 0, "more", to=1),
        changed("artifacts", 0, "sha256", to="0" * 63), changed("artifacts", 0, "sha256", to="A" * 64),
        *(changed("artifacts", 0, "size", to=value)
          for value in (-1, True, 1.0, "5", None, 1 << 51, float("nan"), 10**400)),
        *(changed("artifacts", 0, "parts", to=value)
          for value in (None, "x", [], ["0" * 64] * 3, ["0" * 64, 1], [["x"]])),
        changed("artifacts", 1, "parts", to=["1" * 64]),
        changed("artifacts", 1, "parts", to=[]),
        changed("artifacts", 0, "format", to="H5AD"), changed("artifacts", 0, "format", to="x" * 40),
        changed("artifacts", 0, "licence", to="x" * 201), changed("artifacts", 0, "licence", to="a\nb"),
        changed("artifacts", 0, "name", to="TRAIN.h5ad"), changed("artifacts", 0, "name", to="train.h5ad/x"),
    ],
)  # fmt: skip
def test_what_is_no_manifest(data: bytes) -> None:
    with pytest.raises(ManifestError) as caught:
        Manifest.parse(data)
    assert len(str(caught.value)) < 1000
    assert caught.value.__cause__ is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)


@given(st.data(), JSON)
def test_any_change_is_read_or_refused(data: st.DataObject, to: Any) -> None:
    value = document()
    places = [(value, key) for key in value]
    places += [(artifact, key) for artifact in value["artifacts"] for key in artifact]
    where, key = data.draw(st.sampled_from(places))
    where[key] = to
    try:
        manifest = Manifest.parse(json.dumps(value).encode())
    except ManifestError:
        return
    check_harmless(manifest)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ManifestError):
        Manifest.parse(data)


@given(st.text(alphabet=st.sampled_from("ab./\\:~ \x00éCONnul0*?")) | st.text())
@example("..")
@example("a/b.h5ad")
def test_a_path_stays_below_its_folder(path: str) -> None:
    try:
        check_relative_path(path, "path")
    except ManifestError:
        return
    for kind in (PurePosixPath, PureWindowsPath):
        inside = kind(path)
        assert not inside.is_absolute()
        assert not inside.drive
        assert ".." not in inside.parts
    assert (Path("/folder") / path).resolve().is_relative_to("/folder")
    assert Root("gs://bucket").of("sim", "1", path) == f"gs://bucket/sim/1/{path}"


def check_harmless(manifest: Manifest) -> None:
    cache = Cache(Path("/cache"))
    for artifact in manifest.artifacts:
        view = cache.layout.views / f"{manifest.name}@{manifest.version}-x" / artifact.name
        assert view.resolve().is_relative_to(cache.layout.views)
        assert cache.path(artifact.content.name).resolve().is_relative_to(cache.layout.blobs)


@pytest.mark.parametrize(
    ("root", "mirrors", "uris"),
    [
        ("", "", ["gs://prima-mente-benchmark"]),
        ("s3://bucket/a/", "", ["s3://bucket/a"]),
        (
            "file:///data/sets",
            "gs://b-1/x, s3://b-2\n\tgs://b-3/",
            ["file:///data/sets", "gs://b-1/x", "s3://b-2", "gs://b-3"],
        ),
    ],
)
def test_where_datasets_lie(isolated: Path, monkeypatch, root: str, mirrors: str, uris: list[str]) -> None:
    monkeypatch.setenv("PRIMA_BENCH_DATA_ROOT", root)
    monkeypatch.setenv("PRIMA_BENCH_DATA_MIRRORS", mirrors)
    assert [each.uri for each in data_roots()] == uris


@pytest.mark.parametrize(
    "value",
    ["bucket", "https://example.org", "gs://", "gs://bucket/../x", "package://prima_bench.tasks", "file://x", "/data"],
)
@pytest.mark.parametrize("name", ["PRIMA_BENCH_DATA_ROOT", "PRIMA_BENCH_DATA_MIRRORS"])
def test_what_is_no_root(isolated: Path, monkeypatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"^{name}: {re.escape(repr(value))}") as caught:
        data_roots()
    assert MANIFEST not in caught.value.message
    assert "gs://bucket/prefix" in caught.value.hint


def test_a_root_that_could_not_be_reached_is_asked_last_for_a_while(caplog, monkeypatch) -> None:
    clock = [5.0]
    monkeypatch.setattr(roots, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(roots, "_unreached", {})
    dead, none, asked = {"gs://a-1"}, {"gs://a-2"}, []

    def get(root: Root) -> str:
        asked.append(root.uri)
        if root.uri in dead:
            raise TransferError("no connection")
        if root.uri in none:
            raise NotFoundError("not there")
        return root.uri

    three = tuple(map(Root, ("gs://a-1", "gs://a-2", "gs://a-3")))

    def order() -> list[str]:
        asked.clear()
        assert from_first(three, get) == asked[-1]
        return [uri[-1:] for uri in asked]

    assert order() == ["1", "2", "3"]
    clock[0] += roots.LEFT_ALONE - 1
    assert order() == ["2", "3"]  # that something does not lie there says nothing about the root
    clock[0] += 1
    assert order() == ["1", "2", "3"]
    dead.clear()
    assert order() == ["2", "3"]
    none.add("gs://a-3")
    assert order() == ["2", "3", "1"]
    # What the first one says counts, in whichever order they were asked.
    dead.add("gs://a-1")
    with pytest.raises(TransferError):
        from_first(three, get)


def test_the_first_root_says_why_where_none_can(caplog) -> None:
    said: dict[str, StorageError] = {"gs://a-1": NotFoundError("first"), "gs://a-2": IntegrityError("second")}

    def get(root: Root) -> str:
        if root.uri in said:
            raise said[root.uri]
        return root.uri

    roots = tuple(map(Root, (*said, "gs://a-3")))
    assert from_first(roots, get) == "gs://a-3"
    assert caplog.messages == ["first; asking gs://a-2 instead", "second; asking gs://a-3 instead"]
    with pytest.raises(NotFoundError, match="first"):
        from_first(roots[:2], get)


@pytest.fixture
def hosted(isolated: Path, tmp_path: Path, monkeypatch) -> Callable[..., HostedDataset]:
    """Writes a dataset into a folder that is the data root; returns how it is pinned."""

    def write(name: str = "sim", alter: Callable[[dict[str, Any]], None] = lambda value: None) -> HostedDataset:
        folder = tmp_path / "root" / "sim" / "1.0.0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.h5ad").write_bytes(b"train")
        manifest = publishing.describe(name, "1.0.0", {"train.h5ad": folder / "train.h5ad"}, licence="MIT")
        value = json.loads(manifest.to_bytes())
        alter(value)
        data = json.dumps(value).encode()
        (folder / "manifest.json").write_bytes(data)
        monkeypatch.setenv("PRIMA_BENCH_DATA_ROOT", (tmp_path / "root").as_uri())
        import hashlib

        return HostedDataset("sim", "1.0.0", hashlib.sha256(data).hexdigest(), len(data))

    return write


def test_a_root_may_be_a_folder(hosted, tmp_path: Path, isolated: Path) -> None:
    path = hosted().fetch("train.h5ad")
    assert path == tmp_path / "root" / "sim" / "1.0.0" / "train.h5ad"
    assert not isolated.exists()


def test_another_manifest_than_the_pinned_one(hosted, tmp_path: Path) -> None:
    pinned = hosted()
    hosted(alter=lambda value: value["artifacts"][0].update(licence="CC0-1.0"))
    with pytest.raises(IntegrityError):
        pinned.manifest()


def test_the_manifest_of_another_dataset(hosted) -> None:
    with pytest.raises(ManifestError, match="is that of other@1"):
        hosted("other").manifest()


def test_what_the_manifest_does_not_pin_is_not_fetched(hosted) -> None:
    pinned = hosted()
    with pytest.raises(ManifestError, match=r"no artifact 'test\.h5ad'"):
        pinned.fetch("test.h5ad")
    content = pinned.manifest().artifact("train.h5ad").content
    assert pinned.fetch("train.h5ad", sha256=content.sha256, size=5).read_bytes() == b"train"
    for wrong in ({"sha256": "0" * 64}, {"size": 6}):
        with pytest.raises(IntegrityError, match="registered"):
            pinned.fetch("train.h5ad", **wrong)


def test_a_manifest_cannot_claim_the_blob_of_another(faulty, content, isolated: Path) -> None:
    # The whole is that of good data, the parts are those of bad data: they are kept under another name.
    from prima_bench.storage.fetching import fetch_content

    good, bad = b"g" * (PART_SIZE + 1), b"b" * (PART_SIZE + 1)
    claimed = Content(content(good).sha256, len(good), content(bad).digests)
    faulty.objects["/bucket/key"] = bad
    path = fetch_content("gs://bucket/key", claimed)
    cache = Cache.from_environment()
    assert cache.find(content(good)) is None
    assert cache.find(content(good, by_part=False)) is None
    assert path.name == content(bad).name


def test_what_cannot_be_described(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotFoundError):
        publishing.describe("sim", "1.0.0", {"file": tmp_path / "none"}, licence="MIT")
    with pytest.raises(ManifestError):
        publishing.describe("sim", "1.0.0", {"../file": tmp_path / "file"}, licence="MIT")
    with pytest.raises(ManifestError):
        publishing.describe("sim", "1.0.0", {"file": tmp_path / "file"}, licence="")


def test_a_parsed_manifest_is_not_shared_with_who_reads_it() -> None:
    value = document()
    assert Manifest.parse(json.dumps(copy.deepcopy(value)).encode()).name == value["name"]


@pytest.mark.parametrize(
    "data", [b"", b"train", b"{}", b"{" * 100_000, b'{"a":' * 100_000, b'{"schema": NaN}', b"{\xff"]
)
def test_a_file_that_is_no_manifest(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert manifest_at(path) is None
    assert manifest_at(tmp_path) is None


def test_a_file_that_is_a_manifest(hosted, tmp_path: Path) -> None:
    hosted()
    found = manifest_at(tmp_path / "root" / "sim" / "1.0.0" / MANIFEST)
    assert found is not None
    assert (found.name, found.version) == ("sim", "1.0.0")
