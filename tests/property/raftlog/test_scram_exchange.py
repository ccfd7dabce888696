"""SCRAM between an independent client and the server, with any name, password and message. S11, S12."""

from __future__ import annotations

import base64

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from raftlog.broker.security.passwords.passwords import prepared
from raftlog.broker.security.passwords.scram import ScramRefused, ScramServer, material_of
from raftlog.errors import InvalidRequest
from raftlog.security.principals import check_user_name
from raftlog.security.secrets import Secret
from tests.support.security.scram_client import ScramClient

names = st.text(min_size=1, max_size=20)
passwords = st.text(min_size=1, max_size=20)
nonces = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=","), min_size=1, max_size=40)


def is_name(name: str) -> bool:
    try:
        check_user_name(name)
    except InvalidRequest:
        return False
    return True


@settings(max_examples=100, deadline=None)
@given(names, passwords, passwords, nonces, nonces, st.binary(min_size=1, max_size=40))
@example("a=2C,b=3D", "pässword", "password", "a", "b", b"s")
def test_only_the_right_password_gets_in_and_the_server_proves_itself_s12(
    name: str, password: str, other: str, client_nonce: str, server_nonce: str, salt: bytes
) -> None:
    assume(is_name(name))
    try:
        secret, tried = prepared(Secret(password)), prepared(Secret(other))
    except InvalidRequest:
        return
    material = material_of(secret, salt, 10)

    def exchange(tried: bytes) -> bool:
        client = ScramClient(name, tried, client_nonce)
        server = ScramServer(lambda found: material if found == name else None, server_nonce, b"key")
        answer = server.final(client.final(server.first(client.first())))
        assert server.claimed == name
        return client.believes(answer)

    assert exchange(secret)
    if tried != secret:
        try:
            exchange(tried)
        except ScramRefused as error:
            assert error.answer == b"e=invalid-proof" and error.claimed == name
        else:
            raise AssertionError("a wrong password was accepted")


@given(st.binary(max_size=100))
@example(b"n,,n=user,r=")
@example(b",,,")
def test_any_first_message_is_answered_or_refused_s11(message: bytes) -> None:
    server = ScramServer(lambda _: None, "nonce", b"key")
    try:
        answer = server.first(message)
    except ScramRefused as error:
        assert error.answer.startswith(b"e=")
    else:
        assert answer.startswith(b"r=")


@given(st.binary(max_size=100), st.binary(max_size=70))
@example(b"c=biws,r=ab", b"")
def test_any_last_message_without_the_proof_is_refused_s12(message: bytes, proof: bytes) -> None:
    material = material_of(b"pencil", b"salt", 1)
    for final in (message, message + b",p=" + base64.b64encode(proof), b"c=biws,r=ab,p=" + base64.b64encode(proof)):
        server = ScramServer(lambda _: material, "b", b"key")
        server.first(b"n,,n=user,r=a")
        try:
            server.final(final)
        except ScramRefused as error:
            assert error.answer.startswith(b"e=")
        else:
            raise AssertionError("accepted without the password")
