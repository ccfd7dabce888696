"""Transactions of a cluster in memory: decisions in a dictionary, markers in its logs at once.

It keeps what a client relies on: a name's epochs rise with every initialisation and end, an older one is fenced, an end
that is asked for again gets its first answer, a refused commit aborts what it names, positions and groups' offsets
move with a commit or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from raftlog.errors import InvalidRequest
from raftlog.model import LeaderEpoch, Offset
from raftlog.records.batch import RecordBatch, parse_header, stamp
from raftlog.records.control import ControlKind, encode_control

if TYPE_CHECKING:
    from .fake_cluster import FakeCluster, FakePartition, FakeTopic

Key = tuple[int, int]


class FakeTransactions:
    """What the cluster decided."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.names: dict[str, Key] = {}
        """Name → the key of now."""
        self.attempts: dict[str, list[str]] = {}
        """Name → its initialisations, the last one first."""
        self.ended: dict[Key, tuple[str, Any]] = {}
        """Key → `committed` or `aborted`, and what was answered."""
        self.group_offsets: dict[tuple[str, str, int], int] = {}
        self.positions: dict[str, int] = {}
        self.requests: list[tuple[str, Any]] = []
        """Path and body, in the order in which they came."""
        self.lose_answers: dict[str, int] = {}
        """Path → of so many requests to come the answer is lost, though they are carried out."""
        self.refuse: dict[str, str] = {}
        """Path → the code with which it is refused, nothing being done."""
        self.tells_next_keys = True
        """With what named producers go on."""
        self.before_answer: Callable[[str], Any] = lambda _: None
        """May return something to await, after the deed."""

    async def route(self, request: web.Request, path: list[str]) -> web.Response:
        body: Any = msgspec.json.decode(await request.read() or b"{}")
        what = path[0]
        self.requests.append((what, body))
        self.cluster.wake()
        if what in self.refuse:
            raise InvalidRequest(self.refuse[what], "as the test asked")
        answer: dict[str, Any]
        if what == "initialize":
            answer = _key(self._initialize(body["transactional_id"], body["attempt"], body["after"]))
        elif what == "blocks":
            first = self.cluster.producer_ids + 1
            self.cluster.producer_ids += body["count"]
            answer = {"first_producer_id": first, "count": body["count"]}
        elif what == "commit":
            answer = self._commit(body)
        else:
            answer = {"producers": self._abort([_of(one) for one in body["transactions"]]), "visible": False}
        if not self.tells_next_keys and "producers" in answer:
            answer = {**answer, "producers": []}
        waiting = self.before_answer(what)
        if waiting is not None:
            await waiting
        if self.lose_answers.get(what, 0) > 0:
            self.lose_answers[what] -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(answer)

    def asked(self, what: str) -> list[Any]:
        """The bodies that came to that path."""
        return [body for path, body in self.requests if path == what]

    # --- Ends ---

    def _initialize(self, name: str, attempt: str, after: Any) -> Key:
        attempts = self.attempts.setdefault(name, [])
        if attempt in attempts:
            if attempt != attempts[0]:
                raise InvalidRequest("producer_fenced", "another one was initialised since")
            return self.names[name]
        if after is not None and self._is_old(_of(after)) and _of(after) not in self.ended:
            raise InvalidRequest("producer_fenced", str(after))
        attempts.insert(0, attempt)
        before = self.names.get(name)
        if before is None:
            self.cluster.producer_ids += 1
            self.names[name] = (self.cluster.producer_ids, 0)
        else:
            self._end(before, "aborted")
            del self.ended[before]  # whoever had it is fenced, and hears no outcome
        return self.names[name]

    def _commit(self, body: Any) -> dict[str, Any]:
        keys = [_of(one) for one in body["transactions"]]
        known = [self.ended.get(key) for key in keys]
        if keys and all(one is not None and one[0] == "committed" for one in known):
            return {"producers": [_key(one[1]) for one in known if one and one[1]], "visible": True}
        try:
            self._check(keys, body)
        except InvalidRequest:
            for key in keys:
                if key not in self.ended and not self._is_old(key):
                    self._end(key, "aborted")
            raise
        for one in body["group_offsets"]:
            for moved in one["ranges"]:
                self.group_offsets[one["group"], moved["topic_id"], moved["partition"]] = moved["end"]
        for one in body["positions"]:
            self.positions[one["name"]] = one["new"]
        for one, key in zip(body["transactions"], keys, strict=True):
            ends = {(t["topic_id"], p): end for t in one["topics"] for p, end in t["end_offsets"]}
            self._end(key, "committed", ends)
        return {"producers": [_key(self.ended[key][1]) for key in keys if self.ended[key][1]], "visible": True}

    def _check(self, keys: list[Key], body: Any) -> None:
        for one in body["positions"]:
            if self.positions.get(one["name"], -1) != one["current"]:
                raise InvalidRequest("position_taken", one["name"])
        for key in keys:
            self._check_key(key)
        for one in body["group_offsets"]:
            for moved in one["ranges"]:
                place = (one["group"], moved["topic_id"], moved["partition"])
                if self.group_offsets.get(place, -1) != moved["start"]:
                    raise InvalidRequest("offset_moved", str(place))

    def _check_key(self, key: Key) -> None:
        if key in self.ended:
            raise InvalidRequest(f"transaction_{self.ended[key][0]}", str(key))
        if self._is_old(key):
            raise InvalidRequest("producer_fenced", str(key))

    def _abort(self, keys: list[Key]) -> list[dict[str, int]]:
        for key in keys:
            if self.ended.get(key, ("aborted",))[0] != "aborted" or key not in self.ended:
                self._check_key(key)
                self._end(key, "aborted")
        return [_key(self.ended[key][1]) for key in keys if self.ended[key][1]]

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
    """What a partition knows of transactions: mixed into `FakePartition`."""

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
    """What a `read_committed` reader sees of it, as the fake itself knows it."""

    seen: list[bytes | None] = []
    for batch in partition.batches:
        header = parse_header(batch)
        key = (header.producer_id, header.producer_epoch)
        gone = any(key == (a, b) and first <= header.base_offset < end for a, b, first, end in partition.aborted)
        if header.end_offset <= partition.last_stable_offset and not header.is_control and not gone:
            seen += RecordBatch(batch).values()
    return seen


def seen(topic: FakeTopic) -> list[bytes | None]:
    """The same of all partitions, one after the other."""
    return [value for partition in topic.partitions for value in visible(partition)]


def _key(key: Key) -> dict[str, int]:
    return {"producer_id": key[0], "producer_epoch": key[1]}


def _of(one: Any) -> Key:
    return one["producer_id"], one["producer_epoch"]
