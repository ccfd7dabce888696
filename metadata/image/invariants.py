"""The invariants of the cluster image after every command. Simulator and tests check them; production trusts `apply`.

`check` examines one state, `check_step` two consecutive ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from metadata.records.owners import Owned
from metadata.records.transactions import MAX_PRODUCER_EPOCH, Block, NamedProducer, Ranges
from raftlog.errors import InvariantViolation
from raftlog.model import NO_INCARNATION, BrokerId, PartitionRecord, TopicPartition
from raftlog.transactions import Outcome, TransactionKey

from .group_state import GroupsState
from .image import ClusterImage, run
from .security import MAX_QUOTAS, MAX_RULES, MAX_TOKENS, MAX_TOKENS_PER_USER, MAX_USERS
from .security_state import SecurityState
from .transaction_commit import MAX_ENDS
from .transaction_state import TransactionsState


def check(state: ClusterImage) -> None:
    """Check the state. Raises `InvariantViolation` naming the first violation."""
    replicas_of: dict[BrokerId, list[TopicPartition]] = {broker_id: [] for broker_id in state.brokers}
    led_by: dict[BrokerId, set[TopicPartition]] = {broker_id: set() for broker_id in state.brokers}
    count = 0
    for topic_id in sorted(state.topics):
        topic = state.topics[topic_id]
        _require(state.topic_ids.get(topic.name) == topic_id, f"topic {topic.name} is not found by its name")
        for record in state.partitions_of(topic):
            count += 1
            _check_partition(state, record)
            for replica in record.replicas:
                replicas_of[replica].append(record.topic_partition)
            if record.has_leader:
                led_by[record.leader].add(record.topic_partition)
    _require(count == len(state.partitions), "a partition belongs to no topic")
    created = [topic.created_index for topic in state.topics.values() if topic.created_index]
    _require(len(set(created)) == len(created), "two topics were created by one command")
    _require(all(0 < index <= state.index for index in created), "a topic was created by a command that is to come")
    _require(len(state.topic_ids) == len(state.topics), "a name belongs to no topic")
    for broker_id, expected in replicas_of.items():
        _require(state.replicas_of(broker_id) == expected, f"the index of broker {broker_id}'s replicas is wrong")
        led = led_by[broker_id]
        _require(set(state.led_by(broker_id)) == led, f"the index of what broker {broker_id} leads is wrong")
    _require(bool(state.reassigning) or not state.throttle, "a throttle of no move")
    known = set(state.partitions)
    _require(known >= {*state.reassigning, *state.moving, *state.adding}, "a reassignment of no partition")
    for leased in state.leases.records():
        _require(leased.is_sound(), f"the leases of group {leased.group_id} in {leased.partition} are wrong")
        _require(leased.partition in known, f"group {leased.group_id} has leases in no partition")
    for broker_id in sorted(state.starting):
        _require(state.brokers[broker_id].fenced, f"broker {broker_id} is starting but not fenced")
    for wrong in (
        *check_groups(state.groups),
        *check_transactions(state),
        *check_security(state),
        *check_owners(state),
    ):
        raise InvariantViolation(wrong)


def _check_partition(state: ClusterImage, record: PartitionRecord) -> None:
    name = str(record)
    replicas, isr, commit_set = set(record.replicas), set(record.isr), set(record.commit_set)
    _require(len(replicas) == len(record.replicas), f"{name}: a replica twice")
    _require(bool(isr), f"{name}: the ISR is empty")
    _require(isr <= replicas and commit_set <= replicas, f"{name}: a member is not a replica")
    adding, target = set(record.adding_replicas), set(record.target_replicas)
    _require(adding <= replicas and adding <= target, f"{name}: an added replica that is not to stay")
    _require(len(target) == len(record.target_replicas), f"{name}: a target twice")
    _require(record.topic_partition in state.reassigning or not target, f"{name}: a target without a reassignment")
    _require((record.topic_partition in state.moving) == record.is_moving, f"{name}: moving or not")
    _require((record.topic_partition in state.adding) == bool(adding), f"{name}: adding replicas or not")
    done = bool(target) and target <= isr and record.leader in target
    _require(not done, f"{name}: a reassignment that is complete and goes on")
    for members in (record.isr, record.commit_set, record.not_eligible):
        _require(list(members) == sorted(set(members)), f"{name}: {members} is not a sorted set")
    _require(set(record.not_eligible) <= isr | commit_set, f"{name}: a mark on a stranger")
    tickets = state.tickets_of(record.topic_partition)
    _require(tuple(t.broker_id for t in tickets) == record.not_eligible, f"{name}: marks and tickets differ")
    for ticket in tickets:
        broker = state.brokers[ticket.broker_id]
        _require(ticket.incarnation == broker.incarnation, f"{name}: a ticket of another incarnation")
        kept = broker.directory_id == ticket.directory_id
        _require(ticket.has_directory == kept, f"{name}: a ticket is wrong about the directory")
    _require((record.topic_partition in state.leaderless) == (not record.has_leader), f"{name}: leaderless or not")
    _require(len(record.commit_set) >= 1, f"{name}: the commit set is empty")
    if not record.has_leader:
        _require(record.leader_incarnation == NO_INCARNATION, f"{name}: an incarnation without a leader")
        _require(not isr & set(record.not_eligible) or len(isr) == 1, f"{name}: a marked member that is not the last")
        return
    leader = state.brokers[record.leader]
    _require(record.leader in isr, f"{name}: the leader is not in the ISR")
    _require(not isr & set(record.not_eligible), f"{name}: a marked member beside a leader")
    _require(not leader.fenced, f"{name}: the leader is fenced")
    _require(record.leader_incarnation == leader.incarnation, f"{name}: the leader's incarnation is over")
    if len(isr) >= record.min_insync_replicas:
        _require(record.commit_set == record.isr, f"{name}: the commit set is not the ISR")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InvariantViolation(otherwise)


def check_groups(state: GroupsState) -> Iterable[str]:
    """Return the violations in words; scans everything."""
    if state.offset_count != sum(len(offsets) for offsets in state.copy_offsets().values()):
        yield "the counter of committed offsets differs from the groups' offsets"
    for group_id in sorted(state.by_id):
        group = state.by_id[group_id]
        owners: dict[TopicPartition, str] = {}
        targeted: set[TopicPartition] = set()
        if group.target_epoch > group.epoch:
            yield f"group {group_id}: targets of an epoch to come"
        for member in group.members.values():
            for partition, granted in member.owned.items():
                if partition in owners:
                    yield f"group {group_id}: {partition} is {owners[partition]}'s and {member.member_id}'s"
                owners[partition] = member.member_id
                if granted > member.generation:
                    yield f"group {group_id}: {partition} granted after {member.member_id}'s generation"
            for topic_id in {partition.topic_id for partition in (*member.owned, *member.target)}:
                if group not in state.of_topic(topic_id):
                    yield f"group {group_id}: it is not found by a topic that it reads"
            if targeted & member.target:
                yield f"group {group_id}: a partition in two targets"
            targeted |= member.target
        if group.target_epoch == group.epoch and targeted - owners.keys():
            yield f"group {group_id}: a partition is free and has a target"
    for group_id in state.copy_offsets():
        if group_id not in state.by_id:
            yield f"offsets of no group {group_id}"


def check_transactions(state: ClusterImage) -> Iterable[str]:
    """Return the violations in words."""
    transactions = state.transactions
    for producer in transactions.producers():
        yield from _check_producer(transactions, producer)
    for block in transactions.blocks():
        yield from _check_block(transactions, block)
    for before, after in pairwise(transactions.blocks()):
        if before.end > after.first:
            yield f"blocks of producer ids overlap at {after.first}"
    if transactions.ids_in_blocks != sum(block.count for block in transactions.blocks()):
        yield "the counter of ids in blocks differs from the blocks' ids"
    if transactions.range_count != sum(len(b.committed) + len(b.aborted) for b in transactions.blocks()):
        yield "the counter of ranges differs from the blocks' ranges"
    yield from _check_ends(state)
    if transactions.staged_bytes != sum(len(p) for parts in transactions.parts.values() for p in parts.values()):
        yield "the counter of staged bytes differs from the staged parts' size"
    if {name: len(parts) for name, parts in transactions.parts.items()} != dict(transactions.staged()):
        yield "the index of staged parts differs from the parts"


def _check_producer(transactions: TransactionsState, producer: NamedProducer) -> Iterable[str]:
    name = f"producer {producer.transactional_id!r}"
    if not 0 <= producer.epoch <= MAX_PRODUCER_EPOCH:
        yield f"{name}: epoch {producer.epoch}"
    if producer.producer_id >= transactions.granted_below:
        yield f"{name}: an id that was not granted"
    if transactions.producer_of(producer.producer_id) is not producer:
        yield f"{name}: it is not found by its id"
    if transactions.block_of(producer.producer_id) is not None:
        yield f"{name}: its id is of a block"
    if (producer.ended is None) != (producer.outcome is Outcome.UNDECIDED):
        yield f"{name}: an outcome of nothing"
    if producer.ended is not None and producer.key != _after(producer, producer.ended):
        yield f"{name}: it goes on with {producer.key}, after {producer.ended}"


def _after(producer: NamedProducer, ended: TransactionKey) -> tuple[int, int]:
    if ended.producer_epoch < MAX_PRODUCER_EPOCH:
        return ended.producer_id, ended.producer_epoch + 1
    return producer.producer_id, 0


def _check_block(transactions: TransactionsState, block: Block) -> Iterable[str]:
    name = f"the block from {block.first}"
    if block.end > transactions.granted_below:
        yield f"{name}: ids that were not granted"
    if block.retired and block.aborted:
        yield f"{name}: aborted one by one, and as a whole"
    for ranges in (block.committed, block.aborted):
        if not _is_tidy(ranges, block):
            yield f"{name}: {ranges} is not in order"
    decided = sum(end - first for first, end in (*block.committed, *block.aborted))
    both = {one for first, end in (*block.committed, *block.aborted) for one in range(first, end)}
    if len(both) != decided:
        yield f"{name}: an id is committed and aborted"


def _is_tidy(ranges: Ranges, block: Block) -> bool:
    within = all(block.first <= first < end <= block.end for first, end in ranges)
    return within and all(before[1] < after[0] for before, after in pairwise(ranges))


def _check_ends(state: ClusterImage) -> Iterable[str]:
    transactions = state.transactions
    count = 0
    partitions_of: dict[TransactionKey, int] = {}
    for topic_partition in transactions.partitions_with_ends():
        ends = transactions.ends_of(topic_partition)
        if topic_partition not in state.partitions:
            yield f"the ends of commits in {topic_partition}, which is no more"
        if not ends:
            yield f"no ends in {topic_partition}"
        for key in ends:
            count += 1
            partitions_of[key] = partitions_of.get(key, 0) + 1
            if key.producer_id >= transactions.granted_below:
                yield f"{key} is committed and was never granted"
    if count != transactions.ends_count or count > MAX_ENDS:
        yield "the counter of ends differs from the partitions' ends"
    if any(transactions.unmarked_count(key) != number for key, number in partitions_of.items()):
        yield "the counter of a transaction's ends differs from its ends"


def check_security(state: ClusterImage) -> Iterable[str]:
    """Return the violations in words; scans everything."""
    security = state.security
    users, tokens, rules, quotas = security.copies()
    if security.undecided_count:
        yield "changes of security that are neither kept nor undone"
    if (users or tokens or rules or quotas) and not security.bootstrapped:
        yield "records of security in a cluster that can still be bootstrapped"
    if len(users) > MAX_USERS or len(tokens) > MAX_TOKENS or len(rules) > MAX_RULES or len(quotas) > MAX_QUOTAS:
        yield "more records of security than are kept"
    if list(security.rules()) != sorted(rules):
        yield "the rules are not in order"
    for name, user in users.items():
        if user.name != name or not 0 < user.created_index <= user.version <= state.index:
            yield f"user {name!r}: {user}"
        if security.token_count_of(name) > MAX_TOKENS_PER_USER:
            yield f"user {name!r} has too many tokens"
    yield from _check_tokens(security)


def _check_tokens(security: SecurityState) -> Iterable[str]:
    users, tokens, _, _ = security.copies()
    expire = sorted((token.expires_ms, token_id) for token_id, token in tokens.items() if token.expires_ms)
    if list(run(security.expired_in_steps(2**62))) != [token_id for _, token_id in expire]:
        yield "the index of tokens that expire differs from the tokens"
    found = {token.token_id: name for name in users for token in security.tokens_of(name)}
    if found != {token_id: token.principal_name for token_id, token in tokens.items()}:
        yield "the index of users' tokens differs from the tokens"
    for token_id, token in tokens.items():
        if token.token_id != token_id or token.principal_name not in users:
            yield f"token {token_id} of no user"
        if security.token_of_digest(token.digest) is not token:
            yield f"token {token_id} is not found by its digest"


def check_owners(state: ClusterImage) -> Iterable[str]:
    """Return the violations in words; scans everything."""
    owners = state.owners
    exists: dict[Owned, Callable[[Any], bool]] = {
        Owned.GROUP: state.groups.by_id.__contains__,
        Owned.TRANSACTIONAL_ID: lambda name: state.transactions.producer(name) is not None,
        Owned.BLOCK: lambda first: state.transactions.block(first) is not None,
        Owned.POSITION: lambda name: state.transactions.position(name) >= 0,
    }
    offsets: Counter[str] = Counter()
    for kind, of_kind in owners.items():
        for name, owner in of_kind.items():
            if not exists[kind](name):
                yield f"{owner!r} owns a {kind.value} {name!r} that does not exist"
            if kind is Owned.GROUP:
                offsets[owner] += len(state.groups.offsets_of(str(name)))
        for owner, count in Counter(of_kind.values()).items():
            if owners.count(kind, owner) != count:
                yield f"the counter of each {kind.value} of {owner!r} differs"
    for owner, count in offsets.items():
        if state.groups.offset_count_of(owner) != count:
            yield f"the counter of {owner!r}'s committed offsets differs from those of its groups"
    for before, after in pairwise(owners.ids()):
        if before.end > after.first:
            yield f"two owners of producer id {after.first}"
    for ids in owners.ids():
        if not ids.first < ids.end <= state.next_producer_id:
            yield f"{ids}: producer ids that were not granted"
