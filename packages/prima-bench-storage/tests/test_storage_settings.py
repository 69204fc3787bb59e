"""Settings and the keypair: the environment, the ``.env`` file, where it is looked for and what is refused."""

import contextlib
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prima_bench.storage import Credentials, CredentialsError, SettingsError
from prima_bench.storage.cache import Cache
from prima_bench.storage.client import endpoint_url
from prima_bench.storage.credentials import KEY_ID, REGION, SECRET, Secret
from prima_bench.storage.settings import find_dotenv, offline, setting


@pytest.fixture
def project(isolated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a working directory two levels down; returns its root."""
    root = tmp_path / "home" / "project"
    (root / "packages" / "one").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "packages" / "one" / "pyproject.toml").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(root / "packages" / "one")
    return root


def test_a_dotenv_is_found_up_to_the_root_of_the_project(project: Path) -> None:
    (project.parent / ".env").write_text("A=home")
    (project.parent.parent / ".env").write_text("A=above")
    assert find_dotenv() is None
    (project / ".env").write_text("A=root")
    assert setting("A") == "root"
    (project / "packages" / "one" / ".env").write_text("A=nearest")
    assert setting("A") == "nearest"


def test_outside_a_project_only_the_working_directory_counts(project: Path, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "elsewhere" / "deep"
    folder.mkdir(parents=True)
    (folder.parent / ".env").write_text("A=above")
    monkeypatch.chdir(folder)
    assert setting("A") is None
    (folder / ".env").write_text("A=here")
    assert setting("A") == "here"


def test_neither_a_home_nor_the_root_of_a_disk_is_a_project(project: Path, monkeypatch) -> None:
    home = project.parent
    (home / ".git").mkdir()
    (home / ".env").write_text("A=home")
    monkeypatch.chdir(home)
    assert setting("A") is None
    (home / "plain").mkdir()
    monkeypatch.chdir(home / "plain")
    assert setting("A") is None
    assert find_dotenv(Path("/")) is None


def test_a_home_that_leads_nowhere(project: Path, monkeypatch) -> None:
    (project.parent / "loop").symlink_to("loop")
    monkeypatch.setenv("HOME", str(project.parent / "loop"))
    (project / ".env").write_text("A=root")
    assert setting("A") == "root"


def test_the_environment_wins_and_empty_is_unset(project: Path, monkeypatch) -> None:
    (project / ".env").write_text("A=file\nB=\nC=' '\n")
    assert setting("A") == "file"
    monkeypatch.setenv("A", "")
    assert setting("A") == "file"
    monkeypatch.setenv("A", " real ")
    assert setting("A") == "real"
    assert setting("B") is None
    assert setting("C") is None
    assert "B" not in os.environ


def test_how_a_dotenv_may_be_written(project: Path) -> None:
    text = "\ufeff# comment\r\nexport A='single'\r\nB=\"double\"\r\nC=a$B${A}#x\r\nD = spaced # comment\r\n"
    (project / ".env").write_bytes(text.encode())
    assert [setting(name) for name in "ABCD"] == ["single", "double", "a$B${A}#x", "spaced"]


def test_an_edited_dotenv_is_read_anew(project: Path) -> None:
    (project / ".env").write_text("A=1")
    assert setting("A") == "1"
    (project / ".env").write_text("A=22")
    assert setting("A") == "22"


def test_a_dotenv_that_is_a_folder_is_none(project: Path) -> None:
    (project / ".env").mkdir()
    assert find_dotenv() is None


@pytest.mark.parametrize("content", [b"A=\xff\xfe", b"A" * (1 << 17)])
def test_a_dotenv_that_cannot_be_used(project: Path, content: bytes) -> None:
    (project / ".env").write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        setting("A")
    assert caught.value.__context__ is None


@given(
    st.text(alphabet=st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="'\"\\#`"), min_size=1)
)
def test_any_secret_survives_a_dotenv(secret: str) -> None:
    from prima_bench.storage.settings import _parse

    path = Path(os.environ["PRIMA_BENCH_CACHE_DIR"]) / "dotenv"
    path.write_text(f"{SECRET}={secret}\n{KEY_ID}='{secret}'\n")
    _parse.cache_clear()
    assert _parse(path, 0, 0) == {SECRET: secret, KEY_ID: secret}


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs folders that a user may not search")
def test_a_folder_that_may_not_be_searched_holds_no_settings(project: Path) -> None:
    (project / ".env").write_text("A=root")
    locked = project / "packages"
    with contextlib.ExitStack() as undo:

        def allow(folder: Path, mode: int) -> None:
            undo.callback(folder.chmod, folder.stat().st_mode)
            folder.chmod(mode)

        allow(locked, 0)
        if os.geteuid() == 0:  # the superuser may search any folder
            for folder in (project, *project.parents):
                if not folder.stat().st_mode & 0o1:
                    allow(folder, 0o755)
            undo.callback(os.seteuid, 0)
            os.seteuid(65534)
        with pytest.raises(PermissionError):
            (locked / "one" / ".env").stat()
        assert setting("A") == "root"


def test_a_deleted_working_directory(project: Path, monkeypatch) -> None:
    folder = project / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert setting("A") is None


@pytest.mark.parametrize(("value", "answer"), [("1", True), ("Yes", True), ("0", False), ("off", False), ("", False)])
def test_offline(isolated: Path, monkeypatch, value: str, answer: bool) -> None:
    monkeypatch.setenv("PRIMA_BENCH_OFFLINE", value)
    assert offline() is answer


def test_offline_is_not_guessed(isolated: Path, monkeypatch) -> None:
    monkeypatch.setenv("PRIMA_BENCH_OFFLINE", "maybe")
    with pytest.raises(SettingsError, match="maybe"):
        offline()


def test_a_keypair_from_a_dotenv(project: Path) -> None:
    (project / ".env").write_text(f"{KEY_ID}=GOOG1\n{SECRET}=pass$word\n")
    credentials = Credentials.from_environment()
    assert (credentials.key_id, credentials.secret.reveal(), credentials.region) == ("GOOG1", "pass$word", "auto")
    (project / ".env").write_text(f"{KEY_ID}=GOOG1\n{SECRET}=pass$word\n{REGION}=eu-west-1\n")
    assert Credentials.from_environment().region == "eu-west-1"


def test_a_dotenv_that_is_edited_while_the_keypair_is_read(project: Path, monkeypatch) -> None:
    (project / ".env").write_text(f"{KEY_ID}=GOOG1\n{SECRET}=one\n")

    def edited(name: str) -> str | None:
        value = setting(name)
        if name == SECRET:
            (project / ".env").write_text("")
        return value

    monkeypatch.setattr("prima_bench.storage.credentials.setting", edited)
    found = Credentials.from_environment()
    assert (found.key_id, found.secret.reveal()) == ("GOOG1", "one")


@pytest.mark.parametrize("half", [KEY_ID, SECRET])
def test_half_a_keypair(isolated: Path, monkeypatch, half: str) -> None:
    monkeypatch.setenv(half, "value")
    monkeypatch.setenv(SECRET if half == KEY_ID else KEY_ID, "")
    with pytest.raises(CredentialsError, match="half set") as caught:
        Credentials.from_environment()
    assert "AWS_* variables are never used" in caught.value.hint


@pytest.mark.parametrize("name", [KEY_ID, SECRET, REGION])
def test_what_cannot_be_a_keypair_is_not_repeated(isolated: Path, monkeypatch, name: str) -> None:
    for each in (KEY_ID, SECRET, REGION):
        monkeypatch.setenv(each, "fine")
    monkeypatch.setenv(name, "two words")
    with pytest.raises(CredentialsError, match=name) as caught:
        Credentials.from_environment()
    assert "two words" not in str(caught.value)


def test_a_secret_keeps_itself() -> None:
    secret = Secret("hunter2")
    credentials = Credentials("id", secret)
    for shown in (str(secret), repr(secret), f"{secret}", repr(credentials), str([credentials])):
        assert "hunter2" not in shown
    with pytest.raises(TypeError):
        pickle.dumps(credentials)
    assert secret == Secret("hunter2") != Secret("other")
    assert len({credentials, Credentials("id", Secret("hunter2")), Credentials("id", Secret("other"))}) == 2


@pytest.mark.parametrize(
    "value", ["store.example.org", "ftp://store", "https://", "https://key:secret@store", "https://s?x", "https://s#x"]
)
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_an_endpoint_that_is_none(isolated: Path, monkeypatch, scheme: str, value: str) -> None:
    monkeypatch.setenv(f"PRIMA_BENCH_{scheme.upper().replace('GS', 'GCS')}_ENDPOINT_URL", value)
    with pytest.raises(SettingsError) as caught:
        endpoint_url(scheme)
    assert "secret" not in str(caught.value)


def test_where_the_cache_lies(isolated: Path, tmp_path: Path, monkeypatch) -> None:
    assert Cache.from_environment().root == isolated
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PRIMA_BENCH_CACHE_DIR", "~/cache")
    assert Cache.from_environment().root == tmp_path / "cache"
    monkeypatch.delenv("PRIMA_BENCH_CACHE_DIR")
    root = Cache.from_environment().root
    assert root.is_absolute()
    assert "prima-bench" in root.name
    assert not root.exists()


@pytest.mark.parametrize("name", ["PRIMA_BENCH_CACHE_DIR", "PRIMA_BENCH_SHARED_CACHE_DIR"])
def test_a_relative_folder_is_relative_to_the_file_that_names_it(project: Path, monkeypatch, name: str) -> None:
    def folder() -> Path:
        cache = Cache.from_environment()
        return cache.root if "SHARED" not in name else cache.shared[0].root

    monkeypatch.delenv(name, raising=False)
    (project / ".env").write_text(f"{name}=data/cache\n")
    assert folder() == project / "data" / "cache"
    monkeypatch.chdir(project / "packages")
    assert folder() == project / "data" / "cache"
    monkeypatch.setenv(name, "data/cache")
    assert folder() == project / "packages" / "data" / "cache"
    monkeypatch.chdir(project)
    assert folder() == project / "data" / "cache"


def test_a_relative_folder_where_there_is_none_to_be_relative_to(isolated: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("PRIMA_BENCH_CACHE_DIR", "cache")
    with pytest.raises(SettingsError, match="PRIMA_BENCH_CACHE_DIR is 'cache'"):
        Cache.from_environment()
    monkeypatch.setenv("PRIMA_BENCH_CACHE_DIR", str(tmp_path / "cache"))
    assert Cache.from_environment().root == tmp_path / "cache"


@given(st.binary(max_size=300))
@example(b"\xef\xbb\xbfA=1")
@example(b"A=1\r\nB='2\n")
@example(b"A=\x00")
@example(b"export A\n=\n==\nA==b")
def test_any_dotenv_is_read_or_refused(content: bytes) -> None:
    from prima_bench.storage.settings import _parse

    path = Path(os.environ["PRIMA_BENCH_CACHE_DIR"]) / "any-dotenv"
    path.write_bytes(content)
    _parse.cache_clear()
    before = dict(os.environ)
    with contextlib.suppress(SettingsError):
        assert all(isinstance(value, str | None) for value in _parse(path, 0, 0).values())
    assert dict(os.environ) == before


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True),
        st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x2FF, exclude_characters="'\\\x7f\x85")),
        max_size=5,
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "export "]),
    st.booleans(),
)
def test_quoted_values_come_back(values: dict[str, str], end: str, export: str, bom: bool) -> None:
    from prima_bench.storage.settings import _parse

    path = Path(os.environ["PRIMA_BENCH_CACHE_DIR"]) / "quoted-dotenv"
    text = "".join(f"{export}{name}='{value}'{end}" for name, value in values.items())
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.encode())
    _parse.cache_clear()
    assert _parse(path, 0, 0) == values
