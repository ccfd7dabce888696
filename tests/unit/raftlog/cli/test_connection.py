"""The connection of a command: options, profiles, variables; and where no credential goes (S12)."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.cli.terminal.connection import Access, Connection, choose
from raftlog.cli.terminal.profiles import Profiles, load_profiles, profiles_path, save_profiles
from raftlog.errors import InvalidRequest
from tests.support.cli_runner import Result, run

TOKEN = "rlt_abcdefghijkl_secret-1"
CLEAN = ("BOOTSTRAP", "PROFILE", "TOKEN", "TOKEN_FILE", "USER", "PASSWORD_FILE", "TLS_AUTHORITY", "TLS_CERTIFICATE")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in CLEAN:
        monkeypatch.delenv(f"RAFTLOG_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def profile(*arguments: str, **options: Any) -> Result:
    return run("profile", *arguments, **options)


class TestSources:
    def test_parts_are_taken_whole_in_the_order_of_the_sources(self) -> None:
        options = Connection(bootstrap="o:1")
        named = Connection(bootstrap="p:1", token="p", tls_authority="p.pem", tls_certificate="c.pem", tls_key="k.pem")
        environment = Connection(bootstrap="e:1", token_file="e", tls_authority="e.pem")
        found = choose([options, named, environment], None)
        assert (found.bootstrap, found.token, found.token_file) == ("o:1", "p", None)
        assert (found.tls_authority, found.tls_certificate) == ("p.pem", "c.pem")
        found = choose([options, environment], None)
        assert (found.token, found.token_file, found.tls_authority) == (None, "e", "e.pem")
        assert found.tls_certificate is None

    def test_the_current_profile_counts_only_with_its_own_address(self) -> None:
        """Otherwise the credential of one cluster would go to another."""
        current = Connection(bootstrap="p:1", token="p", tls_authority="p.pem")
        assert choose([Connection(bootstrap="e:1")], current) == Connection(bootstrap="e:1")
        assert choose([Connection()], current) == current
        assert choose([Connection(token="e")], current).token == "e"
        assert choose([Connection()], None) == Connection(bootstrap="127.0.0.1:9640")

    def test_no_secret_is_shown(self) -> None:
        made = Connection(bootstrap="h:1", user="alice", password="secret-1", token="secret-2")
        for shown in (repr(made), str(made), repr(made.access), made.credential_kind, repr([made])):
            assert "secret" not in shown
        assert Access(user="a", password="p").credential_kind == "password of a"


text = st.text(st.characters(codec="utf-8"), max_size=20)


class TestProfiles:
    @given(st.dictionaries(st.from_regex("[a-z0-9._-]{1,8}", fullmatch=True), st.tuples(text, text, st.booleans())))
    def test_what_is_written_is_read_again(self, given_: dict[str, tuple[str, str, bool]]) -> None:
        made = Profiles(
            next(iter(given_), ""),
            {
                name: Connection(bootstrap=one, password=two or None, insecure_credentials=flag)
                for name, (one, two, flag) in given_.items()
            },
        )
        folder = Path(os.environ["XDG_CONFIG_HOME"])
        save_profiles(str(folder / "p.toml"), made)
        assert load_profiles(str(folder / "p.toml")) == made

    def test_the_path(self) -> None:
        assert profiles_path({"XDG_CONFIG_HOME": "/x"}) == "/x/raftlog/profiles.toml"
        for variables in ({}, {"XDG_CONFIG_HOME": ""}, {"XDG_CONFIG_HOME": "relative"}):
            assert profiles_path(variables) == os.path.expanduser("~/.config/raftlog/profiles.toml")

    def test_create_list_use_delete(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAFTLOG_TOKEN", TOKEN)
        made = profile("create", "prod", bootstrap="https://node0:9640")
        assert (made.code, made.text) == (0, "Created profile prod, the current one.\n")
        file = home / "raftlog" / "profiles.toml"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        monkeypatch.delenv("RAFTLOG_TOKEN")
        (home / "t").write_text(TOKEN)
        made = run("--token-file", str(home / "t"), "profile", "create", "dev", bootstrap="127.0.0.1:9640")
        assert made.text == "Created profile dev; `raftlog profile use dev` makes it the current one.\n"
        listed = profile("list", "-o", "wide")
        assert listed.table("Profile")[1:] == [
            ["dev", "no", "127.0.0.1:9640", "token", "of", str(home / "t"), "-"],
            ["prod", "yes", "https://node0:9640", "token", "-"],
        ]
        assert profile("use", "dev").text == "Profile dev is the current one.\n"
        assert load_profiles(str(file)).current == "dev"
        assert profile("delete", "dev", "--yes").text == "Deleted profile dev.\n"
        left = load_profiles(str(file))
        assert (left.current, list(left.profiles)) == ("", ["prod"])
        for output in ("table", "wide", "json", "yaml"):
            assert TOKEN not in profile("list", "-o", output).text

    def test_a_profile_is_replaced_on_request_only(self) -> None:
        profile("create", "p", bootstrap="a:1")
        refused = profile("create", "p", bootstrap="b:1")
        assert (refused.code, refused.stderr) == (1, "Error: profile 'p' exists already: give --replace\n")
        assert profile("create", "p", "--replace", bootstrap="b:1").code == 0
        assert load_profiles(profiles_path()).named("p").bootstrap == "b:1"
        for verb in ("use", "delete"):
            unknown = profile(verb, "q")
            assert unknown.code == 1 and "there is no profile 'q' (profiles: p)" in unknown.stderr
        assert profile("create", "no/name", bootstrap="b:1").code == 1

    def test_a_credential_without_tls_is_refused_before_it_is_stored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAFTLOG_TOKEN", TOKEN)
        refused = profile("create", "p", bootstrap="node0.example.org:9640")
        assert refused.code == 1 and "Give https:// addresses" in refused.stderr and TOKEN not in refused.stderr
        assert not os.path.exists(profiles_path())

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
    def test_a_file_that_others_can_use_is_refused_with_the_remedy(self, home: Path, mode: int) -> None:
        profile("create", "p", bootstrap="a:1")
        file = home / "raftlog" / "profiles.toml"
        file.chmod(mode)
        for arguments in (("profile", "list"), ("topic", "list")):
            refused = run(*arguments)
            assert refused.code == 1 and f"run `chmod 600 {file}`" in refused.stderr
        file.chmod(0o600)
        assert profile("list").code == 0

    @pytest.mark.parametrize(
        "content",
        [
            b"\xff secret-1",
            b"[profiles.p]\ntoken = 'secret-1",
            b"[profiles.p]\ntoken = 5\n",
            b"[profiles.p]\npasword = 'secret-1'\n",
            b"profiles = 'secret-1'",
            b"other = 'secret-1'",
            b"#" * (1 << 20) + b"secret-1",
        ],
    )
    def test_a_file_that_cannot_be_used_is_reported_without_its_content(self, tmp_path: Path, content: bytes) -> None:
        file = tmp_path / "profiles.toml"
        file.write_bytes(content)
        file.chmod(0o600)
        with pytest.raises(InvalidRequest) as error:
            load_profiles(str(file))
        assert str(file) in error.value.detail and "secret-1" not in error.value.detail

    def test_what_is_not_utf8_is_refused_and_leaves_no_file(self, home: Path) -> None:
        refused = run("--token-file", "/tmp/\udcff", "profile", "create", "p", bootstrap="localhost:1")
        assert refused.code == 1 and "is not UTF-8" in refused.stderr
        assert not os.path.exists(profiles_path())

    def test_a_replacement_that_fails_leaves_the_file_and_no_copy_of_its_credentials(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save_profiles(profiles_path(), Profiles("", {}))
        before = Path(profiles_path()).read_bytes()

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(InvalidRequest, match="No space left"):
            save_profiles(profiles_path(), Profiles("", {"p": Connection(bootstrap="a:1", token=TOKEN)}))
        assert [path.read_bytes() for path in Path(profiles_path()).parent.iterdir()] == [before]

    def test_a_current_profile_that_is_gone_is_reported(self, home: Path) -> None:
        save_profiles(profiles_path(), Profiles("gone", {}))
        assert "there is no profile 'gone'" in run("topic", "list", bootstrap=None).stderr
