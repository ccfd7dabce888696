"""The decision whether a caller may carry out an operation on a resource (S12).

A denial wins over every allowance, and what no rule allows is refused. Superusers pass, and so do the cluster's own
nodes. A decision looks up the resource's name, `*`, and one prefix for each distinct prefix length among the rules, so
its cost does not depend on the number of rules; the answers are remembered until a rule changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from raftlog.errors import InvalidRequest

from .acls import ANY, MAX_RESOURCE_NAME, AclRule, Operation, PatternType, Permission, Resource, ResourceType
from .principals import Caller, Principal

MAX_REMEMBERED = 50_000
"""The most decisions that are remembered; they are all forgotten when there are more."""

_Key: TypeAlias = tuple[Principal, str, Operation, Resource]
_ByPrincipal: TypeAlias = dict[str, dict[AclRule, None]]


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The answer to one question, with the rule that decided."""

    allowed: bool
    rule: AclRule | None
    """The deciding rule; None: a superuser's request, or nothing allows it."""
    reason: str


_SUPERUSER = Decision(True, None, "a superuser passes every rule")
_NODE = Decision(True, None, "a node of the cluster")
_NOT_ALLOWED = Decision(False, None, "no rule allows it")


class Authorizer:
    """The rules, indexed by resource and principal."""

    def __init__(self, rules: Iterable[AclRule] = ()) -> None:
        self._literal: dict[tuple[ResourceType, str], _ByPrincipal] = {}
        self._prefixed: dict[tuple[ResourceType, str], _ByPrincipal] = {}
        self._prefix_lengths: dict[ResourceType, Counter[int]] = {kind: Counter() for kind in ResourceType}
        self._remembered: dict[_Key, Decision] = {}
        for rule in rules:
            self.add(rule)

    def add(self, rule: AclRule) -> None:
        """Add a rule; one that is there already changes nothing."""
        patterns = self._patterns(rule)
        by_principal = patterns.setdefault((rule.resource_type, rule.name), {})
        if not by_principal and rule.pattern_type is PatternType.PREFIXED:
            self._prefix_lengths[rule.resource_type][len(rule.name)] += 1
        by_principal.setdefault(rule.principal, {})[rule] = None
        self._remembered.clear()

    def remove(self, rule: AclRule) -> None:
        """Remove a rule; one that is not there changes nothing."""
        patterns = self._patterns(rule)
        key = (rule.resource_type, rule.name)
        by_principal = patterns.get(key, {})
        rules = by_principal.get(rule.principal, {})
        rules.pop(rule, None)
        if not rules:
            by_principal.pop(rule.principal, None)
        if not by_principal and patterns.pop(key, None) is not None and rule.pattern_type is PatternType.PREFIXED:
            lengths = self._prefix_lengths[rule.resource_type]
            lengths[len(rule.name)] -= 1
            if not lengths[len(rule.name)]:
                del lengths[len(rule.name)]
        self._remembered.clear()

    def decide(self, caller: Caller, operation: Operation, resource: Resource) -> Decision:
        """Return whether the caller may carry out the operation, and which rule says so."""
        if caller.node is not None:
            return _NODE
        if caller.superuser:
            return _SUPERUSER
        key = (caller.principal, caller.host, operation, resource)
        known = self._remembered.get(key)
        if known is None:
            known = self._remember(key, self._decide(caller, operation, resource))
        return known

    def decide_for_any(self, caller: Caller, operation: Operation, kind: ResourceType) -> Decision:
        """Return whether the caller may carry out the operation on at least one resource of a type, existing or not
        (KIP-679).
        """
        if caller.node is not None:
            return _NODE
        if caller.superuser:
            return _SUPERUSER
        # No resource has an empty name, so such a key stands for any.
        key = (caller.principal, caller.host, operation, Resource(kind, ""))
        known = self._remembered.get(key)
        if known is None:
            known = self._remember(key, self._decide_for_any(caller, operation, kind))
        return known

    def _decide_for_any(self, caller: Caller, operation: Operation, kind: ResourceType) -> Decision:
        rules = [rule for rule in self._rules_of(caller, kind) if _applies(rule, caller, operation)]
        denials = [rule for rule in rules if rule.permission is Permission.DENY]
        for rule in rules:
            if rule.permission is Permission.ALLOW and not any(_hides(denial, rule) for denial in denials):
                return Decision(True, rule, str(rule))
        return _NOT_ALLOWED

    def _remember(self, key: _Key, decision: Decision) -> Decision:
        if len(key[3].name) > MAX_RESOURCE_NAME:
            return decision  # No resource has such a name, and the memory is bounded by their number alone.
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = decision
        return decision

    def _decide(self, caller: Caller, operation: Operation, resource: Resource) -> Decision:
        allowing: AclRule | None = None
        keys = caller.principal.keys
        for by_principal in self._about(resource):
            for key in keys:
                for rule in by_principal.get(key, ()):
                    if not _applies(rule, caller, operation):
                        continue
                    if rule.permission is Permission.DENY:
                        return Decision(False, rule, str(rule))
                    allowing = allowing or rule
        return _NOT_ALLOWED if allowing is None else Decision(True, allowing, str(allowing))

    def _about(self, resource: Resource) -> Iterator[_ByPrincipal]:
        """Yield the rules whose pattern matches a resource."""
        for name in (resource.name, ANY):
            by_principal = self._literal.get((resource.type, name))
            if by_principal is not None:
                yield by_principal
        for length in self._prefix_lengths[resource.type]:
            if length <= len(resource.name):
                by_principal = self._prefixed.get((resource.type, resource.name[:length]))
                if by_principal is not None:
                    yield by_principal

    def _rules_of(self, caller: Caller, kind: ResourceType) -> Iterator[AclRule]:
        for patterns in (self._literal, self._prefixed):
            for (resource_type, _), by_principal in patterns.items():
                if resource_type is kind:
                    for key in caller.principal.keys:
                        yield from by_principal.get(key, ())

    def _patterns(self, rule: AclRule) -> dict[tuple[ResourceType, str], _ByPrincipal]:
        return self._prefixed if rule.pattern_type is PatternType.PREFIXED else self._literal


def refusal(caller: Caller, operation: Operation, resource: Resource) -> InvalidRequest:
    """Return the error of a refused request. It says nothing about whether the resource exists."""
    return InvalidRequest("authorization_failed", f"{caller} may not {operation} {resource}")


def _applies(rule: AclRule, caller: Caller, operation: Operation) -> bool:
    return rule.host in (ANY, caller.host) and rule.covers(operation)


def _hides(denial: AclRule, rule: AclRule) -> bool:
    """Return whether a denial covers every resource that a rule allows."""
    if denial.pattern_type is PatternType.PREFIXED:
        return rule.name != ANY and rule.name.startswith(denial.name)
    if denial.name == ANY:
        return True
    return rule.pattern_type is PatternType.LITERAL and rule.name == denial.name
