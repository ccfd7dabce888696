"""Changes of users, tokens, access rules and quotas by administrators, as commands to the quorum.

Every change begins with a linearizable read (S7), so that nothing is decided by a stale view. Passwords are hashed and
tokens are made here, and only what verifies them travels. Whether a command is valid is decided where it is applied.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from metadata.commands.security import (
    SECURITY_FEATURE_LEVEL,
    AddRules,
    ChangeSecurity,
    PutQuota,
    PutToken,
    PutUser,
    RemoveQuota,
    RemoveRules,
    RemoveToken,
    RemoveUser,
    SecurityChange,
)
from metadata.records.security import NEVER_EXPIRES, QuotaLimits, QuotaRecord, TokenRecord, UserRecord, checked_entity
from metadata.view import ClusterView
from raftlog.broker.changes.feature_levels import check_level
from raftlog.broker.changes.proposer import Proposer
from raftlog.broker.security.authentication.tokens import NewToken
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.security.acls import AclFilter, AclRule, checked_filter, checked_rule
from raftlog.security.principals import check_user_name
from raftlog.security.secrets import Secret

if TYPE_CHECKING:
    from raftlog.broker.security.passwords.passwords import PasswordMaterial

RULES_PER_COMMAND = 200
"""Rules removed by one command; the largest possible ones fit into it."""

HashPassword: TypeAlias = "Callable[[Secret], Awaitable[PasswordMaterial]]"
"""Hashes a new password on a worker. Raises `InvalidRequest` for one that no user may have."""


class SecurityAdministrator:
    """See `http_api.service.security.SecurityService`. All calls are made on the broker's loop."""

    def __init__(
        self,
        view: ClusterView,
        proposer: Proposer,
        hash_password: HashPassword,
        new_token: Callable[[], NewToken],
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms` returns the cluster time in milliseconds, by which tokens expire."""
        self._view = view
        self._proposer = proposer
        self._hash_password = hash_password
        self._new_token = new_token
        self._now_ms = now_ms

    # --- Users -------------------------------------------------------------------------------------------------------

    async def create_user(self, name: str, password: Secret | None, *, superuser: bool) -> UserRecord:
        check_user_name(name)
        material = None if password is None else await self._hash_password(password)
        await self._proposer.catch_up()
        if self._view.security.user(name) is not None:
            raise InvalidRequest("user_exists", f"there is a user {name!r} already")
        await self._decide(_put(name, material, superuser=superuser, replaces=0))
        return self._user(name)

    async def alter_user(
        self, name: str, *, password: Secret | None = None, remove_password: bool = False, superuser: bool | None = None
    ) -> UserRecord:
        if password is not None and remove_password:
            raise InvalidRequest("invalid_request", "a password is either set or removed")
        material = None if password is None else await self._hash_password(password)
        await self._proposer.catch_up()
        before = self._user(name)
        is_superuser = before.superuser if superuser is None else superuser
        if material is not None or remove_password:
            change = _put(name, material, superuser=is_superuser, replaces=before.version)
        else:
            change = PutUser(name, is_superuser, before.scram, before.argon2, before.version)
        await self._decide(change)
        return self._user(name)

    async def remove_user(self, name: str) -> None:
        await self._proposer.catch_up()
        self._user(name)
        await self._decide(RemoveUser(name))

    # --- Tokens ------------------------------------------------------------------------------------------------------

    async def create_token(self, user: str, description: str, expires_in_ms: int | None) -> tuple[TokenRecord, Secret]:
        await self._proposer.catch_up()
        self._user(user)
        token = self._new_token()
        expires_ms = NEVER_EXPIRES if expires_in_ms is None else self._now_ms() + expires_in_ms
        await self._decide(PutToken(token.token_id, token.digest, user, description, expires_ms))
        record = self._view.security.token(token.token_id)
        if record is None:
            raise RetriableError("outcome_unknown", "the token was made, and revoked at once or cannot be seen here")
        return record, token.text

    async def revoke_token(self, token_id: str) -> None:
        await self._proposer.catch_up()
        if self._view.security.token(token_id) is None:
            raise InvalidRequest(
                "unknown_token", f"there is no token {token_id[:64]!r}: it was revoked, or has expired"
            )
        await self._decide(RemoveToken(token_id))

    # --- Rules -------------------------------------------------------------------------------------------------------

    async def add_rules(self, rules: Iterable[AclRule]) -> list[AclRule]:
        added = list(dict.fromkeys(map(checked_rule, rules)))
        await self._decide(AddRules.of(added))
        return added

    async def remove_rules(self, wanted: AclFilter, *, dry_run: bool) -> list[AclRule]:
        wanted = checked_filter(wanted)
        await self._proposer.catch_up()
        found = [rule for rule in self._view.security.rules() if wanted.matches(rule)]
        if not dry_run:
            for start in range(0, len(found), RULES_PER_COMMAND):
                await self._decide(RemoveRules.of(found[start : start + RULES_PER_COMMAND]))
        return found

    # --- Quotas ------------------------------------------------------------------------------------------------------

    async def put_quota(self, entity: str, limits: QuotaLimits) -> QuotaRecord:
        record = QuotaRecord(checked_entity(entity), limits)
        await self._decide(PutQuota(record.entity, limits))
        return record

    async def remove_quota(self, entity: str) -> None:
        await self._decide(RemoveQuota(checked_entity(entity)))

    async def _decide(self, change: SecurityChange) -> None:
        if self._view.feature_level < SECURITY_FEATURE_LEVEL:
            await self._proposer.catch_up()
        # An older node could not decode the command, and would stop.
        check_level(
            self._view.feature_level, SECURITY_FEATURE_LEVEL, "there are users, tokens, access rules and quotas"
        )
        await self._proposer.decide(ChangeSecurity((change,)))

    def _user(self, name: str) -> UserRecord:
        user = self._view.security.user(name)
        if user is None:
            raise InvalidRequest("unknown_user", f"there is no user {name[:255]!r}")
        return user


def _put(name: str, material: PasswordMaterial | None, *, superuser: bool, replaces: int) -> PutUser:
    if material is None:
        return PutUser(name, superuser, None, "", replaces)
    return PutUser(name, superuser, material.scram, material.argon2, replaces)
