"""The broker's port for users, tokens, access rules and quotas.

`raftlog/broker/security/administration/administrator.py` implements it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from metadata.view import QuotaLimits, QuotaRecord, TokenRecord, UserRecord
from raftlog.security.acls import AclFilter, AclRule
from raftlog.security.secrets import Secret


class SecurityService(Protocol):
    """Changes by administrators; what there is, `BrokerService.view.security` shows. Each call raises `InvalidRequest`
    if the quorum refuses the change, or `RetriableError`."""

    async def create_user(self, name: str, password: Secret | None, *, superuser: bool) -> UserRecord:
        """Create a user; without a password it authenticates by tokens only. Refused as `user_exists`."""
        ...

    async def alter_user(
        self, name: str, *, password: Secret | None = None, remove_password: bool = False, superuser: bool | None = None
    ) -> UserRecord:
        """Change a user; None leaves a value as it is. Refused as `unknown_user`, or as `user_changed` if it was
        changed meanwhile."""
        ...

    async def remove_user(self, name: str) -> None:
        """Remove a user with its tokens. Refused as `unknown_user`."""
        ...

    async def create_token(self, user: str, description: str, expires_in_ms: int | None) -> tuple[TokenRecord, Secret]:
        """Create a token. Return its record and its text, which cannot be read again. Refused as `unknown_user`."""
        ...

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token. Refused as `unknown_token`."""
        ...

    async def add_rules(self, rules: Iterable[AclRule]) -> list[AclRule]:
        """Add rules, all or none. Return them in canonical form."""
        ...

    async def remove_rules(self, wanted: AclFilter, *, dry_run: bool) -> list[AclRule]:
        """Remove the rules that match a filter, or with `dry_run` only return them. Return them."""
        ...

    async def put_quota(self, entity: str, limits: QuotaLimits) -> QuotaRecord:
        """Set all limits of a user or address. Return them under the entity's canonical form."""
        ...

    async def remove_quota(self, entity: str) -> None:
        """Remove the limits of a user or address."""
        ...
