"""Transactions and named positions: begin, commit, abort, list.

A transaction is written with `POST /v1/produce` and ended here. Every end may be retried unchanged at any node and gets
the first answer again, so a lost answer costs only a retry.

A list contains what the node knows by itself: commits whose markers are not reported yet (known to all nodes), and open
transactions in partitions that it leads (other nodes answer for theirs).
"""

from __future__ import annotations

import asyncio
from functools import cache, partial
from operator import itemgetter

from aiohttp import web

from http_api.service.transactions import OpenTransaction, check_name
from http_api.web.bodies import JSON_TYPE, content_type, decode_json, raw_reply, read_body, read_json
from http_api.web.call import Call
from http_api.web.context import ApiContext
from http_api.web.limits import COMMIT_BODY_BYTES
from http_api.web.listing import describable
from http_api.web.query import MAX_OFFSET
from http_api.web.replies import encoded_reply, json_reply
from metadata.view import ClusterView
from raftlog import wire
from raftlog.api import transactions as documents
from raftlog.errors import InvalidRequest
from raftlog.json_values import encode
from raftlog.model import ProducerEpoch, ProducerId, TopicId, TopicPartition
from raftlog.security.acls import CLUSTER_NAME, Operation, ResourceType
from raftlog.system.futures import future_of
from raftlog.transactions import TransactionKey

CHANGE_TIMEOUT_S = 30.0
"""Seconds beyond the time that the broker waits for the quorum."""
MAX_LISTED = 10_000
"""The maximum number of transactions in one answer."""
MAX_PLACES = 1_000
"""The maximum number of partitions listed for one transaction."""
PLACES_PER_TURN = 2_000
"""The number of partitions examined before the handler yields to the event loop: some milliseconds."""
MAX_POSITIONS = 10_000
"""The maximum number of positions in one answer."""
_PARTITION_COST = 128
"""A partition of a transaction takes about as long as parsing this number of bytes."""
_POSITION_COST = 16
"""The same for an examined position."""


# --- Begin and end ---------------------------------------------------------------------------------------------------


async def initialize(call: Call) -> web.StreamResponse:
    """Initialize a producer of this name; earlier ones are fenced."""
    asked = await read_json(call, documents.InitializeProducer)
    attempt = bytes.fromhex(asked.attempt) or None
    after = None if asked.after is None else _key(asked.after)
    begun = await _change(call, wire.InitializeRequest(0, asked.transactional_id, asked.timeout_ms, attempt, after))
    return json_reply(documents.ProducerKey(*begun.keys[0]))


async def open_block(call: Call) -> web.StreamResponse:
    """Return a block of producer ids without a transactional id."""
    asked = await read_json(call, documents.OpenBlock)
    block = await _change(call, wire.OpenBlockRequest(0, asked.name, asked.count, asked.timeout_ms))
    return json_reply(documents.ProducerIdBlock(block.keys[0].producer_id, block.count))


async def retire_block(call: Call) -> web.StreamResponse:
    """Retire a block; its undecided transactions are aborted permanently. An unknown block counts as retired."""
    await _change(call, wire.RetireBlockRequest(0, call.segment("name")))
    return web.Response(status=204)


async def commit(call: Call) -> web.StreamResponse:
    """Commit as a whole or not at all (S13)."""
    content_type(call, allowed=(JSON_TYPE,))
    body = await read_body(call, COMMIT_BODY_BYTES)
    asked = await call.context.threads.run(len(body), _parse_commit, body)
    return _ended(await _change(call, asked, asked.visible_within_ms / 1000, holder=call.request))


async def abort(call: Call) -> web.StreamResponse:
    """Abort the transactions."""
    asked = await read_json(call, documents.AbortTransactions)
    return _ended(await _change(call, wire.AbortRequest(0, tuple(map(_key, asked.transactions)))))


async def change(call: Call) -> web.StreamResponse:
    """Carry out a message of a client that cannot reach the data listener."""
    content_type(call, allowed=(wire.CONTENT_TYPE,))
    body = await read_body(call, COMMIT_BODY_BYTES)
    asked, _ = await call.context.threads.run(len(body), wire.decode_request, body)
    if not isinstance(asked, wire.TransactionRequest):
        raise InvalidRequest("invalid_request", f"this path does not accept a {type(asked).__name__}")
    within_s = asked.visible_within_ms / 1000 if isinstance(asked, wire.CommitRequest) else 0.0
    return raw_reply(await _change(call, asked, within_s, holder=call.request))


async def _change(
    call: Call, asked: wire.TransactionRequest, within_s: float = 0.0, *, holder: web.Request | None = None
) -> wire.TransactionResponse:
    """Carry out a change that the caller may make; it may also wait `within_s` seconds for its markers."""
    call.check_request(asked)

    async def answered() -> wire.TransactionResponse:
        return await future_of(lambda answer: call.service.transactions.ask(asked, answer, call.principal))

    return await call.context.finish(answered(), CHANGE_TIMEOUT_S + within_s, holder=holder)


def _ended(answer: wire.TransactionResponse) -> web.Response:
    return json_reply(documents.EndedTransactions([documents.ProducerKey(*key) for key in answer.keys], answer.visible))


def _parse_commit(body: bytes) -> wire.CommitRequest:
    asked = decode_json(body, documents.CommitTransactions)
    outputs = tuple(
        wire.TransactionOutput(
            *_key(one),
            tuple(
                wire.TopicEnds(_topic(topic.topic_id), *(tuple(map(itemgetter(n), topic.end_offsets)) for n in (0, 1)))
                for topic in one.topics
            ),
        )
        for one in asked.transactions
    )
    groups = tuple(one.packed() for one in asked.group_offsets)
    positions = tuple(wire.PositionMove(one.name, one.current, one.new) for one in asked.positions)
    return wire.CommitRequest(0, outputs, groups, positions, asked.block, asked.visible_within_ms)


# --- In progress -----------------------------------------------------------------------------------------------------


async def list_transactions(call: Call) -> web.StreamResponse:
    """List transactions that are open in partitions of this leader, or committed and not yet visible everywhere."""
    await call.catch_up("a transaction")
    found = await _under_way(call)
    shown, looked_at = [], 0
    for key in sorted(found):
        shown.append(_describe(call, key, found[key]))
        looked_at += 1 + len(found[key])
        if looked_at >= PLACES_PER_TURN:
            looked_at = 0
            await asyncio.sleep(0)
    cost = _PARTITION_COST * sum(1 + len(one.partitions) for one in shown)
    return await encoded_reply(call, cost, encode, documents.Transactions(shown))


async def describe_transaction(call: Call) -> web.StreamResponse:
    """Describe a named producer's transaction in progress, or else its last one."""
    name = check_name("a transactional id", call.segment("transactional_id"))
    await call.catch_up(f"transactional id {name!r}")
    producer = call.view.transactions.producer(name)
    if producer is None:
        raise InvalidRequest("unknown_transaction", f"there is no transactional id {name!r}")
    shown, places = producer.key, await _places_of(call.context, producer.key)
    if not places and producer.ended is not None:
        shown, places = producer.ended, await _places_of(call.context, producer.ended)
    return json_reply(_describe(call, shown, places))


async def describe_position(call: Call) -> web.StreamResponse:
    """Return a named position (linearizable, S7)."""
    name = check_name("a position", call.segment("name"))
    await call.catch_up(f"position {name!r}")
    value = call.view.transactions.position(name)
    return json_reply(documents.PositionValue(name, value if value >= 0 else None))


async def list_positions(call: Call) -> web.StreamResponse:
    """List a bounded number of named positions by name (linearizable, S7)."""
    prefix = call.query.text("prefix") or ""
    await call.catch_up("a position")
    known = call.view.transactions
    cost = _POSITION_COST * known.position_count
    found = await call.context.threads.run(cost, _with_prefix, known.position_items(), prefix)
    kind, most = ResourceType.TRANSACTIONAL_ID, MAX_POSITIONS + 1
    return await encoded_reply(
        call, cost, _encode_positions, await describable(call, kind, found, itemgetter(0), most=most)
    )


def _with_prefix(positions: list[tuple[str, int]], prefix: str) -> list[tuple[str, int]]:
    return sorted(one for one in positions if one[0].startswith(prefix))


def _encode_positions(found: list[tuple[str, int]]) -> bytes:
    shown = [documents.NamedPosition(name, value) for name, value in found[:MAX_POSITIONS]]
    return encode(documents.PositionList(shown, len(found) > len(shown)))


async def remove_position(call: Call) -> web.StreamResponse:
    """Delete a position that is at `value`; the work that it recorded may then be published again."""
    value = call.query.integer("value", 0, MAX_OFFSET, -1)
    if value < 0:
        raise InvalidRequest(
            "invalid_request", "the query parameter value is missing: the current value of the position"
        )
    await _change(call, wire.RemovePositionRequest(0, call.segment("name"), value))
    return web.Response(status=204)


_Places = dict[TopicPartition, OpenTransaction | None]


async def _under_way(call: Call) -> dict[TransactionKey, _Places]:
    """Return transaction → partitions where it is open here or its marker is not reported yet, for transactions that
    the caller may describe; both numbers are bounded."""
    found: dict[TransactionKey, _Places] = {}
    may_describe = cache(partial(_may_describe, call))
    for one in call.service.transactions.open_here():
        if may_describe(one.key):
            _note(found, one.key, one.topic_partition, one)
    known = call.view.transactions
    looked_at = 0
    for partition in known.partitions_with_ends():
        for key in known.unmarked(partition, MAX_LISTED):
            if may_describe(key):
                _note(found, key, partition, None)
            looked_at += 1
        looked_at += 1
        if looked_at >= PLACES_PER_TURN:
            looked_at = 0
            await asyncio.sleep(0)
    return found


def _may_describe(call: Call, key: TransactionKey) -> bool:
    """Return whether the caller may see a transaction: by the name of its producer or of its block, and those without a
    name as a part of the cluster's state."""
    known = call.view.transactions
    producer, block = known.producer_of(key.producer_id), known.block_of(key.producer_id)
    name = producer.transactional_id if producer is not None else block.name if block is not None else ""
    if not name:
        return call.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    return call.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)


def _note(
    found: dict[TransactionKey, _Places], key: TransactionKey, partition: TopicPartition, one: OpenTransaction | None
) -> None:
    places = found.get(key)
    if places is None and len(found) < MAX_LISTED:
        places = found[key] = {}
    if places is not None and len(places) < MAX_PLACES:
        places.setdefault(partition, one)


async def _places_of(context: ApiContext, key: TransactionKey) -> _Places:
    """Return the same for one transaction."""
    found = {one.topic_partition: one for one in context.service.transactions.open_here() if one.key == key}
    places: _Places = dict(list(found.items())[:MAX_PLACES])
    known = context.service.view.transactions
    if not known.unmarked_count(key):
        return places
    for number, partition in enumerate(known.partitions_with_ends(), 1):
        if len(places) >= MAX_PLACES:
            break
        if known.end_offset(key, partition) is not None:
            places.setdefault(partition, None)
        if number % PLACES_PER_TURN == 0:
            await asyncio.sleep(0)
    return places


def _describe(call: Call, key: TransactionKey, places: _Places) -> documents.TransactionInfo:
    """Describe a transaction, without partitions of topics that the caller may not describe."""
    view = call.view
    producer = view.transactions.producer_of(key.producer_id)
    partitions = []
    started: list[int] = []
    for partition in sorted(places):
        topic = view.topic_by_id(partition.topic_id)
        place = places[partition]
        first = None if place is None else int(place.first_offset)
        if place is not None and place.started_ms >= 0:
            started.append(place.started_ms)
        if topic is not None and call.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            partitions.append(
                documents.TransactionPartition(topic.name, topic.topic_id.hex(), partition.partition, first)
            )
    since = min(started, default=None)
    return documents.TransactionInfo(
        None if producer is None else producer.transactional_id,
        key.producer_id,
        key.producer_epoch,
        _state(view, key, bool(places)),
        view.transactions.timeout_ms(key),
        since,
        None if since is None else max(0, call.context.clock_ms() - since),
        partitions,
    )


def _state(view: ClusterView, key: TransactionKey, has_places: bool) -> str:
    """Return the state in Kafka's terms: *prepared* means decided, but not visible everywhere yet."""
    standing = view.transactions.standing(key).value
    if standing == "committed" or view.transactions.unmarked_count(key):
        return "PrepareCommit" if has_places else "CompleteCommit"
    if standing in ("undecided", "unknown"):
        return "Ongoing" if has_places else "Empty"
    return "PrepareAbort" if has_places else "CompleteAbort"


# --- Names -----------------------------------------------------------------------------------------------------------


def _key(named: documents.NamedTransaction) -> TransactionKey:
    return TransactionKey(ProducerId(named.producer_id), ProducerEpoch(named.producer_epoch))


def _topic(topic_id: str) -> TopicId:
    return TopicId(bytes.fromhex(topic_id))
