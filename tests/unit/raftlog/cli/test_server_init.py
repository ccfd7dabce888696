"""`raftlog server init --secure`: files, their modes, and a token that is shown once. S12."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from raftlog.broker.identity import NODE_FILE
from raftlog.broker.security.administration.first_administrator import (
    FIRST_ADMINISTRATOR_FILE,
    read_first_administrator,
)
from raftlog.broker.security.authentication.client_names import ClientNames
from raftlog.broker.tls.files import load_tls_files
from raftlog.broker.tls.names import NodeNames
from raftlog.config import DEFAULT_NODE_NAME, DEFAULT_USER_NAME, NodeConfig, load_node_config
from raftlog.model import BrokerId
from raftlog.system.disk import LocalDisk
from tests.support.cli_runner import Result, run
from tests.support.security.token_texts import secret_part

VOTERS = "0@10.0.0.1:9641,1@10.0.0.2:9641,2@10.0.0.3:9641"
TOKEN = re.compile(r"rlt_[a-z2-7]{12}_[A-Za-z0-9_-]{43}")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder of an operator whose umask hides nothing."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    yield tmp_path
    os.umask(before)


def init(node: int = 0, *options: str, folder: str = "data") -> Result:
    arguments = ("--data-folder", folder, "--node-id", str(node), "--cluster-id", "orders", "--voters", VOTERS)
    return run("server", "init", "--secure", *arguments, *options)


def loaded(machine: Path, node: int) -> NodeConfig:
    """Return the settings as a node on this machine reads them, with its certificates, which are tested."""
    config = load_node_config((machine / "node.toml").read_text())
    assert config.tls is not None
    tls = msgspec.structs.replace(config.tls, **{name: str(machine / path) for name, path in config.tls.paths.items()})
    found = load_tls_files(tls, NodeNames(DEFAULT_NODE_NAME, "orders"), BrokerId(node))
    assert not found.key_is_open
    return config


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_node_is_ready_to_run(machine: Path) -> None:
    made = init()
    assert made.code == 0, made.stderr
    config = loaded(machine, 0)
    assert config.security.mode == "required" and config.exposed == {}
    assert (str(config.api.listen.endpoint), str(config.data.listen.endpoint)) == ("10.0.0.1:9640", "10.0.0.1:9641")
    assert config.data_folder == "data" and (machine / "data" / NODE_FILE).exists()
    private = ("node-0.key", "authority/authority.key", f"data/{FIRST_ADMINISTRATOR_FILE}")
    assert {name: mode(machine / name) for name in private} == dict.fromkeys(private, 0o600)
    assert mode(machine / "data") == 0o700


def test_the_token_is_shown_once_and_only_its_digest_is_kept(machine: Path) -> None:
    made = init()
    (token,) = TOKEN.findall(made.text)
    assert f"export RAFTLOG_TOKEN={token}" in made.text and token not in made.stderr
    assert "export RAFTLOG_BOOTSTRAP=https://10.0.0.1:9640" in made.text
    assert f"export RAFTLOG_TLS_AUTHORITY={machine}/authority.pem" in made.text
    found = read_first_administrator(LocalDisk(str(machine / "data")), "data")
    assert found is not None
    assert (found.user, found.token_sha256) == ("admin", hashlib.sha256(token.encode()).hexdigest())
    secret = secret_part(token).encode()
    written = [path for path in machine.rglob("*") if path.is_file()]
    assert len(written) >= 9 and not any(secret in path.read_bytes() for path in written)


def test_the_token_may_go_to_a_file_alone(machine: Path) -> None:
    made = init(0, "--credential-file", "root.token", "--administrator", "root")
    assert made.code == 0 and not TOKEN.search(made.text + made.stderr)
    assert f"export RAFTLOG_TOKEN_FILE={machine}/root.token" in made.text
    assert mode(machine / "root.token") == 0o600
    (token,) = TOKEN.findall((machine / "root.token").read_text())
    found = read_first_administrator(LocalDisk(str(machine / "data")), "data")
    assert found is not None and found.user == "root"
    assert found.token_sha256 == hashlib.sha256(token.encode()).hexdigest()
    (machine / "other").mkdir()
    again = init(0, "--credential-file", "root.token", "--config", "other/node.toml", folder="other/data")
    assert again.code == 1 and "root.token already exists" in again.stderr and not (machine / "other/data").exists()
    second = init(1, "--credential-file", "root.token", "--config", "other/node.toml", folder="other/data")
    assert second.code == 0 and "root.token" not in second.text, "the second node makes no administrator"


def test_three_machines_share_the_authority_and_one_makes_the_administrator(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert init().code == 0
    for node in (1, 2):
        there = machine / f"machine-{node}"
        there.mkdir()
        monkeypatch.chdir(there)
        refused = init(node)
        assert refused.code == 1 and "copy the folder that was created with node 0" in refused.stderr
        assert os.listdir(there) == []
        shutil.copytree(machine / "authority", there / "authority")
        made = init(node)
        assert made.code == 0, made.stderr
        assert not TOKEN.search(made.text) and not (there / "data" / FIRST_ADMINISTRATOR_FILE).exists()
        config = loaded(there, node)
        assert config.data.listen.host == f"10.0.0.{node + 1}"
        assert (there / "authority.pem").read_bytes() == (machine / "authority.pem").read_bytes()


def test_an_authority_of_the_operator_is_used(machine: Path) -> None:
    assert run("tls", "create-authority", "--folder", "ca").code == 0
    named = ("--authority", "ca/authority.pem", "--authority-key", "ca/authority.key")
    assert "both --authority and" in init(0, *named[:2]).stderr
    assert init(0, *named).code == 0
    assert (machine / "authority.pem").read_bytes() == (machine / "ca" / "authority.pem").read_bytes()
    assert not (machine / "authority").exists()
    loaded(machine, 0)


def test_names_and_addresses(machine: Path) -> None:
    options = ("--api", "0.0.0.0:9700", "--host", "node0.example.org", "--config", "etc/node.toml")
    made = init(0, *options, folder="var/data")
    assert made.code == 0, made.stderr
    config = loaded(machine / "etc", 0)
    assert config.data_folder == "../var/data" and config.allowed_hosts == ("node0.example.org",)
    assert str(config.api.listen.endpoint) == "0.0.0.0:9700"
    names = names_in(machine / "etc" / "node-0.pem")
    assert names == {"raftlog:/cluster/orders/node/0", "10.0.0.1", "node0.example.org"}


def names_in(certificate: Path) -> set[str]:
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def test_an_observer_names_its_own_address(machine: Path) -> None:
    assert init().code == 0
    (machine / "node.toml").unlink()
    refused = init(7, "--observer", folder="seven")
    assert refused.code == 1 and "--data" in refused.stderr and not (machine / "seven").exists()
    made = init(7, "--observer", "--data", "10.0.0.8:9641", folder="seven")
    assert made.code == 0 and not TOKEN.search(made.text)
    assert loaded(machine, 7).data.listen.host == "10.0.0.8"


@pytest.mark.parametrize("there", ["node.toml", "node-0.pem", "node-0.key", "data/file"])
def test_nothing_is_overwritten(machine: Path, there: str) -> None:
    (machine / there).parent.mkdir(exist_ok=True)
    (machine / there).write_text("mine")
    refused = init()
    assert refused.code == 1 and Path(there).parts[0] in refused.stderr
    assert (machine / there).read_text() == "mine"
    assert not (machine / "data" / NODE_FILE).exists()


@pytest.mark.parametrize("name", ["*", "", "ANONYMOUS", "a\x07b"])
def test_a_name_that_no_user_may_have_is_refused_s11(machine: Path, name: str) -> None:
    refused = init(0, "--administrator", name)
    assert refused.code == 1 and os.listdir(machine) == []


@pytest.mark.parametrize("option", [("--host", "a"), ("--api", "a:1"), ("--credential-file", "f"), ("--config", "c")])
def test_options_of_a_secure_node_alone_are_refused(machine: Path, option: tuple[str, str]) -> None:
    arguments = ("--data-folder", "data", "--node-id", "0", "--cluster-id", "c", "--voters", "0@127.0.0.1:1")
    refused = run("server", "init", *arguments, *option)
    assert refused.code == 1 and "--secure" in refused.stderr and os.listdir(machine) == []


def test_a_users_certificate_names_its_user(machine: Path) -> None:
    assert run("tls", "create-authority", "--folder", ".").code == 0
    made = run("tls", "create-user-certificate", "--user", "Zoë/x")
    assert made.code == 0, made.stderr
    path = machine / "user-Zo%C3%AB%2Fx.pem"
    assert mode(path.with_suffix(".key")) == 0o600
    shown = {"subjectAltName": tuple(("URI", name) for name in names_in(path))}
    assert ClientNames(DEFAULT_USER_NAME, "c1").user_of(shown) == "Zoë/x"
    assert "reserved" in run("tls", "create-user-certificate", "--user", "*").stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--host", "nöde"), "cannot be a name in a certificate"),
        (("--authority", "other.pem", "--authority-key", "missing.key"), "cannot read missing.key"),
    ],
)
def test_an_init_that_fails_can_be_repeated(machine: Path, options: tuple[str, ...], why: str) -> None:
    """The data folder is prepared once, so whatever may fail comes before it."""
    (machine / "other.pem").write_text("")
    failed = init(0, *options)
    assert failed.code == 1 and why in failed.stderr
    assert not (machine / "data").exists()
    made = init()
    assert made.code == 0, made.stderr
    loaded(machine, 0)


def test_a_folder_with_the_certificate_of_another_authority_is_refused_before_anything_is_prepared(
    machine: Path,
) -> None:
    (machine / "authority.pem").write_text("another")
    failed = init()
    assert failed.code == 1 and "is the certificate of another authority" in failed.stderr
    assert not (machine / "data").exists() and not (machine / "node-0.pem").exists()
