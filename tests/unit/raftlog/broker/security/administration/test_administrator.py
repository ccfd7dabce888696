"""Changes of users, tokens, rules and quotas reach the quorum as commands, without a secret in them (S12)."""

from __future__ import annotations

import hashlib
from typing import cast

import msgspec
import pytest

from metadata.commands.cluster import SetFeatureLevel
from metadata.commands.envelope import Command
from metadata.commands.envelope import encode as encode_command
from metadata.commands.results import CommandResult, Refused
from metadata.commands.security import SECURITY_FEATURE_LEVEL, ChangeSecurity, PutUser
from metadata.records.security import QuotaLimits, ScramMaterial
from raftlog.broker.changes.proposer import Proposer
from raftlog.broker.security.administration.administrator import RULES_PER_COMMAND, SecurityAdministrator
from raftlog.broker.security.authentication.tokens import new_token
from raftlog.broker.security.passwords.passwords import PasswordMaterial
from raftlog.errors import InvalidRequest
from raftlog.security.acls import AclFilter, Operation, ResourceType
from raftlog.security.secrets import Secret
from tests.support.metadata.cluster import Cluster
from tests.support.security.rules import allow

NOW_MS = 1_700_000_000_000
PASSWORD = Secret("correct horse battery staple")


class Quorum:
    """A proposer whose commands are applied at once to the image behind the view."""

    def __init__(self) -> None:
        self.cluster = Cluster(1, feature_level=SECURITY_FEATURE_LEVEL)
        self.cluster.do(SetFeatureLevel(SECURITY_FEATURE_LEVEL))
        self.commands: list[Command] = []
        self.meanwhile: PutUser | None = None
        """A change by another administrator, just before the next command."""
        self.level: int | None = None
        """The feature level that the view shows once it is current, if it is stale."""

    async def catch_up(self) -> None:
        if self.level is not None:
            self.cluster.view.feature_level = self.level

    async def decide(self, command: Command) -> CommandResult:
        self.commands.append(command)
        other, self.meanwhile = self.meanwhile, None
        if other is not None:
            self.cluster.do(ChangeSecurity((other,)))
        result = self.cluster.apply(command)
        if isinstance(result, Refused):
            raise result.error()
        return result


async def hash_password(password: Secret) -> PasswordMaterial:
    digest = hashlib.sha512(password.reveal().encode()).digest()
    return PasswordMaterial(
        "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$dGFn", ScramMaterial(8192, b"s" * 16, digest, digest)
    )


def new() -> tuple[SecurityAdministrator, Quorum]:
    quorum = Quorum()
    return (
        SecurityAdministrator(quorum.cluster.view, cast(Proposer, quorum), hash_password, new_token, lambda: NOW_MS),
        quorum,
    )


async def test_a_user_is_created_altered_and_removed() -> None:
    administrator, quorum = new()
    made = await administrator.create_user("alice", PASSWORD, superuser=False)
    assert (made.name, made.superuser, bool(made.argon2)) == ("alice", False, True)
    altered = await administrator.alter_user("alice", superuser=True)
    assert altered.superuser
    assert altered.scram == made.scram, "the password stays"
    assert altered.version > made.version
    without = await administrator.alter_user("alice", remove_password=True)
    assert (without.scram, without.argon2, without.superuser) == (None, "", True)
    await administrator.remove_user("alice")
    assert quorum.cluster.view.security.users() == []


async def test_a_user_without_a_password_has_tokens_only() -> None:
    administrator, _ = new()
    made = await administrator.create_user("service", None, superuser=False)
    assert (made.scram, made.argon2) == (None, "")


@pytest.mark.parametrize("name", ["", "ANONYMOUS", " alice"])
async def test_a_name_that_no_user_may_have_is_refused_before_anything_is_proposed(name: str) -> None:
    administrator, quorum = new()
    with pytest.raises(InvalidRequest):
        await administrator.create_user(name, PASSWORD, superuser=False)
    assert quorum.commands == []


async def test_users_that_are_there_already_or_not_at_all_are_refused() -> None:
    administrator, _ = new()
    await administrator.create_user("alice", None, superuser=False)
    with pytest.raises(InvalidRequest, match="already") as refused:
        await administrator.create_user("alice", None, superuser=True)
    assert refused.value.code == "user_exists"
    for change in (
        administrator.alter_user("bob", superuser=True),
        administrator.remove_user("bob"),
        administrator.create_token("bob", "", None),
    ):
        with pytest.raises(InvalidRequest) as unknown:
            await change
        assert unknown.value.code == "unknown_user"


async def test_a_change_by_another_administrator_meanwhile_is_not_overwritten() -> None:
    administrator, quorum = new()
    made = await administrator.create_user("alice", None, superuser=False)
    quorum.meanwhile = PutUser("alice", True, None, "", made.version)
    with pytest.raises(InvalidRequest) as refused:
        await administrator.alter_user("alice", password=PASSWORD)
    assert refused.value.code == "user_changed"
    assert quorum.cluster.view.security.user("alice") is not None


async def test_a_tokens_text_is_returned_once_and_only_its_digest_travels_s12() -> None:
    administrator, quorum = new()
    await administrator.create_user("alice", PASSWORD, superuser=False)
    record, text = await administrator.create_token("alice", "for the pipeline", 60_000)
    assert record.expires_ms == NOW_MS + 60_000
    assert record.digest == hashlib.sha256(text.reveal().encode()).digest()
    assert quorum.cluster.view.security.token_of_digest(record.digest) == record
    travelled = b"".join(map(encode_command, quorum.commands))
    assert text.reveal().encode() not in travelled
    assert PASSWORD.reveal().encode() not in travelled
    assert text.reveal() not in repr(quorum.commands)
    await administrator.revoke_token(record.token_id)
    assert quorum.cluster.view.security.token_of_digest(record.digest) is None
    with pytest.raises(InvalidRequest) as unknown:
        await administrator.revoke_token(record.token_id)
    assert unknown.value.code == "unknown_token"


async def test_rules_are_added_in_canonical_form_and_removed_by_a_filter() -> None:
    administrator, quorum = new()
    read = allow(Operation.READ, ResourceType.TOPIC, "orders")
    write = allow(Operation.WRITE, ResourceType.TOPIC, "ord", prefixed=True)
    mapped = msgspec.structs.replace(read, host="::ffff:10.0.0.1")
    assert await administrator.add_rules([read, write, mapped, read]) == [
        read,
        write,
        msgspec.structs.replace(read, host="10.0.0.1"),
    ]
    wanted = AclFilter(applies_to="orders2")
    assert await administrator.remove_rules(wanted, dry_run=True) == [write]
    assert len(quorum.cluster.view.security.rules()) == 3
    assert await administrator.remove_rules(wanted, dry_run=False) == [write]
    assert len(quorum.cluster.view.security.rules()) == 2


@pytest.mark.parametrize("host", ["2001:DB8:0::1", "::ffff:10.0.0.1", "10.0.0.1"])
async def test_a_rule_is_removed_by_the_host_that_it_was_given_s12(host: str) -> None:
    """The removal matched the canonical form alone: it removed nothing, and the right stayed."""
    administrator, quorum = new()
    given = msgspec.structs.replace(allow(Operation.READ, ResourceType.TOPIC, "orders"), host=host)
    await administrator.add_rules([given, allow(Operation.READ, ResourceType.TOPIC, "orders")])
    assert len(await administrator.remove_rules(AclFilter(host=host), dry_run=False)) == 1
    assert len(await administrator.remove_rules(AclFilter(host="*"), dry_run=False)) == 1
    assert quorum.cluster.view.security.rules() == ()
    with pytest.raises(InvalidRequest, match="is not an IP address"):
        await administrator.remove_rules(AclFilter(host="orders.example"), dry_run=False)


async def test_a_rule_that_can_never_apply_is_refused_with_all_others() -> None:
    administrator, quorum = new()
    good, bad = allow(Operation.READ, ResourceType.TOPIC, "a"), allow(Operation.WRITE, ResourceType.GROUP, "a")
    with pytest.raises(InvalidRequest):
        await administrator.add_rules([good, bad])
    assert quorum.cluster.view.security.rules() == ()


async def test_more_rules_than_fit_into_a_command_are_removed_by_several() -> None:
    administrator, quorum = new()
    rules = [
        allow(Operation.READ, ResourceType.TOPIC, f"topic-{number}") for number in range(2 * RULES_PER_COMMAND + 1)
    ]
    await administrator.add_rules(rules)
    assert len(await administrator.remove_rules(AclFilter(), dry_run=False)) == len(rules)
    assert quorum.cluster.view.security.rules() == ()
    assert len(quorum.commands) == 4


async def test_quotas_are_set_whole_and_removed() -> None:
    administrator, quorum = new()
    limits = QuotaLimits(bytes_in_per_second=1_000)
    record = await administrator.put_quota("Address:::ffff:10.0.0.1", limits)
    assert record.entity == "Address:10.0.0.1"
    assert quorum.cluster.view.security.quota("Address:10.0.0.1") == limits
    await administrator.remove_quota("Address:10.0.0.1")
    assert quorum.cluster.view.security.quotas() == []
    with pytest.raises(InvalidRequest):
        await administrator.put_quota("alice", limits)


@pytest.mark.parametrize("stale", [1, SECURITY_FEATURE_LEVEL - 1])
async def test_a_stale_view_refuses_no_change_because_of_its_feature_level_s7(stale: int) -> None:
    """A node that has just started shows the lowest level."""
    administrator, quorum = new()
    quorum.level = SECURITY_FEATURE_LEVEL
    quorum.cluster.view.feature_level = stale
    assert await administrator.add_rules([allow(Operation.READ, ResourceType.TOPIC, "orders")])
    quorum.cluster.view.feature_level = stale
    assert await administrator.put_quota("User:alice", QuotaLimits(groups=1))
    quorum.cluster.view.feature_level = stale
    await administrator.remove_quota("User:alice")


async def test_below_the_feature_level_nothing_is_proposed() -> None:
    """An older node could not decode it."""
    administrator, quorum = new()
    quorum.cluster.view.feature_level = SECURITY_FEATURE_LEVEL - 1
    for change in (
        administrator.create_user("alice", None, superuser=False),
        administrator.add_rules([allow(Operation.READ, ResourceType.TOPIC, "orders")]),
        administrator.put_quota("User:alice", QuotaLimits(groups=1)),
    ):
        with pytest.raises(InvalidRequest, match="finalize") as caught:
            await change
        assert caught.value.code == "unsupported_version"
    assert quorum.commands == []
