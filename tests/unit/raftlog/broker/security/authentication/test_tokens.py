"""Tokens: their form, and their digest. S11, S12."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.security.authentication.tokens import (
    TOKEN_CHARACTERS,
    digest_of,
    id_of,
    is_that_of,
    is_token,
    new_token,
)
from raftlog.errors import InvalidRequest
from raftlog.security.secrets import Secret


def test_the_bytes_of_a_token() -> None:
    token = new_token(lambda length: bytes(range(length)))
    assert token.text.reveal() == "rlt_aaaqeayeauda_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    assert token.token_id == "aaaqeayeauda" and len(token.text.reveal()) == TOKEN_CHARACTERS
    assert token.digest == hashlib.sha256(token.text.reveal().encode()).digest()


@given(st.binary(min_size=8, max_size=8), st.binary(min_size=32, max_size=32))
def test_every_token_is_parsed(first: bytes, second: bytes) -> None:
    parts = iter((first, second))
    token = new_token(lambda length: next(parts))
    assert is_token(token.text) and id_of(token.text) == token.token_id
    assert is_that_of(digest_of(token.text), token.digest)


def test_tokens_are_all_different_s12() -> None:
    tokens = [new_token() for _ in range(100)]
    assert len({token.digest for token in tokens}) == len({token.token_id for token in tokens}) == 100
    assert tokens[0].text.reveal()[17:] not in repr(tokens[0])


GOOD = "rlt_aaaqeayeauda_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"


@pytest.mark.parametrize(
    "text",
    [
        *("", "rlt_", GOOD[:-1], GOOD + "A", GOOD + "\n", GOOD.upper(), GOOD.replace("_", "-"), "x" + GOOD),
        *(GOOD.replace("a_", "1_"), GOOD[:-1] + "=", GOOD[:-1] + "é", GOOD[:-1] + "\udc80", " " + GOOD),
    ],
)
def test_other_texts_are_refused_without_being_shown_s11(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        id_of(Secret(text))
    assert caught.value.code == "invalid_request"
    assert len(text) < 5 or text[4:] not in str(caught.value)
    assert len(digest_of(Secret(text))) == 32


@given(st.text(max_size=80))
def test_any_text_is_a_token_or_refused_s11(text: str) -> None:
    try:
        assert len(id_of(Secret(text))) == 12
    except InvalidRequest as error:
        assert error.code == "invalid_request"


def test_an_access_token_is_no_token() -> None:
    assert not is_token(Secret("eyJhbGciOiJFUzI1NiJ9.e30.AA")) and is_token(Secret("rlt_"))
