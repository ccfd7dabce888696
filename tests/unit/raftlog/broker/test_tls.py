"""The names of certificates, files that are refused with the reason, dates. S11, S12."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from raftlog.broker.tls import node_tls
from raftlog.broker.tls.expiry import DAY_SECONDS, ExpiryLog, Lifetime
from raftlog.broker.tls.files import load_tls_files
from raftlog.broker.tls.names import NodeNames
from raftlog.broker.tls.node_tls import NodeTls
from raftlog.config import DEFAULT_NODE_NAME, TlsConfig, load_node_config
from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId
from raftlog.system.clock import SystemClock
from tests.support.clusters.tls import SETTING, Authority, write


def names(pattern: str = DEFAULT_NODE_NAME, cluster: str = "c1") -> NodeNames:
    return NodeNames(pattern, cluster)


def certificate(*found: str) -> dict[str, Any]:
    return {"subjectAltName": tuple(tuple(name.split(":", 1)) for name in found)}


class TestNames:
    def test_a_name_survives_formatting_and_parsing(self) -> None:
        for cluster in ("c1", "Üben/Sie node", "a_B-9", "x" * 64):
            for pattern in (
                DEFAULT_NODE_NAME,
                "URI:spiffe://example.org/{cluster_id}/{node_id}",
                "DNS:b{node_id}.x.org",
            ):
                mapping = names(pattern, cluster)
                for node in (0, 7, 2**31 - 1):
                    assert mapping.node_of(certificate("DNS:host", mapping.name_of(BrokerId(node)))) == node

    @pytest.mark.parametrize(
        ("found", "why"),
        [
            ([], "its names are none"),
            (["DNS:raftlog:/cluster/c1/node/1"], "names no node"),
            (
                ["URI:raftlog:/cluster/c2/node/1"],
                "names no node of cluster 'c1': its names are URI:raftlog:/cluster/c2/node/1",
            ),
            (["URI:raftlog:/cluster/C1/node/1"], "names no node"),
            (["URI:raftlog:/cluster/c1/node/01"], "names no node"),
            (["URI:raftlog:/cluster/c1/node/-1"], "names no node"),
            (["URI:raftlog:/cluster/c1/node/2147483648"], "names no node"),
            (["URI:raftlog:/cluster/c1/node/1/"], "names no node"),
            (["URI:raftlog:/cluster/c1/node/1\n"], "names no node"),
            (["URI:xraftlog:/cluster/c1/node/1"], "names no node"),
            (["URI:raftlog:/cluster/c1/node/\u0661"], "names no node"),
            (["URI:raftlog:/cluster/c1/node/*"], "names no node"),
            (["URI:raftlog:/cluster/c1/node/1", "URI:raftlog:/cluster/c1/node/2"], "names several nodes"),
        ],
    )
    def test_names_of_no_node(self, found: list[str], why: str) -> None:
        with pytest.raises(InvalidRequest, match="certificate") as refused:
            names().node_of(certificate(*found))
        assert refused.value.code == "cluster_authorization_failed" and why in refused.value.detail

    @pytest.mark.parametrize("shown", [None, {}])
    def test_a_peer_without_a_certificate(self, shown: Any) -> None:
        with pytest.raises(InvalidRequest, match="no certificate was shown"):
            names().node_of(shown)

    def test_another_node_than_the_dialed_one(self) -> None:
        two = certificate("URI:raftlog:/cluster/c1/node/2")
        names().expect(two, BrokerId(2))
        with pytest.raises(InvalidRequest, match="node 1 was expected, but node 2 is the owner"):
            names().expect(two, BrokerId(1))

    def test_dns_names_ignore_case_and_take_labels_only(self) -> None:
        mapping = names("DNS:Node-{node_id}.{cluster_id}.example.org")
        assert mapping.node_of(certificate("DNS:node-3.C1.EXAMPLE.org")) == 3
        with pytest.raises(InvalidRequest, match="cannot be part of a DNS name"):
            names("DNS:node-{node_id}.{cluster_id}", "a.b")

    @pytest.mark.parametrize(
        ("pattern", "why"),
        [
            ("raftlog/{node_id}", "begin with"),
            ("IP:{node_id}", "begin with"),
            ("URI:x:/node", "once"),
            ("URI:x:/{node_id}/{node_id}", "once"),
            ("URI:x:/{cluster_id}/{cluster_id}/{node_id}", "once"),
            ("URI:x:/{rack}/{node_id}", "only"),
            ("URI:x:/{cluster_id}{node_id}", "between"),
            ("URI:x:/{cluster_id}-{node_id}", "between"),
            ("DNS:{node_id}-{cluster_id}", "between"),
        ],
    )
    def test_patterns_that_could_mean_two_nodes_are_refused(self, pattern: str, why: str) -> None:
        files = 'certificate = "c"\nkey = "k"\nauthority = "a"'
        with pytest.raises(InvalidRequest, match=why):
            load_node_config(f'[tls]\n{files}\nnode_name = "{pattern}"')
        assert load_node_config(f"tls = {SETTING}").tls is not None
        assert load_node_config("").tls is None, "plain text is the default"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


class TestFiles:
    def load(self, config: TlsConfig, node: int = 1) -> Any:
        return load_tls_files(config, names(), BrokerId(node))

    def test_valid_files(self, authority: Authority, tmp_path: Path) -> None:
        found = self.load(write(tmp_path, authority, authority.for_node("c1", 1)))
        assert [lifetime.what for lifetime in found.lifetimes] == [
            "this node's TLS certificate",
            "the TLS authority's certificate",
        ]
        assert not found.key_is_open
        (tmp_path / "key.pem").chmod(0o640)
        assert self.load(write_config(tmp_path)).key_is_open

    def refused(self, folder: Path, why: str) -> None:
        with pytest.raises(InvalidRequest, match=why) as error:
            self.load(write_config(folder))
        assert error.value.code == "invalid_config" and error.value.detail.startswith("tls: ")

    def test_invalid_files(self, authority: Authority, tmp_path: Path) -> None:
        other = Authority()
        self.refused(tmp_path, "cannot read .*certificate.pem: No such file")
        write(tmp_path, authority, authority.for_node("c1", 2))
        self.refused(tmp_path, "is not for this node: node 1 was expected, but node 2 is the owner")
        write(tmp_path, authority, authority.for_node("c2", 1))
        self.refused(tmp_path, "is not for this node: .* names no node of cluster 'c1'")
        write(tmp_path, authority, other.for_node("c1", 1))
        self.refused(tmp_path, "peers would reject .*: unable to get local issuer certificate")
        write(tmp_path, authority, authority.for_node("c1", 1, days=-1))
        self.refused(tmp_path, "peers would reject .*: certificate has expired")
        write(tmp_path, authority, (authority.for_node("c1", 1)[0], other.for_node("c1", 1)[1]))
        self.refused(tmp_path, "not a certificate and its key: KEY_VALUES_MISMATCH")
        write(tmp_path, authority, authority.for_node("c1", 1))
        (tmp_path / "authority.pem").write_text("no certificate")
        self.refused(tmp_path, "contains no certificate of an authority")
        (tmp_path / "authority.pem").write_bytes((tmp_path / "certificate.pem").read_bytes())
        self.refused(tmp_path, "authority.pem")

    def test_a_key_with_a_pass_phrase_does_not_prompt_at_the_terminal(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        from cryptography.hazmat.primitives import serialization as s

        certificate, key = authority.for_node("c1", 1)
        loaded = s.load_pem_private_key(key, None)
        sealed = loaded.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret"))
        write(tmp_path, authority, (certificate, sealed))
        self.refused(tmp_path, "the key is encrypted")


def write_config(folder: Path) -> TlsConfig:
    files = ("certificate", "key", "authority")
    return TlsConfig(**{name: str(folder / f"{name}.pem") for name in files})


class TestReadingAgain:
    def test_new_files_serve_the_next_connections(self, authority: Authority, tmp_path: Path) -> None:
        tls = NodeTls(write(tmp_path, authority, authority.for_node("c1", 1)), "c1", BrokerId(1), SystemClock())
        server, client = tls.server_context(), tls.dial(BrokerId(2)).context()
        tls.look()
        assert tls.server_context() is server, "nothing has changed"
        write(tmp_path, authority, authority.for_node("c1", 1))
        with capture_logs() as logs:
            tls.look()
        assert tls.server_context() is not server and tls.dial_quorum(BrokerId(2)).context() is not client
        assert [line["event"] for line in logs] == ["tls_files_read"]

    def test_invalid_files_change_nothing_and_are_reported_once(self, authority: Authority, tmp_path: Path) -> None:
        tls = NodeTls(write(tmp_path, authority, authority.for_node("c1", 1)), "c1", BrokerId(1), SystemClock())
        server = tls.server_context()
        write(tmp_path, authority, authority.for_node("c1", 2))
        with capture_logs() as logs:
            tls.look()
            tls.look()
        assert tls.server_context() is server
        assert [(line["event"], line["log_level"]) for line in logs] == [("tls_files_refused", "warning")]
        (problem,) = tls.problems()
        assert "node 2 is the owner" in problem and "still in use" in problem
        write(tmp_path, authority, authority.for_node("c1", 1))
        tls.look()
        assert not tls.problems() and tls.server_context() is not server

    def test_files_that_vanish_while_they_are_read_are_only_reported(
        self, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Replacing files by deleting them first may happen between any two reads."""
        config = write(tmp_path, authority, authority.for_node("c1", 1))
        tls = NodeTls(config, "c1", BrokerId(1), SystemClock())
        write(tmp_path, authority, authority.for_node("c1", 1))
        buffer = ssl.MemoryBIO

        def delete_first() -> ssl.MemoryBIO:
            """A buffer of the handshake, which lies between two reads of the files."""
            Path(config.key).unlink(missing_ok=True)
            return buffer()

        monkeypatch.setattr(ssl, "MemoryBIO", delete_first)
        tls.look()
        tls.look()
        (problem,) = tls.problems()
        assert "cannot read" in problem and "key.pem" in problem

    def test_a_key_that_others_may_read_is_reported_whenever_it_appears(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        config = write(tmp_path, authority, authority.for_node("c1", 1))
        tls = NodeTls(config, "c1", BrokerId(1), SystemClock())
        Path(config.key).chmod(0o644)
        with capture_logs() as logs:
            tls.look()
            tls.look()
        assert [line["event"] for line in logs] == ["tls_files_read", "tls_key_is_readable_by_others"]

    async def test_a_failed_check_is_reported_once_and_later_checks_follow(
        self, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A moment without a free thread must not let certificates expire, weeks later."""
        tls = NodeTls(write(tmp_path, authority, authority.for_node("c1", 1)), "c1", BrokerId(1), SystemClock())
        server, look = tls.server_context(), tls.look
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        failures = [RuntimeError("can't start new thread")] * 3
        looked = asyncio.Event()

        def fails_at_first() -> None:
            if failures:
                raise failures.pop()
            look()
            loop.call_soon_threadsafe(looked.set)

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(node_tls, "WATCH_SECONDS", 0.0)
        monkeypatch.setattr(tls, "look", fails_at_first)
        write(tmp_path, authority, authority.for_node("c1", 1))
        tls.watch()
        async with asyncio.timeout(10.0):
            await looked.wait()
        await tls.close()
        assert tls.server_context() is not server
        assert [context["message"] for context in told] == ["the check of the TLS files failed and will be retried"]

    def test_strangers_cannot_fill_the_log(self, authority: Authority, tmp_path: Path) -> None:
        tls = NodeTls(write(tmp_path, authority, authority.for_node("c1", 1)), "c1", BrokerId(1), SystemClock())
        with capture_logs() as logs:
            for _ in range(1000):
                tls.on_refused("10.0.0.1:5", "no certificate was shown")
        assert 1 <= len(logs) <= 105 and logs[0]["address"] == "10.0.0.1:5"


class TestDates:
    def year(self) -> Lifetime:
        return Lifetime("it", 0.0, 365 * DAY_SECONDS)

    @pytest.mark.parametrize(
        ("days_left", "due"), [(31, None), (30, 30), (8, 30), (7, 7), (1.5, 7), (1, 1), (0.1, 1), (0, 0), (-5, 0)]
    )
    def test_warnings(self, days_left: float, due: int | None) -> None:
        lifetime = self.year()
        now = lifetime.ends - days_left * DAY_SECONDS
        assert lifetime.warned_days(now) == due
        line = lifetime.line(now)
        assert (line is None) is (due is None)
        if line is not None:
            assert ("has expired" in line) is (due == 0)

    def test_short_lived_certificates_do_not_warn_all_the_time(self) -> None:
        for days, first in ((1, 0), (3, 0), (4, 1), (22, 7), (90, 7), (91, 30)):
            lifetime = Lifetime("it", 0.0, days * DAY_SECONDS)
            dues = {lifetime.warned_days(hour * 3600.0) for hour in range(days * 24 + 1)}
            assert max(due for due in dues if due is not None) == first, days
            assert lifetime.warned_days(0.0) is None

    def test_each_warning_is_given_once(self) -> None:
        log, lifetime = ExpiryLog(), self.year()
        said = [line for hour in range(366 * 24) for line in log.due((lifetime,), hour * 3600.0)]
        assert len(said) == 4 and "30 days" in said[0] and "7 days" in said[1] and "24 hours" in said[2]
        again = Lifetime("it", 0.0, 400 * DAY_SECONDS)
        assert len(log.due((again,), 399.5 * DAY_SECONDS)) == 1, "another certificate has warnings of its own"
