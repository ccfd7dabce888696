"""Users, tokens, access rules and quotas, and the caller itself."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from raftlog.security.acls import AclFilter, AclRule, Operation, PatternType, Permission, ResourceType

from .base import Request

MAX_RULES_PER_REQUEST = 1_000
MAX_PASSWORD = 1_024
MAX_TOKEN_LIFETIME_MS = 10 * 366 * 24 * 3_600_000

UserName = Annotated[str, Meta(min_length=1, max_length=255)]
Password = Annotated[str, Meta(min_length=1, max_length=MAX_PASSWORD)]
PrincipalName = Annotated[str, Meta(min_length=1, max_length=263)]
HostName = Annotated[str, Meta(min_length=1, max_length=64)]
ResourceName = Annotated[str, Meta(min_length=1, max_length=512)]
Limit = Annotated[int, Meta(ge=0, le=2**53)]


class Identity(msgspec.Struct, frozen=True):
    """The caller as the node authenticated it."""

    principal: str
    groups: list[str]
    host: str
    superuser: bool
    mechanism: str
    """`token`, `password`, `access_token` or `certificate`; empty for a caller without a credential."""


# --- Users -----------------------------------------------------------------------------------------------------------


class CreateUser(Request, frozen=True):
    name: UserName
    password: Password | None = None
    """Absent: the user authenticates by tokens only."""
    superuser: bool = False

    def __repr__(self) -> str:
        return f"CreateUser({self.name!r}, superuser={self.superuser})"


class AlterUser(Request, frozen=True):
    """Changes of a user; what is absent stays."""

    password: Password | None = None
    remove_password: bool = False
    superuser: bool | None = None

    def __repr__(self) -> str:
        return f"AlterUser(superuser={self.superuser})"


class UserInfo(msgspec.Struct, frozen=True):
    name: str
    superuser: bool
    has_password: bool
    tokens: int
    """Number of tokens."""
    version: int
    """Rises with every change of the user."""


class Users(msgspec.Struct, frozen=True):
    users: list[UserInfo]


# --- Tokens ----------------------------------------------------------------------------------------------------------


class CreateToken(Request, frozen=True):
    description: Annotated[str, Meta(max_length=255)] = ""
    expires_in_ms: Annotated[int, Meta(ge=1, le=MAX_TOKEN_LIFETIME_MS)] | None = None
    """Absent: the token does not expire."""


class TokenInfo(msgspec.Struct, frozen=True):
    id: str
    user: str
    description: str
    expires_ms: int
    """Cluster time in milliseconds since 1970; 0: never."""


class CreatedToken(TokenInfo, frozen=True, kw_only=True):
    """A new token. Its text is in this answer only."""

    token: str

    def __repr__(self) -> str:
        return f"CreatedToken({self.id!r}, {self.user!r})"


class Tokens(msgspec.Struct, frozen=True):
    tokens: list[TokenInfo]


# --- Access rules ----------------------------------------------------------------------------------------------------


class Acl(Request, frozen=True):
    """An access rule."""

    principal: PrincipalName
    """`User:alice`, `Group:analysts` or `User:*`."""
    operation: Operation
    resource_type: ResourceType
    name: ResourceName
    """Name of the resource or its prefix; literally `*`: every resource of the type."""
    pattern_type: PatternType = PatternType.LITERAL
    permission: Permission = Permission.ALLOW
    host: HostName = "*"
    """IP address of the client, or `*`."""

    @staticmethod
    def of(rule: AclRule) -> Acl:
        return Acl(**{name: getattr(rule, name) for name in Acl.__struct_fields__})

    @property
    def rule(self) -> AclRule:
        return AclRule(**msgspec.structs.asdict(self))


class Acls(msgspec.Struct, frozen=True):
    acls: list[Acl]


class CreateAcls(Request, frozen=True):
    """Rules to add, all or none. A rule that is there already stays."""

    acls: Annotated[list[Acl], Meta(min_length=1, max_length=MAX_RULES_PER_REQUEST)]


class DeleteAcls(Request, frozen=True):
    """A filter over the rules to remove, all or none. An absent field matches anything."""

    principal: PrincipalName | None = None
    host: HostName | None = None
    operation: Operation | None = None
    permission: Permission | None = None
    resource_type: ResourceType | None = None
    pattern_type: PatternType | None = None
    name: ResourceName | None = None
    applies_to: ResourceName | None = None
    """Name of a resource: rules that match it, literally or by prefix."""
    dry_run: bool = False
    """Whether to return the rules without removing them."""

    @property
    def filter(self) -> AclFilter:
        return AclFilter(**{name: getattr(self, name) for name in AclFilter.__struct_fields__})


class CheckAcl(Request, frozen=True):
    """A question: may this principal do that?"""

    principal: PrincipalName
    operation: Operation
    resource_type: ResourceType
    name: ResourceName
    groups: Annotated[list[str], Meta(max_length=256)] = []
    host: Annotated[str, Meta(max_length=64)] = ""


class AclDecision(msgspec.Struct, frozen=True):
    """The decision, and the rule that makes it."""

    allowed: bool
    reason: str
    acl: Acl | None
    """The deciding rule; null: a superuser's request, or no rule applies."""


# --- Quotas ----------------------------------------------------------------------------------------------------------


class QuotaFields(Request, frozen=True):
    """The limits of a user or address on each node; absent: no limit. Of groups, committed offsets, transactional ids,
    blocks of producer ids and positions, the limits of a user in the cluster; absent: a quarter of the cluster's."""

    bytes_in_per_second: Limit | None = None
    bytes_out_per_second: Limit | None = None
    requests_per_second: Limit | None = None
    connections: Limit | None = None
    open_transactions: Limit | None = None
    groups: Limit | None = None
    topics_created_per_hour: Limit | None = None
    partitions_created_per_hour: Limit | None = None
    metadata_commands_per_second: Limit | None = None
    committed_offsets: Limit | None = None
    transactional_ids: Limit | None = None
    producer_id_blocks: Limit | None = None
    positions: Limit | None = None


class QuotaInfo(msgspec.Struct, frozen=True):
    entity: str
    """`User:alice`, `User:*`, `Address:10.1.2.3` or `Address:*`."""
    limits: QuotaFields


class Quotas(msgspec.Struct, frozen=True):
    quotas: list[QuotaInfo]
