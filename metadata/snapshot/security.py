"""Users, tokens, rules and quotas as bytes inside a snapshot: everything sorted, nothing derived, packed in steps."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from metadata.commands.fields import WireStruct
from metadata.commands.security import Rule
from metadata.image.security_state import SecurityState
from metadata.records.events import QuotaChanged, RulesChanged, SecurityBegun, TokenChanged, UserChanged
from metadata.records.security import QuotaLimits, QuotaRecord, TokenRecord, UserRecord
from raftlog.security.acls import AclRule

from .steps import PER_STEP, encoded_in_steps, sorted_in_steps


class _PackedSecurity(WireStruct, frozen=True):
    """The tables of security; elements are encoded on their own, since encoding all at once would take too long."""

    bootstrapped: bool
    users: tuple[msgspec.Raw, ...]
    tokens: tuple[msgspec.Raw, ...]
    rules: tuple[msgspec.Raw, ...]
    quotas: tuple[msgspec.Raw, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_PackedSecurity)
_user_decoder = msgspec.msgpack.Decoder(UserRecord)
_token_decoder = msgspec.msgpack.Decoder(TokenRecord)
_rule_decoder = msgspec.msgpack.Decoder(Rule)
_quota_decoder = msgspec.msgpack.Decoder(QuotaRecord)


def pack_security(security: SecurityState) -> Generator[None, None, msgspec.Raw]:
    """Encode the current state in steps; later changes are not included. Equal states give equal bytes."""
    return _pack(security.bootstrapped, *security.copies())


def _pack(
    bootstrapped: bool,
    users: dict[str, UserRecord],
    tokens: dict[str, TokenRecord],
    rules: dict[AclRule, None],
    quotas: dict[str, QuotaLimits],
) -> Generator[None, None, msgspec.Raw]:
    names = yield from sorted_in_steps(users)
    packed_users = yield from encoded_in_steps(users[name] for name in names)
    ids = yield from sorted_in_steps(tokens)
    packed_tokens = yield from encoded_in_steps(tokens[token_id] for token_id in ids)
    in_order = yield from sorted_in_steps(rules)
    packed_rules = yield from encoded_in_steps(map(Rule.of, in_order))
    entities = yield from sorted_in_steps(quotas)
    packed_quotas = yield from encoded_in_steps(QuotaRecord(entity, quotas[entity]) for entity in entities)
    whole = _PackedSecurity(bootstrapped, packed_users, packed_tokens, packed_rules, packed_quotas)
    return msgspec.Raw(_encoder.encode(whole))


def unpack_security(security: SecurityState, packed: bytes | memoryview) -> Generator[None, None, None]:
    """Decode security into an empty state. Raises what msgspec raises for invalid bytes, `ValueError` included."""
    whole = _decoder.decode(packed)
    if whole.bootstrapped:
        security.on_event(SecurityBegun())
    for number, one in enumerate(whole.users, 1):
        security.on_event(UserChanged(_user_decoder.decode(one)))
        if number % PER_STEP == 0:
            yield
    for number, one in enumerate(whole.tokens, 1):
        security.on_event(TokenChanged(_token_decoder.decode(one)))
        if number % PER_STEP == 0:
            yield
    for start in range(0, len(whole.rules), PER_STEP):
        some = whole.rules[start : start + PER_STEP]
        security.on_event(RulesChanged(tuple(_rule_decoder.decode(one).rule for one in some), ()))
        yield
    for number, one in enumerate(whole.quotas, 1):
        security.on_event(QuotaChanged(_quota_decoder.decode(one)))
        if number % PER_STEP == 0:
            yield
