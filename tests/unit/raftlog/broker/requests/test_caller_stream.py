"""A stream serves its caller as long as the authentication and the rules last, and sends no record after that (S12)."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.broker.requests.caller_stream import FAREWELL_SECONDS
from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.authentication.sessions import TICK_SECONDS
from raftlog.broker.security.authentication.tokens import NewToken
from raftlog.broker.security.quotas.quotas import Held, Limits
from raftlog.broker.security.unauthenticated import TEXT, Unauthenticated
from raftlog.errors import RaftlogError
from raftlog.ports import Answer
from raftlog.security.acls import Operation, ResourceType
from raftlog.security.presented import Presented
from raftlog.wire import (
    FETCH_PATH,
    PRODUCE_PATH,
    ErrorResponse,
    FetchPartition,
    FetchRequest,
    OffsetQuery,
    OffsetsRequest,
    ProducePartition,
    ProduceRequest,
    SessionFetchRequest,
    SlotToFetch,
)
from tests.support.metadata.cluster import TOPIC
from tests.support.security.authenticated_world import basic, bearer
from tests.support.security.data_world import DataWorld, FakeStream
from tests.support.security.rules import ALICE, allow

READ, WRITE = (allow(operation, ResourceType.TOPIC, "orders") for operation in (Operation.READ, Operation.WRITE))
POLL = FetchRequest(5, 10_000, 1, 1 << 20, [FetchPartition(TOPIC, 0, 0, 100)])
SESSION_POLL = SessionFetchRequest(5, 1, True, 10_000, 1, 1 << 20, [SlotToFetch(1, TOPIC, 0, 0, 100)])
OFFSETS = OffsetsRequest(6, [OffsetQuery(TOPIC, 0, -1)])
UNAUTHENTICATED = ErrorResponse(-1, "unauthenticated", TEXT)


class Reader:
    """A stream of alice, which may read `orders`, in the middle of a long poll."""

    def __init__(self, poll: Any = POLL) -> None:
        self.world = DataWorld(READ, WRITE)
        self.world.credentials.put_user("alice", "correct horse")
        self.token: NewToken = self.world.credentials.put_token("alice")
        self.stream: FakeStream = self.world.open(FETCH_PATH, bearer(self.token))
        assert self.stream.ask(poll) is None

    def revoke(self) -> None:
        self.world.credentials.remove_token(self.token)
        self.world.scheduler.run()


@pytest.mark.parametrize("poll", [POLL, SESSION_POLL], ids=["fetch", "session"])
def test_a_revoked_token_ends_its_stream_and_the_fetch_in_progress_without_a_record_s12(poll: Any) -> None:
    r = Reader(poll)
    r.revoke()
    assert r.stream.sent == [UNAUTHENTICATED] and r.stream.ended
    r.world.local.answer_polls()
    assert r.stream.records == 0 and r.world.local.polls == []
    assert r.world.sessions.open_of_users == 0


def test_a_request_after_the_end_is_not_carried_out_s12() -> None:
    r = Reader()
    r.revoke()
    before = list(r.world.served)
    r.stream.ask(OFFSETS)
    assert r.world.served == before and r.stream.was_reset and r.stream.sent == [UNAUTHENTICATED]


def test_a_peer_that_does_not_end_its_side_is_reset_in_time_s12() -> None:
    r = Reader()
    r.revoke()
    r.world.scheduler.advance(FAREWELL_SECONDS)
    assert r.stream.was_reset


def test_records_that_the_peer_has_not_taken_yet_do_not_follow_s12() -> None:
    r = Reader()
    r.stream.queued_bytes = 1
    r.revoke()
    assert r.stream.was_reset and r.stream.sent == []


def test_records_of_a_lost_topic_that_the_peer_has_not_taken_yet_do_not_follow_s12() -> None:
    """The long poll is answered, but a slow peer takes minutes to read the answer."""
    r = Reader()
    r.world.local.answer_polls()
    assert r.stream.records
    r.stream.queued_bytes = 1
    r.world.remove(READ)
    assert r.stream.was_reset and not r.stream.ended


def test_a_stream_whose_answers_were_taken_outlives_the_loss_of_their_topic_s12() -> None:
    r = Reader()
    r.world.local.answer_polls()
    r.world.remove(READ)
    assert not r.stream.was_reset and not r.stream.ended
    r.world.remove(WRITE)
    r.stream.queued_bytes = 1  # Of an answer that is no longer this one.
    r.world.remove(WRITE)
    assert not r.stream.was_reset


def test_another_stream_of_the_same_user_goes_on_s12() -> None:
    r = Reader()
    other = r.world.open(FETCH_PATH, basic("alice", "correct horse"))
    r.world.credentials.worker.run_all()
    r.revoke()
    assert other.ask(OFFSETS).partitions[0].offset == 7 and not other.ended


def test_a_stream_ends_within_a_second_of_its_tokens_end_s12() -> None:
    r = Reader()
    token = r.world.credentials.put_token("alice", r.world.credentials.clock.wall_ms() + 3_000)
    stream = r.world.open(FETCH_PATH, bearer(token))
    r.world.scheduler.advance(2.9)
    assert not stream.ended
    r.world.scheduler.advance(0.1 + TICK_SECONDS)
    assert stream.ended and stream.sent == [UNAUTHENTICATED] and not r.stream.ended


def test_a_reader_that_loses_its_topic_is_ended_and_says_so_s12() -> None:
    r = Reader()
    r.world.remove(WRITE)
    assert not r.stream.ended
    r.world.remove(READ)
    (told,) = r.stream.sent
    assert (told.correlation_id, told.error) == (-1, "authorization_failed") and r.stream.ended
    r.world.local.answer_polls()
    assert r.stream.records == 0
    r.world.remove(READ)
    r.revoke()
    assert r.stream.sent == [told], "a stream ends once"


def test_a_change_of_rules_that_leaves_the_reader_its_topic_changes_nothing() -> None:
    r = Reader()
    r.world.add(allow(Operation.ALL, ResourceType.TOPIC, "secret"))
    r.world.local.answer_polls()
    assert r.stream.records == 3 and not r.stream.ended


def test_answers_to_what_was_in_flight_are_dropped_at_the_end_and_counted() -> None:
    r = Reader()
    r.world.local.waits = True
    stream = r.world.open(PRODUCE_PATH, bearer(r.token))
    stream.ask(ProduceRequest(7, -1, 1000, [ProducePartition(TOPIC, 0, 3)]), [b"abc"])
    r.revoke()
    r.world.local.answer_polls()
    assert stream.sent == [UNAUTHENTICATED] and stream.ended


def test_a_closed_stream_leaves_nothing_behind() -> None:
    r = Reader()
    r.stream.close()
    assert r.world.sessions.open_of_users == 0 and r.world.local.polls == []
    r.world.remove(READ)
    r.revoke()
    assert r.stream.sent == [] and not r.stream.ended


def test_a_stream_that_ended_before_its_password_was_checked_has_no_session() -> None:
    r = Reader()
    stream = r.world.open(FETCH_PATH, basic("alice", "correct horse"))
    assert stream.handler is None and stream.refusal is None
    stream.close()
    r.world.credentials.worker.run_all()
    assert stream.handler is None and r.world.sessions.open_of_users == 1


def test_a_user_that_is_removed_while_the_password_is_checked_is_refused_s12() -> None:
    r = Reader()
    stream = r.world.open(FETCH_PATH, basic("alice", "correct horse"))
    r.world.credentials.remove_user("alice")
    r.world.credentials.worker.run_all()
    assert isinstance(stream.refusal, Unauthenticated)


def test_a_peer_that_ends_its_side_gets_its_answers_first() -> None:
    r = Reader()
    assert r.stream.handler is not None
    r.stream.handler.on_ended(r.stream)  # type: ignore[arg-type]
    assert not r.stream.ended
    r.world.local.answer_polls()
    assert r.stream.ended and r.stream.records == 3


def test_a_connection_over_the_quota_is_refused_and_counts_again_when_another_ends_s11() -> None:
    r = Reader()
    r.world.limits["User:alice"] = Limits({}, {Held.CONNECTIONS: 1})
    refused = r.world.open(FETCH_PATH, bearer(r.token))
    assert refused.refusal is not None and refused.refusal.code == "throttled"
    r.stream.close()
    assert r.world.open(FETCH_PATH, bearer(r.token)).refusal is None


def test_a_revoked_stream_gives_its_connection_back() -> None:
    r = Reader()
    r.world.limits["User:alice"] = Limits({}, {Held.CONNECTIONS: 1})
    other = r.world.credentials.put_token("alice")
    r.revoke()
    assert r.world.open(FETCH_PATH, bearer(other)).refusal is None


def test_a_credential_that_ends_while_it_is_checked_holds_no_connection_s12(monkeypatch: pytest.MonkeyPatch) -> None:
    r = Reader()
    credentials, token = r.world.credentials, r.world.credentials.put_token("alice")

    def ask(presented: Presented, answer: Answer[Authentication]) -> None:
        def authenticated(found: Authentication | RaftlogError) -> None:
            credentials.remove_token(token)
            answer(found)

        credentials.authenticator.authenticate(presented, authenticated)

    monkeypatch.setattr(r.world, "ask", ask)
    late = r.world.open(FETCH_PATH, bearer(token))
    assert late.refusal is not None and late.refusal.code == "unauthenticated"
    r.stream.close()
    assert r.world.quotas.holds(ALICE, Held.CONNECTIONS) == 0
