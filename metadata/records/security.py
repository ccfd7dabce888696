"""Users, tokens and quotas, as the quorum agreed on them. Rules are `raftlog.security.acls.AclRule`.

A record holds no secret: of a password only hashes that verify it, of a token only its digest. Even these stay out of a
record's `repr`, since they allow guessing offline. A record is never modified, only replaced.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from raftlog.errors import InvalidRequest
from raftlog.security.principals import USER, check_principal, host_of

ADDRESS = "Address"
EVERY_USER = f"{USER}:*"
"""The entity of the default limits of each user."""
EVERY_ADDRESS = f"{ADDRESS}:*"
"""The entity of the default limits of each address."""

NEVER_EXPIRES = 0

MIN_SCRAM_ITERATIONS = 8_192
MAX_SCRAM_ITERATIONS = 1_000_000
MIN_SALT_BYTES = 16
MAX_SALT_BYTES = 64
SHA512_BYTES = 64
SHA256_BYTES = 32
MAX_RATE = 2**53
"""The highest rate: every JSON reader takes it for the same number."""
MAX_COUNT = 2**31 - 1

_Iterations: TypeAlias = Annotated[int, msgspec.Meta(ge=MIN_SCRAM_ITERATIONS, le=MAX_SCRAM_ITERATIONS)]
_Salt: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=MIN_SALT_BYTES, max_length=MAX_SALT_BYTES)]
_Key: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=SHA512_BYTES, max_length=SHA512_BYTES)]
_Rate: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_RATE)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


class ScramMaterial(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """The means to verify a password in a SCRAM-SHA-512 exchange (RFC 5802, section 3). No key reveals the password."""

    iterations: _Iterations
    salt: _Salt
    stored_key: _Key
    server_key: _Key

    def __repr__(self) -> str:
        return f"ScramMaterial(iterations={self.iterations})"


class UserRecord(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """A user; in snapshots an array of these fields."""

    name: str
    superuser: bool
    """Whether no rule applies to the user."""
    scram: ScramMaterial | None
    argon2: str
    """The password's argon2id hash in PHC form; empty: the user has no password."""
    created_index: int
    """The index of the log entry that created the user."""
    version: int
    """The index of the log entry that last changed the user: it rises even if the user is removed and made again."""

    def __repr__(self) -> str:
        what = "superuser" if self.superuser else "user"
        return f"UserRecord({what} {self.name!r}, version {self.version}, created by {self.created_index})"


class TokenRecord(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """A token of a user; in snapshots an array of these fields. It never changes."""

    token_id: str
    digest: bytes
    """SHA-256 of the token's whole text."""
    principal_name: str
    """The name of its user."""
    description: str
    expires_ms: int
    """The cluster time at which the token expires, in milliseconds; 0: never."""
    created_index: int
    """The index of the log entry that created the token."""

    def is_expired(self, now_ms: int) -> bool:
        """Return whether the token is no longer accepted at this cluster time, in milliseconds."""
        return NEVER_EXPIRES < self.expires_ms <= now_ms

    def __repr__(self) -> str:
        return f"TokenRecord({self.token_id} of {self.principal_name!r}, expires at {self.expires_ms})"


class QuotaLimits(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False, kw_only=True):
    """The limits of one user or address; None: no limit is set. In commands and snapshots an array of these fields."""

    bytes_in_per_second: _Rate | None = None
    bytes_out_per_second: _Rate | None = None
    requests_per_second: _Rate | None = None
    connections: _Count | None = None
    """The most open connections."""
    open_transactions: _Count | None = None
    """The most open transactions."""
    groups: _Count | None = None
    """The most consumer groups that a user made and that exist; this and the last four are counted by the quorum."""
    topics_created_per_hour: _Count | None = None
    partitions_created_per_hour: _Count | None = None
    metadata_commands_per_second: _Rate | None = None
    committed_offsets: _Count | None = None
    """The most committed offsets in groups that a user made."""
    transactional_ids: _Count | None = None
    """The most transactional ids that a user made and that have not expired."""
    producer_id_blocks: _Count | None = None
    """The most blocks of producer ids, likewise."""
    positions: _Count | None = None
    """The most named positions that a user made."""

    @property
    def is_unset(self) -> bool:
        """Return whether no limit is set."""
        return self == _UNSET


_UNSET = QuotaLimits()

LIMITS_OF_USERS = (
    "open_transactions",
    "groups",
    "committed_offsets",
    "transactional_ids",
    "producer_id_blocks",
    "positions",
)
"""The limits that an address cannot have."""


class QuotaRecord(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """The limits of an entity; in snapshots an array of these fields."""

    entity: str
    """`User:alice`, `Address:10.1.2.3`, or `User:*` and `Address:*` for each user and address without limits of its
    own.
    """
    limits: QuotaLimits


def checked_entity(text: str) -> str:
    """Return a quota's entity in its canonical form. Raises `InvalidRequest` if it can never apply.

    The quorum decides by this function: another result for the same text is another command.
    """
    kind, _, name = text.partition(":")
    if kind == USER:
        return check_principal(text)
    if kind != ADDRESS:
        raise InvalidRequest("invalid_request", "a quota is of User:NAME, User:*, Address:IP or Address:*")
    return text if text == EVERY_ADDRESS else f"{ADDRESS}:{host_of(name)}"
