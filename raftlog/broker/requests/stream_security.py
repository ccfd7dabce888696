"""The part of a node's security that the data listener needs (S12)."""

from __future__ import annotations

from typing import Protocol

from raftlog.broker.security.access.access import Access
from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.authentication.sessions import Sessions
from raftlog.broker.security.quotas.quotas import Quotas
from raftlog.http2 import Http2Stream
from raftlog.ports import Answer, Clock, Scheduler
from raftlog.security.presented import Presented
from raftlog.security.principals import Caller, host_of


class StreamSecurity(Protocol):
    """The security of a node whose `security.mode` is not `off`. All calls are made on the broker's loop."""

    @property
    def sessions(self) -> Sessions:
        """The authentications of open streams."""
        ...

    @property
    def access(self) -> Access:
        """The decisions about requests."""
        ...

    @property
    def unnamed(self) -> Caller | None:
        """The caller of requests that another node forwards without one; None: they are refused."""
        ...

    @property
    def quotas(self) -> Quotas:
        """The rates and counts of callers."""
        ...

    @property
    def clock(self) -> Clock: ...

    @property
    def scheduler(self) -> Scheduler: ...

    def ask(self, presented: Presented, answer: Answer[Authentication]) -> None:
        """Answer with the caller of a stream, at once or later.

        The error is `Unauthenticated`, or a `RetriableError` if the credential cannot be checked at present.
        """
        ...


def presented_of(stream: Http2Stream) -> Presented:
    """Return the credentials of a stream that a peer opened."""
    host = stream.peer_host
    return Presented(
        host_of(host) if host else "",
        stream.authorization,
        stream.connection.get_extra_info("peercert") or None,
    )
