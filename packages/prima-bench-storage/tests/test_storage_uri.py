"""URIs and pins: what is read, what is refused, and that nothing escapes the package it names."""

import hashlib
import sys
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prima_bench.storage import AddressError, IntegrityError, NotFoundError, StorageError, fetch
from prima_bench.storage.uri import FileUri, ObjectUri, PackageUri, check_pin, parse_uri

ZERO = "0" * 64


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("package://prima_bench.tasks/data/a b.h5ad", PackageUri("prima_bench.tasks", "data/a b.h5ad")),
        ("package://mine/x", PackageUri("mine", "x")),
        ("file:///data/a%20b.h5ad", FileUri(Path("/data/a b.h5ad"))),
        ("file://localhost/data/x", FileUri(Path("/data/x"))),
        ("s3://my.bucket_1/a//b%20?#c", ObjectUri("s3", "my.bucket_1", "a//b%20?#c")),
        ("gs://bucket/ü", ObjectUri("gs", "bucket", "ü")),
    ],
)
def test_what_is_read(uri: str, address: object) -> None:
    assert parse_uri(uri) == address


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "train.h5ad",
        "/data/train.h5ad",
        "https://example.org/x",
        "S3://bucket/key",
        "package://prima_bench.tasks",
        "package://prima_bench.tasks/",
        "package://prima_bench.tasks//etc/passwd",
        "package://prima_bench.tasks/../x",
        "package://prima_bench.tasks/a/../../x",
        "package://prima_bench.tasks/a/./x",
        "package://prima_bench.tasks/a\\..\\x",
        "package://prima_bench.tasks/c:/x",
        "package://prima_bench.tasks/%2e%2e/x",
        "package://prima_bench.tasks/x\x00.h5ad",
        "package://prima-bench/x",
        "package://prima_bench.tasks/data/CON",
        "package://prima_bench.tasks/nul.h5ad",
        "package://prima_bench.tasks/lpt1/x",
        "package://prima_bench.tasks/x.",
        "package://prima_bench.tasks/x /y",
        "package://prima_bench.tasks/\ud800",
        "gs://bucket/\ud800",
        "file:///\udfff",
        "package://.tasks/x",
        "package://../x",
        "file://data/x",
        "file://x",
        "file:///a/../b",
        "file:///a/%2e%2e/b",
        "file:///a%00b",
        "file:///a?b",
        "file:///a#b",
        "s3://bucket",
        "s3://bucket/",
        "s3://bucket/folder/",
        "s3:///key",
        "s3://b/key",
        "s3://user:pass@bucket/key",
        "s3://arn:aws:s3:us-east-1:1:accesspoint/x/key",
        "s3://bucket/a/../b",
        "s3://bucket/a\nb",
        "gs://bucket/" + "k" * 1025,
    ],
)
def test_what_is_refused(uri: str) -> None:
    with pytest.raises(AddressError):
        fetch(uri, sha256=ZERO, size=1)


@pytest.mark.parametrize(
    ("sha256", "size"),
    [
        ("", 1),
        ("A" * 64, 1),
        ("0" * 63, 1),
        (ZERO + "\n", 1),
        (None, 1),
        (ZERO, -1),
        (ZERO, True),
        (ZERO, 1.0),
        (ZERO, None),
    ],
)
def test_what_is_no_pin(sha256: str, size: int) -> None:
    with pytest.raises(AddressError):
        check_pin("s3://bucket/key", sha256, size)


@given(st.text(alphabet=st.sampled_from("ab./\\:%~ \x00ü")))
@example("..")
@example("a/b")
def test_a_package_uri_never_leaves_its_package(rest: str) -> None:
    try:
        address = parse_uri(f"package://prima_bench.storage/{rest}")
    except AddressError:
        return
    assert isinstance(address, PackageUri)
    folder = Path("/package")
    assert (folder / address.path).resolve().is_relative_to(folder)
    assert (folder / address.path).resolve() != folder


@given(st.text(st.characters()))
def test_any_text_is_read_or_refused(text: str) -> None:
    for uri in (text, *(f"{scheme}://{text}" for scheme in ("file", "gs", "package", "s3"))):
        try:
            address = parse_uri(uri)
        except AddressError:
            continue
        if isinstance(address, ObjectUri):
            assert str(address) == uri
        if isinstance(address, FileUri):
            assert address.path.is_absolute()


def test_a_file_of_a_package_is_returned_where_it_lies() -> None:
    import prima_bench.storage as storage

    path = Path(storage.__path__[0], "py.typed")
    data = path.read_bytes()
    uri = "package://prima_bench.storage/py.typed"
    assert fetch(uri, sha256=hashlib.sha256(data).hexdigest(), size=len(data)) == path
    with pytest.raises(IntegrityError, match="bytes"):
        fetch(uri, sha256=ZERO, size=len(data) + 1)
    with pytest.raises(IntegrityError, match="sha256"):
        fetch(uri, sha256=ZERO, size=len(data))


@pytest.mark.parametrize(
    "uri",
    [
        "package://prima_bench.storage/nothing.h5ad",
        "package://prima_bench.no_such_part/x",
        "package://no_such_package.data/x",
        "package://hashlib/x",
        "file:///no/such/file",
    ],
)
def test_what_does_not_exist(uri: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        fetch(uri, sha256=ZERO, size=1)
    assert caught.value.hint


def test_a_script_is_no_package(monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(NotFoundError, match="'__main__' is not installed"):
        fetch("package://__main__/x", sha256=ZERO, size=1)


def test_a_package_that_cannot_be_imported(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "broken_plugin" / "data").mkdir(parents=True)
    (tmp_path / "broken_plugin" / "__init__.py").write_text("from json import no_such_name")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NotFoundError, match=r"'broken_plugin\.data' is not installed"):
        fetch("package://broken_plugin.data/x", sha256=ZERO, size=1)


def test_naming_a_package_does_not_run_it(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "hostile_plugin").mkdir()
    (tmp_path / "hostile_plugin" / "__init__.py").write_text("raise SystemExit('was run')")
    (tmp_path / "hostile_plugin" / "a.txt").write_bytes(b"abc")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = fetch("package://hostile_plugin/a.txt", sha256=hashlib.sha256(b"abc").hexdigest(), size=3)
    assert path == tmp_path / "hostile_plugin" / "a.txt"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        fetch(tmp_path.as_uri(), sha256=ZERO, size=1)


@given(st.text(alphabet=st.characters(exclude_characters="\x00", exclude_categories=("Cs", "Cc")), min_size=1))
def test_file_uris_name_any_path(name: str) -> None:
    path = Path("/data", urllib.parse.quote(name, safe="").replace("/", "_"))
    assert parse_uri(path.as_uri()) == FileUri(path)


def test_every_error_says_what_the_command_line_ends_with() -> None:
    import prima_bench.storage as storage

    errors = [getattr(storage, name) for name in storage.__all__ if name.endswith("Error")]
    assert len(errors) == 12
    for error in errors:
        assert issubclass(error, StorageError)
        assert error("m", hint="h").hint == "h"
        assert error("m").exit_code == 4
        assert error("m", hint="h").message == "m"
        assert str(error("m", hint="h")) == "m\nhint: h"
    assert dir(storage) == sorted(storage.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fetsch'"):
        storage.fetsch  # noqa: B018
