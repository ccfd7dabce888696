"""The effects of commands about users, tokens, rules and quotas (S12). Deterministic and total.

A command is carried out as a whole or not at all. Its changes take effect one after the other, so that each sees those
before it; the first refusal undoes them. Tokens that have expired by the cluster's time are removed first, and so count
toward no limit. A command with a refused change does not remove them either: it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from metadata.commands.results import CommandResult, Done, Refused
from metadata.commands.security import (
    MAX_CHANGES,
    MAX_CHANGES_BYTES,
    SECURITY_FEATURE_LEVEL,
    AddRules,
    BootstrapSecurity,
    ChangeSecurity,
    PutQuota,
    PutToken,
    PutUser,
    RemoveQuota,
    RemoveRules,
    RemoveToken,
    RemoveUser,
    Rule,
    SecurityChange,
)
from metadata.records.events import (
    QuotaChanged,
    QuotaRemoved,
    RulesChanged,
    TokenChanged,
    TokenRemoved,
    UserChanged,
    UserRemoved,
)
from metadata.records.security import (
    LIMITS_OF_USERS,
    NEVER_EXPIRES,
    QuotaRecord,
    TokenRecord,
    UserRecord,
    checked_entity,
)
from raftlog.errors import InvalidRequest
from raftlog.security.acls import AclRule, checked_rule
from raftlog.security.principals import USER, check_text, check_user_name

from .image import ClusterImage, Steps
from .security_state import EVENTS_PER_STEP

MAX_USERS = 10_000
"""The most users. As for all limits below, every node keeps them in memory and in every snapshot."""
MAX_TOKENS_PER_USER = 100
MAX_TOKENS = 100_000
MAX_RULES = 10_000
MAX_QUOTAS = 10_000


def change_security(state: ClusterImage, command: ChangeSecurity, index: int) -> Steps:
    """Carry out all changes, in order and in steps, or none."""
    if state.feature_level < SECURITY_FEATURE_LEVEL:
        return _too_early(state)
    count, size = command.count, command.size_bytes
    if count > MAX_CHANGES or size > MAX_CHANGES_BYTES:
        return Refused(
            "invalid_request",
            f"{count} changes of {size} bytes: a command has at most {MAX_CHANGES} changes and {MAX_CHANGES_BYTES} "
            "bytes",
        )
    yield
    expired = yield from state.security.expired_in_steps(state.time.now_ms)
    for number, token_id in enumerate(expired, 1):
        state.security.change(TokenRemoved(token_id))
        if number % EVENTS_PER_STEP == 0:
            yield
    return (yield from _all_or_nothing(state, command.changes, index))


def bootstrap_security(state: ClusterImage, command: BootstrapSecurity, index: int) -> CommandResult | Steps:
    """Make the first administrator, once in the life of a cluster."""
    if state.feature_level < SECURITY_FEATURE_LEVEL:
        return _too_early(state)
    if state.security.bootstrapped:
        return Refused(
            "already_bootstrapped",
            "the cluster has, or had, users, tokens, rules or quotas: one of its administrators must add another",
        )
    if not command.user.superuser or command.user.replaces or command.token.principal_name != command.user.name:
        return Refused("invalid_request", "the first administrator is a new superuser with a token of its own")
    return _all_or_nothing(state, (command.user, command.token), index)


def _too_early(state: ClusterImage) -> Refused:
    return Refused("unsupported_version", f"the feature level is {state.feature_level}, not {SECURITY_FEATURE_LEVEL}")


def _all_or_nothing(state: ClusterImage, changes: Iterable[SecurityChange], index: int) -> Steps:
    done = state.security.undecided_count
    for number, change in enumerate(changes, 1):
        refused = _change(state, change, index)
        if refused is not None:
            yield from state.security.undo_in_steps()
            return Refused(refused.code, f"{refused.detail} (change {number}; none is carried out)")
        if state.security.undecided_count - done >= EVENTS_PER_STEP:
            done = state.security.undecided_count
            yield
    yield from state.security.keep_in_steps()
    return Done()


def _change(state: ClusterImage, change: SecurityChange, index: int) -> Refused | None:
    try:
        match change:
            case PutUser():
                return _put_user(state, change, index)
            case RemoveUser():
                return _remove_user(state, change)
            case PutToken():
                return _put_token(state, change, index)
            case RemoveToken():
                return _remove_token(state, change)
            case AddRules():
                return _add_rules(state, change)
            case RemoveRules():
                return _remove_rules(state, change)
            case PutQuota():
                return _put_quota(state, change)
            case RemoveQuota():
                return _remove_quota(state, change)
    except InvalidRequest as error:
        # The checks of names, rules and entities are shared with the API.
        return Refused(error.code, error.detail)


def _put_user(state: ClusterImage, change: PutUser, index: int) -> Refused | None:
    security = state.security
    name = check_user_name(change.name)
    before = security.user(name)
    if before is None:
        if change.replaces:
            return Refused("unknown_user", f"there is no user {name!a}")
        if security.user_count >= MAX_USERS:
            return Refused("invalid_request", f"the cluster keeps {MAX_USERS} users at most")
    elif not change.replaces:
        return Refused("user_exists", f"there is a user {name!a} already")
    elif change.replaces != before.version:
        return Refused("user_changed", f"user {name!a} was changed meanwhile: read it again, and decide again")
    created = index if before is None else before.created_index
    security.change(UserChanged(UserRecord(name, change.superuser, change.scram, change.argon2, created, index)))
    return None


def _remove_user(state: ClusterImage, change: RemoveUser) -> Refused | None:
    security = state.security
    if security.user(change.name) is None:
        return Refused("unknown_user", f"there is no user {change.name!a}")
    for token in security.tokens_of(change.name):
        security.change(TokenRemoved(token.token_id))
    security.change(UserRemoved(change.name))
    return None


def _put_token(state: ClusterImage, change: PutToken, index: int) -> Refused | None:
    security, name, now_ms = state.security, change.principal_name, state.time.now_ms
    check_text(change.description, "a token's description", least=0)
    if security.user(name) is None:
        return Refused("unknown_user", f"there is no user {name!a}")
    if security.token(change.token_id) is not None or security.token_of_digest(change.digest) is not None:
        return Refused("token_exists", f"token {change.token_id} is there already, or another of the same digest")
    if change.expires_ms != NEVER_EXPIRES and change.expires_ms <= now_ms:
        return Refused(
            "invalid_request", f"the token would expire at {change.expires_ms}, and the cluster's time is {now_ms}"
        )
    if security.token_count_of(name) >= MAX_TOKENS_PER_USER:
        return Refused("invalid_request", f"a user has {MAX_TOKENS_PER_USER} tokens at most: remove one that is unused")
    if security.token_count >= MAX_TOKENS:
        return Refused("invalid_request", f"the cluster keeps {MAX_TOKENS} tokens at most")
    security.change(
        TokenChanged(TokenRecord(change.token_id, change.digest, name, change.description, change.expires_ms, index))
    )
    return None


def _remove_token(state: ClusterImage, change: RemoveToken) -> Refused | None:
    if state.security.token(change.token_id) is None:
        return Refused("unknown_token", f"there is no token {change.token_id}: it was removed, or it has expired")
    state.security.change(TokenRemoved(change.token_id))
    return None


def _add_rules(state: ClusterImage, change: AddRules) -> Refused | None:
    security = state.security
    new = tuple(rule for rule in _distinct(change.rules) if not security.has_rule(rule))
    if security.rule_count + len(new) > MAX_RULES:
        return Refused("invalid_request", f"the cluster keeps {MAX_RULES} access rules at most")
    if new:
        security.change(RulesChanged(added=new, removed=()))
    return None


def _remove_rules(state: ClusterImage, change: RemoveRules) -> Refused | None:
    gone = tuple(rule for rule in _distinct(change.rules) if state.security.has_rule(rule))
    if gone:
        state.security.change(RulesChanged(added=(), removed=gone))
    return None


def _distinct(rules: Iterable[Rule]) -> dict[AclRule, None]:
    """Return the rules in canonical form, each once. Raises `InvalidRequest`."""
    return dict.fromkeys(checked_rule(rule.rule) for rule in rules)


def _put_quota(state: ClusterImage, change: PutQuota) -> Refused | None:
    security = state.security
    entity = checked_entity(change.entity)
    before = security.quota(entity)
    if change.limits.is_unset:
        return Refused("invalid_request", "a quota sets at least one limit: remove it if there shall be none")
    of_users = [field for field in LIMITS_OF_USERS if getattr(change.limits, field) is not None]
    if of_users and not entity.startswith(f"{USER}:"):
        # The records that these count have an owner, and no address.
        return Refused("invalid_request", f"{of_users[0]} is a limit of users, not of addresses")
    if before is None and security.quota_count >= MAX_QUOTAS:
        return Refused("invalid_request", f"the cluster keeps {MAX_QUOTAS} quotas at most")
    if change.limits != before:
        security.change(QuotaChanged(QuotaRecord(entity, change.limits)))
    return None


def _remove_quota(state: ClusterImage, change: RemoveQuota) -> Refused | None:
    entity = checked_entity(change.entity)
    if state.security.quota(entity) is not None:
        state.security.change(QuotaRemoved(entity))
    return None
