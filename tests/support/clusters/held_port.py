"""A port of this machine that is reserved for one test, with or without a listener.

The port of a closed server is free, and the next server of a parallel test may get it. A client that should find no
listener would then find another test's server, and a server that restarts at its port could not. A port at which a test
closes its server, or has none yet, is therefore held.

On Linux, a bound socket that does not listen keeps its port from everyone who asks for any free port; connecting to it
is refused; and a server that names the port, with SO_REUSEADDR as asyncio sets it, can listen there.
"""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


class HeldPort:
    """A port of 127.0.0.1; held until it is released, or its `with` block ends."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self.number: int = self._socket.getsockname()[1]

    def __str__(self) -> str:
        return f"{HOST}:{self.number}"

    def release(self) -> None:
        """Release the port. A second call does nothing."""
        self._socket.close()

    def __enter__(self) -> HeldPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
