"""One event loop and one set of connections to a cluster for the whole process.

Spark's worker processes outlive tasks and micro-batches, so their connections stay open. The loop runs in a thread of
its own; Spark's thread submits calls and waits for them. A forked worker, or one whose loop has ended, creates new
connections.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from raftlog.client.blocking.loop_thread import LoopThread
from raftlog.client.cluster.api import HttpApi
from raftlog.client.cluster.connection_security import ConnectionSecurity
from raftlog.client.credentials import Credentials
from raftlog.client.keywords import AdminKeywords
from raftlog.client.settings import AdminSettings
from raftlog.errors import InvalidRequest
from spark_source.options.cluster import TOKEN, TOKEN_VARIABLE, ClusterOptions

Result = TypeVar("Result")


class Connections:
    """The event loop's thread, and the cluster's API on it."""

    def __init__(self, options: ClusterOptions) -> None:
        """Raises `InvalidRequest` if files or variables that the options name cannot be used here."""
        settings = AdminSettings(**security_of(options))
        try:
            self.api = HttpApi(options.bootstrap, ConnectionSecurity(settings))
        except InvalidRequest as error:
            told = f"options raftlog.tls.* and raftlog.token.*: {error.detail} ({_where()})"
            raise InvalidRequest(error.code, told) from None
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


_shared: dict[ClusterOptions, Connections] = {}
_lock = threading.Lock()


def shared(options: ClusterOptions) -> Connections:
    """Return this process's connections to that cluster. Raises `InvalidRequest`."""
    with _lock:
        found = _shared.get(options)
        if found is None or not found.usable:
            found = _shared[options] = Connections(options)
        return found


def security_of(options: ClusterOptions) -> AdminKeywords:
    """Return the client's settings for TLS and the credential in this process. Raises `InvalidRequest`."""
    found = AdminKeywords(
        tls_authority=options.tls_authority,
        tls_certificate=options.tls_certificate,
        tls_key=options.tls_key,
        insecure_credentials=options.insecure_credentials,
    )
    if options.token is not None:
        found["credentials"] = Credentials(token=options.token, source=f"the token of option {TOKEN}")
    elif options.token_file is not None:
        found["credentials"] = Credentials(token_file=options.token_file)
    elif options.token_variable is not None:
        token = os.environ.get(options.token_variable, "")
        if not token:
            told = f"the variable {options.token_variable} is not set in this process ({_where()})"
            raise InvalidRequest("invalid_config", f"option {TOKEN_VARIABLE}: {told}")
        found["credentials"] = Credentials(token=token.strip(), source=f"the token of {options.token_variable}")
    return found


def _where() -> str:
    return f"process {os.getpid()} on {platform.node()}"
