"""`raftlog tls`: a node accepts its files, and those that docs/security.md creates with openssl."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from raftlog.broker.tls.files import TlsFiles, load_tls_files
from raftlog.broker.tls.names import NodeNames
from raftlog.config import DEFAULT_NODE_NAME, TlsConfig
from raftlog.model import BrokerId
from tests.support.cli_runner import run

ROOT = Path(__file__).parents[4]


def load(certificate: Path, authority: Path, cluster: str, node: int, pattern: str = DEFAULT_NODE_NAME) -> TlsFiles:
    config = TlsConfig(certificate=str(certificate), key=str(certificate.with_suffix(".key")), authority=str(authority))
    return load_tls_files(config, NodeNames(pattern, cluster), BrokerId(node))


def make(ca: Path, folder: Path, *options: str) -> tuple[str, ...]:
    pair = ("--authority", str(ca / "authority.pem"), "--authority-key", str(ca / "authority.key"))
    return ("tls", "create-certificate", "--folder", str(folder), *pair, *options)


def test_an_authority_and_a_nodes_certificate(tmp_path: Path) -> None:
    ca, folder = tmp_path / "ca", tmp_path / "node"
    made = run("tls", "create-authority", "--folder", str(ca), "--days", "100")
    assert made.code == 0 and "Keep authority.key secret" in made.text
    options = ("--cluster-id", "a cluster", "--node-id", "3", "--host", "node3.example.org", "--host", "::1")
    made = run(*make(ca, folder, *options))
    assert made.code == 0, made.stderr
    assert "URI:raftlog:/cluster/a%20cluster/node/3, DNS:node3.example.org, IP:::1" in made.text
    found = load(folder / "node-3.pem", ca / "authority.pem", "a cluster", 3)
    assert [round((lifetime.ends - lifetime.begins) / 86400) for lifetime in found.lifetimes] == [365, 100]
    for key in (ca / "authority.key", folder / "node-3.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert not found.key_is_open


def test_custom_names(tmp_path: Path) -> None:
    assert run("tls", "create-authority", "--folder", str(tmp_path)).code == 0
    pattern = "DNS:b{node_id}.example.org"
    made = run(*make(tmp_path, tmp_path, "--cluster-id", "c", "--node-id", "0", "--node-name", pattern))
    assert made.code == 0 and "DNS:b0.example.org" in made.text
    load(tmp_path / "node-0.pem", tmp_path / "authority.pem", "c", 0, pattern)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    assert run("tls", "create-authority", "--folder", str(tmp_path)).code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = run("tls", "create-authority", "--folder", str(tmp_path))
    assert again.code == 1 and "already exists" in again.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_invalid_arguments_are_reported(tmp_path: Path) -> None:
    plain = ("--cluster-id", "c", "--node-id", "0")
    assert "cannot read" in run(*make(tmp_path, tmp_path, *plain)).stderr
    for folder in ("one", "two"):
        assert run("tls", "create-authority", "--folder", str(tmp_path / folder)).code == 0
    one = tmp_path / "one"
    assert "once" in run(*make(one, tmp_path, *plain, "--node-name", "URI:x:/")).stderr
    (one / "authority.key").write_bytes((tmp_path / "two" / "authority.key").read_bytes())
    assert "the key is not that of" in run(*make(one, tmp_path, *plain)).stderr
    (one / "authority.key").write_text("nonsense")
    assert "not the certificate and key of an authority" in run(*make(one, tmp_path, *plain)).stderr
    assert not list(tmp_path.glob("node-*"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the manual's commands are openssl's")
def test_the_manuals_openssl_commands_create_the_same(tmp_path: Path) -> None:
    manual = (ROOT / "docs" / "security.md").read_text()
    (commands,) = re.findall(r"```sh\n(openssl .*?)```", manual, re.DOTALL)
    subprocess.run(["sh", "-e", "-c", commands], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    load(tmp_path / "node-0.pem", tmp_path / "authority.pem", "prod", 0)


def an_authority(folder: Path, kind: str, *options: str) -> None:
    """Create an existing authority: `authority.pem` and `authority.key`, by openssl."""
    extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign", *options)
    added = [text for one in extensions for text in ("-addext", one)]
    files = ("-keyout", str(folder / "authority.key"), "-out", str(folder / "authority.pem"))
    key = ("-newkey", *kind.split(), "-nodes", "-days", "365", "-subj", "/CN=company authority")
    subprocess.run(("openssl", "req", "-x509", *key, *files, *added), check=True, capture_output=True)


@pytest.mark.parametrize("kind", ["rsa:2048", "ec -pkeyopt ec_paramgen_curve:P-384", "ed25519"])
@pytest.mark.parametrize(
    "options",
    [(), ("subjectKeyIdentifier=00112233445566778899", "authorityKeyIdentifier=none")],
    ids=["SHA-1", "own id"],
)
def test_an_existing_authority_signs_whatever_its_key_and_its_identifier_are(
    tmp_path: Path, kind: str, options: tuple[str, ...]
) -> None:
    an_authority(tmp_path, kind, *options)
    made = run(*make(tmp_path, tmp_path, "--cluster-id", "c", "--node-id", "0", "--host", "node0.example.org"))
    assert made.code == 0, made.stderr
    load(tmp_path / "node-0.pem", tmp_path / "authority.pem", "c", 0)


def test_a_certificate_of_a_node_signs_no_other(tmp_path: Path) -> None:
    assert run("tls", "create-authority", "--folder", str(tmp_path)).code == 0
    assert run(*make(tmp_path, tmp_path, "--cluster-id", "c", "--node-id", "0")).code == 0
    pair = ("--authority", str(tmp_path / "node-0.pem"), "--authority-key", str(tmp_path / "node-0.key"))
    made = run("tls", "create-user-certificate", "--user", "alice", "--folder", str(tmp_path), *pair)
    assert made.code == 1 and "not that of an authority (with `CA:TRUE`)" in made.stderr
    assert not (tmp_path / "user-alice.pem").exists()
