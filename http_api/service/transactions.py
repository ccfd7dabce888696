"""The broker's port for transactions.

`raftlog/broker/changes/transactions.py` implements it. The state of transactions is read from the view
(`view.transactions`), after `catch_up` where the answer must be linearizable (S7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from raftlog import wire
from raftlog.errors import InvalidRequest
from raftlog.model import Offset, TopicPartition
from raftlog.ports import Answer
from raftlog.transactions import TransactionKey


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Records of a transaction in one partition that have no marker yet."""

    key: TransactionKey
    topic_partition: TopicPartition
    first_offset: Offset
    started_ms: int = -1
    """The arrival of the first record by this node's clock, in ms; -1 if it arrived before this node led the
    partition."""


class TransactionService(Protocol):
    """The transactions of one broker."""

    def ask(
        self, request: wire.TransactionRequest, answer: Answer[wire.TransactionResponse], principal: str = ""
    ) -> None:
        """Carry out a request, and call `answer` once; perhaps before this returns. Records that it makes belong to
        `principal` (`AccessService.principal_of`).

        By then the change is decided and visible in the view; changes by commits and aborts become visible in it a
        moment later, or after `catch_up`. A commit that waits for its markers, and gets them too late, is answered as
        not visible; it is committed nonetheless. Errors are `InvalidRequest` if the change is refused, and
        `RetriableError` (`outcome_unknown`, `quorum_unavailable`, `overloaded`); every request may be retried
        unchanged.
        """

    def open_here(self) -> Sequence[OpenTransaction]:
        """Return the open transactions in partitions that this node leads, a bounded number of them."""


def check_request(request: wire.TransactionRequest) -> None:
    """Check the rules that the types of a request do not express. Raises `InvalidRequest`."""
    match request:
        case wire.InitializeRequest():
            check_name("a producer (its transactional id)", request.transactional_id)
        case wire.OpenBlockRequest() | wire.RetireBlockRequest():
            check_name("a block", request.name)
        case wire.RemovePositionRequest():
            check_name("a position", request.name)
        case wire.CommitRequest(outputs=outputs, groups=groups, positions=positions, block=block):
            for group in groups:
                check_name("a group", group.group_id)
            for position in positions:
                check_name("a position", position.name)
            check_name("a block", block)
            if not (outputs or groups or positions or block):
                told = "a commit must name transactions, offsets of groups, positions or a block"
                raise InvalidRequest("invalid_request", told)
            if groups and not outputs:
                # A retry would find the offsets moved, and wrongly report that nothing was applied.
                told = "group offsets require a transaction in the commit; without one, commit them to the group itself"
                raise InvalidRequest("invalid_request", told)


def check_name(what: str, name: str) -> str:
    """Return a name that can be shown. Raises `InvalidRequest`."""
    if not name.isprintable():
        raise InvalidRequest("invalid_request", f"the name of {what} must have printable characters only")
    return name
