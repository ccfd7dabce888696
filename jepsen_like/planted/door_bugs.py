"""Bugs of a node's doors: authentication, authorization and the end of streams, each left out at one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from metadata.records.events import TokenRemoved, UserChanged, UserRemoved
from raftlog.broker.requests import guarded_members
from raftlog.broker.requests.data_listener import SecureAcceptors
from raftlog.broker.requests.guarded import GuardedRequests
from raftlog.broker.requests.guarded_members import GuardedMembers
from raftlog.broker.requests.refusals import Refusals, WatchedTopics
from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.authentication.sessions import Sessions
from raftlog.broker.tls.names import NodeNames
from raftlog.security.acls import ResourceType
from raftlog.security.principals import ANONYMOUS, Caller
from raftlog.wire import CommitOffsetsRequest

from .patches import Patch, Planted, original

DOORS = "doors of a node"

_on_events = original(Sessions, "on_events")
_forward = original(SecureAcceptors, "_forward")
_needs_of = original(guarded_members, "needs_of")


def _without(*kinds: type) -> Callable[..., None]:
    def on_events(sessions: Any, index: int, events: Sequence[Any]) -> None:
        _on_events(sessions, index, [event for event in events if not isinstance(event, kinds)])

    return on_events


def _forward_for_everyone(acceptors: Any, stream: Any) -> Any:
    stream.peer_node = max(stream.peer_node, 0)
    return _forward(acceptors, stream)


def _serve_at_once(acceptors: Any, kinds: Any) -> Callable[[Any], Any]:
    """Accept a stream while its credential is being checked."""

    def accept(stream: Any) -> Any:
        return acceptors._of_caller(stream, Authentication(Caller(ANONYMOUS, "", superuser=True)), kinds)

    return accept


def _needs_without_topics(request: Any, view: Any) -> Iterator[Any]:
    for need in _needs_of(request, view):
        if not isinstance(request, CommitOffsetsRequest) or need.resource.type is not ResourceType.TOPIC:
            yield need


def _pass_all(guard: Any, current: Any, request: Any, done: Any) -> Any:
    return guard._local.fetch_session(current, request, done)


def _hear_all(guard: Any, request: Any) -> Any:
    return guard._groups.hear(request)


def _any_node(names: Any, certificate: Mapping[str, Any] | None) -> Any:
    return 0


def _bug(name: str, hole: str, closed_by: str, owner: Any, replaced: str, by: Any) -> Planted:
    return Planted(name, hole, closed_by, (Patch(owner, replaced, by),), DOORS)


DOOR_BUGS = (
    _bug(
        "served_before_it_is_authenticated",
        "a stream is served while its credential is being checked",
        "SecureAcceptors accepts a stream when its caller is known",
        SecureAcceptors, "_client", _serve_at_once,
    ),
    _bug(
        "a_revoked_token_keeps_its_streams",
        "an open stream outlives its token",
        "Sessions.on_events ends it",
        Sessions, "on_events", _without(TokenRemoved),
    ),
    _bug(
        "a_removed_user_keeps_its_streams",
        "a stream that a certificate opened outlives its user",
        "Sessions.on_events ends it",
        Sessions, "on_events", _without(UserChanged, UserRemoved),
    ),
    _bug(
        "an_expired_token_keeps_its_streams",
        "an open stream outlives the time of its token",
        "Sessions looks at the time",
        Sessions, "_wait", lambda sessions: None,
    ),
    _bug(
        "any_stream_forwards",
        "a stranger's word that it is a superuser is believed",
        "SecureAcceptors._forward demands a node's certificate",
        SecureAcceptors, "_forward", _forward_for_everyone,
    ),
    _bug(
        "any_certificate_is_a_node",
        "a user's certificate opens the paths of nodes",
        "NodeNames.node_of",
        NodeNames, "node_of", _any_node,
    ),
    _bug(
        "a_commit_needs_no_topic",
        "offsets of a topic are committed without the right to read it",
        "needs_of names the topics of a commit",
        guarded_members, "needs_of", _needs_without_topics,
    ),
    _bug(
        "refused_partitions_are_served",
        "a request is carried out for the refused partitions too",
        "Refusals.without",
        Refusals, "without", lambda refusals, items: list(items),
    ),
    _bug(
        "sessions_are_not_guarded",
        "a fetch session reads every topic",
        "GuardedRequests.fetch_session",
        GuardedRequests, "fetch_session", _pass_all,
    ),
    _bug(
        "polls_outlive_their_rule",
        "a long poll is answered after its caller lost the topic",
        "WatchedTopics checks again when rules change",
        WatchedTopics, "_check_again", lambda watched: None,
    ),
    _bug(
        "heartbeats_are_not_guarded",
        "a member of a group is kept alive without the right to read the group",
        "GuardedMembers.hear",
        GuardedMembers, "hear", _hear_all,
    ),
)  # fmt: skip
