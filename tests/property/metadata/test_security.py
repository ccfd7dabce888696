"""For any changes of security: all nodes agree, snapshots are exact, and followers see the same (S7, S12).

A simple model is written from the sentences that describe the commands.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.commands.cluster import AdvanceTime, NoOp
from metadata.commands.envelope import ClientSession, Command, Envelope, decode, encode
from metadata.commands.results import Done, Refused
from metadata.commands.security import (
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
    SecurityChange,
)
from metadata.image.image import ClusterImage
from metadata.image.invariants import check
from metadata.records.security import QuotaLimits
from metadata.snapshot.encoder import SnapshotEncoder, encode_snapshot
from metadata.view import ClusterView
from raftlog.errors import RemoteProtocolError
from raftlog.model import ClusterTime
from raftlog.security.acls import Operation, Permission, Resource, ResourceType
from raftlog.security.authorizer import Authorizer
from raftlog.security.principals import Caller, Principal
from tests.support.metadata.at_once import apply, decode_snapshot, diff
from tests.support.metadata.security import contents, put_token, put_user, rule, token_id_of

SEEDS = st.integers(0, 2**32 - 1)
LENGTHS = st.integers(1, 60)
NAMES = ("alice", "bob", "carol", "dave")
BEGAN_MS = 1_000_000


class RandomSecurity:
    """Random commands about few names, so that most refer to something that exists."""

    def __init__(self, image: ClusterImage, seed: int) -> None:
        image.put_feature_level(SECURITY_FEATURE_LEVEL)
        image.put_time(ClusterTime(BEGAN_MS, BEGAN_MS, BEGAN_MS))
        image.take_events()
        self._image = image
        self._random = Random(seed)

    def next(self) -> Envelope:
        """Some commands have a session with few distinct numbers, so that retries happen."""
        session = None
        if self._random.random() < 0.2:
            applied = max(0, self._image.index - self._random.randint(0, 5))
            session = ClientSession(bytes(16), self._random.randint(0, 20), applied)
        return decode(encode(self._command(), session=session))

    def _command(self) -> Command:
        kind = self._random.random()
        if kind < 0.1:
            now_ms = self._image.time.now_ms
            return AdvanceTime(1, now_ms, now_ms + self._random.randint(0, 4), now_ms)
        if kind < 0.15:
            return BootstrapSecurity(put_user(self._name(), superuser=self._random.random() < 0.9), self._put_token())
        if kind < 0.2:
            return NoOp()
        return ChangeSecurity(tuple(self._change() for _ in range(self._random.choice((1, 1, 2, 3, 6)))))

    def _name(self) -> str:
        return self._random.choice(NAMES)

    def _change(self) -> SecurityChange:
        makers = (
            self._put_user, self._put_user, self._put_user, self._remove_user, self._put_token, self._put_token,
            self._put_token, self._remove_token, self._rules, self._rules, self._quota,
        )  # fmt: skip
        return self._random.choice(makers)()

    def _put_user(self) -> SecurityChange:
        name = self._name()
        known = self._image.security.user(name)
        version = 0 if known is None else known.version
        if self._random.random() < 0.1:
            version = max(0, version - 1)
        argon2 = self._random.choice(("", "$argon2id$x", "$argon2id$y"))
        return put_user(name, version, superuser=self._random.random() < 0.2, argon2=argon2)

    def _remove_user(self) -> SecurityChange:
        return RemoveUser(self._name())

    def _put_token(self) -> PutToken:
        number, digest = self._random.randint(0, 40), self._random.randint(0, 40)
        expires = self._random.choice((0, 0, self._image.time.now_ms + self._random.randint(0, 6)))
        same = self._random.random() < 0.9
        return put_token(number, self._name(), expires, digest=number if same else digest)

    def _remove_token(self) -> SecurityChange:
        return RemoveToken(token_id_of(self._random.randint(0, 40)))

    def _rules(self) -> SecurityChange:
        rules = [
            rule(
                f"User:{self._name()}",
                self._random.choice(("orders", "*", "a")),
                permission=self._random.choice(tuple(Permission)),
                host=self._random.choice(
                    ("*", "10.0.0.1", "::ffff:10.0.0.1") if self._random.random() < 0.9 else ("x",)
                ),
            )
            for _ in range(self._random.randint(1, 3))
        ]
        return AddRules.of(rules) if self._random.random() < 0.6 else RemoveRules.of(rules)

    def _quota(self) -> SecurityChange:
        entity = self._random.choice(("User:*", "User:alice", "Address:::1", "Address:0::1", "wrong"))
        if self._random.random() < 0.3:
            return RemoveQuota(entity)
        return PutQuota(entity, QuotaLimits(connections=self._random.choice((None, 1, 2))))


def seen(view: ClusterView) -> tuple[object, ...]:
    """Everything about security that a view shows, with decisions."""
    orders = Resource(ResourceType.TOPIC, "orders")
    callers = [Caller(Principal(name), host) for name in NAMES for host in ("10.0.0.1", "10.0.0.2")]
    decide, afresh = view.security.authorizer.decide, Authorizer(view.security.rules()).decide
    decisions = [decide(caller, Operation.READ, orders).allowed for caller in callers]
    assert decisions == [afresh(caller, Operation.READ, orders).allowed for caller in callers]
    return *contents(view.security), decisions


@settings(max_examples=150, deadline=None)
@given(SEEDS, LENGTHS)
def test_the_invariants_hold_and_a_follower_sees_all(seed: int, length: int) -> None:
    image, view = ClusterImage(), ClusterView()
    commands = RandomSecurity(image, seed)
    for index in range(1, length + 1):
        before = encode_snapshot(image)
        envelope = commands.next()
        result, events = apply(image, index, 1, envelope)
        check(image)
        if isinstance(result, Refused) and envelope.session is None:
            assert events == []
            unchanged = decode_snapshot(before)
            unchanged.index = index
            assert encode_snapshot(image) == encode_snapshot(unchanged)
        view.on_events(index, events)
        assert seen(view)[:-1] == contents(image.security)


@settings(max_examples=150, deadline=None)
@given(SEEDS, LENGTHS, LENGTHS)
def test_a_snapshot_is_the_same_state_with_the_same_future(seed: int, past: int, future: int) -> None:
    """A node that began from the snapshot holds everything in another order."""
    image = ClusterImage()
    commands = RandomSecurity(image, seed)
    for index in range(1, past + 1):
        apply(image, index, 1, commands.next())
    restored = decode_snapshot(encode_snapshot(image))
    assert encode_snapshot(restored) == encode_snapshot(image)
    assert contents(restored.security) == contents(image.security)
    assert diff(image, restored) == []
    check(restored)
    for index in range(past + 1, past + future + 1):
        envelope = commands.next()
        assert apply(image, index, 1, envelope) == apply(restored, index, 1, envelope)
    assert encode_snapshot(restored) == encode_snapshot(image)


@settings(max_examples=150, deadline=None)
@given(SEEDS, LENGTHS, LENGTHS)
def test_the_difference_leads_a_follower_to_the_present(seed: int, past: int, missed: int) -> None:
    image, view = ClusterImage(), ClusterView()
    commands = RandomSecurity(image, seed)
    for index in range(1, past + 1):
        view.on_events(index, apply(image, index, 1, commands.next())[1])
    old, replayed = decode_snapshot(encode_snapshot(image)), ClusterView()
    replayed.on_events(old.index, diff(ClusterImage(), old))
    for index in range(past + 1, past + missed + 1):
        replayed.on_events(index, apply(image, index, 1, commands.next())[1])
    new = decode_snapshot(encode_snapshot(image))
    view.on_events(new.index, diff(old, new))
    assert seen(view) == seen(replayed)


@settings(max_examples=50, deadline=None)
@given(SEEDS, LENGTHS, LENGTHS)
def test_a_snapshot_in_slices_is_the_state_at_its_beginning(seed: int, past: int, meanwhile: int) -> None:
    image = ClusterImage()
    commands = RandomSecurity(image, seed)
    for index in range(1, past + 1):
        apply(image, index, 1, commands.next())
    before, encoder = encode_snapshot(image), SnapshotEncoder(image)
    packed = encoder.step()
    for index in range(past + 1, past + meanwhile + 1):
        apply(image, index, 1, commands.next())
        packed = encoder.step() if packed is None else packed
    while packed is None:
        packed = encoder.step()
    assert packed == before


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_any_bytes_in_place_of_a_command_are_decoded_or_refused_s11(junk: bytes, seed: int) -> None:
    random = Random(seed)
    good = encode(RandomSecurity(ClusterImage(), seed).next().command)
    start = random.randint(0, len(good))
    for packed in (junk, good[:start] + junk + good[start + random.randint(0, 5) :]):
        try:
            decode(packed)
        except RemoteProtocolError:
            continue


# --- The model -------------------------------------------------------------------------------------------------------


class Twin:
    """The commands of `docs/metadata.md`, sentence by sentence, for what a request sees: users, tokens, rules."""

    def __init__(self) -> None:
        self.users: dict[str, int] = {}
        """Name → version."""
        self.tokens: dict[str, tuple[str, bytes, int]] = {}
        """Id → user, digest, expiry."""
        self.rules: set[object] = set()

    def carry_out(self, command: ChangeSecurity, index: int, now_ms: int) -> bool:
        """Return whether the command is carried out."""
        users, tokens, rules = dict(self.users), dict(self.tokens), set(self.rules)
        tokens = {name: token for name, token in tokens.items() if not token[2] or token[2] > now_ms}
        for change in command.changes:
            match change:
                case PutUser():
                    if change.replaces != users.get(change.name, 0):
                        return False
                    users[change.name] = index
                case RemoveUser(name):
                    if users.pop(name, None) is None:
                        return False
                    tokens = {token_id: token for token_id, token in tokens.items() if token[0] != name}
                case PutToken(token_id, digest, name, _, expires_ms):
                    taken = token_id in tokens or digest in {token[1] for token in tokens.values()}
                    if name not in users or taken or 0 < expires_ms <= now_ms:
                        return False
                    tokens[token_id] = (name, digest, expires_ms)
                case RemoveToken(token_id):
                    if tokens.pop(token_id, None) is None:
                        return False
                case AddRules(given) | RemoveRules(given):
                    if any(one.host == "x" for one in given):
                        return False
                    named = {
                        rule(one.principal, one.name, permission=one.permission, host=_plain(one.host)) for one in given
                    }
                    rules = rules | named if isinstance(change, AddRules) else rules - named
                case PutQuota(entity, limits):
                    if entity == "wrong" or limits.connections is None:
                        return False
                case RemoveQuota(entity):
                    if entity == "wrong":
                        return False
        self.users, self.tokens, self.rules = users, tokens, rules
        return True


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:")


@settings(max_examples=200, deadline=None)
@given(SEEDS, LENGTHS)
def test_the_image_agrees_with_the_twin(seed: int, length: int) -> None:
    image, twin = ClusterImage(), Twin()
    commands = RandomSecurity(image, seed)
    for index in range(1, length + 1):
        command = commands.next().command
        if isinstance(command, BootstrapSecurity):
            continue
        done, _ = apply(image, index, 1, decode(encode(command)))
        if isinstance(command, ChangeSecurity):
            assert twin.carry_out(command, index, image.time.now_ms) == isinstance(done, Done), command
        security = image.security
        assert {user.name: user.version for user in security.users()} == twin.users
        tokens = [token for user in security.users() for token in security.tokens_of(user.name)]
        assert {t.token_id: (t.principal_name, t.digest, t.expires_ms) for t in tokens} == twin.tokens
        assert set(security.rules()) == twin.rules


def test_the_random_commands_reach_every_answer() -> None:
    """Otherwise the properties above would prove little."""
    answers: Counter[str] = Counter()
    for seed in range(200):
        image = ClusterImage()
        commands = RandomSecurity(image, seed)
        for index in range(1, 61):
            envelope = commands.next()
            result, events = apply(image, index, 1, envelope)
            if envelope.session is None:
                name = result.code if isinstance(result, Refused) else "ok"
                answers[f"{type(envelope.command).__name__} {name}"] += 1
                answers.update(type(event).__name__ for event in events)
    expected = {
        "ChangeSecurity ok", "ChangeSecurity user_exists", "ChangeSecurity user_changed", "ChangeSecurity unknown_user",
        "ChangeSecurity unknown_token", "ChangeSecurity token_exists", "ChangeSecurity invalid_request",
        "BootstrapSecurity ok", "BootstrapSecurity already_bootstrapped", "BootstrapSecurity invalid_request",
        "UserChanged", "UserRemoved", "TokenChanged", "TokenRemoved", "RulesChanged", "QuotaChanged", "QuotaRemoved",
        "SecurityBegun",
    }  # fmt: skip
    assert {name for name in expected if answers[name] < 3} == set()
