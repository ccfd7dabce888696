"""The checks of a node's certificates: tested as the node tests them, and their expiry."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from raftlog.cli.doctor.certificates import check_certificates
from raftlog.cli.doctor.findings import Finding
from tests.support.clusters.tls import Authority, write

DAY = 86_400.0


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def check(folder: Path, authority: Authority, *, days: float = 9.0, node: int = 0, later: float = 0.0) -> list[Finding]:
    tls = write(folder, authority, authority.for_node("c", 0, days))
    return check_certificates(tls, "c", node, time.time() + later)


def test_good_ones(tmp_path: Path, authority: Authority) -> None:
    found = check(tmp_path, authority)
    assert [one.level for one in found] == ["ok", "ok"]
    assert "this node's TLS certificate is valid for 9 more days" in found[0].text


def test_one_that_ends_soon(tmp_path: Path, authority: Authority) -> None:
    (own, _) = check(tmp_path, authority, later=7 * DAY)
    assert own.level == "warning" and "valid for 2 more days" in own.text and "create-certificate" in own.remedy
    (own, _) = check(tmp_path, authority, later=9.5 * DAY)
    assert own.level == "problem" and own.text == "this node's TLS certificate has expired"


def test_that_of_another_node(tmp_path: Path, authority: Authority) -> None:
    (found,) = check(tmp_path, authority, node=1)
    assert found.level == "problem" and "is not for this node" in found.text


def test_expired_unsigned_and_missing_files(tmp_path: Path, authority: Authority) -> None:
    (expired,) = check(tmp_path, authority, days=-1.0)
    assert expired.level == "problem"
    tls = write(tmp_path, authority, Authority().for_node("c", 0))
    (foreign,) = check_certificates(tls, "c", 0, time.time())
    assert foreign.level == "problem" and "certificate" in foreign.text
    (missing,) = check_certificates(msgspec.structs.replace(tls, key=str(tmp_path / "none")), "c", 0, time.time())
    assert "cannot read" in missing.text


def test_a_key_that_others_can_read_s12(tmp_path: Path, authority: Authority) -> None:
    tls = write(tmp_path, authority, authority.for_node("c", 0))
    Path(tls.key).chmod(0o644)
    first = check_certificates(tls, "c", 0, time.time())[0]
    assert first.level == "problem" and "(mode 0644)" in first.text and "chmod 600" in first.remedy
