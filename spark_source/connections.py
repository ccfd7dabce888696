"""One event loop and one set of connections to a cluster, for everything that this process has to do with it.

Spark's worker processes live over many tasks and micro-batches, so what they have connected stays. The loop has a
thread of its own; Spark's thread hands calls over and waits for them. A worker that was forked, or whose loop has
ended, makes new ones.
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
    """Options that say where a cluster is."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def tls_authority(self) -> str | None: ...


class Connections:
    """A loop's thread, and the cluster's API on it."""

    def __init__(self, bootstrap: str, tls_authority: str | None) -> None:
        self.api = HttpApi(bootstrap, context_of(tls_authority))
        self._thread = LoopThread(self, "Spark connection")
        self._process = os.getpid()

    @property
    def usable(self) -> bool:
        """In this process, now."""
        return self._process == os.getpid() and not self._thread.closed

    def run(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """What `call` returns, awaited on the loop. Raises what it raises."""
        return self._thread.run(call)

    def close(self) -> None:
        """Harmless when done before."""
        if self.usable:
            try:
                self._thread.run(self.api.close)
            finally:
                self._thread.stop()


_shared: dict[tuple[str, str | None], Connections] = {}
_lock = threading.Lock()


def shared(options: Reachable) -> Connections:
    """This process's connections to that cluster. Raises `InvalidRequest`."""
    key = options.bootstrap, options.tls_authority
    with _lock:
        found = _shared.get(key)
        if found is None or not found.usable:
            found = _shared[key] = Connections(*key)
        return found


def context_of(tls_authority: str | None) -> ssl.SSLContext | None:
    """For data listeners that speak TLS; None: they do not. Raises `InvalidRequest`."""
    if tls_authority is None:
        return None
    try:
        return ssl.create_default_context(cafile=tls_authority)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            "invalid_config",
            f"option raftlog.tls.authority: no certificates can be read from {tls_authority!r} here: {error}",
        ) from None
