"""Transactions of a cluster in memory: decisions in a dictionary, and markers that are written to its logs at once.

It keeps the rules on which a client relies: a name's epochs rise with every initialization and end, older ones are
fenced, a retried end gets its first answer, a refused commit aborts the transactions that it names, and positions and
group offsets move with a commit or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from raftlog.errors import InvalidRequest, RaftlogError, error_from_code
from raftlog.model import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from raftlog.records.batch import RecordBatch, parse_header, stamp
from raftlog.records.control import ControlKind, encode_control
from raftlog.transactions import TransactionKey
from raftlog.wire import (
    AbortRequest,
    CommitRequest,
    ErrorResponse,
    InitializeRequest,
    OpenBlockRequest,
    RetireBlockRequest,
    TransactionRequest,
    TransactionResponse,
)

if TYPE_CHECKING:
    from .fake_cluster import FakeCluster, FakePartition, FakeTopic

Key = tuple[int, int]

NAMES: dict[type, str] = {
    InitializeRequest: "initialize",
    OpenBlockRequest: "blocks",
    RetireBlockRequest: "retire",
    CommitRequest: "commit",
    AbortRequest: "abort",
}


class FakeTransactions:
    """The decisions of the cluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.names: dict[str, Key] = {}
        """Name → its current key."""
        self.attempts: dict[str, list[bytes | None]] = {}
        """Name → its initializations, the last one first."""
        self.ended: dict[Key, tuple[str, Any]] = {}
        """Key → `committed` or `aborted`, and the answer."""
        self.group_offsets: dict[tuple[str, str, int], int] = {}
        self.positions: dict[str, int] = {}
        self.requests: list[tuple[str, Any]] = []
        """Kind and request, in the order of arrival."""
        self.lose_answers: dict[str, int] = {}
        """Kind → the number of coming requests whose answers are lost, although they are executed."""
        self.refuse: dict[str, str] = {}
        """Kind → the code with which requests are refused, without an effect."""
        self.tells_next_keys = True
        """The keys with which named producers continue."""
        self.before_answer: Callable[[str], Any] = lambda _: None
        """May return an awaitable, after the execution."""

    async def answer(self, request: TransactionRequest) -> TransactionResponse | ErrorResponse | None:
        """Carry out a request, and return its answer; None if the answer is to be lost."""
        what = NAMES[type(request)]
        self.requests.append((what, request))
        self.cluster.wake()
        number = request.correlation_id
        try:
            if what in self.refuse:
                raise error_from_code(self.refuse[what], "as the test asked")
            response = self.change(request)
        except RaftlogError as error:
            return ErrorResponse(number, error.code, error.detail)
        if not self.tells_next_keys and what in ("commit", "abort"):
            response = msgspec.structs.replace(response, keys=())
        waiting = self.before_answer(what)
        if waiting is not None:
            await waiting
        if self.lose_answers.get(what, 0) > 0:
            self.lose_answers[what] -= 1
            return None
        return response

    def change(self, request: TransactionRequest) -> TransactionResponse:
        """Carry out a request. Raises its refusal."""
        keys: Iterable[Key | None] = ()
        visible = False
        match request:
            case InitializeRequest():
                keys = [self._initialize(request.transactional_id, request.attempt, request.after)]
            case OpenBlockRequest():
                return self.open_block(request)
            case CommitRequest():
                keys, visible = self._commit(request), True
            case AbortRequest():
                keys = self._abort([*request.transactions])
            case _:
                raise InvalidRequest("invalid_request", f"the fake has no {type(request).__name__}")
        told = tuple(TransactionKey(*key) for key in keys if key is not None)  # type: ignore[arg-type]
        return TransactionResponse(request.correlation_id, told, visible=visible)

    def open_block(self, request: OpenBlockRequest) -> TransactionResponse:
        first = self.cluster.producer_ids + 1
        self.cluster.producer_ids += request.count
        key = TransactionKey(ProducerId(first), ProducerEpoch(0))
        return TransactionResponse(request.correlation_id, (key,), request.count)

    def asked(self, what: str) -> list[Any]:
        """The requests of this kind."""
        return [request for kind, request in self.requests if kind == what]

    # --- Ends ---

    def _initialize(self, name: str, attempt: bytes | None, after: Key | None) -> Key:
        attempts = self.attempts.setdefault(name, [])
        if attempt in attempts:
            if attempt != attempts[0]:
                raise InvalidRequest("producer_fenced", "another one was initialised since")
            return self.names[name]
        if after is not None and self._is_old(after) and after not in self.ended:
            raise InvalidRequest("producer_fenced", str(after))
        attempts.insert(0, attempt)
        before = self.names.get(name)
        if before is None:
            self.cluster.producer_ids += 1
            self.names[name] = (self.cluster.producer_ids, 0)
        else:
            self._end(before, "aborted")
            del self.ended[before]  # the former owner is fenced, without an outcome
        return self.names[name]

    def _commit(self, request: CommitRequest) -> list[Key | None]:
        keys: list[Key] = [one.key for one in request.outputs]
        known = [self.ended.get(key) for key in keys]
        if keys and all(one is not None and one[0] == "committed" for one in known):
            return [one[1] for one in known if one is not None]
        try:
            self._check(keys, request)
        except InvalidRequest:
            for key in keys:
                if key not in self.ended and not self._is_old(key):
                    self._end(key, "aborted")
            raise
        for group in request.groups:
            for moved in group.moves:
                self.group_offsets[group.group_id, moved.topic_id.hex(), moved.partition] = moved.end
        for one in request.positions:
            self.positions[one.name] = one.new
        for output, key in zip(request.outputs, keys, strict=True):
            ends = {
                (topic.topic_id.hex(), number): int(end)
                for topic in output.topics
                for number, end in zip(topic.partitions, topic.end_offsets, strict=True)
            }
            self._end(key, "committed", ends)
        return [self.ended[key][1] for key in keys]

    def _check(self, keys: list[Key], request: CommitRequest) -> None:
        for one in request.positions:
            if self.positions.get(one.name, -1) != one.current:
                raise InvalidRequest("position_taken", one.name)
        for key in keys:
            self._check_key(key)
        for group in request.groups:
            for moved in group.moves:
                place = (group.group_id, moved.topic_id.hex(), moved.partition)
                if self.group_offsets.get(place, -1) != moved.start:
                    raise InvalidRequest("offset_moved", str(place))

    def _check_key(self, key: Key) -> None:
        if key in self.ended:
            raise InvalidRequest(f"transaction_{self.ended[key][0]}", str(key))
        if self._is_old(key):
            raise InvalidRequest("producer_fenced", str(key))

    def _abort(self, keys: list[Key]) -> list[Key | None]:
        for key in keys:
            if self.ended.get(key, ("aborted",))[0] != "aborted" or key not in self.ended:
                self._check_key(key)
                self._end(key, "aborted")
        return [self.ended[key][1] for key in keys]

    def _is_old(self, key: Key) -> bool:
        return any(now[0] == key[0] and key != now for now in self.names.values())

    def _end(self, key: Key, outcome: str, ends: dict[tuple[str, int], int] | None = None) -> None:
        name = next((name for name, now in self.names.items() if now == key), None)
        after = None if name is None else (key[0], key[1] + 1)
        if name is not None and after is not None:
            self.names[name] = after
        if name is not None:
            older = [old for old in self.ended if old[0] == key[0]]
            for old in older:
                del self.ended[old]  # a name remembers its last end
        self.ended[key] = (outcome, after)
        for topic in self.cluster.topics.values():
            for partition in topic.partitions:
                partition.mark(key, (ends or {}).get((topic.id.hex(), partition.number), 0))
        self.cluster.wake()


class FakeMarkers:
    """A partition's knowledge of transactions: a mixin of `FakePartition`."""

    number: int
    leader_epoch: int
    end_offset: int
    open: dict[Key, int]
    """Transaction → the first offset of its records."""
    aborted: list[tuple[int, int, int, int]]
    """Producer id, epoch, first offset, end."""

    def put(self, batch: bytes) -> None:
        raise NotImplementedError

    @property
    def last_stable_offset(self) -> int:
        return min([self.end_offset, *self.open.values()])

    def mark(self, key: Key, named: int) -> None:
        first = self.open.pop(key, None)
        if first is None:
            return
        if named < self.end_offset:
            self.aborted.append((*key, max(first, named), self.end_offset))
        kind = ControlKind.COMMIT if named else ControlKind.ABORT
        marker = encode_control(kind, [(*key, named or -1)], base_timestamp_ms=1)
        self.put(b"".join(map(bytes, stamp(marker, Offset(self.end_offset), LeaderEpoch(self.leader_epoch)))))


def visible(partition: FakePartition) -> list[bytes | None]:
    """The records that a `read_committed` reader sees, by the fake's own knowledge."""

    seen: list[bytes | None] = []
    for batch in partition.batches:
        header = parse_header(batch)
        key = (header.producer_id, header.producer_epoch)
        gone = any(key == (a, b) and first <= header.base_offset < end for a, b, first, end in partition.aborted)
        if header.end_offset <= partition.last_stable_offset and not header.is_control and not gone:
            seen += RecordBatch(batch).values()
    return seen


def seen(topic: FakeTopic) -> list[bytes | None]:
    """The same for all partitions, one after the other."""
    return [value for partition in topic.partitions for value in visible(partition)]
