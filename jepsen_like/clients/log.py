"""The client of the `log` workload: a producer and consumers, as an application has them.

A key is `topic/partition`. Positions belong to this process: in partitions that it has read before it continues where
it was, and in new ones where the operation's hint says. A value is a number, in a record as its digits.

Records that were read are always reported, even if something else failed: a record that the suite loses would look like
one that the cluster lost.

A transaction of the workload is a sequence of sends and polls, atomic as a whole. Its outcome is the state of the
public `Transaction`. After an abort its reads do not count: the client rewinds to where it was, so that the same
records are read again. A member of a group commits the offsets of its reads in the transaction.

A member may hang after it has read records: its whole program stops, including its heartbeats. The partitions whose
offsets it then commits belong to others, which it does not know yet.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from raftlog.client import (
    Consumer,
    ConsumerRecord,
    GroupConsumer,
    GroupPartition,
    Producer,
    RecordMetadata,
    TransactionState,
)
from raftlog.errors import RaftlogError

from .members import subscribed
from .messages import OutcomeUnknown, Told, option
from .process import ClientSettings, outcome_of

POLL_SECONDS = 0.25
"""How long a poll waits for records, for all topics together."""
ANSWER_SECONDS = 2.0
"""Part of an operation's time that remains after the delivery timeout, so that the error reports the outcome."""
START_PART = 0.25
"""Part of an operation's time for finding one topic to read."""

Pairs = dict[str, list[list[int]]]
"""Key → offset and value of each record, in reading order."""


class LogClient:
    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        options = settings.options
        self.subscribes = bool(options.get("subscribe", False))
        self._transactional = bool(options.get("transactions", False))
        self._poll_records = int(option(options, "poll_records", 500))
        self._producer: Producer | None = None
        self._readers: dict[str, Consumer] = {}
        """Topic → the consumer of the keys that the process assigned to itself."""
        self._member: GroupConsumer | None = None
        self._positions: dict[str, int] = {}
        """Key → the next offset to read, for every key that it has ever assigned to itself."""
        self._rebalanced: set[str] = set()

    async def invoke(self, f: str, value: Any, hint: Mapping[str, Any]) -> Told:
        match f:
            case "send":
                return await self._send(value)
            case "poll":
                return await self._answer([["poll", await self.poll()]])
            case "txn":
                return await run_transaction(self, value, hang=float(hint.get("hang", 0)))
            case "assign":
                await self._assign(value, str(hint.get("start", "earliest")))
                return Told("ok", value)
            case "subscribe":
                await self._subscribe(value)
                return Told("ok", value)
        raise ValueError(f"log has no operation {f}")

    @property
    def decision_seconds(self) -> float:
        """Seconds that the cluster has for a commit."""
        return self._settings.timeout / 2

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            if self._producer is not None:
                stack.push_async_callback(self._producer.close, flush=False)
            for reader in self._readers.values():
                stack.push_async_callback(reader.close)
            if self._member is not None:
                stack.push_async_callback(self._member.close, processed=False)

    # --- Writing ------------------------------------------------------------------------------------------------------

    @property
    def producer(self) -> Producer:
        if self._producer is None:
            settings = self._settings
            patience = max(settings.timeout - ANSWER_SECONDS, settings.timeout / 2)
            self._producer = Producer(
                list(settings.bootstrap),
                linger_ms=1,
                delivery_timeout_ms=patience * 1000,
                request_timeout_ms=patience * 1000,
                # By worker, not by process: the client after a dead one fences the transaction that it left open.
                transactional_id=f"worker-{settings.worker}-{settings.options['tag']}" if self._transactional else None,
                transaction_timeout_ms=int(settings.timeout * 1000),
            )
        return self._producer

    async def _send(self, micro: list[Any]) -> Told:
        """Send all records at once; the outcome of the operation is the least certain of theirs."""
        sending = [self._sending(key, value) for _, key, value in micro]
        done, kinds, error = [], set(), None
        for (_, key, value), one in zip(micro, sending, strict=True):
            try:
                if isinstance(one, RaftlogError):
                    raise one
                done.append(["send", key, [(await one).offset, value]])
                kinds.add("ok")
            except RaftlogError as failed:
                told = outcome_of(failed)
                done.append(["send", key, value])
                kinds.add(told.kind)
                error = told.error
        kind: Any = "info" if "info" in kinds or len(kinds) > 1 else kinds.pop()
        return Told(kind, done, error)

    def _sending(self, key: str, value: int) -> Coroutine[Any, Any, RecordMetadata] | RaftlogError:
        topic, partition = split(key)
        try:
            return self.producer.send_and_wait(topic, encoded(value), partition=partition)
        except RaftlogError as error:
            return error  # The records sent before it are in flight.

    # --- Reading ------------------------------------------------------------------------------------------------------

    async def poll(self) -> Pairs:
        """Return the available records. Raises a `RaftlogError` if reading failed and no records were found."""
        found: Pairs = {}
        if self._member is not None:
            records = await self._member.poll(self._poll_records, timeout=POLL_SECONDS)
            return _into(found, records)
        failed: RaftlogError | None = None
        readers = list(self._readers.items())
        for number, (topic, reader) in enumerate(readers):
            try:
                # Once there are records of one topic, do not wait for the others.
                wait = 0.0 if found else POLL_SECONDS / len(readers[number:])
                _into(found, await reader.poll(self._poll_records, timeout=wait))
            except RaftlogError as error:
                failed = error  # The error will occur again.
            self._remember(topic, reader)
        if failed is not None and not found:
            raise failed
        return found

    async def rewind(self, before: Mapping[str, int]) -> None:
        """Read again from these offsets: the polled records belong to an aborted transaction."""
        if self._member is not None:
            await self._member.seek_to_committed()
            return
        for key, offset in before.items():
            topic, partition = split(key)
            if topic in self._readers:
                await self._readers[topic].seek(partition, offset)
                self._positions[key] = offset

    @property
    def member(self) -> GroupConsumer | None:
        return self._member

    @property
    def positions(self) -> dict[str, int]:
        """Key → the next offset to read, for the keys that the process assigns to itself now."""
        return {
            f"{topic}/{partition}": offset
            for topic, reader in self._readers.items()
            for partition, offset in reader.positions.items()
        }

    @property
    def rebalanced(self) -> list[str]:
        """Return the keys that the group assigned or revoked since the last call."""
        told, self._rebalanced = sorted(self._rebalanced), set()
        return told

    async def _answer(self, value: Any) -> Told:
        return Told("ok", value, rebalanced=self.rebalanced)

    async def _assign(self, keys: list[str], start: str) -> None:
        await self._let_go()
        wanted: dict[str, dict[int, Any]] = {}
        for key in keys:
            topic, partition = split(key)
            wanted.setdefault(topic, {})[partition] = self._positions.get(key, start)
        for topic, starts in wanted.items():
            reader = Consumer(
                list(self._settings.bootstrap), topic, list(starts), starts, max_wait_ms=int(POLL_SECONDS * 1000)
            )
            self._readers[topic] = reader
            await reader.start(self._settings.timeout * START_PART)
            self._remember(topic, reader)
        if not keys:  # An empty assignment makes the process forget its positions.
            self._positions.clear()
            self._rebalanced.clear()

    async def _subscribe(self, keys: list[str]) -> None:
        if self._member is not None:
            return
        await self._let_go()
        topics = sorted({split(key)[0] for key in keys})
        self._member = subscribed(
            list(self._settings.bootstrap),
            f"group-{self._settings.options['tag']}",
            topics,
            enable_auto_commit=not self._transactional,
            auto_commit_interval_ms=500,
            on_assigned=self._moved,
            on_gone=self._moved,
        )

    async def _let_go(self) -> None:
        """Stop reading."""
        readers, self._readers = self._readers, {}
        member, self._member = self._member, None
        async with AsyncExitStack() as stack:
            for reader in readers.values():
                stack.push_async_callback(reader.close)
            if member is not None:
                stack.push_async_callback(member.close)

    def _moved(self, partitions: Iterable[GroupPartition]) -> None:
        self._rebalanced |= {str(partition) for partition in partitions}

    def _remember(self, topic: str, reader: Consumer) -> None:
        for partition, offset in reader.positions.items():
            self._positions[f"{topic}/{partition}"] = offset


def encoded(value: int) -> bytes:
    """Return a record's value."""
    return b"%d" % value


def split(key: str) -> tuple[str, int]:
    """Return topic and partition."""
    topic, _, partition = key.rpartition("/")
    return topic, int(partition)


def _into(found: Pairs, records: Iterable[ConsumerRecord]) -> Pairs:
    for record in records:
        pairs = found.setdefault(f"{record.topic}/{record.partition}", [])
        pairs.append([record.offset, int(record.value or b"-1")])
    return found


async def run_transaction(client: LogClient, micro: list[Any], *, hang: float = 0.0) -> Told:
    """Run one transaction and return its outcome.

    `hang`: seconds that the client blocks before the commit, if it has read records. Raises `OutcomeUnknown`, or the
    `RaftlogError` that prevented its beginning.
    """
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
    # Operations after the failure are indeterminate.
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
    """Rewind the client; if that fails, treat the client as dead: it must not read on behind records that were not
    consumed.
    """
    try:
        await client.rewind(before)
    except RaftlogError as error:
        raise OutcomeUnknown(f"the reads of an aborted transaction could not be rewound: {error}") from None
