"""The security of a running node, assembled from its settings: authentication, access, quotas and the audit log."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metadata.records.events import MetadataEvent, RulesChanged
from metadata.records.transactions import Standing
from metadata.view import ClusterView
from raftlog.broker.security.access.access import Access
from raftlog.broker.security.access.request_access import GuardedAccess
from raftlog.broker.security.audit.audit import AuditLevel, AuditTrail, of_failed_login
from raftlog.broker.security.audit.log import AuditLog, AuditSink, FileSink, StandardOutputSink
from raftlog.broker.security.audit.logs import AuditLogs
from raftlog.broker.security.audit.recent import RecentAudit
from raftlog.broker.security.audit.topic import Produce, TopicSink
from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.authentication.node_authentication import NodeAuthentication
from raftlog.broker.security.quotas.limits import QuotaTable
from raftlog.broker.security.quotas.open_transactions import OpenTransactions
from raftlog.broker.security.quotas.quotas import Quotas
from raftlog.config import SecurityConfig
from raftlog.errors import RetriableError
from raftlog.model import BrokerId
from raftlog.ports import Answer, Clock, Worker
from raftlog.security.presented import Presented
from raftlog.security.principals import ANONYMOUS, Caller
from raftlog.system.futures import future_of
from raftlog.system.runtime import LoopScheduler

CLOSE_SECONDS = 2.0
"""Time for the last lines of the audit log when the node stops, in seconds."""


class NodeSecurity:
    """The security of one node whose `security.mode` is not `off`. All calls are made on the broker's loop."""

    def __init__(
        self,
        config: SecurityConfig,
        *,
        cluster_id: str,
        node_id: BrokerId,
        folder: str,
        view: ClusterView,
        knows_cluster: Callable[[], bool],
        clock: Clock,
        now_ms: Callable[[], int],
        names_a_node: Callable[[Mapping[str, Any]], bool],
        worker: Worker,
        produce: Produce,
    ) -> None:
        """`knows_cluster` returns whether the view is up to date with this node's start. `now_ms` returns the cluster's
        time in milliseconds since 1970. `produce` appends the audit log's records.

        Raises `InvalidRequest` for settings that cannot be used.
        """
        self.clock = clock
        scheduler = self.scheduler = LoopScheduler(asyncio.get_running_loop())
        level = AuditLevel(config.audit.level)
        self._knows_cluster = knows_cluster
        self._view = view
        self._worker = worker
        self._audit_file = os.path.join(folder, config.audit.file) if config.audit.file else ""
        sinks = _sinks(config, self._audit_file, view, clock, worker, produce)
        self.recent_audit = RecentAudit(level.value if sinks else "")
        """The newest lines of the audit log, if one is written."""
        if sinks:
            sinks.append(self.recent_audit)
        self.audit = AuditLogs(level, [AuditLog(AuditTrail(level, node_id), sink, clock, scheduler) for sink in sinks])
        self._authentication = NodeAuthentication(
            config, cluster_id, view, clock, now_ms, names_a_node, self._on_refused
        )
        self.sessions = self._authentication.sessions
        """The authentications of open streams."""
        self.refused: Counter[str] = Counter()
        """Refused credentials by mechanism."""
        table = QuotaTable(view.security)
        self.quotas = Quotas(table.limits_of, table.is_limited)
        """The rates and counts of callers."""
        transactions = OpenTransactions(self.quotas, lambda key: view.transactions.standing(key) is Standing.UNDECIDED)
        self.access = Access(view, view.security.authorizer, self.audit, transactions)
        """The decisions about requests."""
        self.unnamed = Caller(ANONYMOUS, "") if config.mode == "optional" else None
        """The caller of requests that a node without security forwards; None: they are refused."""
        self.doors = GuardedAccess(
            self.authenticate,
            self.access,
            view,
            self.sessions,
            self.quotas,
            clock,
            needs_credentials=config.mode == "required",
            is_super_user=frozenset(config.super_users).__contains__,
        )
        """The part of it that the HTTP API uses."""
        self._unsubscribe = view.subscribe(self._on_events)

    def start(self) -> None:
        """Begin to read what the authentication needs."""
        self._authentication.start()
        if self._audit_file:
            self.recent_audit.read_earlier(self._audit_file, self._worker)

    async def authenticate(self, presented: Presented) -> Authentication:
        """Return the caller of a request. Raises as `ask` answers."""
        return await future_of(lambda answer: self.ask(presented, answer))

    def ask(self, presented: Presented, answer: Answer[Authentication]) -> None:
        """Answer with the caller of a request.

        The error is `Unauthenticated`, or a `RetriableError` if the credential cannot be checked at present.
        """
        if not self._knows_cluster():
            # A user that this node does not know yet must not be refused as if its credential were wrong.
            answer(RetriableError("quorum_unavailable", "the node has just started and knows no users yet; retry"))
        else:
            self._authentication.ask(presented, answer)

    def quota_delays(self) -> dict[str, int]:
        """Return, by quota, how many charges made a caller wait."""
        return {rate.field: count for rate, count in self.quotas.delays.items()}

    def problems(self) -> list[str]:
        """Return the problems for the node's health."""
        return [*self._authentication.problems(), *self.audit.problems()]

    async def close(self) -> None:
        """Stop, after the last lines of the audit log, or after `CLOSE_SECONDS`."""
        self._unsubscribe()
        await self._authentication.close()
        closed = asyncio.Event()
        self.audit.close(closed.set)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await closed.wait()
        except TimeoutError:
            return

    def _on_refused(self, host: str, claimed: str, mechanism: str, reason: str) -> None:
        self.refused[mechanism] += 1
        self.audit.note(of_failed_login(host, claimed, mechanism, reason))

    def _on_events(self, index: int, events: Sequence[MetadataEvent]) -> None:
        if any(isinstance(event, RulesChanged) for event in events):
            self.access.rules_changed()


def _sinks(
    config: SecurityConfig, file: str, view: ClusterView, clock: Clock, worker: Worker, produce: Produce
) -> list[AuditSink]:
    audit = config.audit
    sinks: list[AuditSink] = []
    if file:
        sinks.append(FileSink(file, worker))
    if audit.stdout:
        sinks.append(StandardOutputSink(worker))
    if audit.topic:
        sinks.append(TopicSink(audit.topic, view, clock, produce))
    return sinks
