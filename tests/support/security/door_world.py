"""A node's data listener under random callers, rules, revocations and requests, checked against a model (S12).

The model is a set of rules, and of credentials that are valid. After each step: a stream is accepted exactly if its
credential is valid; only what the rules allow is carried out; and one second after a credential or a right has ended,
nothing is answered to streams that rest on it.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from raftlog.broker.requests.forwarded import head_of
from raftlog.broker.requests.forwarding import FORWARD_PATH
from raftlog.broker.security.authentication.tokens import NewToken
from raftlog.broker.tls.names import NodeNames
from raftlog.config import DEFAULT_NODE_NAME
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.records.batch import encode as encode_batch
from raftlog.security.acls import AclRule, Operation, ResourceType
from raftlog.security.principals import Caller, Principal
from raftlog.wire import (
    FETCH_PATH,
    GROUPS_PATH,
    PRODUCE_PATH,
    CommitOffsetsRequest,
    FetchPartition,
    FetchRequest,
    GroupHeartbeat,
    GroupHeartbeatsRequest,
    OffsetToCommit,
    ProducePartition,
    ProduceRequest,
    SessionFetchRequest,
    SlotToFetch,
)
from tests.support.metadata.cluster import TOPIC

from .authenticated_world import bearer, header
from .data_world import SECRET_TOPIC, DataWorld, FakeStream
from .rules import allow

USERS = ("alice", "bob")
TOPICS: dict[bytes, str] = {TOPIC: "orders", SECRET_TOPIC: "secret"}
STEPS = 60
BATCH = bytes(encode_batch([b"x"], base_timestamp_ms=0))
LIFETIME_MS = 3_000


class Broken(AssertionError):
    """A door opened that the model says is closed."""


class Opened:
    """An open stream and what it rests on."""

    def __init__(self, stream: FakeStream, user: str, credential: str) -> None:
        self.stream, self.user, self.credential = stream, user, credential


class DoorWorld:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.w = DataWorld()
        self.rules: set[AclRule] = set()
        self.users: set[str] = set()
        self.made: dict[str, NewToken] = {}
        self.tokens: dict[str, tuple[str, int]] = {}
        """Text of a token that was not removed → its user and its end in milliseconds; 0: none."""
        self.gone: list[str] = []
        self.open: list[Opened] = []
        for user in USERS:
            self.put_user(user)

    def run(self) -> None:
        steps = (
            self.change_rule, self.put_token, self.remove_token, self.toggle_user, self.pass_time, self.open_stream,
            self.open_stream, self.ask, self.ask, self.ask, self.strange_forward, self.forward, self.node_name,
        )  # fmt: skip
        for _ in range(STEPS):
            self.draw.choice(steps)()
            self.check_ended()

    # --- Changes ---

    def put_user(self, user: str) -> None:
        self.w.credentials.put_user(user)
        self.users.add(user)

    def toggle_user(self) -> None:
        user = self.draw.choice(USERS)
        if user not in self.users:
            self.put_user(user)
            return
        self.w.credentials.remove_user(user)
        self.users.discard(user)
        self.gone += [token for token, (name, _) in self.tokens.items() if name == user]
        self.tokens = {token: of for token, of in self.tokens.items() if of[0] != user}
        for one in self.open:
            if one.user == user:
                one.credential = ""

    def put_token(self) -> None:
        user = self.draw.choice(USERS)
        if user in self.users:
            ends = self.draw.choice((0, self.w.clock.wall_ms() + LIFETIME_MS))
            token = self.w.credentials.put_token(user, *([ends] if ends else []))
            self.made[token.text.reveal()] = token
            self.tokens[token.text.reveal()] = user, ends

    def remove_token(self) -> None:
        if self.tokens:
            token = self.draw.choice(list(self.tokens))
            del self.tokens[token]
            self.gone.append(token)
            self.w.credentials.remove_token(self.made[token])

    def change_rule(self) -> None:
        name, operation = self.draw.choice(list(TOPICS.values())), self.draw.choice((Operation.READ, Operation.WRITE))
        kind = self.draw.choice((ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP))
        if kind is ResourceType.GROUP:
            name, operation = "g", Operation.READ
        rule = allow(operation, kind, name, principal=f"User:{self.draw.choice(USERS)}")
        if rule in self.rules:
            self.rules.discard(rule)
            self.w.remove(rule)
        else:
            self.rules.add(rule)
            self.w.add(rule)

    def pass_time(self) -> None:
        self.w.credentials.worker.run_all()
        self.w.scheduler.advance(2.0)
        now = self.w.clock.wall_ms()
        ended = [token for token, (_, ends) in self.tokens.items() if ends and ends <= now]
        self.gone += ended
        for token in ended:
            del self.tokens[token]

    # --- Requests ---

    def open_stream(self) -> None:
        path = self.draw.choice((PRODUCE_PATH, FETCH_PATH, GROUPS_PATH))
        user = self.draw.choice(USERS)
        kind = self.draw.choice(("token", "gone", "none", "certificate"))
        candidates = list(self.tokens) if kind == "token" else self.gone
        if kind in ("token", "gone"):
            if not candidates:
                return
            credential = self.draw.choice(candidates)
            presented, valid = bearer(credential), credential in self.tokens
            user = self.tokens[credential][0] if valid else user
            if valid and 0 < self.tokens[credential][1] <= self.w.clock.wall_ms():
                return
        else:
            credential = user
            presented = header(None, certificate=user if kind == "certificate" else None)
            valid = kind == "certificate" and user in self.users
        stream = self.w.open(path, presented)
        self.w.credentials.worker.run_all()
        self.expect((stream.handler is not None) == valid, f"{path} by {kind} of {user}: {stream.refusal}")
        if valid:
            self.open.append(Opened(stream, user, credential))

    def ask(self) -> None:
        alive = [one for one in self.open if self.is_valid(one) and not (one.stream.closed or one.stream.ended)]
        if not alive:
            return
        one = self.draw.choice(alive)
        topics: list[bytes] = self.draw.sample(list(TOPICS), self.draw.choice((1, 2)))
        self.w.local.polls.clear()
        before = self.counts()
        waits = self.draw.choice((0, 10_000))
        request: Any
        if one.stream.path == PRODUCE_PATH:
            request = ProduceRequest(5, -1, 1000, [ProducePartition(topic, 0, len(BATCH)) for topic in topics])
            one.stream.ask(request, [BATCH] * len(topics))
        elif one.stream.path == GROUPS_PATH:
            request = CommitOffsetsRequest(5, "g", "m", 7, 9, [OffsetToCommit(topic, 0, 5) for topic in topics])
            one.stream.ask(request)
        elif self.draw.random() < 0.5:
            request = FetchRequest(5, waits, 1, 1 << 20, [FetchPartition(topic, 0, 0, 100) for topic in topics])
            one.stream.ask(request)
        else:
            slots = [SlotToFetch(number + 1, topic, 0, 0, 100) for number, topic in enumerate(topics)]
            request = SessionFetchRequest(5, self.draw.randrange(1 << 30), True, waits, 1, 1 << 20, slots)
            one.stream.ask(request)
        self.check_served(one, self.served_since(before))
        if waits and self.w.local.polls:
            self.lose_while_it_waits(one, topics)

    def lose_while_it_waits(self, one: Opened, topics: list[bytes]) -> None:
        """Take a right away while a long poll waits: it must not be answered."""
        held = [topic for topic in topics if self.may(one.user, Operation.READ, TOPICS[topic])]
        if not held:
            return
        rule = allow(Operation.READ, ResourceType.TOPIC, TOPICS[held[0]], principal=f"User:{one.user}")
        self.rules.discard(rule)
        self.w.remove(rule)
        records = one.stream.records
        self.w.local.answer_polls()
        self.expect(one.stream.records == records, f"{one.user} reads {TOPICS[held[0]]} without the right")

    def strange_forward(self) -> None:
        caller = Caller(Principal("root"), "10.9.9.9", superuser=True)
        stream = self.w.open(FORWARD_PATH, header(None, certificate=self.draw.choice((None, *USERS))))
        before = self.counts()
        if stream.handler is not None:
            head = b"".join(map(bytes, (head_of(caller),)))  # type: ignore[arg-type]
            stream.ask(FetchRequest(5, 0, 1, 1 << 20, [FetchPartition(SECRET_TOPIC, 0, 0, 100)]), caller=head)
        self.expect(not self.served_since(before), "a stranger's forwarded request was carried out")

    def forward(self) -> None:
        """A node forwards the requests of a user: this node decides again."""
        user = self.draw.choice(USERS)
        stream = self.w.open(FORWARD_PATH, header(None, certificate="node"), node=1)
        head = bytes(head_of(Caller(Principal(user), "10.9.9.9")))  # type: ignore[arg-type]
        before = self.counts()
        if self.draw.random() < 0.5:
            stream.ask(GroupHeartbeatsRequest(5, [GroupHeartbeat("g", "m", 1)]), caller=head)
        else:
            stream.ask(FetchRequest(5, 0, 1, 1 << 20, [FetchPartition(SECRET_TOPIC, 0, 0, 100)]), caller=head)
        self.check_served(Opened(stream, user, ""), self.served_since(before))
        stream.close()

    def node_name(self) -> None:
        names = NodeNames(DEFAULT_NODE_NAME, "c1")
        shown = {"subjectAltName": (("URI", f"raftlog:/user/{self.draw.choice(USERS)}"),)}
        try:
            node = names.node_of(shown)
        except InvalidRequest:
            return
        raise Broken(f"a user's certificate is that of node {node}")

    def counts(self) -> tuple[int, int]:
        return len(self.w.local.asked), len(self.w.groups.asked)

    def served_since(self, before: tuple[int, int]) -> list[Any]:
        return [*self.w.local.asked[before[0] :], *self.w.groups.asked[before[1] :]]

    # --- The model ---

    def may(self, user: str, operation: Operation, name: str, kind: ResourceType = ResourceType.TOPIC) -> bool:
        return allow(operation, kind, name, principal=f"User:{user}") in self.rules

    def is_valid(self, one: Opened) -> bool:
        if one.credential in USERS:
            return one.credential in self.users
        _, ends = self.tokens.get(one.credential, ("", 0))
        return one.credential in self.tokens and not 0 < ends <= self.w.clock.wall_ms()

    def check_served(self, one: Opened, served: list[Any]) -> None:
        for request in served:
            operation = Operation.WRITE if isinstance(request, ProduceRequest) else Operation.READ
            parts = [
                *(getattr(request, "partitions", None) or ()),
                *(getattr(request, "added", None) or ()),
                *(getattr(request, "offsets", None) or ()),
            ]
            for part in parts:
                name = TOPICS[part.topic_id]
                self.expect(self.may(one.user, operation, name), f"{one.user} used {name} by {type(request).__name__}")
            if isinstance(request, CommitOffsetsRequest) or getattr(request, "members", None):
                allowed = self.may(one.user, Operation.READ, "g", ResourceType.GROUP)
                self.expect(allowed, f"{one.user} used the group by {type(request).__name__}")

    def check_ended(self) -> None:
        """One second after the end of a credential its streams have ended."""
        lost = [one for one in self.open if not self.is_valid(one)]
        if lost:
            self.w.scheduler.advance(1.0)
        for one in lost:
            self.expect(one.stream.closed or one.stream.ended, f"a stream of {one.user} outlives its credential")
        self.open = [one for one in self.open if one not in lost]

    def expect(self, holds: bool, told: str) -> None:
        if not holds:
            raise Broken(told)


def run_doors(seed: int) -> str:
    """Run a seed and return what was broken; empty: nothing was."""
    try:
        DoorWorld(seed).run()
    except (Broken, RaftlogError, msgspec.MsgspecError) as found:
        return str(found) or type(found).__name__
    return ""
