"""Other HTTP/2 implementations: curl, nghttp and h2load work with the listener, and h2spec finds no broken rule.

On Debian: `apt-get install curl nghttp2-client`. `.ci/run` shows how to install h2spec.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from raftlog.http2 import Http2Limits, Http2Listener, Http2Stream
from tests.support.clusters.certificates import self_signed
from tests.support.http.http2_peer import prefixed

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0


def needs(tool: str, package: str) -> pytest.MarkDecorator:
    missing = shutil.which(tool) is None
    return pytest.mark.skipif(missing, reason=f"{tool} is not installed (Debian: apt-get install {package})")


needs_curl = needs("curl", "curl")
needs_nghttp = needs("nghttp", "nghttp2-client")
needs_h2load = needs("h2load", "nghttp2-client")
needs_h2spec = pytest.mark.skipif(shutil.which("h2spec") is None, reason="h2spec is not installed")


class Echo:
    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        stream.send([message])

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        reasons.append(reason)


reasons: list[str] = []


@pytest.fixture
async def port() -> AsyncIterator[int]:
    reasons.clear()
    listener = Http2Listener({"/echo": lambda stream: Echo()})
    yield await listener.start("127.0.0.1", 0)
    await listener.close(0.0)


async def run(*command: str) -> tuple[int, bytes, bytes]:
    """A tool's exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode is not None
    return process.returncode, out, err


@needs_curl
@pytest.mark.parametrize("megabytes", [0, 1, 50])
async def test_curl_posts_messages_and_gets_them_back(port: int, tmp_path: Path, megabytes: int) -> None:
    content = b"".join(prefixed(os.urandom(size)) for size in [21, *[1 << 20] * megabytes, 0, 5])
    (tmp_path / "body").write_bytes(content)
    status, out, err = await run(
        "curl", "-sS", "--http2-prior-knowledge", "--data-binary", f"@{tmp_path}/body", "-H", "Expect:",
        f"http://127.0.0.1:{port}/echo",
    )  # fmt: skip
    assert (status, err) == (0, b"")
    assert out == content
    assert reasons == ["ended"]


@needs_curl
async def test_curl_gets_the_error(port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    h2 = ("curl", "-sS", "-i", "--http2-prior-knowledge")
    status, out, _ = await run(*h2, "-d", "x", f"{url}/nothing/here")
    assert status == 0 and out.startswith(b"HTTP/2 404") and b"nothing is served at '/nothing/here'" in out
    status, out, _ = await run(*h2, f"{url}/echo")
    assert status == 0 and out.startswith(b"HTTP/2 405") and b"allow: POST" in out
    status, out, _ = await run("curl", "-sS", "-i", "--http1.1", "-d", "x", f"{url}/echo")
    assert status == 0 and out.startswith(b"HTTP/1.1 400") and b"HTTP/2 only" in out


@needs_curl
async def test_curl_uploads_much_to_an_unknown_path(port: int, tmp_path: Path) -> None:
    """The answer comes first, then the request to stop sending."""
    (tmp_path / "body").write_bytes(bytes(20 << 20))
    _, out, _ = await run(
        "curl", "-sS", "-i", "--http2-prior-knowledge", "--data-binary", f"@{tmp_path}/body", "-H", "Expect:",
        f"http://127.0.0.1:{port}/nothing",
    )  # fmt: skip
    assert out.startswith(b"HTTP/2 404")


@needs_curl
async def test_curl_over_tls(tmp_path: Path) -> None:
    certificate, key = self_signed("127.0.0.1")
    (tmp_path / "certificate.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    content = prefixed(os.urandom(3 << 20))
    (tmp_path / "body").write_bytes(content)
    listener = Http2Listener({"/echo": lambda stream: Echo()}, ssl=context)
    port = await listener.start("127.0.0.1", 0)
    status, out, err = await run(
        "curl", "-sS", "--http2", "--cacert", f"{tmp_path}/certificate.pem", "--data-binary", f"@{tmp_path}/body",
        "-H", "Expect:", f"https://127.0.0.1:{port}/echo",
    )  # fmt: skip
    await listener.close(0.0)
    assert (status, err) == (0, b"") and out == content


@needs_nghttp
async def test_nghttp_sees_a_clean_exchange(port: int, tmp_path: Path) -> None:
    content = prefixed(b"hello " * 20_000)
    (tmp_path / "body").write_bytes(content)
    status, out, err = await run("nghttp", "-v", "-n", "-d", f"{tmp_path}/body", f"http://127.0.0.1:{port}/echo")
    text = out.decode()
    assert status == 0 and err == b"", err
    assert ":status: 200" in text
    received = [int(size) for size in re.findall(r"recv DATA frame <length=(\d+)", text)]
    assert sum(received) == len(content) and max(received) <= 16_384
    assert "RST_STREAM" not in text and not re.search(r"\[ERROR\]|error_code=(?!NO_ERROR)", text)
    assert re.search(r"GOAWAY frame.*\n.*error_code=NO_ERROR", text)


@needs_h2load
@pytest.mark.parametrize("clients", [1, 8])
async def test_h2load_sees_no_failure(port: int, tmp_path: Path, clients: int) -> None:
    (tmp_path / "body").write_bytes(prefixed(b"x" * 1000))
    status, out, _ = await run(
        "h2load", "-n", "3000", "-c", str(clients), "-m", "32", "-d", f"{tmp_path}/body",
        f"http://127.0.0.1:{port}/echo",
    )  # fmt: skip
    assert status == 0
    assert b"3000 succeeded, 0 failed, 0 errored, 0 timeout" in out, out
    assert b"3000 2xx" in out and reasons == ["ended"] * 3000


@needs_h2load
async def test_h2load_with_the_smallest_windows_and_more_streams_than_announced(tmp_path: Path) -> None:
    listener = Http2Listener(
        {"/echo": lambda stream: Echo()}, limits=Http2Limits(window_bytes=65_535, max_frame_bytes=2**14)
    )
    port = await listener.start("127.0.0.1", 0)
    (tmp_path / "body").write_bytes(prefixed(b"x" * 200_000))
    status, out, _ = await run(
        "h2load", "-n", "200", "-c", "2", "-m", "64", "-w", "16", "-W", "16", "-d", f"{tmp_path}/body",
        f"http://127.0.0.1:{port}/echo",
    )  # fmt: skip
    await listener.close(0.0)
    assert status == 0
    assert b"200 succeeded, 0 failed, 0 errored, 0 timeout" in out, out


@needs_h2spec
@pytest.mark.parametrize("options", [("--strict",), ("--strict", "--tls", "--insecure")], ids=["plain", "tls"])
async def test_h2spec_finds_no_broken_rule(tmp_path: Path, options: tuple[str, ...]) -> None:
    """The announced frame size is below the largest, beyond which no frame header can go (RFC 9113 section 4.1): h2spec
    could not send one that is too large."""
    certificate, key = self_signed("127.0.0.1")
    (tmp_path / "certificate.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    listener = Http2Listener(
        {"/echo": lambda stream: Echo()},
        limits=Http2Limits(max_frame_bytes=2**20),
        ssl=context if "--tls" in options else None,
    )
    port = await listener.start("127.0.0.1", 0)
    status, out, err = await run("h2spec", "-h", "127.0.0.1", "-p", str(port), "-P", "/echo", *options)
    await listener.close(0.0)
    assert status == 0, (out + err).decode()
    tests, passed, skipped, failed = map(int, re.findall(rb"\d+", out.splitlines()[-1]))
    assert tests == passed >= 145 and not (skipped or failed), out.decode()
