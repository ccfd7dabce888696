"""Changes of users, tokens, rules and quotas: each change, each refusal, each bound (S11, S12)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metadata.commands.cluster import CreateTopic, NoOp, SetFeatureLevel
from metadata.commands.envelope import ClientSession
from metadata.commands.results import Done, Refused
from metadata.commands.security import (
    MAX_CHANGES,
    MAX_CHANGES_BYTES,
    SECURITY_FEATURE_LEVEL,
    AddRules,
    BootstrapSecurity,
    ChangeSecurity,
    PutQuota,
    PutUser,
    RemoveQuota,
    RemoveRules,
    RemoveToken,
    RemoveUser,
    SecurityChange,
)
from metadata.image import security, security_state
from metadata.image.image import run
from metadata.records.events import (
    QuotaChanged,
    QuotaRemoved,
    RulesChanged,
    SecurityBegun,
    TokenChanged,
    TokenRemoved,
    UserChanged,
    UserRemoved,
)
from metadata.records.security import QuotaLimits, QuotaRecord, TokenRecord, UserRecord
from raftlog.model import ClusterTime
from raftlog.security.acls import Operation, Permission, ResourceType
from tests.support.metadata.cluster import Cluster
from tests.support.metadata.security import (
    ARGON2,
    SCRAM,
    change,
    contents,
    digest_of,
    do,
    put_token,
    put_user,
    refused,
    rule,
    secure_cluster,
    token_id_of,
)

NOW_MS = 1_700_000_000_000


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster with the users alice and bob. At the end the view is the image, and a restored node is the same."""
    made = secure_cluster()
    do(made, put_user("alice"), put_user("bob"))
    yield made
    assert contents(made.view.security) == contents(made.image.security)


def version_of(cluster: Cluster, name: str) -> int:
    record = cluster.image.security.user(name)
    assert record is not None
    return record.version


# --- Users -----------------------------------------------------------------------------------------------------------


def test_a_new_user_has_the_index_of_its_command(cluster: Cluster) -> None:
    index = do(cluster, put_user("carol", superuser=True))
    record = UserRecord("carol", True, SCRAM, ARGON2, index, index)
    assert cluster.events == [UserChanged(record)]
    assert cluster.view.security.user("carol") == record
    assert [user.name for user in cluster.view.security.users()] == ["alice", "bob", "carol"]


def test_a_change_replaces_the_version_that_its_proposer_saw(cluster: Cluster) -> None:
    created = version_of(cluster, "alice")
    index = do(cluster, put_user("alice", created, argon2=""))
    assert cluster.image.security.user("alice") == UserRecord("alice", False, SCRAM, "", created, index)


def test_two_administrators_do_not_overwrite_each_other(cluster: Cluster) -> None:
    seen = version_of(cluster, "alice")
    do(cluster, put_user("alice", seen, superuser=True))
    assert refused(cluster, put_user("alice", seen)).code == "user_changed"


def test_a_user_that_was_removed_and_made_again_is_another_version(cluster: Cluster) -> None:
    seen = version_of(cluster, "alice")
    do(cluster, RemoveUser("alice"), put_user("alice"))
    assert refused(cluster, put_user("alice", seen)).code == "user_changed"


def test_a_user_is_made_once_and_changed_only_while_it_is_there(cluster: Cluster) -> None:
    assert refused(cluster, put_user("alice")).code == "user_exists"
    assert refused(cluster, put_user("carol", 1)).code == "unknown_user"
    assert refused(cluster, RemoveUser("carol")).code == "unknown_user"


@pytest.mark.parametrize("name", ["ANONYMOUS", "*", " carol", "carol\n", "ca\u202erol"])
def test_a_name_that_misleads_a_reader_is_refused_s11(cluster: Cluster, name: str) -> None:
    refusal = refused(cluster, put_user(name))
    assert refusal.code == "invalid_request" and refusal.detail.isascii()


def test_removing_a_user_removes_its_tokens(cluster: Cluster) -> None:
    do(cluster, put_token(2, "alice"), put_token(1, "alice"), put_token(3, "bob"), AddRules.of((rule("User:alice"),)))
    do(cluster, RemoveUser("alice"))
    ids = sorted((token_id_of(1), token_id_of(2)))
    assert cluster.events == [TokenRemoved(ids[0]), TokenRemoved(ids[1]), UserRemoved("alice")]
    view = cluster.view.security
    assert view.token_of_digest(digest_of(1)) is None and view.tokens_of("alice") == [] and view.token_count == 1
    assert view.rules() == (rule("User:alice"),), "rules stay, as in Kafka"


# --- Tokens ----------------------------------------------------------------------------------------------------------


def test_a_token_is_found_by_the_digest_of_its_text(cluster: Cluster) -> None:
    index = do(cluster, put_token(7, "alice", description="the nightly job"))
    record = TokenRecord(token_id_of(7), digest_of(7), "alice", "the nightly job", 0, index)
    assert cluster.events == [TokenChanged(record)]
    view = cluster.view.security
    assert view.token_of_digest(digest_of(7)) == view.token(token_id_of(7)) == record
    assert view.tokens_of("alice") == [record] and view.token_of_digest(digest_of(8)) is None


def test_a_revoked_token_is_not_found_again(cluster: Cluster) -> None:
    do(cluster, put_token(7, "alice"))
    do(cluster, RemoveToken(token_id_of(7)))
    assert cluster.view.security.token_of_digest(digest_of(7)) is None
    assert refused(cluster, RemoveToken(token_id_of(7))).code == "unknown_token"


def test_a_token_belongs_to_a_user(cluster: Cluster) -> None:
    assert refused(cluster, put_token(7, "carol")).code == "unknown_user"
    do(cluster, put_user("carol"), put_token(7, "carol"))


def test_no_two_tokens_share_an_id_or_a_digest(cluster: Cluster) -> None:
    do(cluster, put_token(7, "alice"))
    assert refused(cluster, put_token(7, "alice", digest=8)).code == "token_exists"
    assert refused(cluster, put_token(8, "bob", digest=7)).code == "token_exists"
    do(cluster, RemoveToken(token_id_of(7)), put_token(8, "bob", digest=7))
    found = cluster.view.security.token_of_digest(digest_of(7))
    assert found is not None and found.token_id == token_id_of(8)


@pytest.mark.parametrize("description", ["two\nlines", "\x1b[2J", " ahead"])
def test_a_description_is_readable_text_s11(cluster: Cluster, description: str) -> None:
    assert refused(cluster, put_token(7, "alice", description=description)).code == "invalid_request"


def timed(cluster: Cluster, now_ms: int) -> None:
    """Set the cluster's time without a command."""
    if not cluster.image.time:
        cluster.image.put_time(ClusterTime(now_ms, now_ms, now_ms))
        cluster.view.on_events(cluster.image.index, cluster.image.take_events())
    else:
        cluster.tell_time(now_ms)


def test_expired_tokens_go_with_the_next_change(cluster: Cluster) -> None:
    timed(cluster, NOW_MS)
    do(cluster, put_token(1, "alice", NOW_MS + 2), put_token(2, "bob", NOW_MS + 1), put_token(3, "bob", NOW_MS + 3))
    timed(cluster, NOW_MS + 2)
    found = cluster.view.security.token_of_digest(digest_of(1))
    assert found is not None and found.is_expired(cluster.view.time.now_ms) and not found.is_expired(NOW_MS + 1)
    do(cluster, RemoveQuota("User:nobody"))
    assert cluster.events == [TokenRemoved(token_id_of(2)), TokenRemoved(token_id_of(1))], "the earliest first"
    do(cluster, RemoveQuota("User:nobody"))
    assert cluster.events == []
    timed(cluster, NOW_MS + 3)
    do(cluster, put_user("carol"))
    assert cluster.events[0] == TokenRemoved(token_id_of(3))


def test_a_refused_command_does_not_even_remove_expired_tokens(cluster: Cluster) -> None:
    timed(cluster, NOW_MS)
    do(cluster, put_token(1, "alice", NOW_MS + 1))
    timed(cluster, NOW_MS + 1)
    refused(cluster, put_user("alice"))
    assert cluster.image.security.token(token_id_of(1)) is not None
    assert refused(cluster, RemoveToken(token_id_of(1))).code == "unknown_token", "it does not count any more"
    do(cluster, put_token(2, "alice"))
    assert cluster.image.security.token_count == 1


def test_a_token_that_has_expired_is_not_made(cluster: Cluster) -> None:
    timed(cluster, NOW_MS)
    assert refused(cluster, put_token(1, "alice", NOW_MS)).code == "invalid_request"
    do(cluster, put_token(1, "alice", NOW_MS + 1))


def test_expired_tokens_count_toward_no_limit(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MAX_TOKENS_PER_USER", 1)
    timed(cluster, NOW_MS)
    do(cluster, put_token(1, "alice", NOW_MS + 1))
    assert "1 tokens at most" in refused(cluster, put_token(2, "alice")).detail
    timed(cluster, NOW_MS + 1)
    do(cluster, put_token(2, "alice"))


# --- Rules -----------------------------------------------------------------------------------------------------------


def test_rules_are_a_set(cluster: Cluster) -> None:
    first, second = rule("User:alice"), rule("User:bob", permission=Permission.DENY)
    do(cluster, AddRules.of((second, first, first)))
    assert cluster.events == [RulesChanged(added=(second, first), removed=())]
    do(cluster, AddRules.of((first,)))
    assert cluster.events == []
    assert cluster.view.security.rules() == (first, second)
    do(cluster, RemoveRules.of((first, rule("User:nobody"))))
    assert cluster.events == [RulesChanged(added=(), removed=(first,))]
    do(cluster, RemoveRules.of((first,)))
    assert cluster.events == []


def test_a_rule_is_kept_in_one_form(cluster: Cluster) -> None:
    do(cluster, AddRules.of((rule(host="::ffff:10.0.0.1"), rule(host="10.0.0.1"))))
    assert cluster.view.security.rules() == (rule(host="10.0.0.1"),)
    do(cluster, RemoveRules.of((rule(host="::ffff:10.0.0.1"),)))
    assert cluster.view.security.rules() == ()


@pytest.mark.parametrize(
    "wrong",
    [
        rule("alice"),
        rule("Group:*"),
        rule(host="example.org"),
        rule(kind=ResourceType.CLUSTER, name="other"),
        rule(kind=ResourceType.GROUP, operation=Operation.CREATE),
    ],
)
def test_a_rule_that_can_never_apply_is_refused_s11(cluster: Cluster, wrong: object) -> None:
    assert isinstance(wrong, type(rule()))
    assert refused(cluster, AddRules.of((rule(), wrong))).code == "invalid_request"
    assert cluster.image.security.rule_count == 0


# --- Quotas ----------------------------------------------------------------------------------------------------------


def test_a_quota_sets_all_limits_of_its_entity(cluster: Cluster) -> None:
    do(cluster, PutQuota("User:alice", QuotaLimits(requests_per_second=10, groups=3)))
    do(cluster, PutQuota("User:alice", QuotaLimits(requests_per_second=20)))
    record = QuotaRecord("User:alice", QuotaLimits(requests_per_second=20))
    assert cluster.events == [QuotaChanged(record)]
    assert cluster.view.security.quotas() == [record]
    assert cluster.view.security.quota("User:alice") == record.limits
    do(cluster, PutQuota("User:alice", record.limits))
    assert cluster.events == []
    do(cluster, RemoveQuota("User:alice"))
    assert cluster.events == [QuotaRemoved("User:alice")]
    do(cluster, RemoveQuota("User:alice"))
    assert cluster.events == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("User:*", "User:*"),
        ("User:ANONYMOUS", "User:ANONYMOUS"),
        ("Address:*", "Address:*"),
        ("Address:0:0::1", "Address:::1"),
    ],
)
def test_an_entity_has_one_form(cluster: Cluster, given: str, kept: str) -> None:
    do(cluster, PutQuota(given, QuotaLimits(connections=0)))
    assert [quota.entity for quota in cluster.view.security.quotas()] == [kept]
    do(cluster, RemoveQuota(given))
    assert cluster.view.security.quotas() == []


@pytest.mark.parametrize("entity", ["alice", "Group:analysts", "Address:example.org", "Address:", "User:", "user:a"])
def test_other_entities_are_refused_s11(cluster: Cluster, entity: str) -> None:
    assert refused(cluster, PutQuota(entity, QuotaLimits(groups=1))).code == "invalid_request"
    assert refused(cluster, RemoveQuota(entity)).code == "invalid_request"


def test_a_quota_without_limits_is_refused(cluster: Cluster) -> None:
    assert refused(cluster, PutQuota("User:alice", QuotaLimits())).code == "invalid_request"


# --- All or nothing --------------------------------------------------------------------------------------------------


def test_a_refused_change_undoes_those_before_it(cluster: Cluster) -> None:
    do(cluster, put_token(1, "alice"), AddRules.of((rule(),)), PutQuota("User:*", QuotaLimits(groups=1)))
    before = contents(cluster.image.security)
    refusal = refused(
        cluster,
        put_user("alice", version_of(cluster, "alice"), superuser=True),
        put_token(2, "bob"),
        RemoveUser("alice"),
        put_user("alice"),
        put_token(3, "alice", digest=1),
        RemoveToken(token_id_of(2)),
        AddRules.of((rule("User:bob"),)),
        RemoveRules.of((rule(),)),
        PutQuota("User:*", QuotaLimits(groups=2)),
        PutQuota("Address:*", QuotaLimits(connections=2)),
        RemoveQuota("User:*"),
        put_user("bob"),
    )
    assert refusal == Refused("user_exists", "there is a user 'bob' already (change 12; none is carried out)")
    assert contents(cluster.image.security) == before
    assert cluster.view.security.token_of_digest(digest_of(1)) is not None


def test_each_change_sees_those_before_it(cluster: Cluster) -> None:
    do(cluster, put_user("carol"), put_token(1, "carol"), RemoveToken(token_id_of(1)), RemoveUser("carol"))
    assert cluster.image.security.user_count == 2 and cluster.image.security.token_count == 0


def test_a_command_without_changes_is_carried_out(cluster: Cluster) -> None:
    assert change(cluster) == Done() and cluster.events == []


def test_a_large_change_goes_in_steps(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is carried out or refused."""
    monkeypatch.setattr(security, "EVENTS_PER_STEP", 3)
    monkeypatch.setattr(security_state, "EVENTS_PER_STEP", 3)
    monkeypatch.setattr(security_state, "TOKENS_PER_STEP", 2)
    timed(cluster, NOW_MS)
    do(cluster, *(put_token(number, "bob", NOW_MS + 1) for number in range(20)))
    timed(cluster, NOW_MS + 1)
    before = contents(cluster.image.security)
    changes: tuple[SecurityChange, ...] = tuple(put_user(f"user-{number}") for number in range(20))
    steps = security.change_security(cluster.image, ChangeSecurity((*changes, put_user("bob"))), 99)
    assert sum(1 for _ in steps) > 20
    assert contents(cluster.image.security) == before and cluster.image.take_events() == []
    steps = security.change_security(cluster.image, ChangeSecurity(changes), 99)
    assert sum(1 for _ in steps) > 20
    events = cluster.image.take_events()
    assert len(events) == 40
    cluster.view.on_events(99, events)


def test_a_retry_is_carried_out_once(cluster: Cluster) -> None:
    """A token that was revoked meanwhile does not come back (S7, S12)."""
    session = ClientSession(b"session-number-1", 1, cluster.image.index)
    command = ChangeSecurity((put_token(1, "alice"),))
    assert cluster.apply(command, session=session) == Done()
    do(cluster, RemoveToken(token_id_of(1)))
    assert cluster.apply(command, session=session) == Done()
    assert cluster.events == [] and cluster.image.security.token_count == 0


# --- Bounds ----------------------------------------------------------------------------------------------------------


def test_the_number_of_users_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MAX_USERS", 3)
    do(cluster, put_user("carol"))
    assert refused(cluster, put_user("dave")).detail.startswith("the cluster keeps 3 users at most")
    do(cluster, put_user("carol", version_of(cluster, "carol")))
    do(cluster, RemoveUser("carol"), put_user("dave"))


def test_the_number_of_tokens_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MAX_TOKENS", 3)
    do(cluster, put_token(1, "alice"), put_token(2, "alice"), put_token(3, "bob"))
    assert refused(cluster, put_token(4, "bob")).detail.startswith("the cluster keeps 3 tokens at most")
    do(cluster, RemoveUser("alice"), put_token(4, "bob"))


def test_the_number_of_a_users_tokens_is_bounded(cluster: Cluster) -> None:
    do(cluster, *(put_token(number, "alice") for number in range(security.MAX_TOKENS_PER_USER)))
    assert refused(cluster, put_token(1_000, "alice")).code == "invalid_request"
    do(cluster, put_token(1_000, "bob"))


def test_the_number_of_rules_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MAX_RULES", 3)
    do(cluster, AddRules.of(rule(name=name) for name in "abc"))
    assert refused(cluster, AddRules.of((rule(name="d"),))).detail.startswith("the cluster keeps 3 access rules")
    do(cluster, AddRules.of(rule(name=name) for name in "ca"))
    do(cluster, RemoveRules.of((rule(name="a"),)), AddRules.of((rule(name="d"),)))


def test_the_number_of_quotas_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "MAX_QUOTAS", 1)
    do(cluster, PutQuota("User:*", QuotaLimits(groups=1)))
    assert refused(cluster, PutQuota("User:a", QuotaLimits(groups=1))).detail.startswith("the cluster keeps 1 quotas")
    do(cluster, PutQuota("User:*", QuotaLimits(groups=2)))


def test_each_rule_of_a_command_counts_as_a_change(cluster: Cluster) -> None:
    rules = [rule(name=str(number)) for number in range(MAX_CHANGES)]
    do(cluster, AddRules.of(rules))
    assert f"{MAX_CHANGES + 1} changes" in refused(cluster, RemoveRules.of(rules), put_user("carol")).detail
    do(cluster, RemoveRules.of(rules))


def test_the_size_of_a_command_is_bounded(cluster: Cluster) -> None:
    users = tuple(put_user(f"user-{number}", argon2="$argon2id$" + "x" * 400) for number in range(500))
    size = ChangeSecurity(users).size_bytes
    assert size > MAX_CHANGES_BYTES
    assert f"{size} bytes" in refused(cluster, *users).detail
    do(cluster, *users[:400])


# --- Feature level ---------------------------------------------------------------------------------------------------

ADMINISTRATOR = BootstrapSecurity(put_user("root", superuser=True), put_token(1, "root"))


def test_below_the_feature_level_nothing_is_carried_out() -> None:
    cluster = secure_cluster(SECURITY_FEATURE_LEVEL - 1)
    assert refused(cluster, put_user("alice")).code == "unsupported_version"
    assert cluster.refusal(ADMINISTRATOR) == "unsupported_version"
    cluster.do(SetFeatureLevel(SECURITY_FEATURE_LEVEL))
    do(cluster, put_user("alice"))


# --- The first administrator -----------------------------------------------------------------------------------------


def test_the_first_administrator_is_a_superuser_with_a_token() -> None:
    cluster = secure_cluster()
    assert not cluster.view.security.bootstrapped
    cluster.do(ADMINISTRATOR)
    user, token = cluster.view.security.user("root"), cluster.view.security.token_of_digest(digest_of(1))
    assert user is not None and user.superuser and token is not None and token.principal_name == "root"
    assert cluster.events == [UserChanged(user), TokenChanged(token), SecurityBegun()]
    assert cluster.view.security.bootstrapped


@pytest.mark.parametrize(
    "first",
    [
        (put_user("alice"),),
        (put_user("alice"), RemoveUser("alice")),
        (AddRules.of((rule(),)),),
        (PutQuota("User:*", QuotaLimits(groups=1)),),
    ],
)
def test_an_old_file_never_opens_a_cluster_that_has_or_had_security(first: tuple[SecurityChange, ...]) -> None:
    cluster = secure_cluster()
    do(cluster, *first)
    assert cluster.events[-1] == SecurityBegun()
    assert cluster.refusal(ADMINISTRATOR) == "already_bootstrapped"


def test_the_cluster_can_be_bootstrapped_until_a_record_is_made() -> None:
    cluster = secure_cluster()
    do(cluster, RemoveRules.of((rule(),)), RemoveQuota("User:*"))
    refused(cluster, RemoveUser("root"))
    cluster.do(NoOp())
    cluster.do(ADMINISTRATOR)
    do(cluster, RemoveUser("root"))
    assert cluster.refusal(ADMINISTRATOR) == "already_bootstrapped", "not even after everything was removed"


@pytest.mark.parametrize(
    "wrong",
    [
        BootstrapSecurity(put_user("root"), put_token(1, "root")),
        BootstrapSecurity(put_user("root", 3, superuser=True), put_token(1, "root")),
        BootstrapSecurity(put_user("root", superuser=True), put_token(1, "other")),
        BootstrapSecurity(put_user("*", superuser=True), put_token(1, "*")),
        BootstrapSecurity(put_user("root", superuser=True), put_token(1, "root", description="\n")),
    ],
)
def test_another_first_administrator_is_refused_s11(wrong: BootstrapSecurity) -> None:
    cluster = secure_cluster()
    assert cluster.refusal(wrong) == "invalid_request"
    assert not cluster.image.security.bootstrapped
    cluster.do(ADMINISTRATOR)


# --- The rest of the image -------------------------------------------------------------------------------------------


def test_security_and_topics_are_apart(cluster: Cluster) -> None:
    """A command of another kind does not even remove expired tokens."""
    timed(cluster, NOW_MS)
    do(cluster, put_token(1, "alice", NOW_MS + 1))
    timed(cluster, NOW_MS + 1)
    assert isinstance(cluster.apply(CreateTopic("t", b"0" * 16, (), ())), Refused)  # type: ignore[arg-type]
    cluster.do(NoOp())
    assert cluster.image.security.token_count == 1
    assert list(run(cluster.image.security.expired_in_steps(NOW_MS + 1))) == [token_id_of(1)]


def test_a_user_without_a_password_has_only_tokens(cluster: Cluster) -> None:
    do(cluster, PutUser("robot", False, None, "", 0), put_token(1, "robot"))
    found = cluster.view.security.user("robot")
    assert found is not None and found.scram is None and found.argon2 == ""
