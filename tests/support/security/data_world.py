"""The data listener of a node with security, without a network: streams, partitions and groups that a test drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metadata.commands.cluster import CreateTopic
from raftlog.broker.requests.data_listener import data_acceptors
from raftlog.broker.security.access.access import Access
from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.quotas.quotas import Limits, Quotas
from raftlog.errors import RaftlogError
from raftlog.http2.connection import StreamHandler
from raftlog.model import BrokerId, TopicId
from raftlog.ports import Answer, Part
from raftlog.security.acls import AclRule
from raftlog.security.authorizer import Authorizer
from raftlog.security.presented import Presented
from raftlog.security.principals import ANONYMOUS, Caller
from raftlog.security.secrets import Secret
from raftlog.wire import (
    DeletedPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchedPartition,
    FetchedSlot,
    FetchRequest,
    FetchResponse,
    FoundOffset,
    GroupChangedResponse,
    GroupHeartbeatsRequest,
    GroupHeartbeatsResponse,
    GroupRequest,
    GroupResponse,
    OffsetsRequest,
    OffsetsResponse,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    Request,
    SessionFetchRequest,
    SessionFetchResponse,
    TransactionRequest,
    TransactionResponse,
    decode_response,
    encode,
)
from tests.support.metadata.transactions import TransactionCluster
from tests.support.partitions.manual import ManualScheduler

from .authenticated_world import AuthenticatedWorld
from .rules import KeptAudit

SECRET_TOPIC = TopicId(b"topic-number-002")
RECORDS = b"abc"


class ServedPartitions:
    """This broker's partitions: everything is answered at once, but long polls wait until `answer_polls`."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.polls: list[Callable[[], None]] = []
        self.closed_sessions = 0
        self.waits = False
        """Whether produce requests wait in `polls`, too."""

    def answer_polls(self) -> None:
        polls, self.polls = self.polls, []
        for poll in polls:
            poll()

    def produce(
        self, request: ProduceRequest, batches: Sequence[memoryview], done: Callable[[ProduceResponse], None]
    ) -> None:
        self.asked.append(request)
        found = [ProducedPartition(p.topic_id, p.partition, base_offset=7) for p in request.partitions]
        answer = ProduceResponse(request.correlation_id, found)
        if self.waits:
            self.polls.append(lambda: done(answer))
        else:
            done(answer)

    def fetch(self, request: FetchRequest, done: Callable[[FetchResponse, list[Part]], None]) -> Poll:
        self.asked.append(request)
        found = [FetchedPartition(p.topic_id, p.partition, length=len(RECORDS)) for p in request.partitions]
        parts: list[Part] = [RECORDS] * len(found)
        poll = Poll(self.polls, lambda: done(FetchResponse(request.correlation_id, found), parts))
        if not request.max_wait_ms:
            self.answer_polls()
        return poll

    def fetch_session(
        self, current: object, request: SessionFetchRequest, done: Callable[[SessionFetchResponse, list[Part]], None]
    ) -> object:
        self.asked.append(request)
        slots = [FetchedSlot(one.slot, length=len(RECORDS)) for one in request.added]
        parts: list[Part] = [RECORDS] * len(slots)
        self.polls.append(lambda: done(SessionFetchResponse(request.correlation_id, slots), parts))
        if not request.max_wait_ms:
            self.answer_polls()
        return "session"

    def close_session(self, session: object) -> None:
        self.closed_sessions += session is not None
        if session is not None:
            self.polls.clear()

    def offsets(self, request: OffsetsRequest, done: Callable[[OffsetsResponse], None]) -> None:
        self.asked.append(request)
        found = [FoundOffset(p.topic_id, p.partition, offset=7) for p in request.partitions]
        done(OffsetsResponse(request.correlation_id, found))

    def delete_records(self, request: DeleteRecordsRequest, done: Callable[[DeleteRecordsResponse], None]) -> None:
        self.asked.append(request)
        found = [DeletedPartition(p.topic_id, p.partition, log_start_offset=7) for p in request.partitions]
        done(DeleteRecordsResponse(request.correlation_id, found))


class Poll:
    """A long poll; a cancelled one is never answered."""

    def __init__(self, polls: list[Callable[[], None]], answer: Callable[[], None]) -> None:
        self._polls, self._answer = polls, answer
        polls.append(answer)

    def cancel(self) -> None:
        if self._answer in self._polls:
            self._polls.remove(self._answer)


class ServedGroups:
    """This broker's consumer groups and transactions, which carry out everything at once."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.principals: list[str] = []
        """The principal of each request of members and transactional producers."""
        self.answers: dict[type[Any], Any] = {}
        """Other answers than that all is done, by the kind of request."""

    def ask(self, request: GroupRequest, client_host: str, answer: Answer[GroupResponse], principal: str = "") -> None:
        self.asked.append(request)
        self.principals.append(principal)
        answer(self.answers.get(type(request), GroupChangedResponse(request.correlation_id)))

    def hear(self, request: GroupHeartbeatsRequest) -> GroupHeartbeatsResponse:
        self.asked.append(request)
        return GroupHeartbeatsResponse(request.correlation_id, [""] * len(request.members))

    def ask_transactions(
        self, request: TransactionRequest, answer: Answer[TransactionResponse], principal: str = ""
    ) -> None:
        self.asked.append(request)
        self.principals.append(principal)
        answer(TransactionResponse(request.correlation_id))


class FakeConnection:
    """The connection of a stream: its certificate, and a loop on manual time."""

    def __init__(self, scheduler: ManualScheduler, certificate: Mapping[str, Any] | None) -> None:
        self.loop = scheduler
        self._certificate = certificate

    def get_extra_info(self, name: str) -> Any:
        return self._certificate if name == "peercert" else None


class FakeStream:
    """An HTTP/2 stream in its acceptor's view: it keeps what is sent."""

    def __init__(self, world: DataWorld, path: str, presented: Presented, node: int = -1) -> None:
        self.path, self.peer_host, self.peer_node = path, presented.host, node
        self.authorization: Secret | None = presented.authorization
        self.connection = FakeConnection(world.scheduler, presented.certificate)
        self.handler: StreamHandler | None = None
        self.refusal: RaftlogError | None = None
        self.closed = self.ended = self.was_reset = False
        self.queued_bytes = 0
        self.sent: list[Any] = []
        self.records = 0
        """Bytes of record batches that were sent."""

    def accept(self, handler: StreamHandler) -> None:
        assert not self.closed and self.handler is None
        self.handler = handler

    def refuse(self, error: RaftlogError) -> None:
        assert not self.closed and self.handler is None
        self.refusal = error
        self.closed = True

    def send(self, parts: Sequence[Any]) -> None:
        assert self.handler is not None, "a message before the acceptance"
        if not (self.closed or self.ended):
            response, body = decode_response(b"".join(parts))
            self.sent.append(response)
            self.records += body.nbytes

    def end(self) -> None:
        self.ended = True

    def reset(self) -> None:
        self.was_reset = self.was_reset or not self.closed
        self.close()

    def close(self) -> None:
        """The stream is over, for whatever reason."""
        if not self.closed:
            self.closed = True
            if self.handler is not None:
                self.handler.on_closed(self, "closed")  # type: ignore[arg-type]

    def receive(self, message: bytes) -> None:
        """A message of the peer."""
        assert self.handler is not None, self.refusal
        self.handler.on_message(self, memoryview(message))  # type: ignore[arg-type]

    def ask(self, request: Request, body: Sequence[bytes] = (), caller: bytes = b"") -> Any:
        """Send a request, and return its answer if there is one already."""
        before = len(self.sent)
        self.receive(caller + b"".join(map(bytes, encode(request, body))))  # type: ignore[arg-type]
        return self.sent[before] if len(self.sent) > before else None


class DataWorld:
    """One node's data listener with the topics `orders` and `secret`, on manual time."""

    def __init__(self, *rules: AclRule, mode: Any = "required") -> None:
        self.credentials = AuthenticatedWorld(mode=mode)
        self.scheduler = self.credentials.scheduler
        self.sessions = self.credentials.sessions
        self.cluster = TransactionCluster(3)
        self.cluster.do(CreateTopic("secret", SECRET_TOPIC, ((BrokerId(0),),)))
        self.authorizer, self.audit = Authorizer(rules), KeptAudit()
        self.access = Access(self.cluster.view, self.authorizer, self.audit)
        self.limits: dict[str, Limits] = {}
        """The quotas by entity."""
        self.quotas = Quotas(self.limits.get, lambda: bool(self.limits))
        self.clock = self.scheduler.clock
        self.unnamed = Caller(ANONYMOUS, "") if mode == "optional" else None
        self.local, self.groups = ServedPartitions(), ServedGroups()
        self.acceptors = data_acceptors(
            self.local,  # type: ignore[arg-type]
            self.groups,
            self.groups.ask_transactions,
            lambda: True,
            security=self,
            view=self.cluster.view,
        )

    def ask(self, presented: Presented, answer: Answer[Authentication]) -> None:
        self.credentials.authenticator.authenticate(presented, answer)

    @property
    def served(self) -> list[Any]:
        """Every request that was carried out."""
        return [*self.local.asked, *self.groups.asked]

    def open(self, path: str, presented: Presented, *, node: int = -1) -> FakeStream:
        """Open a stream; whether it is accepted is known at once, except with a password."""
        stream = FakeStream(self, path, presented, node)
        try:
            handler = self.acceptors[path](stream)  # type: ignore[arg-type]
        except RaftlogError as error:
            stream.refuse(error)
        else:
            if handler is not None:
                stream.accept(handler)
        return stream

    def add(self, *rules: AclRule) -> None:
        for rule in rules:
            self.authorizer.add(rule)
        self.access.rules_changed()

    def remove(self, *rules: AclRule) -> None:
        for rule in rules:
            self.authorizer.remove(rule)
        self.access.rules_changed()
