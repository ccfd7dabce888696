"""Records and commands of security: no `repr` shows a hash, and the view decides by its rules (S12)."""

from __future__ import annotations

import pytest

from metadata.commands.envelope import decode, encode
from metadata.commands.security import (
    AddRules,
    BootstrapSecurity,
    ChangeSecurity,
    PutQuota,
    PutToken,
    PutUser,
    RemoveRules,
    Rule,
    SecurityChange,
)
from metadata.records.events import QuotaChanged, RulesChanged, SecurityEvent, TokenChanged, UserChanged
from metadata.records.security import QuotaLimits, QuotaRecord, ScramMaterial, TokenRecord, UserRecord
from metadata.records.security_view import SecurityView
from raftlog.errors import InvalidRequest
from raftlog.security.acls import Operation, PatternType, Permission, Resource, ResourceType
from raftlog.security.principals import Caller, Principal
from tests.support.metadata.security import (
    ARGON2,
    SCRAM,
    digest_of,
    do,
    put_token,
    put_user,
    rule,
    secure_cluster,
    token_id_of,
)

USER = UserRecord("alice", True, SCRAM, ARGON2, 3, 4)
TOKEN = TokenRecord(token_id_of(1), b"digest-of-a-token".ljust(32, b"d"), "alice", "", 0, 5)
PUT_TOKEN = PutToken(TOKEN.token_id, TOKEN.digest, "alice", "", 0)
TRACES = ("argon2id", "c2FsdH", "salt-of", "stored-key", "server-key", "digest-of", TOKEN.digest.hex(), "73746f726564")


@pytest.mark.parametrize(
    "shown",
    [
        SCRAM,
        USER,
        TOKEN,
        put_user("alice"),
        PUT_TOKEN,
        ChangeSecurity((put_user("alice"), PUT_TOKEN)),
        BootstrapSecurity(put_user("alice"), PUT_TOKEN),
        decode(encode(ChangeSecurity((put_user("alice"), PUT_TOKEN)))),
        UserChanged(USER),
        TokenChanged(TOKEN),
        [USER, TOKEN],
    ],
)
def test_no_text_of_a_record_or_command_shows_a_hash(shown: object) -> None:
    for text in (repr(shown), str(shown)):
        assert "alice" in text or isinstance(shown, ScramMaterial)
        assert [trace for trace in TRACES if trace in text] == []


def test_no_refusal_shows_a_hash() -> None:
    cluster = secure_cluster()
    do(cluster, put_user("alice"), PUT_TOKEN)
    for command in (
        ChangeSecurity((put_user("alice"),)),
        ChangeSecurity((put_user("alice", 99),)),
        ChangeSecurity((PUT_TOKEN,)),
        BootstrapSecurity(put_user("alice"), PUT_TOKEN),
    ):
        text = str(cluster.apply(command))
        assert [trace for trace in TRACES if trace in text] == []


# --- Fields of commands ----------------------------------------------------------------------------------------------


def limits(**fields: int) -> PutQuota:
    return PutQuota("User:*", QuotaLimits(**fields))


@pytest.mark.parametrize(
    "wrong",
    [
        PutUser("", False, None, "", 0),
        PutUser("a" * 256, False, None, "", 0),
        PutUser("a", False, None, "password", 0),
        PutUser("a", False, None, "$argon2i$v=19$", 0),
        PutUser("a", False, None, "$argon2id$" + "x" * 600, 0),
        PutUser("a", False, None, "", -1),
        PutUser("a", False, ScramMaterial(8_191, b"s" * 16, b"k" * 64, b"k" * 64), "", 0),
        PutUser("a", False, ScramMaterial(8_192, b"s" * 15, b"k" * 64, b"k" * 64), "", 0),
        PutUser("a", False, ScramMaterial(8_192, b"s" * 16, b"k" * 63, b"k" * 64), "", 0),
        PutUser("a", False, ScramMaterial(8_192, b"s" * 16, b"k" * 64, b"k" * 65), "", 0),
        PutUser("a", False, ScramMaterial(2_000_000, b"s" * 16, b"k" * 64, b"k" * 64), "", 0),
        PutToken("short", digest_of(1), "a", "", 0),
        PutToken("A" * 12, digest_of(1), "a", "", 0),
        PutToken(token_id_of(1), b"d" * 31, "a", "", 0),
        PutToken(token_id_of(1), digest_of(1), "a", "x" * 256, 0),
        PutToken(token_id_of(1), digest_of(1), "a", "", -1),
        AddRules((Rule.of(rule(name="")),)),
        AddRules((Rule.of(rule(name="x" * 513)),)),
        RemoveRules((Rule.of(rule(host="1" * 65)),)),
        AddRules.of([rule()] * 1_001),
        limits(requests_per_second=0),
        limits(bytes_in_per_second=2**53 + 1),
        limits(connections=-1),
        limits(groups=2**31),
        PutQuota("", QuotaLimits(groups=1)),
        PutQuota("User:" + "x" * 300, QuotaLimits(groups=1)),
    ],
)
def test_a_field_out_of_its_bounds_does_not_enter_the_log_s11(wrong: SecurityChange) -> None:
    with pytest.raises(InvalidRequest, match="malformed command"):
        encode(ChangeSecurity((wrong,)))


def test_the_error_of_a_malformed_command_shows_no_hash() -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode(ChangeSecurity((PutUser("a", False, SCRAM, "my password", 0),)))
    assert "password" not in str(caught.value)


def test_more_changes_than_a_command_has_do_not_enter_the_log_s11() -> None:
    with pytest.raises(InvalidRequest, match="malformed command"):
        encode(ChangeSecurity((put_user("a"),) * 1_001))


def test_a_rule_travels_as_it_is() -> None:
    deny = rule(permission=Permission.DENY, pattern=PatternType.PREFIXED, host="::1", operation=Operation.ALL)
    assert Rule.of(deny).rule == deny


# --- The view --------------------------------------------------------------------------------------------------------


def test_the_view_decides_by_the_rules_as_they_are_now() -> None:
    view = SecurityView()
    alice, orders = Caller(Principal("alice"), "10.0.0.1"), Resource(ResourceType.TOPIC, "orders")

    def may_read() -> bool:
        return view.authorizer.decide(alice, Operation.READ, orders).allowed

    assert not may_read()
    view.on_event(RulesChanged(added=(rule(),), removed=()))
    assert may_read()
    denied = rule(permission=Permission.DENY)
    view.on_event(RulesChanged(added=(denied,), removed=()))
    assert not may_read()
    view.on_event(RulesChanged(added=(), removed=(denied,)))
    assert may_read()
    view.on_event(RulesChanged(added=(rule("User:bob"),), removed=(rule(),)))
    assert not may_read()


def test_the_version_of_a_view_rises_with_every_change() -> None:
    view = SecurityView()
    versions = [view.version]
    events: list[SecurityEvent] = [
        UserChanged(USER),
        TokenChanged(TOKEN),
        RulesChanged(added=(rule(),), removed=()),
        QuotaChanged(QuotaRecord("User:*", QuotaLimits(groups=1))),
    ]
    for event in events:
        view.on_event(event)
        versions.append(view.version)
    assert versions == sorted(set(versions))


def test_a_token_that_takes_over_a_digest_is_the_one_that_is_found() -> None:
    """Whatever the order in which the differences of two snapshots arrive."""
    view = SecurityView()
    other = TokenRecord(token_id_of(2), TOKEN.digest, "bob", "", 0, 9)
    for event in (TokenChanged(TOKEN), TokenChanged(other), TokenChanged(TokenRecord(*_but_digest(TOKEN)))):
        view.on_event(event)
    assert view.token_of_digest(TOKEN.digest) == other


def _but_digest(token: TokenRecord) -> tuple[str, bytes, str, str, int, int]:
    return token.token_id, digest_of(9), token.principal_name, token.description, token.expires_ms, token.created_index


def test_an_expiry_of_zero_is_never() -> None:
    assert not TOKEN.is_expired(2**62)
    timed = TokenRecord(token_id_of(2), digest_of(2), "alice", "", 1_000, 5)
    assert [timed.is_expired(now) for now in (0, 999, 1_000, 1_001)] == [False, False, True, True]
    assert put_token(2, "alice").expires_ms == 0
