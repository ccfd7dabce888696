"""The publication of a driver, built from its tasks' messages. Pure.

Spark passes the driver one message of each winning task. The outputs in them are committed by one command, together
with the position of the micro-batch, if it is one; the blocks of producer ids are retired, which aborts everything else
that was written for this piece of work (S13).

Without messages (a plan without tasks) the query's id is unknown and there is nothing to publish: nothing happens. A
micro-batch whose tasks had no rows publishes no records and still advances the position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raftlog.errors import InvalidRequest, InvariantViolation, RemoteProtocolError
from raftlog.version import __version__
from raftlog.wire import TransactionOutput
from spark_source.requirements import check_versions

from .names import BatchJob, MicroBatch, blocks_between

MAX_OUTPUTS = 10_000
"""The maximum number of outputs in one commit over the HTTP API."""
MAX_BLOCKS = 16
"""The maximum number of blocks retired by one commit; if the winners' numbers lie further apart, the timeout ends
them."""


@dataclass(frozen=True, slots=True)
class Written:
    """A task's message to the driver."""

    work: MicroBatch | BatchJob | None
    """None if the task wrote without a transaction, so that nothing is left to decide."""
    number: int = -1
    """The attempt's number; -1 if it had nothing to write."""
    output: TransactionOutput | None = None
    rows: int = 0
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Publication:
    """The content of one commit, applied as a whole or not at all."""

    work: MicroBatch | BatchJob
    outputs: tuple[TransactionOutput, ...]
    blocks: tuple[str, ...]
    """The blocks to retire: other transactions with ids of them are aborted."""
    rows: int


def publication(messages: Sequence[Written | None], batch_id: int | None) -> Publication | None:
    """Return the publication, or None if there is nothing to decide. `batch_id`: the micro-batch's, from Spark; None
    for a batch query.

    Raises `InvalidRequest` if it cannot be committed, `RemoteProtocolError` for messages that do not belong together,
    and `InvariantViolation` for impossible outputs.
    """
    told = [message for message in messages if message is not None]
    if len(told) < len(messages):
        raise RemoteProtocolError("Spark commits a query although some of its tasks did not report what they wrote")
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
            f"{len(outputs)} tasks have written, but at most {MAX_OUTPUTS} can be committed together: use "
            f"coalesce({MAX_OUTPUTS}) or fewer before the sink",
        )
    return Publication(work, outputs, blocks_of(told), sum(message.rows for message in told))


def blocks_of(messages: Sequence[Written | None]) -> tuple[str, ...]:
    """Return the blocks of these tasks' attempts and of the attempts numbered between them."""
    numbered = [message for message in messages if message is not None and message.number >= 0]
    if not numbered or numbered[0].work is None:
        return ()
    numbers = [message.number for message in numbered]
    return tuple(blocks_between(numbered[0].work.work, range(min(numbers), max(numbers) + 1))[:MAX_BLOCKS])


def _check(told: Sequence[Written], batch_id: int | None) -> None:
    for message in told:
        check_versions(message.version, __version__)
    works = {message.work for message in told}
    if len(works) != 1:
        raise RemoteProtocolError(f"tasks of one query have written for several: {', '.join(sorted(map(str, works)))}")
    (work,) = works
    if isinstance(work, MicroBatch) and work.batch_id != batch_id:
        raise RemoteProtocolError(f"Spark commits micro-batch {batch_id}, but its tasks have written for {work}")
    keys = [message.output.key for message in told if message.output is not None]
    if len(set(keys)) != len(keys):
        raise InvariantViolation("two tasks of a query have written with the same producer id")
