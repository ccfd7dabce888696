"""The audit trail records every refusal, merges what repeats, and reports what it could not record."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.security.audit.audit import (
    MAX_MERGING_LOGINS,
    MAX_WAITING_LINES,
    MERGE_SECONDS,
    AuditEvent,
    AuditLevel,
    AuditTrail,
    of_decision,
    of_failed_login,
)
from raftlog.broker.security.audit.log import AuditLog
from raftlog.broker.security.audit.logs import AuditLogs
from raftlog.security.acls import CLUSTER, AclRule, Operation, PatternType, Permission, Resource, ResourceType
from raftlog.security.authorizer import Authorizer
from raftlog.security.principals import Caller, Principal

ALICE = Caller(Principal("alice"), "10.0.0.1", mechanism="token")
ORDERS = Resource(ResourceType.TOPIC, "orders")
RULE = AclRule("User:alice", "*", Operation.READ, Permission.ALLOW, ResourceType.TOPIC, PatternType.LITERAL, "orders")
NOW = 1_700_000_000_000
MERGE_MS = int(MERGE_SECONDS * 1000)


def decided(operation: Operation, resource: Resource = ORDERS) -> AuditEvent:
    decision = Authorizer([RULE]).decide(ALICE, operation, resource)
    return of_decision(ALICE, "POST /v1/fetch", operation, resource, decision)


def taken(trail: AuditTrail, now_ms: int = NOW, *, last: bool = False) -> list[dict[str, Any]]:
    return [json.loads(line.text) for line in trail.take(now_ms, last=last)]


def test_a_line_says_who_did_what_from_where_and_by_which_rule() -> None:
    trail = AuditTrail(AuditLevel.ALL, node=2)
    trail.note(decided(Operation.READ), NOW, request_id="r1")
    trail.note(decided(Operation.WRITE), NOW + 1)
    allowed, refused = taken(trail)
    assert allowed == {
        "time_ms": NOW,
        "kind": "authorization",
        "allowed": True,
        "principal": "User:alice",
        "host": "10.0.0.1",
        "mechanism": "token",
        "action": "POST /v1/fetch",
        "operation": "read",
        "resource_type": "topic",
        "resource": "orders",
        "rule": "allow User:alice to read topic orders",
        "node": 2,
        "request_id": "r1",
    }
    assert refused["allowed"] is False
    assert refused["reason"] == "no rule allows it"


def test_each_level_includes_the_one_before() -> None:
    change = msgspec.structs.replace(decided(Operation.ALTER), allowed=True)
    events = [
        decided(Operation.WRITE),
        of_failed_login("10.0.0.9", "mallory", "password", "wrong password"),
        change,
        decided(Operation.READ),
    ]
    wanted = {level: [event for event in events if AuditTrail(level, 0).wants(event)] for level in AuditLevel}
    assert wanted[AuditLevel.REFUSED] == events[:2]
    assert wanted[AuditLevel.CHANGES] == events[:3]
    assert wanted[AuditLevel.ALL] == events


@pytest.mark.parametrize("level", AuditLevel)
@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("allowed", [True, False])
def test_the_logs_want_what_their_trails_record(level: AuditLevel, operation: Operation, allowed: bool) -> None:
    event = msgspec.structs.replace(decided(operation), allowed=allowed)
    logs = AuditLogs(level, [cast(AuditLog, None)])
    assert logs.wants(operation, allowed=allowed) is AuditTrail(level, 0).wants(event)
    assert not AuditLogs(level, []).wants(operation, allowed=allowed)


def test_allowed_administration_is_recorded_from_level_changes_on() -> None:
    superuser = Caller(Principal("root"), "10.0.0.1", superuser=True)
    decision = Authorizer().decide(superuser, Operation.ALTER, CLUSTER)
    event = of_decision(superuser, "POST /v1/quorum/voters", Operation.ALTER, CLUSTER, decision)
    assert AuditTrail(AuditLevel.CHANGES, 0).wants(event)
    assert not AuditTrail(AuditLevel.REFUSED, 0).wants(event)


def test_repetitions_share_one_line_with_their_number() -> None:
    trail = AuditTrail(AuditLevel.REFUSED, 0)
    for moment in range(1_000):
        trail.note(decided(Operation.WRITE), NOW + moment)
    assert len(taken(trail, NOW + 1_000)) == 1
    (rest,) = taken(trail, NOW + MERGE_MS)
    assert (rest["count"], rest["time_ms"], rest["until_ms"]) == (999, NOW, NOW + 999)
    assert not trail.has_work
    trail.note(decided(Operation.WRITE), NOW + 2 * MERGE_MS)
    assert len(taken(trail, NOW + 2 * MERGE_MS)) == 1


def test_an_event_after_its_interval_begins_a_new_one() -> None:
    trail = AuditTrail(AuditLevel.REFUSED, 0)
    for moment in (0, 1, MERGE_MS, MERGE_MS + 1):
        trail.note(decided(Operation.WRITE), NOW + moment)
    lines = taken(trail, NOW + 3 * MERGE_MS)
    assert [line.get("count", 1) for line in lines] == [1, 1, 1, 1]


def test_a_flood_of_logins_leaves_room_for_other_events_and_is_reported_as_a_gap() -> None:
    trail = AuditTrail(AuditLevel.REFUSED, 0)
    for number in range(MAX_MERGING_LOGINS + 300):
        trail.note(of_failed_login("10.0.0.9", f"user{number}", "password", "unknown user"), NOW)
    trail.note(decided(Operation.WRITE), NOW)
    lines = taken(trail)
    assert len(lines) == MAX_MERGING_LOGINS + 2
    assert lines[-2]["kind"] == "authorization"
    assert (lines[-1]["kind"], lines[-1]["count"]) == ("gap", 300)


def test_a_sink_that_does_not_keep_up_costs_bounded_memory_and_leaves_a_gap() -> None:
    trail = AuditTrail(AuditLevel.ALL, 0)
    for number in range(MAX_WAITING_LINES // 4 + 100):
        for interval in range(4):
            at = NOW + number + interval * MERGE_MS
            trail.note(decided(Operation.WRITE, Resource(ResourceType.TOPIC, f"t{number}")), at)
    lines = taken(trail, NOW + 100 * MERGE_MS)
    assert len(lines) == MAX_WAITING_LINES
    (gap,) = taken(trail, NOW + 100 * MERGE_MS)
    assert (gap["kind"], gap["count"]) == ("gap", 400)


def test_text_of_a_client_is_cut() -> None:
    event = of_failed_login("10.0.0.9", "x" * 10_000, "password", "unknown user")
    assert len(event.principal) == 512


@given(
    notes=st.lists(st.tuples(st.integers(0, 3), st.integers(-2 * MERGE_MS, 3 * MERGE_MS), st.booleans()), max_size=40)
)
def test_every_event_is_counted_once_whatever_the_clock_does(notes: list[tuple[int, int, bool]]) -> None:
    trail, now, counted = AuditTrail(AuditLevel.ALL, 0), NOW, 0
    for which, step, takes in notes:
        now += step
        trail.note(decided(Operation.READ, Resource(ResourceType.TOPIC, f"t{which}")), now)
        if takes:
            counted += sum(line.get("count", 1) for line in taken(trail, now))
    counted += sum(line.get("count", 1) for line in taken(trail, now, last=True))
    assert counted == len(notes)
    assert not trail.has_work
