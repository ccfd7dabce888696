"""GET requests to an identity provider: bounded in size and time, over https only, without redirections. S11, S12."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.broker.security.identity_provider.key_set import parse_key_set
from raftlog.broker.security.identity_provider.key_sources import MAX_BYTES, HttpsGet, KeyUrl
from raftlog.config import OidcConfig
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.system.clock import SystemClock
from tests.support.clusters.certificates import self_signed
from tests.support.partitions.manual import ManualClock
from tests.support.security.identity_provider import IdentityProvider

pytestmark = pytest.mark.integration


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the path."""

    def do_GET(self) -> None:
        address = f"https://127.0.0.1:{self.server.server_address[1]}"
        match self.path:
            case "/realm/.well-known/openid-configuration":
                found = {"issuer": f"{address}/realm", "jwks_uri": f"{address}/jwks"}
                self.answer(200, json.dumps(found).encode())
            case "/jwks":
                self.answer(200, IdentityProvider().published("ec"))
            case "/moved":
                self.answer(302, b"", ("Location", f"{address}/jwks"))
            case "/large":
                self.answer(200, b" " * (MAX_BYTES + 1))
            case "/in-pieces":
                self.answer(200, b" " * MAX_BYTES)
            case "/short":
                self.send_response(200)
                self.send_header("Content-Length", "100")
                self.end_headers()
                self.wfile.write(b"{")
            case "/nonsense":
                self.wfile.write(b"\0\0\0\r\n\r\n")
            case _:
                self.answer(500, b"a stack trace")

    def answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that refuses the certificate or hangs up is part of the tests."""


@pytest.fixture
def authority(tmp_path: Path) -> str:
    certificate, key = self_signed("127.0.0.1")
    (tmp_path / "both.pem").write_bytes(certificate + key)
    (tmp_path / "authority.pem").write_bytes(certificate)
    return str(tmp_path / "authority.pem")


@pytest.fixture
def address(authority: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_keys_are_found_by_discovery(address: str, authority: str) -> None:
    config = OidcConfig(issuer=f"{address}/realm", audience="raftlog", authority=authority)
    keys = parse_key_set(KeyUrl(config, HttpsGet(SystemClock(), config.authority))())
    assert keys.find("ec", "ES256") is not None


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/moved", "status 302"),
        ("/large", "more than"),
        ("/missing", "status 500"),
        ("/short", ""),
        ("/nonsense", ""),
    ],
)
def test_other_answers_are_one_error_s11(address: str, authority: str, path: str, why: str) -> None:
    with pytest.raises(RetriableError, match=r"no answer from https://127\.0\.0\.1") as caught:
        HttpsGet(SystemClock(), authority)(address + path)
    assert why in caught.value.detail and "stack trace" not in caught.value.detail


def test_an_answer_has_a_deadline_s10(address: str, authority: str) -> None:
    class Slow(ManualClock):
        def monotonic(self) -> float:
            self.advance(6.0)
            return super().monotonic()

    with pytest.raises(RetriableError, match="has not answered completely within 10 s"):
        HttpsGet(Slow(), authority)(address + "/in-pieces")


def test_a_certificate_that_no_authority_signed_s12(address: str) -> None:
    with pytest.raises(RetriableError, match="CERTIFICATE_VERIFY_FAILED"):
        HttpsGet(SystemClock())(address + "/jwks")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "file:///etc/passwd", "ftp://127.0.0.1/", "data:,x"])
def test_only_https_is_spoken_s12(authority: str, url: str) -> None:
    with pytest.raises(RetriableError, match="no answer"):
        HttpsGet(SystemClock(), authority)(url)


def test_a_port_without_a_server_s10(authority: str) -> None:
    with pytest.raises(RetriableError, match="refused"):
        HttpsGet(SystemClock(), authority)("https://127.0.0.1:1/")


def test_a_file_without_certificates_s11(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for path in (tmp_path / "empty.pem", tmp_path / "missing.pem"):
        with pytest.raises(InvalidRequest, match="contains no certificate"):
            HttpsGet(SystemClock(), str(path))
