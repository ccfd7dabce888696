"""The table of users, tokens, rules and quotas as of some index, built from the image's events."""

from __future__ import annotations

from raftlog.security.acls import AclRule

from .events import (
    QuotaChanged,
    QuotaRemoved,
    RulesChanged,
    SecurityBegun,
    SecurityEvent,
    TokenChanged,
    TokenRemoved,
    UserChanged,
    UserRemoved,
)
from .security import QuotaLimits, QuotaRecord, TokenRecord, UserRecord


class SecurityTable:
    """Every user, token, rule and quota as of some index. Only the feeder calls `on_event`."""

    def __init__(self) -> None:
        self.version = 0
        """Rises with every change; counted by each node for itself."""
        self.bootstrapped = False
        """Whether any record was ever made, so that no first administrator can be added any more."""
        self._users: dict[str, UserRecord] = {}
        self._tokens: dict[str, TokenRecord] = {}
        self._token_of_digest: dict[bytes, str] = {}
        self._tokens_of: dict[str, dict[str, None]] = {}
        """User → the ids of its tokens."""
        self._rules: dict[AclRule, None] = {}
        self._sorted_rules: tuple[AclRule, ...] | None = ()
        """The rules in order; None: they have changed since they were sorted."""
        self._quotas: dict[str, QuotaLimits] = {}

    # --- Users -------------------------------------------------------------------------------------------------------

    def user(self, name: str) -> UserRecord | None:
        return self._users.get(name)

    def users(self) -> list[UserRecord]:
        """Return all users, sorted by name."""
        return [self._users[name] for name in sorted(self._users)]

    @property
    def user_count(self) -> int:
        return len(self._users)

    # --- Tokens ------------------------------------------------------------------------------------------------------

    def token(self, token_id: str) -> TokenRecord | None:
        """Return the token of this id, expired or not."""
        return self._tokens.get(token_id)

    def token_of_digest(self, digest: bytes) -> TokenRecord | None:
        """Return the token whose text has this SHA-256 digest, expired or not."""
        token_id = self._token_of_digest.get(digest)
        return None if token_id is None else self._tokens[token_id]

    def tokens_of(self, name: str) -> list[TokenRecord]:
        """Return the tokens of a user, sorted by id."""
        return [self._tokens[token_id] for token_id in sorted(self._tokens_of.get(name, ()))]

    def token_count_of(self, name: str) -> int:
        """Return the number of a user's tokens."""
        return len(self._tokens_of.get(name, ()))

    @property
    def token_count(self) -> int:
        return len(self._tokens)

    # --- Rules and quotas --------------------------------------------------------------------------------------------

    def has_rule(self, rule: AclRule) -> bool:
        return rule in self._rules

    def rules(self) -> tuple[AclRule, ...]:
        """Return all rules in order."""
        if self._sorted_rules is None:
            self._sorted_rules = tuple(sorted(self._rules))
        return self._sorted_rules

    @property
    def rule_count(self) -> int:
        return len(self._rules)

    def quota(self, entity: str) -> QuotaLimits | None:
        """Return the limits that are set for exactly this entity."""
        return self._quotas.get(entity)

    def quotas(self) -> list[QuotaRecord]:
        """Return all quotas, sorted by entity."""
        return [QuotaRecord(entity, self._quotas[entity]) for entity in sorted(self._quotas)]

    @property
    def quota_count(self) -> int:
        return len(self._quotas)

    # --- Following ---------------------------------------------------------------------------------------------------

    def on_event(self, event: SecurityEvent) -> None:
        self.version += 1
        match event:
            case UserChanged(user):
                self._users[user.name] = user
            case UserRemoved(name):
                self._users.pop(name, None)
            case TokenChanged(token):
                self._remove_token(token.token_id)
                self._put_token(token)
            case TokenRemoved(token_id):
                self._remove_token(token_id)
            case RulesChanged(added, removed):
                for rule in removed:
                    self._rules.pop(rule, None)
                self._rules.update(dict.fromkeys(added))
                self._sorted_rules = None
            case QuotaChanged(quota):
                self._quotas[quota.entity] = quota.limits
            case QuotaRemoved(entity):
                self._quotas.pop(entity, None)
            case SecurityBegun():
                self.bootstrapped = True

    def _put_token(self, token: TokenRecord) -> None:
        self._tokens[token.token_id] = token
        self._token_of_digest[token.digest] = token.token_id
        self._tokens_of.setdefault(token.principal_name, {})[token.token_id] = None

    def _remove_token(self, token_id: str) -> None:
        token = self._tokens.pop(token_id, None)
        if token is None:
            return
        if self._token_of_digest[token.digest] == token_id:
            del self._token_of_digest[token.digest]
        of_user = self._tokens_of[token.principal_name]
        del of_user[token_id]
        if not of_user:
            del self._tokens_of[token.principal_name]
