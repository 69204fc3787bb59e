"""The cache alone: a blob appears complete and verified, or not at all."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.storage import Cache, CacheError, IntegrityError

URI = "gs://bucket/key"


def leftovers(cache: Cache) -> list[Path]:
    return [path for path in cache.root.rglob("*") if path.is_file() and path.name != "CACHEDIR.TAG"]


@given(st.lists(st.binary(max_size=20), max_size=5), st.binary(max_size=20))
def test_a_blob_is_the_pinned_bytes_or_absent(tmp_path_factory, pin, chunks: list[bytes], discarded: bytes) -> None:
    cache = Cache(tmp_path_factory.mktemp("cache"))
    wanted = pin(b"".join(chunks))
    with cache.add(uri=URI, sha256=wanted.sha256, size=wanted.size) as writer:
        writer.write(discarded[: wanted.size])
        writer.restart()
        for chunk in chunks:
            writer.write(chunk)
    path = cache.find(wanted.sha256, wanted.size)
    assert path is not None
    assert path.read_bytes() == wanted.data
    assert leftovers(cache) == [path]


@pytest.mark.parametrize("sent", [b"abcd", b"abcdef", b"abcdX", b""])
def test_other_bytes_never_get_the_name(tmp_path: Path, pin, sent: bytes) -> None:
    wanted = pin(b"abcde")
    cache = Cache(tmp_path)
    with pytest.raises(IntegrityError), cache.add(uri=URI, sha256=wanted.sha256, size=5) as writer:
        writer.write(sent)
    assert cache.find(wanted.sha256, 5) is None
    assert leftovers(cache) == []


def test_an_interruption_leaves_nothing(tmp_path: Path, pin) -> None:
    wanted = pin(b"abcde")
    cache = Cache(tmp_path)

    def interrupted() -> None:
        with cache.add(uri=URI, sha256=wanted.sha256, size=5) as writer:
            writer.write(b"abc")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert leftovers(cache) == []


def test_two_writers_of_one_content(tmp_path: Path, pin) -> None:
    wanted = pin(b"abcde")
    cache = Cache(tmp_path)
    with cache.add(uri=URI, sha256=wanted.sha256, size=5) as first:
        first.write(b"abcde")
        with cache.add(uri=URI, sha256=wanted.sha256, size=5) as second:
            second.write(b"abcde")
        assert cache.find(wanted.sha256, 5) is not None
    assert leftovers(cache) == [cache.path(wanted.sha256)]


def test_a_full_disk_is_told_by_the_write(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    from prima_bench.storage.cache import BlobWriter

    with Path("/dev/full").open("wb", buffering=0) as stream:
        writer = BlobWriter(stream, uri=URI, sha256="0" * 64, size=5)
        with pytest.raises(CacheError, match="No space left") as caught:
            writer.write(b"abcde")
    assert "PRIMA_BENCH_CACHE_DIR" in caught.value.hint


def test_the_tag_keeps_backups_away(tmp_path: Path, pin) -> None:
    wanted = pin(b"")
    with Cache(tmp_path / "new").add(uri=URI, sha256=wanted.sha256, size=0):
        pass
    assert (tmp_path / "new" / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    assert Cache(tmp_path / "cache").find("0" * 64, 1) is None
