"""Short names for the records and changes of security in tests."""

from __future__ import annotations

from metadata.commands.results import CommandResult, Refused
from metadata.commands.security import (
    SECURITY_FEATURE_LEVEL,
    ChangeSecurity,
    PutToken,
    PutUser,
    SecurityChange,
)
from metadata.records.security import NEVER_EXPIRES, ScramMaterial
from metadata.records.security_table import SecurityTable
from raftlog.security.acls import AclRule, Operation, PatternType, Permission, ResourceType

from .cluster import Cluster

ARGON2 = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdHNhbHRzYWx0c2FsdA$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g"
SCRAM = ScramMaterial(8_192, b"salt-of-16-bytes", b"stored-key-".ljust(64, b"s"), b"server-key-".ljust(64, b"k"))


def secure_cluster(level: int = SECURITY_FEATURE_LEVEL) -> Cluster:
    """A cluster without brokers, at a feature level."""
    cluster = Cluster(0)
    cluster.image.put_feature_level(level)
    cluster.view.on_events(0, cluster.image.take_events())
    return cluster


def token_id_of(number: int) -> str:
    """Return a distinct token id for each number."""
    letters = "abcdefghijklmnopqrstuvwxyz234567"
    return "".join(letters[number >> shift & 31] for shift in range(0, 60, 5))


def digest_of(number: int) -> bytes:
    """Return a distinct digest for each number."""
    return number.to_bytes(32, "big")


def put_user(name: str, replaces: int = 0, *, superuser: bool = False, argon2: str = ARGON2) -> PutUser:
    return PutUser(name, superuser, SCRAM, argon2, replaces)


def put_token(
    number: int, name: str, expires_ms: int = NEVER_EXPIRES, *, digest: int | None = None, description: str = ""
) -> PutToken:
    return PutToken(token_id_of(number), digest_of(number if digest is None else digest), name, description, expires_ms)


def rule(
    principal: str = "User:alice",
    name: str = "orders",
    operation: Operation = Operation.READ,
    *,
    permission: Permission = Permission.ALLOW,
    kind: ResourceType = ResourceType.TOPIC,
    pattern: PatternType = PatternType.LITERAL,
    host: str = "*",
) -> AclRule:
    return AclRule(principal, host, operation, permission, kind, pattern, name)


def change(cluster: Cluster, *changes: SecurityChange) -> CommandResult:
    """Apply changes in one command."""
    return cluster.apply(ChangeSecurity(changes))


def do(cluster: Cluster, *changes: SecurityChange) -> int:
    """Apply changes that must not be refused. Returns the index of their command."""
    cluster.do(ChangeSecurity(changes))
    return cluster.image.index


def refused(cluster: Cluster, *changes: SecurityChange) -> Refused:
    """Apply changes that must be refused. Returns the refusal."""
    result = change(cluster, *changes)
    assert isinstance(result, Refused), result
    return result


def contents(security: SecurityTable) -> tuple[object, ...]:
    """Return everything that a table of security holds."""
    users = security.users()
    tokens = [token for user in users for token in security.tokens_of(user.name)]
    return security.bootstrapped, users, tokens, security.rules(), security.quotas()
