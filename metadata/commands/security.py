"""Commands about users, tokens, access rules and quotas.

A command is carried out as a whole or not at all. No secret travels: the node that takes a change hashes the password
or the token first. Hashes stay out of every `repr`, since they allow guessing offline.

Once released a change never gains a field, and `change_security.1` never another kind of change: both would be a new
command behind a new feature level. So would another operation or resource type in `raftlog.security.acls`.
`SECURITY_FEATURE_LEVEL` is the level from which these commands may be proposed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec

from metadata.records.security import SHA256_BYTES, QuotaLimits, ScramMaterial
from raftlog.config import KIB
from raftlog.security.acls import MAX_RESOURCE_NAME, AclRule, Operation, PatternType, Permission, ResourceType
from raftlog.security.principals import MAX_NAME

from .fields import NaturalField, WireStruct

SECURITY_FEATURE_LEVEL = 6

MAX_CHANGES = 1_000
"""The most changes in one command; each rule that is added or removed counts as one."""
MAX_CHANGES_BYTES = 256 * KIB
"""The size of a command in bytes."""
MAX_DESCRIPTION = 255
MAX_PRINCIPAL = MAX_NAME + len("Group:")
MAX_ENTITY = MAX_NAME + len("Address:")
MAX_HOST = 64
"""In characters: more than an address has in any form."""

UserNameField: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
Argon2Field: TypeAlias = Annotated[str, msgspec.Meta(max_length=512, pattern=r"\A(\$argon2id\$[!-~]+)?\Z")]
TokenIdField: TypeAlias = Annotated[str, msgspec.Meta(max_length=12, pattern=r"\A[a-z2-7]{12}\Z")]
DigestField: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=SHA256_BYTES, max_length=SHA256_BYTES)]
DescriptionField: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_DESCRIPTION)]
EntityField: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ENTITY)]


class PutUser(WireStruct, frozen=True, tag="put_user"):
    """Makes a user, or replaces everything about it but its tokens.

    `replaces`: the version of the record that the proposer saw; 0: there must be none. Two administrators therefore
    never overwrite each other.
    """

    name: UserNameField
    superuser: bool
    scram: ScramMaterial | None
    argon2: Argon2Field
    """Empty: no password."""
    replaces: NaturalField

    def __repr__(self) -> str:
        return f"PutUser({self.name!r}, superuser={self.superuser}, replaces={self.replaces})"


class RemoveUser(WireStruct, frozen=True, tag="remove_user"):
    """Removes a user with its tokens. Rules and quotas that name it stay."""

    name: UserNameField


class PutToken(WireStruct, frozen=True, tag="put_token"):
    """Gives a user a token. Neither its id nor its digest may be there yet."""

    token_id: TokenIdField
    digest: DigestField
    """SHA-256 of the token's whole text."""
    principal_name: UserNameField
    """The name of its user."""
    description: DescriptionField
    expires_ms: NaturalField
    """The cluster time at which it expires, in milliseconds; 0: never."""

    def __repr__(self) -> str:
        return f"PutToken({self.token_id} of {self.principal_name!r}, expires at {self.expires_ms})"


class RemoveToken(WireStruct, frozen=True, tag="remove_token"):
    """Revokes a token."""

    token_id: TokenIdField


class Rule(WireStruct, frozen=True):
    """An `AclRule` as it travels, in commands and in snapshots."""

    principal: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PRINCIPAL)]
    host: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_HOST)]
    operation: Operation
    permission: Permission
    resource_type: ResourceType
    pattern_type: PatternType
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_RESOURCE_NAME)]

    @staticmethod
    def of(rule: AclRule) -> Rule:
        """Return the rule in the form that travels."""
        return Rule(
            principal=rule.principal,
            host=rule.host,
            operation=rule.operation,
            permission=rule.permission,
            resource_type=rule.resource_type,
            pattern_type=rule.pattern_type,
            name=rule.name,
        )

    @property
    def rule(self) -> AclRule:
        return AclRule(
            principal=self.principal,
            host=self.host,
            operation=self.operation,
            permission=self.permission,
            resource_type=self.resource_type,
            pattern_type=self.pattern_type,
            name=self.name,
        )


Rules: TypeAlias = Annotated[tuple[Rule, ...], msgspec.Meta(max_length=MAX_CHANGES)]


class AddRules(WireStruct, frozen=True, tag="add_rules"):
    """Adds rules. One that is there already stays."""

    rules: Rules

    @staticmethod
    def of(rules: Iterable[AclRule]) -> AddRules:
        """Return the change that adds these rules."""
        return AddRules(tuple(map(Rule.of, rules)))


class RemoveRules(WireStruct, frozen=True, tag="remove_rules"):
    """Removes exactly these rules. One that is not there is no error."""

    rules: Rules

    @staticmethod
    def of(rules: Iterable[AclRule]) -> RemoveRules:
        """Return the change that removes these rules."""
        return RemoveRules(tuple(map(Rule.of, rules)))


class PutQuota(WireStruct, frozen=True, tag="put_quota"):
    """Sets all limits of a user or address, whatever they were."""

    entity: EntityField
    """`User:alice`, `User:*`, `Address:10.1.2.3` or `Address:*`."""
    limits: QuotaLimits


class RemoveQuota(WireStruct, frozen=True, tag="remove_quota"):
    """Removes all limits of exactly this entity. Limits that are not there are no error."""

    entity: EntityField


SecurityChange: TypeAlias = (
    PutUser | RemoveUser | PutToken | RemoveToken | AddRules | RemoveRules | PutQuota | RemoveQuota
)


class ChangeSecurity(WireStruct, frozen=True, tag="change_security.1"):
    """Changes of users, tokens, rules and quotas, in order, all or nothing. Answered by `Done`."""

    changes: Annotated[tuple[SecurityChange, ...], msgspec.Meta(max_length=MAX_CHANGES)]

    @property
    def count(self) -> int:
        """Return the number of changes, of which each rule is one."""
        return sum(len(change.rules) if isinstance(change, AddRules | RemoveRules) else 1 for change in self.changes)

    @property
    def size_bytes(self) -> int:
        """Return the size of the encoded command; it takes as long as encoding it."""
        return len(_encoder.encode(self))


class BootstrapSecurity(WireStruct, frozen=True, tag="bootstrap_security.1"):
    """Makes the first administrator: a superuser with a token. Answered by `Done`.

    Refused once any user, token, rule or quota was ever made, so that an old file with a token never opens a cluster.
    """

    user: PutUser
    token: PutToken


_encoder = msgspec.msgpack.Encoder()
