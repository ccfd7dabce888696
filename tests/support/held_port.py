"""A port of this machine that is one test's, whether anybody listens there or not.

A port whose server was closed is free, and the next server of a test that runs beside may be given it: then a client
that is to find nobody finds a stranger, and a server that starts again where it was cannot. So a port at which a test
closes its server, or has none yet, is held.

Linux: a socket that is bound and does not listen keeps its port from everybody who asks for any port, server or client;
connecting to it is refused; and who names the port, with SO_REUSEADDR as asyncio sets it, listens there.
"""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


class HeldPort:
    """Of 127.0.0.1; held until it is released, or its `with` block ends."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self.number: int = self._socket.getsockname()[1]

    def __str__(self) -> str:
        return f"{HOST}:{self.number}"

    def release(self) -> None:
        """Anybody may have it then. A second call does nothing."""
        self._socket.close()

    def __enter__(self) -> HeldPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
