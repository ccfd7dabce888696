"""Decisions about requests, against Kafka's rules and against a model that looks at every rule (S12)."""

from __future__ import annotations

import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId
from raftlog.security.acls import (
    CLUSTER,
    IMPLIED,
    OPERATIONS_OF,
    AclFilter,
    AclRule,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    checked_rule,
)
from raftlog.security.authorizer import Authorizer
from raftlog.security.principals import Caller, Principal

ALICE = Caller(Principal("alice", ("analysts",)), "10.0.0.1")
ORDERS = Resource(ResourceType.TOPIC, "orders")


def rule(
    operation: Operation = Operation.READ,
    name: str = "orders",
    *,
    principal: str = "User:alice",
    host: str = "*",
    deny: bool = False,
    prefixed: bool = False,
    kind: ResourceType = ResourceType.TOPIC,
) -> AclRule:
    return AclRule(
        principal,
        host,
        operation,
        Permission.DENY if deny else Permission.ALLOW,
        kind,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        name,
    )


@pytest.mark.parametrize(
    "allowing",
    [
        rule(),
        rule(Operation.ALL),
        rule(name="*"),
        rule(name="ord", prefixed=True),
        rule(name="orders", prefixed=True),
        rule(principal="User:*"),
        rule(principal="Group:analysts"),
        rule(host="10.0.0.1"),
    ],
    ids=str,
)
def test_a_rule_that_matches_allows(allowing: AclRule) -> None:
    decision = Authorizer([allowing]).decide(ALICE, Operation.READ, ORDERS)
    assert decision.allowed
    assert decision.rule == allowing


@pytest.mark.parametrize(
    "other",
    [
        rule(Operation.WRITE),
        rule(name="order"),
        rule(name="orders2", prefixed=True),
        rule(principal="User:bob"),
        rule(principal="Group:alice"),
        rule(principal="User:analysts"),
        rule(host="10.0.0.2"),
        rule(kind=ResourceType.GROUP),
    ],
    ids=str,
)
def test_what_no_rule_allows_is_refused_s12(other: AclRule) -> None:
    decision = Authorizer([other]).decide(ALICE, Operation.READ, ORDERS)
    assert not decision.allowed
    assert decision.rule is None


@pytest.mark.parametrize(
    "denying", [rule(deny=True), rule(Operation.ALL, "*", deny=True), rule(name="o", prefixed=True, deny=True)], ids=str
)
def test_a_denial_wins_whatever_else_is_allowed_s12(denying: AclRule) -> None:
    decision = Authorizer([rule(), rule(Operation.ALL, "*"), denying]).decide(ALICE, Operation.READ, ORDERS)
    assert not decision.allowed
    assert decision.rule == denying


def test_allowed_operations_imply_describing_and_denied_ones_do_not() -> None:
    for operation in IMPLIED[Operation.DESCRIBE]:
        assert Authorizer([rule(operation)]).decide(ALICE, Operation.DESCRIBE, ORDERS).allowed
    both = Authorizer([rule(Operation.DESCRIBE), rule(Operation.READ, deny=True)])
    assert both.decide(ALICE, Operation.DESCRIBE, ORDERS).allowed
    assert not both.decide(ALICE, Operation.READ, ORDERS).allowed
    settings_too = Authorizer([rule(Operation.ALTER_CONFIGS)])
    assert settings_too.decide(ALICE, Operation.DESCRIBE_CONFIGS, ORDERS).allowed
    assert not settings_too.decide(ALICE, Operation.DESCRIBE, ORDERS).allowed


def test_no_rule_applies_to_superusers_and_nodes() -> None:
    closed = Authorizer([rule(Operation.ALL, "*", principal="User:*", deny=True)])
    for caller in (msgspec.structs.replace(ALICE, superuser=True), msgspec.structs.replace(ALICE, node=BrokerId(0))):
        assert closed.decide(caller, Operation.ALTER, CLUSTER).allowed
        assert closed.decide_for_any(caller, Operation.WRITE, ResourceType.TOPIC).allowed


def test_a_decision_is_not_remembered_beyond_a_change_of_the_rules_s12() -> None:
    authorizer = Authorizer([rule()])
    assert authorizer.decide(ALICE, Operation.READ, ORDERS).allowed
    authorizer.add(rule(deny=True))
    assert not authorizer.decide(ALICE, Operation.READ, ORDERS).allowed
    authorizer.remove(rule(deny=True))
    assert authorizer.decide(ALICE, Operation.READ, ORDERS).allowed
    authorizer.remove(rule())
    assert not authorizer.decide(ALICE, Operation.READ, ORDERS).allowed


def test_names_that_no_resource_has_are_not_remembered_s11() -> None:
    """Callers invent names of many kilobytes, and the memory of decisions is bounded by their number alone."""
    authorizer = Authorizer([rule(name="x", prefixed=True)])
    for length, remembered in ((512, True), (513, False), (8_000, False)):
        resource = Resource(ResourceType.TOPIC, "x" * length)
        before = sys.getrefcount(resource)
        assert authorizer.decide(ALICE, Operation.READ, resource).allowed
        assert (sys.getrefcount(resource) > before) is remembered
        assert len(str(resource)) < 600


def test_writing_to_some_topic_is_allowed_unless_every_allowance_is_denied() -> None:
    def allowed(*rules: AclRule) -> bool:
        return Authorizer(rules).decide_for_any(ALICE, Operation.WRITE, ResourceType.TOPIC).allowed

    write, denied = Operation.WRITE, rule(Operation.WRITE, deny=True)
    assert not allowed()
    assert not allowed(rule(Operation.READ))
    assert allowed(rule(write))
    assert not allowed(rule(write), denied)
    assert allowed(rule(write, "ord", prefixed=True), denied)
    assert allowed(rule(write, "*"), denied, rule(write, "o", prefixed=True, deny=True))
    assert not allowed(rule(write, "ord", prefixed=True), rule(write, "or", prefixed=True, deny=True))
    assert not allowed(rule(write, "*"), rule(write, "*", deny=True))


def test_rules_that_can_never_apply_are_refused_s11() -> None:
    cluster = ResourceType.CLUSTER
    for wrong in (
        rule(Operation.READ, CLUSTER.name, kind=cluster),
        rule(Operation.ALTER, "orders", kind=cluster),
        rule(Operation.ALTER, CLUSTER.name, kind=cluster, prefixed=True),
        rule(Operation.WRITE, kind=ResourceType.GROUP),
        rule(name=""),
        rule(name="x" * 513),
        rule(name="*", prefixed=True),
        rule(principal="alice"),
        rule(host="example.org"),
    ):
        with pytest.raises(InvalidRequest):
            checked_rule(wrong)
    assert checked_rule(rule(host="::ffff:10.0.0.1")) == rule(host="10.0.0.1")
    for kind, operations in OPERATIONS_OF.items():
        for operation in operations:
            name = CLUSTER.name if kind is cluster else "a"
            assert checked_rule(rule(operation, name, kind=kind)).operation is operation


def test_a_filter_finds_rules_by_their_fields_or_by_what_they_apply_to() -> None:
    rules = [rule(), rule(name="ord", prefixed=True), rule(name="*", principal="User:bob"), rule(name="other")]
    assert [r for r in rules if AclFilter().matches(r)] == rules
    assert [r for r in rules if AclFilter(applies_to="orders").matches(r)] == rules[:3]
    assert [r for r in rules if AclFilter(name="orders").matches(r)] == rules[:1]
    assert [r for r in rules if AclFilter(principal="User:bob").matches(r)] == rules[2:3]
    assert [r for r in rules if AclFilter(pattern_type=PatternType.PREFIXED).matches(r)] == rules[1:2]


NAMES = st.sampled_from(["a", "ab", "abc", "b", "ba"])
PATTERNS = st.sampled_from(list(PatternType)).flatmap(
    lambda kind: st.tuples(st.just(kind), NAMES if kind is PatternType.PREFIXED else NAMES | st.just("*"))
)
RULES = st.builds(
    lambda principal, host, operation, permission, pattern: AclRule(
        principal, host, operation, permission, ResourceType.TOPIC, *pattern
    ),
    st.sampled_from(["User:u", "User:v", "User:*", "Group:g", "Group:h"]),
    st.sampled_from(["*", "10.0.0.1", "10.0.0.2"]),
    st.sampled_from([Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS]),
    st.sampled_from(list(Permission)),
    PATTERNS,
)
CALLERS = st.builds(
    Caller,
    st.builds(Principal, st.sampled_from(["u", "v"]), st.sampled_from([(), ("g",), ("g", "h")])),
    st.sampled_from(["10.0.0.1", "10.0.0.2"]),
)
ASKED = st.sampled_from([Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS])


def model(rules: set[AclRule], caller: Caller, operation: Operation, name: str) -> bool:
    """Kafka's decision, by looking at every rule."""
    mine = [
        r for r in rules if r.principal in caller.principal.keys and r.host in ("*", caller.host) and r.is_about(name)
    ]
    denied = any(r.permission is Permission.DENY and r.operation in (operation, Operation.ALL) for r in mine)
    enough = {operation, Operation.ALL, *IMPLIED.get(operation, ())}
    return not denied and any(r.permission is Permission.ALLOW and r.operation in enough for r in mine)


@settings(max_examples=300)
@given(
    changes=st.lists(st.tuples(st.booleans(), RULES), max_size=20),
    asked=st.lists(st.tuples(CALLERS, ASKED, NAMES), max_size=5),
)
def test_the_index_decides_as_a_look_at_every_rule_does_s12(
    changes: list[tuple[bool, AclRule]], asked: list[tuple[Caller, Operation, str]]
) -> None:
    authorizer, rules = Authorizer(), set[AclRule]()
    for adds, changed in changes:
        (authorizer.add if adds else authorizer.remove)(changed)
        (rules.add if adds else rules.discard)(changed)
        for caller, operation, name in asked:
            decision = authorizer.decide(caller, operation, Resource(ResourceType.TOPIC, name))
            assert decision.allowed == model(rules, caller, operation, name)
            assert decision.rule is None or decision.rule in rules


@settings(max_examples=200)
@given(rules=st.sets(RULES, max_size=8), caller=CALLERS, operation=ASKED)
def test_some_topic_is_allowed_if_any_possible_name_is(
    rules: set[AclRule], caller: Caller, operation: Operation
) -> None:
    """Names beyond the rules' own: extensions that no narrower rule mentions."""
    found = Authorizer(rules).decide_for_any(caller, operation, ResourceType.TOPIC)
    names = {r.name for r in rules if r.name != "*"} | {r.name + "zz" for r in rules} | {"zz"}
    any_allowed = any(model(rules, caller, operation, name) for name in names)
    assert found.allowed or not any_allowed
    if found.allowed:
        allowing = found.rule
        assert allowing in rules and allowing is not None and allowing.permission is Permission.ALLOW
        assert allowing.principal in caller.principal.keys and allowing.host in ("*", caller.host)
        assert allowing.operation in {operation, Operation.ALL, *IMPLIED.get(operation, ())}
        # Several narrower denials may cover a prefix or `*` together; only then is the answer too generous, as Kafka's.
        is_pattern = allowing.name == "*" or allowing.pattern_type is PatternType.PREFIXED
        assert any_allowed or is_pattern
