"""The authentications of open streams, and their end. S10, S12."""

from __future__ import annotations

import pytest

from metadata.records.events import QuotaRemoved, RulesChanged, UserRemoved
from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.authentication.sessions import SLACK, TICK_SECONDS, Session
from raftlog.broker.security.identity_provider.access_claims import AccessClaims
from raftlog.broker.security.unauthenticated import Cause, Unauthenticated
from raftlog.security.presented import Presented
from raftlog.security.principals import ANONYMOUS, Caller, Principal
from tests.support.security.authenticated_world import AuthenticatedWorld, basic, bearer, header


class Streams(AuthenticatedWorld):
    """A world that opens streams."""

    def __init__(self) -> None:
        super().__init__(mode="optional")
        self.ended: list[tuple[str, Cause]] = []
        self.put_user("alice", "correct horse")
        self.put_user("bob", "battery staple")

    def open(self, name: str, presented: Presented) -> Session:
        return self.sessions.open(self.accepted(presented), lambda error: self.ended.append((name, error.cause)))


def test_a_user_that_is_removed_loses_its_streams_and_no_other_does_s12() -> None:
    w = Streams()
    token = w.put_token("alice")
    w.access_tokens.valid["alice"] = AccessClaims(Principal("alice"), w.clock.wall_ms() + 10**9)
    w.open("password", basic("alice", "correct horse"))
    w.open("token", bearer(token))
    w.open("certificate", header(None, certificate="alice"))
    w.open("access token", bearer("alice"))
    w.open("both", bearer("alice", certificate="alice"))
    w.open("bob", basic("bob", "battery staple"))
    w.open("anonymous", header(None))
    w.remove_user("alice")
    assert w.ended == [], "not inside the view's own event"
    w.scheduler.run()
    assert sorted(w.ended) == [(name, Cause.CHANGED) for name in ("both", "certificate", "password", "token")]
    assert w.sessions.open_of_users == 1


def test_a_changed_password_ends_the_streams_of_the_old_one_s12() -> None:
    w = Streams()
    w.open("old", basic("alice", "correct horse"))
    w.put_user("alice", "another one")
    w.open("new", basic("alice", "another one"))
    w.scheduler.run()
    assert w.ended == [("old", Cause.CHANGED)]


def test_a_removed_token_ends_its_streams_only_s12() -> None:
    w = Streams()
    first, second = w.put_token("alice"), w.put_token("alice")
    w.open("first", bearer(first))
    w.open("second", bearer(second))
    w.open("password", basic("alice", "correct horse"))
    w.remove_token(first)
    w.scheduler.run()
    assert w.ended == [("first", Cause.CHANGED)]


def test_changes_of_rules_and_quotas_end_nothing() -> None:
    w = Streams()
    w.open("alice", basic("alice", "correct horse"))
    w.apply(RulesChanged((), ()), QuotaRemoved("User:alice"), UserRemoved("carol"))
    w.scheduler.run()
    assert w.ended == []


class TestExpiry:
    def test_a_stream_ends_within_a_second_of_its_tokens_end_s12(self) -> None:
        w = Streams()
        now = w.clock.wall_ms()
        w.access_tokens.valid["jwt"] = AccessClaims(Principal("carol"), now + 3_000)
        w.open("token", bearer(w.put_token("alice", now + 5_000)))
        w.open("jwt", bearer("jwt"))
        w.open("endless", bearer(w.put_token("alice")))
        assert w.sessions.ending == 2
        w.scheduler.advance(2.9)
        assert w.ended == []
        w.scheduler.advance(0.1 + TICK_SECONDS)
        assert w.ended == [("jwt", Cause.EXPIRED)]
        w.scheduler.advance(2.0)
        assert w.ended == [("jwt", Cause.EXPIRED), ("token", Cause.EXPIRED)] and w.sessions.ending == 0

    def test_the_time_may_jump_s12(self) -> None:
        w = Streams()
        w.open("token", bearer(w.put_token("alice", w.clock.wall_ms() + 3_600_000)))
        w.clock.jump_wall(3_600_000)
        w.scheduler.advance(TICK_SECONDS)
        assert w.ended == [("token", Cause.EXPIRED)]

    def test_no_timer_runs_without_a_session_that_ends(self) -> None:
        w = Streams()
        w.open("endless", basic("alice", "correct horse"))
        session = w.open("token", bearer(w.put_token("alice", w.clock.wall_ms() + 10**9)))
        w.scheduler.advance(10.0)
        w.sessions.close(session)
        w.scheduler.advance(1.0)
        before = w.clock.monotonic()
        w.scheduler.advance(100.0)
        assert w.clock.monotonic() == before + 100 and w.scheduler.run() == 0

    def test_a_stopped_set_looks_at_no_time(self) -> None:
        w = Streams()
        w.open("token", bearer(w.put_token("alice", w.clock.wall_ms() + 1_000)))
        w.sessions.stop()
        w.scheduler.advance(10.0)
        assert w.ended == []


class TestOpening:
    @pytest.mark.parametrize("change", ["user", "removal", "token", "time"])
    def test_an_authentication_that_ended_before_its_stream_began_s12(self, change: str) -> None:
        w = Streams()
        token = w.put_token("alice", w.clock.wall_ms() + 1_000)
        found = w.accepted(bearer(token))
        if change == "user":
            w.put_user("alice", "another one")
        elif change == "removal":
            w.remove_user("alice")
        elif change == "token":
            w.remove_token(token)
        else:
            w.clock.advance(1.0)
        with pytest.raises(Unauthenticated):
            w.sessions.open(found, lambda error: None)
        assert w.sessions.open_of_users == w.sessions.ending == 0


class TestClosing:
    def test_a_closed_session_ends_no_more(self) -> None:
        w = Streams()
        session = w.open("alice", basic("alice", "correct horse"))
        w.sessions.close(session)
        w.sessions.close(session)
        w.remove_user("alice")
        w.scheduler.run()
        assert w.ended == [] and w.sessions.open_of_users == 0

    def test_a_stream_that_closes_between_the_change_and_its_end(self) -> None:
        w = Streams()
        session = w.open("alice", basic("alice", "correct horse"))
        w.remove_user("alice")
        w.sessions.close(session)
        w.scheduler.run()
        assert w.ended == []

    def test_each_session_ends_once(self) -> None:
        w = Streams()
        w.open("alice", bearer(w.put_token("alice", w.clock.wall_ms() + 100)))
        w.put_user("alice", "another one")
        w.remove_user("alice")
        w.scheduler.advance(10.0)
        assert w.ended == [("alice", Cause.CHANGED)]

    def test_an_error_in_one_stream_does_not_keep_the_others_open_s12(self) -> None:
        w = Streams()
        found = w.accepted(basic("alice", "correct horse"))

        def fail(error: Unauthenticated) -> None:
            raise ZeroDivisionError

        w.sessions.open(found, fail)
        w.open("second", basic("alice", "correct horse"))
        w.remove_user("alice")
        with pytest.raises(ZeroDivisionError):
            w.scheduler.run()
        w.scheduler.run()
        assert w.ended == [("second", Cause.CHANGED)]

    def test_closed_sessions_take_no_memory_s11(self) -> None:
        w = Streams()
        found = w.accepted(bearer(w.put_token("alice", w.clock.wall_ms() + 10**9)))
        kept = w.sessions.open(found, lambda error: None)
        for _ in range(10 * SLACK):
            w.sessions.close(w.sessions.open(found, lambda error: None))
        assert w.sessions.remembered <= SLACK + 3 and w.sessions.ending == 1
        assert kept.is_open


def test_a_change_looks_only_at_the_streams_of_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Streams()
    for number in range(100):
        w.put_user(f"user{number}", "a password")
        found = w.accepted(basic(f"user{number}", "a password"))
        for _ in range(20):
            w.sessions.open(found, lambda error, number=number: w.ended.append((str(number), error.cause)))
    looked: list[str] = []
    user = w.table.user
    monkeypatch.setattr(w.table, "user", lambda name: looked.append(name) or user(name))
    w.put_user("user7", "another one")
    w.scheduler.run()
    assert len(w.ended) == 20 and set(looked) == {"user7"} and len(looked) <= 40


def test_many_streams_end_in_several_turns_s10() -> None:
    w = Streams()
    found = w.accepted(basic("alice", "correct horse"))
    for number in range(1_000):
        w.sessions.open(found, lambda error, number=number: w.ended.append((str(number), error.cause)))
    w.remove_user("alice")
    turns = w.scheduler.run()
    assert turns > 5 and len(w.ended) == 1_000 and w.sessions.open_of_users == 0


def test_an_anonymous_stream_rests_on_nothing() -> None:
    w = Streams()
    session = w.sessions.open(Authentication(Caller(ANONYMOUS, "::1")), lambda error: None)
    assert session.is_open and w.sessions.open_of_users == 0
    w.sessions.close(session)
