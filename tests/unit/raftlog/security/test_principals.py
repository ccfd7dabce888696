"""Names of principals: what a user, a rule and a host may be."""

from __future__ import annotations

import unicodedata

import pytest

from raftlog.errors import InvalidRequest
from raftlog.security.principals import (
    ANONYMOUS,
    Caller,
    Principal,
    check_principal,
    check_user_name,
    host_of,
    network_of,
)


@pytest.mark.parametrize("name", ["alice", "alice@example.org", "CN=a,O=b", "Zoë", "a" * 255, "two words"])
def test_a_users_name_is_readable_text(name: str) -> None:
    assert check_user_name(name) == name


@pytest.mark.parametrize("name", ["", "a" * 256, " a", "a ", "a\nb", "a\x00", "a\u202eb", "a\u200bb", "*", "ANONYMOUS"])
def test_names_that_would_mislead_a_reader_or_are_reserved_are_refused_s11(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_user_name(name)


@pytest.mark.parametrize("text", ["User:alice", "User:*", "User:ANONYMOUS", "Group:analysts", "User:a:b"])
def test_a_rule_names_a_user_a_group_or_everybody(text: str) -> None:
    assert check_principal(text) == text


@pytest.mark.parametrize(
    "text", ["alice", "user:alice", "Group:*", "Group:ANONYMOUS", "User:", "Group: a", "Role:a", ""]
)
def test_other_principals_are_refused_s11(text: str) -> None:
    with pytest.raises(InvalidRequest):
        check_principal(text)


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_a_host_has_one_form(given: str, canonical: str) -> None:
    assert host_of(given) == canonical


@pytest.mark.parametrize("given", ["", "example.org", "10.0.0.1:80", "10.0.0.0/8", "010.0.0.1"])
def test_a_host_is_an_address(given: str) -> None:
    with pytest.raises(InvalidRequest):
        host_of(given)


def test_a_principal_is_shown_as_kafka_writes_it() -> None:
    assert str(Caller(Principal("alice", ("analysts",)), "::1")) == "User:alice"
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert Principal("alice", ("analysts",)).keys == ("User:alice", "User:*", "Group:analysts")


def test_a_decision_about_a_name_does_not_depend_on_the_interpreter() -> None:
    """All nodes of the quorum must agree: a character that a newer Unicode assigns is taken by all."""
    for name in ("\u0378", "\U0001fae8", "\U00010ec2", "\u31e5", "\U000e0100"):
        assert check_user_name(f"a{name}b") == f"a{name}b"


def test_characters_that_are_not_shown_are_refused_s11() -> None:
    old = unicodedata.ucd_3_2_0
    hidden = {chr(code) for code in range(0xF0010) if old.category(chr(code)) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")}
    isolates = {chr(code) for code in range(0x2060, 0x2070)}
    taken = {character for character in hidden | isolates if is_taken(f"a{character}b")}
    assert taken == set()


def test_blanks_are_taken_only_inside_a_name() -> None:
    """The two that newer versions of Unicode call invisible are refused there, too."""
    old = unicodedata.ucd_3_2_0
    blanks = {chr(code) for code in range(0x10000) if old.category(chr(code)) == "Zs"} - {"\u180e", "\u200b"}
    assert {blank for blank in blanks if is_taken(f"a{blank}b")} == blanks
    assert {blank for blank in blanks if is_taken(f"a{blank}") or is_taken(f"{blank}a")} == set()


def is_taken(name: str) -> bool:
    try:
        check_user_name(name)
    except InvalidRequest:
        return False
    return True


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a text", "a text"),
    ],
)
def test_an_address_of_ipv6_counts_as_its_network_s10(address: str, network: str) -> None:
    assert network_of(address) == network
