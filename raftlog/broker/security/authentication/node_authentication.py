"""The authentication of a running node, assembled from its settings: the shell of this room, with the node's threads.

The libraries of passwords and access tokens are imported here, when a node needs them: one without security does not
load them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from metadata.view import ClusterView
from raftlog.broker.security.passwords.checks import THREADS, PasswordChecks
from raftlog.config import OidcConfig, SecurityConfig
from raftlog.ports import Answer, Clock
from raftlog.security.presented import Presented
from raftlog.system.priority import lower_priority
from raftlog.system.runtime import LoopScheduler, ThreadWorker

from .authentication import Authentication
from .authenticator import Authenticator, OnRefused
from .client_names import ClientNames
from .sessions import Sessions

if TYPE_CHECKING:
    from raftlog.broker.security.identity_provider.signing_keys import SigningKeys


class NodeAuthentication:
    """The authentication of one node whose `security.mode` is not `off`. Create it on the broker's loop."""

    def __init__(
        self,
        config: SecurityConfig,
        cluster_id: str,
        view: ClusterView,
        clock: Clock,
        now_ms: Callable[[], int],
        names_a_node: Callable[[Mapping[str, Any]], bool],
        on_refused: OnRefused,
    ) -> None:
        """`now_ms` returns the cluster's time in milliseconds since 1970; it always has an answer
        (`ClusterClock.stamp_ms`). `names_a_node` tells whether a certificate is a node's.

        Raises `InvalidRequest` for a file with authorities that cannot be used.
        """
        from raftlog.broker.security.passwords import passwords

        loop = asyncio.get_running_loop()
        scheduler = LoopScheduler(loop)
        # Strangers decide how many passwords are checked: this must not take time from the log's and the quorum's work.
        self._pool = ThreadWorker(loop, THREADS, "passwords", lower_priority)
        self._reader: ThreadWorker | None = None
        self._keys: SigningKeys | None = None
        checks = PasswordChecks(passwords, clock, scheduler, self._pool, secrets.token_bytes)
        access_tokens = None
        if config.oidc is not None:
            from raftlog.broker.security.identity_provider.access_tokens import AccessTokens

            self._reader = ThreadWorker(loop, 1, "signing-keys")
            self._keys = _signing_keys(config.oidc, clock, scheduler, self._reader)
            access_tokens = AccessTokens(config.oidc, self._keys, now_ms)
        certificates = ClientNames(config.user_name, cluster_id, names_a_node)
        self._authenticator = Authenticator(
            config, view.security, now_ms, certificates, checks, access_tokens, on_refused
        )
        self.sessions = Sessions(view.security, now_ms, scheduler)
        """The authentications of open streams, which follow the view."""
        self._unsubscribe = view.subscribe(self.sessions.on_events)

    def start(self) -> None:
        """Begin to read the keys of the identity provider, if there is one."""
        if self._keys is not None:
            self._keys.start()

    def ask(self, presented: Presented, answer: Answer[Authentication]) -> None:
        """Answer with the caller of a request; see `Authenticator.authenticate`."""
        self._authenticator.authenticate(presented, answer)

    def problems(self) -> list[str]:
        """Return the problems for the node's health."""
        return [] if self._keys is None else self._keys.problems()

    async def close(self) -> None:
        """Stop. Checks that have begun are finished first."""
        self._unsubscribe()
        self.sessions.stop()
        if self._keys is not None:
            self._keys.close()
        for worker in (self._pool, self._reader):
            if worker is not None:
                await asyncio.to_thread(worker.close)


def _signing_keys(config: OidcConfig, clock: Clock, scheduler: LoopScheduler, worker: ThreadWorker) -> SigningKeys:
    from raftlog.broker.security.identity_provider.key_sources import HttpsGet, KeyFile, KeySource, KeyUrl
    from raftlog.broker.security.identity_provider.signing_keys import FILE_SECONDS, URL_SECONDS, SigningKeys

    is_file = bool(config.jwks) and not config.jwks_is_a_url
    source: KeySource = KeyFile(config.jwks) if is_file else KeyUrl(config, HttpsGet(clock, config.authority))
    interval = FILE_SECONDS if is_file else URL_SECONDS
    return SigningKeys(source, interval, clock, scheduler, worker, structlog.get_logger())
