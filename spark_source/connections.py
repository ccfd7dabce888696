"""One event loop and one set of connections to a cluster for the whole process.

Spark's worker processes outlive tasks and micro-batches, so their connections stay open. The loop runs in a thread of
its own; Spark's thread submits calls and waits for them. A forked worker, or one whose loop has ended, creates new
connections.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from raftlog.client.blocking.loop_thread import LoopThread
from raftlog.client.cluster.api import HttpApi
from raftlog.errors import InvalidRequest

Result = TypeVar("Result")


class Reachable(Protocol):
    """Options with the addresses of a cluster."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def tls_authority(self) -> str | None: ...


class Connections:
    """The event loop's thread, and the cluster's API on it."""

    def __init__(self, bootstrap: str, tls_authority: str | None) -> None:
        self.api = HttpApi(bootstrap, context_of(tls_authority))
        self._thread = LoopThread(self, "Spark connection")
        self._process = os.getpid()

    @property
    def usable(self) -> bool:
        """Whether the connections can be used in this process."""
        return self._process == os.getpid() and not self._thread.closed

    def run(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Await `call` on the loop, and return its result. Raises its exceptions."""
        return self._thread.run(call)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        if self.usable:
            try:
                self._thread.run(self.api.close)
            finally:
                self._thread.stop()


_shared: dict[tuple[str, str | None], Connections] = {}
_lock = threading.Lock()


def shared(options: Reachable) -> Connections:
    """Return this process's connections to that cluster. Raises `InvalidRequest`."""
    key = options.bootstrap, options.tls_authority
    with _lock:
        found = _shared.get(key)
        if found is None or not found.usable:
            found = _shared[key] = Connections(*key)
        return found


def context_of(tls_authority: str | None) -> ssl.SSLContext | None:
    """Return the TLS context of data listeners, or None if they do not use TLS. Raises `InvalidRequest`."""
    if tls_authority is None:
        return None
    try:
        return ssl.create_default_context(cafile=tls_authority)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            "invalid_config",
            f"option raftlog.tls.authority: no certificates can be read from {tls_authority!r} here: {error}",
        ) from None
