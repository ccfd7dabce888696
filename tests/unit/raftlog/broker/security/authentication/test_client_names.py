"""The users of client certificates. S11, S12."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.security.authentication.client_names import ClientNames
from raftlog.broker.security.unauthenticated import Cause, Unauthenticated
from raftlog.broker.tls.names import NodeNames
from raftlog.config import DEFAULT_NODE_NAME, DEFAULT_USER_NAME

NODES = NodeNames(DEFAULT_NODE_NAME, "c1")


def certificate(*found: str) -> dict[str, Any]:
    return {"subjectAltName": tuple(tuple(name.split(":", 1)) for name in found)}


def user_of(*found: str, pattern: str = DEFAULT_USER_NAME, cluster: str = "c1") -> str | None:
    return ClientNames(pattern, cluster, NODES.names_a_node).user_of(certificate(*found))


@pytest.mark.parametrize(
    ("pattern", "name", "user"),
    [
        (DEFAULT_USER_NAME, "URI:raftlog:/user/alice", "alice"),
        (DEFAULT_USER_NAME, "URI:raftlog:/user/Zo%C3%AB%20B", "Zoë B"),
        (DEFAULT_USER_NAME, "URI:raftlog:/user/a%2Fb", "a/b"),
        (DEFAULT_USER_NAME, "URI:raftlog:/user/alice@example.org", "alice@example.org"),
        ("URI:spiffe://{cluster_id}/u/{user}", "URI:spiffe://c%201/u/alice", "alice"),
        ("DNS:{user}.clients.example.org", "DNS:Alice.Clients.example.ORG", "alice"),
        ("email:{user}@example.org", "email:Alice.B@example.org", "Alice.B"),
    ],
)
def test_a_certificate_names_a_user(pattern: str, name: str, user: str) -> None:
    assert user_of("DNS:host", name, pattern=pattern, cluster="c 1") == user


@pytest.mark.parametrize(
    "name",
    [
        "URI:raftlog:/user/",
        "URI:raftlog:/user/alice/",
        "URI:raftlog:/user/a/b",
        "URI:raftlog:/user/a b",
        "URI:raftlog:/user/a%2",
        "URI:raftlog:/user/alice?x",
        "URI:raftlog:/user/alice\n",
        "URI:RAFTLOG:/user/alice",
        "DNS:raftlog:/user/alice",
        "URI:xraftlog:/user/alice",
    ],
)
def test_other_names_are_no_users_s12(name: str) -> None:
    assert user_of(name) is None


@pytest.mark.parametrize("shown", [None, {}, {"subjectAltName": ()}, {"subject": ((("commonName", "alice"),),)}])
def test_a_certificate_without_names_is_no_user_s12(shown: Any) -> None:
    assert ClientNames(DEFAULT_USER_NAME, "c1").user_of(shown) is None


@pytest.mark.parametrize(
    "names",
    [
        ["URI:raftlog:/cluster/c1/node/1"],
        ["URI:raftlog:/user/alice", "URI:raftlog:/cluster/c1/node/1"],
        ["URI:raftlog:/user/alice", "URI:raftlog:/cluster/c1/node/1", "URI:raftlog:/cluster/c1/node/2"],
    ],
)
def test_a_certificate_that_names_a_node_is_never_a_user_s12(names: list[str]) -> None:
    assert user_of(*names) is None
    assert user_of(*names, pattern="URI:raftlog:/cluster/c1/node/{user}") is None


def test_a_certificate_of_several_users_is_refused_s12() -> None:
    assert user_of("URI:raftlog:/user/alice", "URI:raftlog:/user/alice", "URI:raftlog:/user/%61lice") == "alice"
    with pytest.raises(Unauthenticated) as caught:
        user_of("URI:raftlog:/user/alice", "URI:raftlog:/user/bob")
    assert caught.value.cause is Cause.AMBIGUOUS_CERTIFICATE


@pytest.mark.parametrize("text", ["*", "ANONYMOUS", "%20a", "a%00b", "%FF", "a%0A", "%E2%80%AEa", "a" * 256])
def test_a_name_that_no_user_can_have_is_refused_s11(text: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        user_of(f"URI:raftlog:/user/{text}")
    assert caught.value.cause is Cause.MALFORMED and "the certificate's name" in caught.value.why


@given(st.lists(st.tuples(st.sampled_from(["URI", "DNS", "email", "IP Address"]), st.text()), max_size=4))
def test_any_names_give_a_user_none_or_one_error_s11(found: list[tuple[str, str]]) -> None:
    names = ClientNames("URI:{user}", "c1", NODES.names_a_node)
    try:
        assert names.user_of({"subjectAltName": tuple(found)}) != ""
    except Unauthenticated as error:
        assert error.code == "unauthenticated"
