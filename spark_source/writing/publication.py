"""What a driver publishes, made of what its tasks say that they wrote. Pure.

Spark hands the driver one message of each task that it chose: winners only. The outputs that they name are committed by
one command, together with the position of the micro-batch, where it is one; the blocks of producer ids are retired,
so that whatever else was written for this piece of work is aborted (S13).

With no messages at all (a plan without tasks) there is nothing to publish and nobody who knows the query's id: nothing
happens. A micro-batch whose tasks had no rows publishes no records and moves the position all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raftlog.client.transactions.api import TransactionOutput
from raftlog.errors import InvalidRequest, InvariantViolation, RemoteProtocolError
from raftlog.version import __version__

from .names import BatchJob, MicroBatch, blocks_between

MAX_OUTPUTS = 10_000
"""Of one commit over the HTTP API."""
MAX_BLOCKS = 16
"""Retired by one commit: winners whose numbers lie further apart leave it to the blocks' timeout."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a task says. It travels from executor to driver."""

    work: MicroBatch | BatchJob | None
    """None: it wrote without a transaction, and nothing is left to decide."""
    number: int = -1
    """Of the attempt; -1: it had nothing to write."""
    output: TransactionOutput | None = None
    rows: int = 0
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Publication:
    """All of it, or nothing."""

    work: MicroBatch | BatchJob
    outputs: tuple[TransactionOutput, ...]
    blocks: tuple[str, ...]
    """What else was written with ids of these is aborted."""
    rows: int


def publication(messages: Sequence[Written | None], batch_id: int | None) -> Publication | None:
    """None where nothing is to be decided. `batch_id`: the micro-batch's, as Spark tells the driver; None: a batch
    query's.

    Raises `InvalidRequest` where it cannot be committed, `RemoteProtocolError` for what Spark cannot mean, and
    `InvariantViolation` for outputs that cannot be.
    """
    told = [message for message in messages if message is not None]
    if len(told) < len(messages):
        raise RemoteProtocolError("Spark commits a query some of whose tasks have not told what they wrote")
    if not told:
        return None
    _check(told, batch_id)
    work = told[0].work
    if work is None:
        return None
    outputs = tuple(message.output for message in told if message.output is not None)
    if len(outputs) > MAX_OUTPUTS:
        raise InvalidRequest(
            "transaction_too_large",
            f"{len(outputs)} tasks have written, and {MAX_OUTPUTS} are committed together at most: "
            f"coalesce({MAX_OUTPUTS}), or fewer, before the sink",
        )
    return Publication(work, outputs, blocks_of(told), sum(message.rows for message in told))


def blocks_of(messages: Sequence[Written | None]) -> tuple[str, ...]:
    """The blocks of these tasks' attempts and of those that were numbered between them."""
    numbered = [message for message in messages if message is not None and message.number >= 0]
    if not numbered or numbered[0].work is None:
        return ()
    numbers = [message.number for message in numbered]
    return tuple(blocks_between(numbered[0].work.work, range(min(numbers), max(numbers) + 1))[:MAX_BLOCKS])


def _check(told: Sequence[Written], batch_id: int | None) -> None:
    versions = {message.version for message in told} - {__version__}
    if versions:
        raise InvalidRequest(
            "unsupported_version",
            f"an executor has raftlog {min(versions)}, and the driver has {__version__}: install the same on both",
        )
    works = {message.work for message in told}
    if len(works) != 1:
        raise RemoteProtocolError(f"one query's tasks have written for several: {', '.join(sorted(map(str, works)))}")
    (work,) = works
    if isinstance(work, MicroBatch) and work.batch_id != batch_id:
        raise RemoteProtocolError(f"Spark commits micro-batch {batch_id}, and its tasks have written for {work}")
    keys = [message.output.key for message in told if message.output is not None]
    if len(set(keys)) != len(keys):
        raise InvariantViolation("two of a query's tasks have written with one producer id")
