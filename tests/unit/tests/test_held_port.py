"""A held port belongs to one test: its own server can come and go there, and no other can use it."""

from __future__ import annotations

import errno
import socket

import pytest

from tests.support.clusters.held_port import HOST, HeldPort


def test_the_tests_own_server_can_come_and_go(held: HeldPort) -> None:
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, held.number))
        with socket.create_server((HOST, held.number)) as server, socket.create_connection((HOST, held.number)):
            server.accept()[0].close()


def test_another_process_cannot_have_it_until_it_is_released() -> None:
    with HeldPort() as held, socket.socket() as stranger:
        with pytest.raises(OSError) as caught:
            stranger.bind((HOST, held.number))
        assert caught.value.errno == errno.EADDRINUSE
        held.release()
        stranger.bind((HOST, held.number))
