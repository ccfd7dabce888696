"""Requests about transactions, and the values that name the contents of a commit.

A producer's requests go to any node over the data connections; what operators and tests read comes from the HTTP API.
All of these values may travel between processes (to the one that commits for several writers); none holds a connection.

Requests that begin or end something may be retried unchanged: the first decision determined the answer, and every retry
gets it. So they are sent to one node after the other until one answers. An initialization carries a random `attempt`
for that purpose: without it, a duplicated request that arrives late would fence the producer that had sent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias
from urllib.parse import quote

from raftlog.api.transactions import ConsumedOffsets, PositionValue, ProducerIdBlock
from raftlog.client.cluster.api import READ_TIMEOUT, HttpApi
from raftlog.client.cluster.channel import NodeChannel
from raftlog.errors import RemoteProtocolError
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    TRANSACTIONS_PATH,
    AbortRequest,
    CommitRequest,
    InitializeRequest,
    OpenBlockRequest,
    RetireBlockRequest,
    TransactionRequest,
    TransactionResponse,
)

HEDGE_AFTER = 1.0
"""Seconds after which another node is asked as well.

It is longer than for reads: each node that is asked has the quorum decide, and an overloaded quorum must not get every
request three times.
"""

ABORTED_BY_REFUSAL = frozenset(
    {
        "transaction_aborted",
        "transaction_committed",
        "position_taken",
        "offset_moved",
        "stale_generation",
        "member_fenced",
        "unknown_member",
        "group_not_empty",
        "unknown_partition",
        "producer_ids_expired",
        "unknown_transaction",
    }
)
"""Error codes of a refused commit which prove that it never was, and never will be, accepted."""

DECIDED_BY_REFUSAL = ABORTED_BY_REFUSAL | {"producer_fenced"}
"""Error codes of a refused abort that come from the quorum.

Any other may be one node's alone, while an earlier commit is still being applied through another node.
"""


class OffsetsSource(Protocol):
    """A consumer whose offsets a transaction commits."""

    def consumed(self) -> ConsumedOffsets:
        """Return everything that it has handed out and its group has not committed."""
        ...

    def consumed_is_committed(self, offsets: ConsumedOffsets) -> None:
        """Record that a transaction has committed `offsets`."""
        ...


Offsets: TypeAlias = OffsetsSource | ConsumedOffsets


class TransactionApi:
    """Requests about transactions.

    Belongs to one event loop. Every call may raise a `RaftlogError`; `timeout` is in seconds.
    """

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def initialize(
        self, transactional_id: str, timeout_ms: int, attempt: bytes, after: TransactionKey | None, *, timeout: float
    ) -> TransactionKey:
        """Initialize a named producer and return the key of its first transaction.

        * `attempt`: `ATTEMPT_BYTES` random bytes, the same in each retry, which gets the first answer.
        * `after`: the key of its last transaction, if any.

        Raises `InvalidRequest` (`producer_fenced`: another producer has initialized the name since).
        """
        request = InitializeRequest(0, transactional_id, timeout_ms, attempt, after)
        return _first_key(await self._ask(request, timeout))

    async def open_block(self, name: str, count: int, timeout_ms: int, *, timeout: float) -> ProducerIdBlock:
        """Return a block of producer ids without a transactional id.

        The same `name` gets the same block until it is retired; an empty one gets a new block.
        """
        answer = await self._ask(OpenBlockRequest(0, name, count, timeout_ms), timeout)
        return ProducerIdBlock(_first_key(answer).producer_id, answer.count)

    async def retire_block(self, name: str, *, timeout: float) -> None:
        """Retire a block; its undecided transactions are aborted permanently."""
        await self._ask(RetireBlockRequest(0, name), timeout)

    async def commit(self, wanted: CommitRequest, *, timeout: float) -> tuple[Sequence[TransactionKey], bool]:
        """Commit, and return the next keys of the named producers, in order, and whether everything is visible.

        Visibility is reported only if the request waits for it.
        """
        answer = await self._ask(wanted, timeout, HEDGE_AFTER + wanted.visible_within_ms / 1000)
        return answer.keys, answer.visible

    async def abort(self, keys: Sequence[TransactionKey], *, timeout: float) -> Sequence[TransactionKey]:
        """Abort, and return the next keys of the named producers among them, in order."""
        return (await self._ask(AbortRequest(0, tuple(keys)), timeout)).keys

    async def _ask(
        self, request: TransactionRequest, timeout: float, hedge_after: float = HEDGE_AFTER
    ) -> TransactionResponse:
        """Have any node carry out a request."""
        channel = NodeChannel.of(self._api)
        return await channel.repeatable(
            TRANSACTIONS_PATH, request, TransactionResponse, timeout=timeout, hedge_after=hedge_after
        )

    async def position(self, name: str) -> int | None:
        """Return a named position as the quorum has it now (S7); None if it was never committed."""
        path = f"/v1/positions/{quote(name, safe='')}"
        return (await self._api.get(path, PositionValue, timeout=READ_TIMEOUT)).value


def _first_key(answer: TransactionResponse) -> TransactionKey:
    if not answer.keys:
        raise RemoteProtocolError("a node answered without a key")
    return answer.keys[0]
