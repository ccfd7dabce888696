"""Passwords: their preparation (RFC 8265), and argon2id. S11, S12."""

from __future__ import annotations

import argon2
import pytest

from raftlog.broker.security.passwords import passwords
from raftlog.broker.security.passwords.passwords import checked_phc, matches, new_material, prepared, unmatched_phc
from raftlog.broker.security.passwords.scram import material_of
from raftlog.errors import InvalidRequest, InvariantViolation
from raftlog.security.secrets import Secret


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("correct horse battery staple", "correct horse battery staple"),
        ("correct horse", "correct horse"),
        ("foo\u1680bar", "foo bar"),
        ("foo\u00a0bar", "foo bar"),
        ("π\u00df\u00e5", "πßå"),
        ("Jack of \u2666s", "Jack of ♦s"),
        ("a\u030a", "å"),
        ("x\u00b2 \ufb01", "x² ﬁ"),
        ("Ａ", "Ａ"),
        (" a ", " a "),
    ],
)
def test_passwords_are_prepared_as_opaque_strings(given: str, used: str) -> None:
    """The examples of RFC 8265 section 4.3; compatibility characters, case and blanks stay as they are."""
    assert prepared(Secret(given)) == used.encode()


@pytest.mark.parametrize(
    "given",
    [
        *("", "my cat is a \tby", "a\x00", "a\x7f", "a\u200d", "a\u202e", "a\ufe0f", "\ud800", "\ue000", "a\u2028"),
        *("\u0378", "\u1100", "\u3164", "x" * 1025, "ä" * 513),
    ],
)
def test_characters_that_nobody_sees_are_refused_without_the_password_s11(given: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prepared(Secret(given))
    assert caught.value.code == "invalid_request"
    assert len(given) < 3 or given not in str(caught.value)


def test_a_new_password_has_eight_characters_s11() -> None:
    with pytest.raises(InvalidRequest, match="at least 8 characters"):
        new_material(Secret("ääääääa"))


def test_a_password_matches_its_hash_and_no_other_does_s12() -> None:
    material = new_material(Secret("pässword 1"))
    assert matches(material.argon2, prepared(Secret("pa\u0308ssword\u00a01")))
    assert not matches(material.argon2, prepared(Secret("pässword 2")))
    assert material.argon2.startswith("$argon2id$v=19$m=32768,t=3,p=1$")
    assert "$" not in repr(material) and "***" in repr(material)


def test_equal_passwords_have_different_hashes_s12() -> None:
    first, second = new_material(Secret("password")), new_material(Secret("password"))
    assert first.argon2 != second.argon2 and first.scram.salt != second.scram.salt


def test_both_forms_come_from_the_same_prepared_password() -> None:
    material = new_material(Secret("passwo\u0308rd"), lambda length: b"s" * length)
    assert material.scram == material_of("passwörd".encode(), b"s" * 32, 8192)
    assert material == new_material(Secret("passwörd"), lambda length: b"s" * length)


def test_the_unmatched_hash_costs_what_a_users_does_s12() -> None:
    phc = unmatched_phc()
    assert argon2.extract_parameters(phc) == argon2.extract_parameters(new_material(Secret("password")).argon2)
    assert not matches(phc, b"password")
    assert phc != unmatched_phc()


@pytest.mark.parametrize(
    "phc",
    [
        "",
        "correct horse",
        "$argon2id$",
        "$argon2i$v=19$m=32768,t=3,p=1$c29tZXNhbHRzb21lc2FsdA$c29tZXNhbHRzb21lc2FsdHNvbWVzYWx0c29tZXNhbHQ",
        "$argon2id$v=19$m=262145,t=3,p=1$c29tZXNhbHRzb21lc2FsdA$c29tZXNhbHRzb21lc2FsdHNvbWVzYWx0c29tZXNhbHQ",
        "$argon2id$v=19$m=32768,t=17,p=1$c29tZXNhbHRzb21lc2FsdA$c29tZXNhbHRzb21lc2FsdHNvbWVzYWx0c29tZXNhbHQ",
        "$argon2id$v=19$m=32768,t=3,p=9$c29tZXNhbHRzb21lc2FsdA$c29tZXNhbHRzb21lc2FsdHNvbWVzYWx0c29tZXNhbHQ",
        "$argon2id$v=19$m=x,t=3,p=1$c29tZXNhbHRzb21lc2FsdA$c29tZXNhbHRzb21lc2FsdHNvbWVzYWx0c29tZXNhbHQ",
    ],
)
def test_a_stored_hash_of_unbounded_cost_is_not_checked_s11(phc: str) -> None:
    with pytest.raises(InvariantViolation, match="a stored password hash") as caught:
        checked_phc(phc)
    assert not phc or phc not in str(caught.value)


def test_a_damaged_hash_is_reported_and_no_match_s11() -> None:
    with pytest.raises(InvariantViolation):
        matches("$argon2id$v=19$m=32768,t=3,p=1$!!!$???", b"password")


def test_the_parameters_are_those_of_rfc_9106_with_half_the_memory() -> None:
    assert (passwords.TIME_COST, passwords.SALT_BYTES, passwords.TAG_BYTES) == (3, 16, 32)
    assert passwords.MEMORY_KIB * 2 == 2**16
