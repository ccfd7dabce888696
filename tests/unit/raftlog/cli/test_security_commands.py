"""`raftlog user|token|acl|quota|whoami` with the real HTTP API and a broker in memory behind it (S12)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.cli.terminal import secrets as typed
from raftlog.security.acls import Operation
from tests.support.cli_runner import Background, Result, run, start
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api, running_api

PASSWORD = "secret-1-horse-battery"


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def api(broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("RAFTLOG_TOKEN", raising=False)
    with Background(running_api(broker)) as background:
        yield background.cluster


def call(api: Api, *arguments: str, stdin: bytes = b"") -> Result:
    return run(*arguments, bootstrap=f"127.0.0.1:{api.port}", stdin=stdin)


def user(api: Api, *arguments: str, stdin: bytes = b"") -> Result:
    return call(api, "user", *arguments, stdin=stdin)


def with_password(api: Api, name: str) -> None:
    made = user(api, "create", name, "--password-file", "-", stdin=f"{PASSWORD}\n".encode())
    assert (made.code, made.text, made.stderr) == (0, f"Created user {name}.\n", "")


class TestUser:
    def test_create_list_describe(self, api: Api, tmp_path: Path) -> None:
        with_password(api, "alice")
        (tmp_path / "password").write_text(PASSWORD)
        made = user(api, "create", "bob", "--password-file", str(tmp_path / "password"), "--superuser", "-o", "json")
        assert made.json["superuser"] and made.json["has_password"] and PASSWORD not in made.text
        assert user(api, "create", "robot", "--no-password").text == "Created user robot.\n"
        listed = user(api, "list")
        assert listed.table("User") == [
            ["User", "Superuser", "Password", "Tokens"],
            ["alice", "no", "yes", "0"],
            ["bob", "yes", "yes", "0"],
            ["robot", "no", "no", "0"],
        ]
        call(api, "token", "create", "--user", "alice", "--description", "laptop")
        shown = user(api, "describe", "alice")
        assert shown.table("User")[1] == ["alice", "no", "yes", "1"]
        assert shown.table("TokenId")[1][1:] == ["laptop", "never"]
        unknown = user(api, "describe", "carol")
        assert (unknown.code, unknown.text) == (1, "") and "there is no user 'carol'" in unknown.stderr

    def test_passwords_are_asked_for_twice_without_echo(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[tuple[str, object]] = []

        def prompt(text: str, **options: object) -> str:
            assert options["hide_input"] and options["err"]
            asked.append((text, options["confirmation_prompt"]))
            return PASSWORD

        refused = user(api, "create", "alice")
        assert refused.code == 1 and "standard input is no terminal to ask on" in refused.stderr
        monkeypatch.setattr(typed, "is_terminal", lambda: True)
        monkeypatch.setattr("raftlog.cli.terminal.secrets.click.prompt", prompt)
        assert user(api, "create", "alice").code == 0
        assert user(api, "set-password", "alice").text == "Set the password of user alice.\n"
        assert asked == [
            ("Password of alice", "Password of alice again"),
            ("New password of alice", "New password of alice again"),
        ]

    @pytest.mark.parametrize("content", [b"", b"\n", b"secret-1 one\nsecret-1 two\n", b"\xff", b"secret-1" * 9000])
    def test_a_password_file_has_one_line(self, api: Api, content: bytes) -> None:
        refused = user(api, "create", "alice", "--password-file", "-", stdin=content)
        assert refused.code == 1 and "secret-1" not in refused.stderr
        missing = user(api, "create", "alice", "--password-file", "/nowhere/password")
        assert missing.code == 1 and "cannot read a password from /nowhere/password" in missing.stderr

    def test_alter_and_delete(self, api: Api, broker: FakeBroker) -> None:
        with_password(api, "alice")
        assert user(api, "alter", "alice").code == 2
        assert user(api, "alter", "alice", "--superuser").text == "Altered user alice.\n"
        found = broker.view.security.user("alice")
        assert found is not None and found.superuser
        user(api, "alter", "alice", "--no-superuser", "--remove-password")
        found = broker.view.security.user("alice")
        assert found is not None and not found.superuser and not found.argon2
        with_password(api, "bob")
        assert user(api, "delete", "alice", "nobody", "--yes").text == "Deleted user alice.\n"
        assert user(api, "delete", "bob", stdin=b"n\n").code == 1
        assert user(api, "delete", "bob", stdin=b"y\n").text == "Deleted user bob.\n"
        assert list(broker.view.security.users()) == []
        both = user(api, "create", "x", "--no-password", "--password-file", "-")
        assert both.code == 2

    def test_a_user_that_exists_is_the_callers_error(self, api: Api) -> None:
        with_password(api, "alice")
        again = user(api, "create", "alice", "--password-file", "-", stdin=PASSWORD.encode())
        assert again.code == 1 and "there is a user 'alice' already" in again.stderr


class TestToken:
    def test_a_token_is_printed_once(self, api: Api, broker: FakeBroker) -> None:
        with_password(api, "alice")
        made = call(api, "token", "create", "--user", "alice", "--expires", "90d", "--description", "laptop")
        token = made.text.strip()
        assert token.startswith("rlt_") and made.text == f"{token}\n", "the token alone, for a file"
        assert made.stderr.startswith("Created token ") and token not in made.stderr
        (known,) = broker.view.security.tokens_of("alice")
        assert token.split("_")[1] == known.token_id
        for output in ("table", "json"):
            listed = call(api, "token", "list", "--user", "alice", "-o", output)
            assert known.token_id in listed.text and token not in listed.text
        assert call(api, "token", "create", "--user", "alice", "-o", "json").json["token"].startswith("rlt_")
        refused = call(api, "token", "revoke", token, "--user", "alice", "--yes")
        assert refused.code == 2 and "give the id of the token" in refused.stderr
        revoked = call(api, "token", "revoke", known.token_id, "--user", "alice", "--yes")
        assert revoked.text == f"Revoked token {known.token_id}.\n"
        assert call(api, "token", "revoke", known.token_id, "--user", "alice", "--yes").code == 1

    def test_without_a_user_it_is_the_callers_own(self, api: Api) -> None:
        refused = call(api, "token", "create")
        assert refused.code == 1 and "name the user with --user" in refused.stderr

    @pytest.mark.parametrize("lifetime", ["0d", "-1d", "5", "d", "9999999d", "1y", "x"])
    def test_lifetimes(self, api: Api, lifetime: str) -> None:
        assert call(api, "token", "create", "--user", "alice", "--expires", lifetime).code == 2


class TestAcl:
    def test_one_rule_for_each_combination(self, api: Api, broker: FakeBroker) -> None:
        made = call(
            api, "acl", "create", "--allow-principal", "User:alice", "--deny-principal", "Group:interns",
            "--operation", "Read", "--operation", "describe_configs", "--topic", "orders", "--host", "10.0.0.1",
        )  # fmt: skip
        assert made.code == 0
        assert made.table("Principal")[0] == [
            "Principal", "Host", "Permission", "Operation", "ResourceType", "PatternType", "Name",
        ]  # fmt: skip
        assert len(broker.view.security.rules()) == 4 == len(made.table("Principal")) - 1
        assert ["User:alice", "10.0.0.1", "allow", "describe_configs", "topic", "literal", "orders"] in made.table(
            "Principal"
        )
        call(
            api, "acl", "create", "--allow-principal", "User:bob", "--group", "b", "--resource-pattern-type", "prefixed"
        )
        listed = call(api, "acl", "list", "--principal", "User:bob", "-o", "json").json
        assert [(one["operation"], one["pattern_type"], one["principal"]) for one in listed] == [
            ("all", "prefixed", "User:bob")
        ]
        assert len(call(api, "acl", "list", "--group", "billing", "-o", "json").json) == 1
        assert call(api, "acl", "list", "--group", "x", "-o", "json").json == []

    def test_what_producers_and_consumers_need(self, api: Api, broker: FakeBroker) -> None:
        call(
            api, "acl", "create", "--allow-principal", "User:p", "--producer", "--topic", "t", "--transactional-id", "x"
        )
        call(api, "acl", "create", "--allow-principal", "User:c", "--consumer", "--topic", "t", "--group", "g")
        assert {(rule.principal, rule.operation, rule.name) for rule in broker.view.security.rules()} == {
            ("User:p", Operation.WRITE, "t"), ("User:p", Operation.WRITE, "x"),
            ("User:c", Operation.READ, "t"), ("User:c", Operation.READ, "g"),
        }  # fmt: skip
        assert call(api, "acl", "create", "--allow-principal", "User:p", "--producer", "--group", "g").code == 2
        both = call(
            api, "acl", "create", "--allow-principal", "User:p", "--producer", "--operation", "read", "--topic", "t"
        )
        assert both.code == 2

    def test_delete_shows_what_it_deletes(self, api: Api, broker: FakeBroker) -> None:
        for name in ("orders", "payments"):
            call(api, "acl", "create", "--allow-principal", "User:alice", "--operation", "read", "--topic", name)
        call(
            api,
            "acl",
            "create",
            "--deny-principal",
            "User:alice",
            "--topic",
            "ord",
            "--resource-pattern-type",
            "prefixed",
        )
        assert call(api, "acl", "delete").code == 2
        planned = call(api, "acl", "delete", "--topic", "orders", "--resource-pattern-type", "any", "--plan")
        assert [row[-1] for row in planned.table("Principal")[1:]] == ["ord", "orders"]
        assert len(broker.view.security.rules()) == 3
        kept = call(api, "acl", "delete", "--principal", "User:alice", stdin=b"n\n")
        assert kept.code == 1 and "Delete 3 rules?" in kept.stderr and len(broker.view.security.rules()) == 3
        call(api, "acl", "delete", "--topic", "orders", "--topic", "payments", "--yes")
        assert [rule.name for rule in broker.view.security.rules()] == ["ord"]
        call(api, "acl", "delete", "--permission", "deny", "--yes")
        assert broker.view.security.rules() == ()

    def test_usage(self, api: Api) -> None:
        assert call(api, "acl", "create", "--topic", "t").code == 2
        assert call(api, "acl", "create", "--allow-principal", "User:a").code == 2
        assert call(api, "acl", "create", "--allow-principal", "User:a", "--topic", "t", "--operation", "fly").code == 2
        wrong = call(api, "acl", "create", "--allow-principal", "alice", "--topic", "t")
        assert wrong.code == 1 and "User:" in wrong.stderr


class TestQuota:
    def test_set_list_remove(self, api: Api) -> None:
        made = call(api, "quota", "set", "User:alice", "--bytes-in-per-second", "1000", "--connections", "5")
        assert made.lines == ["Entity:              User:alice", "bytes_in_per_second: 1000", "connections:         5"]
        changed = call(api, "quota", "set", "User:alice", "--connections", "6", "--unset", "bytes-in-per-second")
        assert changed.lines == ["Entity:      User:alice", "connections: 6"]
        call(api, "quota", "set", "Address:*", "--requests-per-second", "10")
        listed = call(api, "quota", "list", "-o", "json").json
        assert {one["entity"] for one in listed} == {"User:alice", "Address:*"}
        assert call(api, "quota", "remove", "User:alice", "--yes").text == "Removed the limits of User:alice.\n"
        assert "alice" not in call(api, "quota", "list").text

    def test_usage(self, api: Api) -> None:
        assert call(api, "quota", "set", "User:a").code == 2
        assert call(api, "quota", "set", "User:a", "--unset", "speed").code == 2
        assert call(api, "quota", "set", "User:a", "--connections", "1", "--unset", "connections").code == 2
        assert call(api, "quota", "set", "User:a", "--connections", "-1").code == 2
        wrong = call(api, "quota", "set", "alice", "--connections", "1")
        assert wrong.code == 1 and "User:" in wrong.stderr


def test_whoami(api: Api) -> None:
    shown = call(api, "whoami")
    assert shown.code == 0 and "User:ANONYMOUS" in shown.text and "Mechanism: none" in shown.text
    assert call(api, "whoami", "-o", "json").json["mechanism"] == ""


# --- Secrecy ----------------------------------------------------------------------------------------------------------


def test_no_argument_of_a_process_is_a_secret(api: Api) -> None:
    """A password and a token come through pipes: `ps` shows neither, and no option takes them."""
    bootstrap = f"127.0.0.1:{api.port}"
    child = start("user", "create", "alice", "--password-file", "-", bootstrap=bootstrap)
    shown = Path(f"/proc/{child.pid}/cmdline").read_bytes()
    out, err = child.communicate(f"{PASSWORD}\n".encode(), 30)
    assert (child.returncode, out) == (0, b"Created user alice.\n") and b"secret-1" not in shown + err
    command = [sys.executable, "-m", "raftlog.cli.main"]
    for arguments in (["--token", "x", "topic", "list"], ["--password", "x", "topic", "list"]):
        wrong = subprocess.run([*command, *arguments], capture_output=True, text=True)
        assert wrong.returncode == 2 and "No such option" in wrong.stderr


def test_a_credential_is_in_no_output(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAFTLOG_TOKEN", "rlt_secret-1")
    for arguments in (
        ("whoami",),
        ("topic", "list"),
        ("topic", "describe", "nothing"),
        ("cluster", "info", "-o", "json"),
    ):
        result = call(api, *arguments)
        assert "secret-1" not in result.text + result.stderr
    for token in ("rlt secret-1", "rlt_secret-1\nsecret-2"):
        monkeypatch.setenv("RAFTLOG_TOKEN", token)
        refused = call(api, "whoami")
        assert refused.code == 1 and "the token is not a token" in refused.stderr and "secret" not in refused.stderr
    refused = run("whoami", bootstrap="node0.example.org:9640")
    assert refused.code == 1 and "secret" not in refused.stderr
