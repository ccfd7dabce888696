"""One transaction of the `log` workload: sends and polls in their order, whole or not at all.

What became of it is what the public `Transaction` says of itself. An aborted one has read for nothing: its client goes
back to where it was, so that the same records come again. A member of a group takes along what it has consumed.

A member may hang with something that it has read: nothing of its program runs, not even its heartbeats. What it then
commits is not its own any more, and it does not know that yet.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from raftlog.client import TransactionState
from raftlog.errors import RaftlogError

from .messages import OutcomeUnknown, Told

if TYPE_CHECKING:
    from .log import LogClient


async def run_transaction(client: LogClient, micro: list[Any], *, hang: float = 0.0) -> Told:
    """`hang`: so many seconds, if it has read something. Raises `OutcomeUnknown`, or the `RaftlogError` for which it
    was never begun."""
    from .log import encoded, split

    before = client.positions
    done: list[list[Any]] = []
    sent: list[tuple[list[Any], Any]] = []
    transaction = client.producer.transaction(timeout=client.decision_seconds)
    error = ""
    try:
        async with transaction:
            for one in micro:
                if one[0] == "poll":
                    done.append(["poll", await client.poll()])
                    continue
                _, key, value = one
                topic, partition = split(key)
                done.append(["send", key, value])
                sent.append((done[-1], transaction.send_and_wait(topic, encoded(value), partition=partition)))
            if client.member is not None:
                transaction.send_offsets(client.member)
                if hang and any(one[0] == "poll" and one[1] for one in done):
                    time.sleep(hang)  # noqa: ASYNC251  the whole program stands still
    except RaftlogError as failed:
        error = str(failed)
    for told, delivery in sent:
        try:
            told[2] = [(await delivery).offset, told[2]]
        except RaftlogError as failed:
            error = error or str(failed)
    # Of what was not come to nothing is known but that it was asked for.
    done += [["poll", {}] if one[0] == "poll" else one for one in micro[len(done) :]]
    match transaction.state:
        case TransactionState.COMMITTED:
            return Told("ok", done, error or None, rebalanced=client.rebalanced)
        case TransactionState.NEW | TransactionState.ABORTED:
            await _go_back(client, before)
            return Told("fail", done, error, rebalanced=client.rebalanced)
        case _:
            return Told("info", done, error, rebalanced=client.rebalanced)


async def _go_back(client: LogClient, before: dict[str, int]) -> None:
    """A client that cannot is one that died: nobody may read on behind what was never consumed."""
    try:
        await client.rewind(before)
    except RaftlogError as error:
        raise OutcomeUnknown(f"what an aborted transaction had read could not be given back: {error}") from None
