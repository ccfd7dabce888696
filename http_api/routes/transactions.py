"""Transactions and named positions: begin, commit, abort, list.

A transaction is written with `POST /v1/produce` and ended here. Every end may be retried unchanged at any node and gets
the first answer again, so a lost answer costs only a retry.

A list contains what the node knows by itself: commits whose markers are not reported yet (known to all nodes), and open
transactions in partitions that it leads (other nodes answer for theirs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiohttp import web

from http_api.models.transactions import (
    AbortTransactions,
    CommitTransactions,
    EndedTransactions,
    InitializeProducer,
    NamedPosition,
    OpenBlock,
    PositionDescription,
    Positions,
    ProducerIdBlock,
    ProducerKey,
    TransactionDescription,
    TransactionPartition,
    Transactions,
    TransactionState,
)
from http_api.service.transactions import (
    NotVisibleYet,
    OpenTransaction,
    WantedCommit,
    WantedGroupOffsets,
    WantedMove,
    WantedOutput,
    WantedPosition,
)
from http_api.web.bodies import JSON_TYPE, content_type, decode_json, read_body, read_json
from http_api.web.context import ApiContext, context_of
from http_api.web.limits import COMMIT_BODY_BYTES
from http_api.web.query import MAX_OFFSET, Query
from http_api.web.replies import bulk_reply, json_reply
from metadata.view import ClusterView
from raftlog.errors import InvalidRequest
from raftlog.json_values import encode
from raftlog.model import Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition
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


async def initialize(request: web.Request) -> web.StreamResponse:
    """Initialize a producer of this name; earlier ones are fenced."""
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, InitializeProducer)
    name = _name("a transactional id", asked.transactional_id)
    attempt = bytes.fromhex(asked.attempt) or None
    after = None if asked.after is None else _key(asked.after.producer_id, asked.after.producer_epoch)
    begun = context.service.transactions.initialize(name, asked.timeout_ms, attempt, after)
    key = await context.finish(begun, CHANGE_TIMEOUT_S)
    return json_reply(ProducerKey(*key))


async def open_block(request: web.Request) -> web.StreamResponse:
    """Return a block of producer ids without a transactional id."""
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, OpenBlock)
    name = _name("a block", asked.name) if asked.name else ""
    opened = context.service.transactions.open_block(name, asked.count, asked.timeout_ms)
    block = await context.finish(opened, CHANGE_TIMEOUT_S)
    return json_reply(ProducerIdBlock(block.first, block.count))


async def retire_block(request: web.Request) -> web.StreamResponse:
    """Retire a block; its undecided transactions are aborted permanently. An unknown block counts as retired."""
    context = context_of(request)
    Query(request)
    name = _name("a block", request.match_info["name"])
    await context.finish(context.service.transactions.retire_block(name), CHANGE_TIMEOUT_S)
    return web.Response(status=204)


async def commit(request: web.Request) -> web.StreamResponse:
    """Commit as a whole or not at all (S13)."""
    context = context_of(request)
    Query(request)
    content_type(request, allowed=(JSON_TYPE,))
    body = await read_body(request, context, COMMIT_BODY_BYTES)
    wanted, visible_within_ms = await context.threads.run(len(body), _parse_commit, body)
    within_s = visible_within_ms / 1000
    deciding = _commit(context, wanted, within_s)
    keys, visible = await context.finish(deciding, CHANGE_TIMEOUT_S + within_s, holder=request)
    return json_reply(EndedTransactions([ProducerKey(*key) for key in keys], visible))


async def _commit(context: ApiContext, wanted: WantedCommit, within_s: float) -> tuple[Iterable[TransactionKey], bool]:
    service = context.service.transactions
    try:
        return await service.commit(wanted, visible_within_s=within_s), within_s > 0
    except NotVisibleYet as late:
        # It is decided and is not proposed again: the quorum may be unreachable, and its record of this may have
        # expired.
        return late.going_on, False


async def abort(request: web.Request) -> web.StreamResponse:
    """Abort the transactions."""
    context = context_of(request)
    Query(request)
    asked = await read_json(request, context, AbortTransactions)
    keys = [_key(one.producer_id, one.producer_epoch) for one in asked.transactions]
    ended = await context.finish(context.service.transactions.abort(keys), CHANGE_TIMEOUT_S)
    return json_reply(EndedTransactions([ProducerKey(*key) for key in ended], False))


def _parse_commit(body: bytes) -> tuple[WantedCommit, int]:
    asked = decode_json(body, CommitTransactions)
    outputs = tuple(
        WantedOutput(
            _key(one.producer_id, one.producer_epoch),
            tuple(
                (_partition(topic.topic_id, number), Offset(end))
                for topic in one.topics
                for number, end in topic.end_offsets
            ),
        )
        for one in asked.transactions
    )
    groups = tuple(
        WantedGroupOffsets(
            _name("a group", one.group),
            one.member_id,
            one.incarnation,
            one.generation,
            tuple(
                WantedMove(_partition(r.topic_id, r.partition), r.start, r.end, r.leader_epoch, r.metadata)
                for r in one.ranges
            ),
        )
        for one in asked.group_offsets
    )
    positions = tuple(WantedPosition(_name("a position", one.name), one.current, one.new) for one in asked.positions)
    block = _name("a block", asked.block) if asked.block else ""
    if not (outputs or groups or positions or block):
        raise InvalidRequest("invalid_request", "a commit names transactions, offsets of groups, positions or a block")
    if groups and not outputs:
        # A retry would find the offsets moved, and wrongly report that nothing was applied.
        told = "offsets of groups are committed with a transaction; without one commit them as the group's offsets"
        raise InvalidRequest("invalid_request", told)
    return WantedCommit(outputs, groups, positions, block), asked.visible_within_ms


# --- What is under way -----------------------------------------------------------------------------------------------


async def list_transactions(request: web.Request) -> web.StreamResponse:
    """List transactions that are open in partitions of this leader, or committed and not yet visible everywhere."""
    context = context_of(request)
    Query(request)
    await context.catch_up("a transaction")
    found = await _under_way(context)
    shown, looked_at = [], 0
    for key in sorted(found):
        shown.append(_describe(context, key, found[key]))
        looked_at += 1 + len(found[key])
        if looked_at >= PLACES_PER_TURN:
            looked_at = 0
            await asyncio.sleep(0)
    cost = _PARTITION_COST * sum(1 + len(one.partitions) for one in shown)
    body = await context.threads.run(cost, encode, Transactions(shown))
    return await bulk_reply(request, context, body, JSON_TYPE, {})


async def describe_transaction(request: web.Request) -> web.StreamResponse:
    """Describe a named producer's transaction in progress, or else its last one."""
    context = context_of(request)
    Query(request)
    name = _name("a transactional id", request.match_info["transactional_id"])
    await context.catch_up(f"transactional id {name!r}")
    producer = context.service.view.transactions.producer(name)
    if producer is None:
        raise InvalidRequest("unknown_transaction", f"there is no transactional id {name!r}")
    shown, places = producer.key, await _places_of(context, producer.key)
    if not places and producer.ended is not None:
        shown, places = producer.ended, await _places_of(context, producer.ended)
    return json_reply(_describe(context, shown, places))


async def describe_position(request: web.Request) -> web.StreamResponse:
    """Return a named position (linearizable, S7)."""
    context = context_of(request)
    Query(request)
    name = _name("a position", request.match_info["name"])
    await context.catch_up(f"position {name!r}")
    value = context.service.view.transactions.position(name)
    return json_reply(NamedPosition(name, value if value >= 0 else None))


async def list_positions(request: web.Request) -> web.StreamResponse:
    """List a bounded number of named positions by name (linearizable, S7)."""
    context = context_of(request)
    prefix = Query(request, ("prefix",)).text("prefix") or ""
    await context.catch_up("a position")
    known = context.service.view.transactions
    cost = _POSITION_COST * known.position_count
    body = await context.threads.run(cost, _encode_positions, known.position_items(), prefix)
    return await bulk_reply(request, context, body, JSON_TYPE, {})


def _encode_positions(positions: list[tuple[str, int]], prefix: str) -> bytes:
    found = sorted(one for one in positions if one[0].startswith(prefix))
    shown = [PositionDescription(name, value) for name, value in found[:MAX_POSITIONS]]
    return encode(Positions(shown, len(found) > len(shown)))


async def remove_position(request: web.Request) -> web.StreamResponse:
    """Remove a position if it stands at `value`: the work that it stood for may be published again."""
    context = context_of(request)
    query = Query(request, ("value",))
    name = _name("a position", request.match_info["name"])
    value = query.integer("value", 0, MAX_OFFSET, -1)
    if value < 0:
        raise InvalidRequest("invalid_request", "say at which `value` the position stands that is to be removed")
    await context.finish(context.service.transactions.remove_position(name, value), CHANGE_TIMEOUT_S)
    return web.Response(status=204)


_Places = dict[TopicPartition, OpenTransaction | None]


async def _under_way(context: ApiContext) -> dict[TransactionKey, _Places]:
    """Return transaction → partitions where it is open here or its marker is not reported yet; both numbers are
    bounded."""
    found: dict[TransactionKey, _Places] = {}
    for one in context.service.transactions.open_here():
        _note(found, one.key, one.topic_partition, one)
    known = context.service.view.transactions
    looked_at = 0
    for partition in known.partitions_with_ends():
        for key in known.unmarked(partition, MAX_LISTED):
            _note(found, key, partition, None)
            looked_at += 1
        looked_at += 1
        if looked_at >= PLACES_PER_TURN:
            looked_at = 0
            await asyncio.sleep(0)
    return found


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


def _describe(context: ApiContext, key: TransactionKey, places: _Places) -> TransactionDescription:
    view = context.service.view
    producer = view.transactions.producer_of(key.producer_id)
    partitions = []
    started: list[int] = []
    for partition in sorted(places):
        topic = view.topic_by_id(partition.topic_id)
        place = places[partition]
        first = None if place is None else int(place.first_offset)
        if place is not None and place.started_ms >= 0:
            started.append(place.started_ms)
        if topic is not None:
            partitions.append(TransactionPartition(topic.name, topic.topic_id.hex(), partition.partition, first))
    since = min(started, default=None)
    return TransactionDescription(
        None if producer is None else producer.transactional_id,
        key.producer_id,
        key.producer_epoch,
        _state(view, key, bool(places)),
        view.transactions.timeout_ms(key),
        since,
        None if since is None else max(0, context.clock_ms() - since),
        partitions,
    )


def _state(view: ClusterView, key: TransactionKey, has_places: bool) -> TransactionState:
    """Return the state in Kafka's words: *prepared* is decided and not yet visible everywhere."""
    standing = view.transactions.standing(key).value
    if standing == "committed" or view.transactions.unmarked_count(key):
        return "PrepareCommit" if has_places else "CompleteCommit"
    if standing in ("undecided", "unknown"):
        return "Ongoing" if has_places else "Empty"
    return "PrepareAbort" if has_places else "CompleteAbort"


# --- Names -----------------------------------------------------------------------------------------------------------


def _name(what: str, name: str) -> str:
    if not name.isprintable():
        raise InvalidRequest("invalid_request", f"{what} has a name of printable characters")
    return name


def _key(producer_id: int, producer_epoch: int) -> TransactionKey:
    return TransactionKey(ProducerId(producer_id), ProducerEpoch(producer_epoch))


def _partition(topic_id: str, number: int) -> TopicPartition:
    return TopicPartition(TopicId(bytes.fromhex(topic_id)), number)
