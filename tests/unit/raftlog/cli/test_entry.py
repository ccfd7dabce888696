"""The entry point: options in any place, mistyped names, unreachable clusters, completion."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raftlog.cli.commands.completion import SHELLS, script_of
from tests.support.cli_runner import Background, Result, run
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api, running_api


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.add_topic("orders", 1)
    made.add_topic("clicks", 1)
    return made


@pytest.fixture
def api(broker: FakeBroker) -> Iterator[Api]:
    with Background(running_api(broker)) as background:
        yield background.cluster


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("RAFTLOG_", "XDG_", "ZDOTDIR"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


class TestAnywhere:
    def test_the_address_may_stand_in_any_place(self, api: Api) -> None:
        here = ("--bootstrap", f"127.0.0.1:{api.port}")
        for words in ((*here, "topic", "list"), ("topic", *here, "list"), ("topic", "list", *here)):
            result = run(*words, bootstrap=None)
            assert result.code == 0, result.stderr
            assert [row[0] for row in result.table("Topic")[1:]] == ["clicks", "orders"]

    def test_the_last_one_counts(self, api: Api) -> None:
        result = run("topic", "list", "--bootstrap", f"127.0.0.1:{api.port}", bootstrap="127.0.0.1:1")
        assert result.code == 0, result.stderr

    def test_an_option_of_the_command_itself_keeps_its_meaning(self, api: Api) -> None:
        result = run("token", "create", "--user", "nobody-here", bootstrap=f"127.0.0.1:{api.port}")
        assert result.code == 1 and "nobody-here" in result.stderr


class TestMistyped:
    def test_a_noun(self) -> None:
        result = run("topics", "list")
        assert result.code == 2
        assert "No such command 'topics'. Did you mean 'topic'" in result.stderr

    def test_a_verb_and_an_option(self) -> None:
        assert "Did you mean 'list'?" in run("topic", "lst").stderr
        assert "Did you mean '--partitions'?" in run("topic", "create", "t", "--partions", "3").stderr

    def test_a_topic(self, api: Api) -> None:
        result = run("topic", "describe", "orers", bootstrap=f"127.0.0.1:{api.port}")
        assert result.code == 1
        assert result.stderr == "Error: there is no topic 'orers'. Did you mean 'orders'?\n"

    def test_a_name_that_is_like_no_other_gets_no_suggestion(self, api: Api) -> None:
        result = run("topic", "describe", "zzz", bootstrap=f"127.0.0.1:{api.port}")
        assert result.stderr == "Error: there is no topic 'zzz'\n"


class TestNotConnected:
    @pytest.mark.parametrize(
        "words", [("topic", "list"), ("consume", "t"), ("produce", "t"), ("bench", "consumer", "t")]
    )
    def test_it_is_said_at_once_and_once(self, words: tuple[str, ...]) -> None:
        with closing(socket.socket()) as unused:  # bound, but it does not listen
            unused.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            began = time.monotonic()
            result = run(*words, bootstrap=address)
        assert result.code == 1
        assert time.monotonic() - began < 4, "the client alone would retry for five seconds"
        assert result.stderr == (
            f"Error: cannot connect to {address}: Connection refused. Is the cluster running, and is this its address "
            "(--bootstrap)?\n"
        )

    def test_the_default_address_has_a_hint_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with closing(socket.socket()) as unused:
            unused.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            monkeypatch.setattr("raftlog.cli.terminal.connection.DEFAULT_BOOTSTRAP", address)
            assert "`raftlog dev` runs one on this machine." in run("topic", "list", bootstrap=None).stderr

    def test_https_where_the_api_has_no_tls(self, api: Api) -> None:
        result = run("topic", "list", bootstrap=f"https://127.0.0.1:{api.port}")
        assert result.code == 1
        assert "with TLS" in result.stderr and f"the address is http://127.0.0.1:{api.port}" in result.stderr

    def test_an_address_that_is_none(self) -> None:
        result = run("topic", "list", bootstrap="ftp://host:1")
        assert result.code == 1 and "is not an address" in result.stderr


class TestCompletion:
    def complete(self, words: str, monkeypatch: pytest.MonkeyPatch) -> Result:
        monkeypatch.setenv("_RAFTLOG_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        return run(bootstrap=None)

    def test_it_knows_commands_topics_and_groups(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAFTLOG_BOOTSTRAP", f"127.0.0.1:{api.port}")
        assert "plain,topic" in self.complete("raftlog to", monkeypatch).lines
        assert self.complete("raftlog topic describe o", monkeypatch).lines == ["plain,orders"]
        assert self.complete("raftlog consume ", monkeypatch).lines == ["plain,clicks", "plain,orders"]
        assert self.complete("raftlog group describe x", monkeypatch).text == "\n"

    def test_it_is_quiet_without_a_cluster(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAFTLOG_BOOTSTRAP", "127.0.0.1:1")
        result = self.complete("raftlog topic describe o", monkeypatch)
        assert (result.text.strip(), result.stderr) == ("", "")

    @pytest.mark.parametrize("shell", SHELLS)
    def test_one_command_installs_it_and_one_removes_it(self, shell: str, home: Path) -> None:
        start = home / f".{shell}rc"
        start.write_text("alias ll='ls -l'")
        for _ in range(2):  # idempotent
            installed = run("completion", "install", shell, bootstrap=None)
            assert installed.code == 0, installed.stderr
        (script,) = [one for one in home.rglob("*") if one.is_file() and "_RAFTLOG_COMPLETE" in one.read_text()]
        assert script.read_text() == script_of(shell) == run("completion", "show", shell, bootstrap=None).text  # type: ignore[arg-type]
        assert start.read_text().count(str(script)) == (0 if shell == "fish" else 2), "one line, with a test"
        assert run("completion", "uninstall", shell, bootstrap=None).code == 0
        assert not script.exists() and start.read_text().strip() == "alias ll='ls -l'"

    def test_the_shell_is_that_of_the_variable(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SHELL", "/usr/bin/zsh")
        assert "compdef" in run("completion", "show", bootstrap=None).text
        monkeypatch.setenv("SHELL", "/bin/csh")
        assert "name the shell" in run("completion", "show", bootstrap=None).stderr


def test_help_without_a_terminal_is_not_cut_at_80_columns() -> None:
    lines = run("topic", "alter", "--help", bootstrap=None).lines
    assert max(map(len, lines)) > 100
    assert any("Reset a setting to its default; repeatable." in line for line in lines)


def test_a_cluster_that_answers_is_reached_with_other_nodes_down(api: Api) -> None:
    result = run("topic", "list", bootstrap=f"127.0.0.1:1,127.0.0.1:{api.port}")
    assert result.code == 0, result.stderr
