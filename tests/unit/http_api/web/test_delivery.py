"""Bytes that a peer's kernel has not acknowledged are counted, on a real connection."""

from __future__ import annotations

import socket
import sys
import time

import pytest

from http_api.web.delivery import unacknowledged

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts them")


def test_bytes_are_counted_until_the_peer_takes_them() -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as sender, listener.accept()[0] as peer:
            sender.setblocking(False)
            sent = sender.send(bytes(1 << 20))
            assert 0 < unacknowledged(sender.fileno()) <= sent
            left = sent
            while left:
                left -= len(peer.recv(left))
            deadline = time.monotonic() + 10
            while unacknowledged(sender.fileno()):
                assert time.monotonic() < deadline
                time.sleep(0.001)
