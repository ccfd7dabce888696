"""The TLS files of a client are read again when they change, for new connections, and only if they can be used."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from raftlog.cli.nodes.authority import AuthorityFiles, create_authority
from raftlog.client import Admin, Producer
from raftlog.client.cluster.tls_context import TlsContext
from raftlog.client.settings import AdminSettings
from raftlog.errors import InvalidRequest
from tests.support.client.fake_cluster import FakeCluster, ServerTls
from tests.support.clusters.held_port import HOST, HeldPort


class Files:
    """An authority, a node's contexts that require a certificate, and the files of a client that are replaced."""

    def __init__(self, folder: Path) -> None:
        create_authority(str(folder))
        self._authority = AuthorityFiles.in_folder(str(folder))
        self._folder = folder
        self.certificate, self.key = folder / "alice.pem", folder / "alice.key"
        self.settings = {
            "tls_authority": self._authority.certificate,
            "tls_certificate": str(self.certificate),
            "tls_key": str(self.key),
        }
        self.replace(*self.sign())

    def sign(self) -> tuple[bytes, bytes]:
        return self._authority.sign_user("alice")

    def replace(self, certificate: bytes | None, key: bytes | None) -> None:
        """Replace the files by renaming."""
        for path, content in ((self.certificate, certificate), (self.key, key)):
            if content is not None:
                new = path.with_suffix(".new")
                new.write_bytes(content)
                os.replace(new, path)

    def server_context(self, protocol: str) -> ssl.SSLContext:
        pair = self._folder / "node.both"
        certificate, key, _ = self._authority.sign_node("c", 0, [HOST])
        pair.write_bytes(certificate + key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self._authority.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(pair)
        context.set_alpn_protocols([protocol])
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def serial(certificate: bytes) -> int:
    from cryptography import x509

    return x509.load_pem_x509_certificate(certificate).serial_number


def shown(peer: Any) -> int:
    return int(peer["serialNumber"], 16)


async def test_a_data_connection_is_made_with_the_newest_usable_files(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls(files.server_context("http/1.1"), files.server_context("h2"))
    async with FakeCluster(tls=tls) as cluster:
        cluster.create_topic("t")
        async with Producer(cluster.bootstrap, linger_ms=0, **files.settings) as producer:
            seen = []

            async def send() -> None:
                cluster.nodes[1].drop_connections()
                await cluster.until(lambda: not cluster.nodes[1].streams())
                await producer.send_and_wait("t", b"v")
                (stream,) = cluster.nodes[1].streams()
                seen.append(shown(stream.connection.get_extra_info("peercert")))

            first = serial(files.certificate.read_bytes())
            await send()
            certificate, key = files.sign()
            files.replace(certificate, None)
            await send()
            files.replace(None, key)
            await send()
    assert seen == [first, first, serial(certificate)]
    reports = [record.getMessage() for record in caplog.records if "still in use" in record.getMessage()]
    assert 1 <= len(reports) <= 2 and str(files.certificate) in reports[0], "once for each kind of connection"


async def test_a_request_to_the_api_is_made_with_the_newest_usable_files(files: Files) -> None:
    seen: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        seen.append(shown(request.transport.get_extra_info("peercert")))
        return web.json_response({"cluster_id": "c", "version": "0", "feature_level": 1, "controller": 1, "nodes": []})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner, port = web.AppRunner(app), HeldPort()
    await runner.setup()
    await web.TCPSite(runner, HOST, port.number, ssl_context=files.server_context("http/1.1")).start()
    first = serial(files.certificate.read_bytes())
    async with Admin(f"https://{port}", **files.settings) as admin:
        await admin.cluster()
        certificate, key = files.sign()
        files.replace(certificate, None)
        await admin.cluster()
        files.replace(None, key)
        await admin.cluster()
    await runner.cleanup()
    port.release()
    assert seen == [first, first, serial(certificate)]


def test_files_are_read_only_when_they_change(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    context = TlsContext(AdminSettings(**files.settings), lambda made: made)
    first = context()
    assert context() is first
    content = files.key.read_bytes()
    files.key.unlink()
    assert [context() is first for _ in range(3)] == [True] * 3
    assert len(caplog.records) == 1, "a problem is reported once"
    assert "PRIVATE KEY" not in caplog.text
    files.replace(None, content)
    assert context() is not first


def test_the_first_reading_must_succeed(files: Files) -> None:
    files.key.unlink()
    with pytest.raises(InvalidRequest, match="are not a certificate and its key"):
        TlsContext(AdminSettings(**files.settings), lambda made: made)
