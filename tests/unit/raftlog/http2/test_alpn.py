"""HTTP/2 is used under TLS only if the handshake agreed on it (RFC 9113 section 3.2)."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.http2.tls import speaks_h2


@pytest.mark.parametrize(("agreed", "speaks"), [("h2", True), ("http/1.1", False), (None, False)])
def test_only_the_handshakes_agreement_counts(agreed: str | None, speaks: bool) -> None:
    class Connection:
        def selected_alpn_protocol(self) -> str | None:
            return agreed

    assert speaks_h2(asyncio.Transport({"ssl_object": Connection()})) is speaks
    assert speaks_h2(asyncio.Transport()), "without TLS both ends know beforehand"
