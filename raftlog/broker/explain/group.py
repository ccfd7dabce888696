"""The explanation of a consumer group: why a member does not get records. A pure core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from metadata.records.groups import GroupRecord, GroupState, MemberRecord
from metadata.records.leases import LeasedPartition
from raftlog.api.explain import AccessDecision, Explanation, Finding
from raftlog.model import TopicPartition

from .wording import records, seconds

STUCK_SECONDS = 30.0
"""A member that has records to read and has committed nothing for longer is probably stuck."""

DELIVERED_OFTEN = 3
"""Deliveries after which a range of records probably makes its workers fail."""
MOST_DELIVERED_OFTEN = 10

RANK = (
    "quorum_without_majority", "no_coordinator", "acl_denied", "group_without_members", "delivered_often",
    "read_by_leases", "no_topics",
    "partition_without_leader", "member_holds_partitions", "member_stuck", "open_transaction", "position_deleted",
    "more_members_than_partitions", "assigning", "nothing_to_read", "healthy",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition that members own or are to own."""

    name: str
    committed: int | None
    committed_ms: int | None
    """The time of the commit."""
    log_start: int | None = None
    last_stable: int | None = None
    log_end: int | None = None
    """The high watermark."""
    trouble: str = ""
    """Why the leader did not answer; empty if it did."""

    @property
    def lag(self) -> int | None:
        """The records that wait; those after the last stable offset cannot be read by read_committed consumers."""
        return None if self.log_end is None else max(0, self.log_end - (self.committed or self.log_start or 0))


@dataclass(frozen=True, slots=True)
class GroupCase:
    """A group with what its members read."""

    group: GroupRecord
    partitions: Mapping[TopicPartition, PartitionFacts]
    index: int
    now_ms: int
    asker: int
    coordinator: int
    """The node that leads the quorum; -1: none."""
    missing_topics: Sequence[str] = ()
    """Topics that members subscribe to and that do not exist."""
    access: Sequence[AccessDecision] = ()
    leases: Mapping[TopicPartition, LeasedPartition] = field(default_factory=dict)
    """The leases of the group that count."""
    unanswered: Mapping[str, str] = field(default_factory=dict)


def explain_group(case: GroupCase) -> Explanation:
    """Return why the members of a group do or do not get records."""
    group = case.group
    found = sorted(_findings(case), key=lambda one: RANK.index(one.code))
    state = f"{group.state.value}, {len(group.members)} members"
    if group.assignor:
        state += f", assignor {group.assignor}"
    return Explanation(
        "group",
        f"group {group.group_id}",
        state,
        found or [_healthy(case)],
        node_id=case.asker,
        metadata_index=case.index,
        time_ms=case.now_ms,
        unanswered=dict(case.unanswered),
    )


def _findings(case: GroupCase) -> list[Finding]:
    group = case.group
    found = [_denied(one) for one in case.access if not one.allowed]
    if case.coordinator < 0:
        found.append(
            Finding(
                "no_coordinator",
                "critical",
                "the group has no coordinator, since the metadata quorum has no leader that this node knows: members "
                "can neither join nor commit",
                [],
                ["raftlog quorum describe on several nodes; start the voters that are down"],
            )
        )
    if not group.members:
        found += _of_leases(case) if case.leases else [_without_members(case)]
        return found
    if case.missing_topics:
        found.append(
            Finding(
                "no_topics",
                "warning",
                f"members subscribe to topics that do not exist: {', '.join(case.missing_topics)}",
                [],
                ["create the topics, or correct the names in the consumers' subscriptions"],
            )
        )
    for member_id in sorted(group.members):
        found += _of_member(case, group.members[member_id])
    if group.state is GroupState.ASSIGNING:
        found.append(
            Finding(
                "assigning",
                "info",
                "the membership has just changed, and the coordinator is about to assign the partitions",
                [],
                ["wait for a second, and ask again"],
            )
        )
    return found


def _without_members(case: GroupCase) -> Finding:
    since = case.group.empty_since_ms
    ago = f" for {seconds(max(0, case.now_ms - since) / 1000)}" if since > 0 else ""
    return Finding(
        "group_without_members",
        "warning",
        f"the group has had no member{ago}, so nothing is read: its consumers stopped, or their heartbeats did not "
        "arrive within their session timeout",
        [f"{len(case.partitions)} offsets are committed and are kept until they expire"],
        ["start a consumer with this group, and look at the log of the one that left"],
    )


def _of_leases(case: GroupCase) -> list[Finding]:
    """Return the findings about a group whose records are leased."""
    leases = [
        (case.partitions[place].name, one)
        for place, record in sorted(case.leases.items())
        if place in case.partitions
        for one in record.ranges
    ]
    often = [(name, one) for name, one in leases if one.deliveries >= DELIVERED_OFTEN]
    found = [
        Finding(
            "delivered_often",
            "warning",
            f"{name}: the records from offset {one.start} to {one.end - 1} were delivered {one.deliveries} times, and "
            "are not acknowledged: the committed offset does not pass them",
            ["a worker gets a range again when its lease is over without an acknowledgement"],
            [
                "look for records among them that make workers fail, or that take longer than lease_ms",
                "renew leases in time, or ask for fewer records at once",
            ],
        )
        for name, one in often[:MOST_DELIVERED_OFTEN]
    ]
    return [
        *found,
        Finding(
            "read_by_leases",
            "info",
            f"workers read the group by leases: {len(leases)} ranges in {len(case.leases)} partitions are not "
            "acknowledged",
            [f"{name}: from offset {one.start} to {one.end - 1}" for name, one in leases[:MOST_DELIVERED_OFTEN]],
            ["GET /v1/groups/{group}/leases lists them"],
        ),
    ]


def _of_member(case: GroupCase, member: MemberRecord) -> list[Finding]:
    found = []
    if member.revoking:
        found.append(_holds(case, member))
    if not member.owned and not member.target:
        found.append(_idle(case, member))
    for tp in member.assigned:
        facts = case.partitions.get(tp)
        if facts is not None:
            found += _of_partition(case, member, facts)
    return found


def _names(case: GroupCase, partitions: Sequence[TopicPartition]) -> str:
    names = [case.partitions[tp].name if tp in case.partitions else str(tp) for tp in partitions]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _holds(case: GroupCase, member: MemberRecord) -> Finding:
    waiting = [
        other.member_id
        for other in case.group.members.values()
        if other is not member and any(tp in other.target and tp not in other.owned for tp in member.revoking)
    ]
    return Finding(
        "member_holds_partitions",
        "warning",
        f"member {member.member_id} ({member.client_host}) has not given up {_names(case, member.revoking)}, which "
        f"{', '.join(waiting[:3]) or 'no member yet'} is to get: until then they are read by it or not at all",
        [
            "it sends heartbeats, otherwise it would have been removed after its session timeout of "
            f"{seconds(member.session_timeout_ms / 1000)}",
            "it is probably inside a long call that does not return to poll(), or waits for records in flight",
        ],
        [
            f"it is removed by itself when its rebalance timeout of {seconds(member.rebalance_timeout_ms / 1000)} is "
            "over",
            f"restart the consumer {member.client_id or member.member_id} on {member.client_host}, and shorten the "
            "work between two polls",
        ],
    )


def _idle(case: GroupCase, member: MemberRecord) -> Finding:
    count = len({tp for other in case.group.members.values() for tp in other.target})
    return Finding(
        "more_members_than_partitions",
        "info",
        f"member {member.member_id} gets no records, since it is assigned no partition: {len(case.group.members)} "
        f"members share {count} partitions",
        [f"it subscribes to {', '.join(member.topics) or member.pattern or 'nothing'}"],
        ["add partitions to the topic (raftlog topic alter --partitions), or run fewer members"],
    )


def _of_partition(case: GroupCase, member: MemberRecord, facts: PartitionFacts) -> list[Finding]:
    if facts.trouble:
        return [
            Finding(
                "partition_without_leader",
                "critical",
                f"{facts.name} cannot be read, so member {member.member_id} gets nothing from it: {facts.trouble}",
                [],
                [f"raftlog explain {facts.name}"],
            )
        ]
    found = []
    position = facts.committed
    if position is not None and facts.log_start is not None and position < facts.log_start:
        found.append(
            Finding(
                "position_deleted",
                "warning",
                f"the group's position {position} in {facts.name} is below the start of the log, {facts.log_start}: "
                f"{records(facts.log_start - position)} were deleted before they were read",
                [],
                ["the consumer goes on as auto_offset_reset says; raftlog group seek sets a position", "retain longer"],
            )
        )
    lag = facts.lag or 0
    blocked = facts.last_stable is not None and facts.log_end is not None and facts.last_stable < facts.log_end
    if blocked and lag and (position or 0) >= (facts.last_stable or 0):
        found.append(
            Finding(
                "open_transaction",
                "warning",
                f"an open transaction holds the last stable offset of {facts.name} at {facts.last_stable}: a "
                f"read_committed member has read everything below it, and {records(lag)} wait",
                [],
                [f"raftlog explain {facts.name} names the transaction and how to end it"],
            )
        )
    elif lag:
        found += _unread(case, member, facts, lag)
    return found


def _unread(case: GroupCase, member: MemberRecord, facts: PartitionFacts, lag: int) -> list[Finding]:
    if facts.committed_ms is None:
        since, evidence = "has never committed a position", "no offset of this partition was ever committed"
    else:
        age = max(0, case.now_ms - facts.committed_ms) / 1000
        if age < STUCK_SECONDS:
            return []
        since = f"has committed nothing for {seconds(age)}"
        evidence = f"the position is {facts.committed}, the end {facts.log_end}"
    return [
        Finding(
            "member_stuck",
            "warning",
            f"member {member.member_id} ({member.client_host}) owns {facts.name} and sends heartbeats, but {since}, "
            f"although {records(lag)} wait",
            [evidence, "its heartbeats come from the client library, not from the program that processes records"],
            [
                f"look at the program {member.client_id or member.member_id} on {member.client_host}: it probably "
                "hangs while it processes a record, or does not commit",
                "restart it: its partitions go to other members, which begin at the committed position",
            ],
        )
    ]


def _denied(one: AccessDecision) -> Finding:
    return Finding(
        "acl_denied",
        "warning",
        f"{one.principal} may not {one.operation} {one.resource}: {one.reason}",
        [f"the rule that decides: {one.rule}"] if one.rule else ["no rule allows it, and without one it is denied"],
        [
            f"raftlog acl delete the denying rule: {one.rule}"
            if one.rule
            else f"raftlog acl create --principal {one.principal} --operation {one.operation}, for {one.resource}",
        ],
    )


def _healthy(case: GroupCase) -> Finding:
    waiting = sum(facts.lag or 0 for facts in case.partitions.values())
    if not waiting:
        return Finding(
            "nothing_to_read",
            "info",
            f"group {case.group.group_id} has read everything: no record waits",
            [],
            ["check that producers write to the topics that the members subscribe to"],
        )
    return Finding(
        "healthy", "info", f"group {case.group.group_id} works: its members commit, and {records(waiting)} wait"
    )
