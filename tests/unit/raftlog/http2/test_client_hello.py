"""The first bytes of a connection: TLS or not, and the server name."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.http2.client_hello import MAX_FIRST_BYTES, FirstBytes, first_bytes
from raftlog.http2.frames import PREFACE


def hello(server_name: str | None, minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> bytes:
    """OpenSSL's first message."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.maximum_version = context.minimum_version = minimum
    said = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), said, server_hostname=server_name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return said.read()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", ["quorum.raftlog", "a", "x" * 60 + ".example.org"])
def test_the_server_name_of_a_hello(name: str, version: ssl.TLSVersion) -> None:
    said = hello(name, version)
    assert first_bytes(said) == FirstBytes(True, name)
    assert first_bytes(said + b"what follows") == FirstBytes(True, name)
    assert all(first_bytes(said[:cut]) is None for cut in range(len(said)))


def test_a_hello_without_a_name() -> None:
    assert first_bytes(hello(None)) == FirstBytes(True, "")
    assert first_bytes(hello("127.0.0.1")) == FirstBytes(True, ""), "an address is no name"


def test_other_protocols_are_recognized_by_the_first_byte() -> None:
    assert first_bytes(b"") is None
    assert first_bytes(PREFACE[:1]) == FirstBytes(False)
    assert first_bytes(b"GET / HTTP/1.1\r\n") == FirstBytes(False)


@given(st.binary(max_size=300), st.integers(0, 600))
def test_any_bytes_have_a_result(noise: bytes, position: int) -> None:
    """An incomplete hello, and noise in the form of a record: never an exception, never more waiting than a record is
    long."""
    said = hello("quorum.raftlog")
    for data in (said[:position] + noise + said[position + len(noise) :], b"\x16\x03\x01" + noise):
        found = first_bytes(data.ljust(MAX_FIRST_BYTES, b"\0"))
        assert found is not None
        assert found.server_name.isascii()
