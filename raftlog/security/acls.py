"""Access rules in Kafka's model: a rule allows or denies a principal an operation on resources, from a host.

A resource pattern is literal or a prefix; the literal name `*` stands for every resource of its type. See
`org.apache.kafka.common.acl` and KIP-290 for the model.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from raftlog.errors import InvalidRequest

from .principals import check_principal, host_of

CLUSTER_NAME = "raftlog-cluster"
"""The only resource of type `cluster`."""
ANY = "*"
MAX_RESOURCE_NAME = 512


class Operation(enum.StrEnum):
    """The kind of access that a request needs (Kafka's `AclOperation`)."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster_action"
    DESCRIBE_CONFIGS = "describe_configs"
    ALTER_CONFIGS = "alter_configs"
    IDEMPOTENT_WRITE = "idempotent_write"


class ResourceType(enum.StrEnum):
    """The type of a resource (Kafka's `ResourceType`)."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional_id"
    CLUSTER = "cluster"


class PatternType(enum.StrEnum):
    """The way in which a rule's resource name matches."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class Permission(enum.StrEnum):
    """The effect of a rule. A denial wins over everything that is allowed."""

    ALLOW = "allow"
    DENY = "deny"


IMPLIED: Mapping[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""Operation → the operations whose allowance allows it, too. Denials imply nothing."""

OPERATIONS_OF: Mapping[ResourceType, frozenset[Operation]] = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset({Operation.READ, Operation.DELETE, Operation.DESCRIBE}),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.WRITE, Operation.DESCRIBE}),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
        }
    ),
}
"""Type → the operations that a rule about it may name, besides `ALL`."""


class Resource(msgspec.Struct, frozen=True, gc=False):
    """One resource."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        if self.type is ResourceType.CLUSTER:
            return "the cluster"
        return f"{self.type} {self.name[:MAX_RESOURCE_NAME]!r}"


CLUSTER = Resource(ResourceType.CLUSTER, CLUSTER_NAME)


class AclRule(msgspec.Struct, frozen=True, gc=False, order=True):
    """One rule. Rules are compared as a whole: adding one twice changes nothing."""

    principal: str
    """`User:alice`, `Group:analysts`, or `User:*`."""
    host: str
    """IP address of the client, or `*`."""
    operation: Operation
    permission: Permission
    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    """Name of the resource, or its prefix; literally `*`: every resource of the type."""

    def covers(self, operation: Operation) -> bool:
        """Return whether the rule says something about an operation."""
        if self.operation in (operation, Operation.ALL):
            return True
        return self.permission is Permission.ALLOW and self.operation in IMPLIED.get(operation, ())

    def is_about(self, name: str) -> bool:
        """Return whether the rule's pattern matches a resource of its type."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANY)

    def __str__(self) -> str:
        where = "" if self.host == ANY else f" from {self.host}"
        star = "*" if self.pattern_type is PatternType.PREFIXED else ""
        return f"{self.permission} {self.principal} to {self.operation} {self.resource_type} {self.name}{star}{where}"


def checked_rule(rule: AclRule) -> AclRule:
    """Return the rule with its host in canonical form. Raises `InvalidRequest` if it can never apply."""
    check_principal(rule.principal)
    if rule.resource_type is ResourceType.CLUSTER and (rule.name, rule.pattern_type) != (
        CLUSTER_NAME,
        PatternType.LITERAL,
    ):
        raise InvalidRequest("invalid_request", f"a rule about the cluster names {CLUSTER_NAME!r}, literally")
    if not 1 <= len(rule.name) <= MAX_RESOURCE_NAME:
        raise InvalidRequest("invalid_request", f"a resource name has 1 to {MAX_RESOURCE_NAME} characters")
    if rule.pattern_type is PatternType.PREFIXED and rule.name == ANY:
        raise InvalidRequest("invalid_request", "'*' as a prefix matches only names that begin with it: use literal")
    possible = OPERATIONS_OF[rule.resource_type]
    if rule.operation is not Operation.ALL and rule.operation not in possible:
        known = ", ".join(sorted(possible))
        raise InvalidRequest(
            "invalid_request", f"{rule.operation} is no operation on a {rule.resource_type}: these are {known} and all"
        )
    return rule if rule.host == ANY else msgspec.structs.replace(rule, host=host_of(rule.host))


class AclFilter(msgspec.Struct, frozen=True, gc=False):
    """A filter over rules; None matches anything."""

    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    permission: Permission | None = None
    resource_type: ResourceType | None = None
    pattern_type: PatternType | None = None
    name: str | None = None
    """Name in the rule."""
    applies_to: str | None = None
    """Name of a resource: rules whose pattern matches it, whether literal or a prefix (Kafka's `MATCH`)."""

    def matches(self, rule: AclRule) -> bool:
        """Return whether a rule passes the filter."""
        wanted = (
            (self.principal, rule.principal),
            (self.host, rule.host),
            (self.operation, rule.operation),
            (self.permission, rule.permission),
            (self.resource_type, rule.resource_type),
            (self.pattern_type, rule.pattern_type),
            (self.name, rule.name),
        )
        if any(want is not None and want != has for want, has in wanted):
            return False
        return self.applies_to is None or rule.is_about(self.applies_to)


def checked_filter(wanted: AclFilter) -> AclFilter:
    """Return the filter with its host in the form of rules (`checked_rule`), so that it finds a rule as it was given.

    Raises `InvalidRequest` for a host that no rule can have.
    """
    if wanted.host is None or wanted.host == ANY:
        return wanted
    return msgspec.structs.replace(wanted, host=host_of(wanted.host))
