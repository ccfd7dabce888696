"""SCRAM: the RFCs' examples, and refusals with their error values. S11, S12."""

from __future__ import annotations

import base64

import pytest

from metadata.records.security import ScramMaterial
from raftlog.broker.security.passwords.scram import (
    MAX_MESSAGE,
    ScramRefused,
    ScramServer,
    material_of,
)
from raftlog.broker.security.unauthenticated import Cause
from tests.support.security.scram_client import ScramClient

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
MATERIAL = material_of(b"pencil", SALT, 4096)
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def server(digest: str = "sha512", material: ScramMaterial | None = MATERIAL) -> ScramServer:
    return ScramServer(lambda name: material if name == "user" else None, SERVER_NONCE, b"k" * 32, digest)


def refused(call: object, message: bytes) -> ScramRefused:
    with pytest.raises(ScramRefused) as caught:
        call(message)  # type: ignore[operator]
    return caught.value


class TestExamplesOfTheRfcs:
    """RFC 5802 section 5 (SHA-1), RFC 7677 section 3 (SHA-256), and the latter's inputs with SHA-512."""

    def test_sha_1(self) -> None:
        material = material_of(b"pencil", base64.b64decode("QSXCR+Q6sek8bf92"), 4096, "sha1")
        scram = ScramServer(lambda _: material, "3rfcNHYJY1ZVvWVs7j", b"", "sha1")
        assert scram.first(b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL") == (
            b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
        )
        answer = scram.final(b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=")
        assert answer == b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="

    def test_sha_256(self) -> None:
        scram = server("sha256", material_of(b"pencil", SALT, 4096, "sha256"))
        assert scram.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
            b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        )
        answer = scram.final(
            b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        )
        assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

    def test_sha_512(self) -> None:
        client, scram = ScramClient("user", b"pencil", NONCE), server()
        first = scram.first(client.first())
        final = client.final(first)
        assert final == (
            b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p="
            b"gMGXRcevScNtxZ6/8lQYpGtnsNAc3mGcmNomv+xnoOMw+3R2xNJdMNnzMlTN8PPC6wdp6dybEmDYXYTxwnYPJQ=="
        )
        assert scram.final(final) == (
            b"v=ZQnYEgWQMFmmsM8aQMF0nDDCy/AgCzkwk8CmMZYcMg0vSVlKDanekLtifDSeVGT4+5ZxXnJq199RVG2rR7N7Zw=="
        )
        assert scram.claimed == "user"

    def test_stored_material_of_sha_512(self) -> None:
        """Golden bytes: what the quorum keeps must verify for as long as it is kept."""
        assert MATERIAL.stored_key.hex() == (
            "e8002e6f7d3ae446119b216933644dc2a2be7869eb918b8459b5e7d7d2ec1260"
            "6aceef106825cd735170a675fd3611f684affad1dce3f43a0ee43bd590e1dbbe"
        )
        assert MATERIAL.server_key.hex() == (
            "8d91db6230b5687874fe129bc7206e1858c3ae08e02934f57ac03b6b05a229c4"
            "59d28ff46f5c9611e6c179256490215ec1ff759cb0df285db89af0f99e613aac"
        )


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"", "other-error"),
        (b"n,,", "invalid-username-encoding"),
        (b"n,,n=user", "other-error"),
        (b"n,,n=,r=abc", "invalid-username-encoding"),
        (b"n,,n=us=er,r=abc", "invalid-username-encoding"),
        (b"n,,n=us=2cer,r=abc", "invalid-username-encoding"),
        (b"n,,n=us\x00er,r=abc", "invalid-username-encoding"),
        (b"n,,n=us\xff,r=abc", "invalid-encoding"),
        (b"n,,n=user,r=", "other-error"),
        (b"n,,n=user,r=a\x7f", "other-error"),
        (b"n,,n=user,s=abc", "other-error"),
        (b"n,,m=x,n=user,r=abc", "extensions-not-supported"),
        (b"n,,n=user,r=abc,1=2", "other-error"),
        (b"p=tls-unique,,n=user,r=abc", "channel-binding-not-supported"),
        (b"x,,n=user,r=abc", "other-error"),
        (b"n,b=user,n=user,r=abc", "other-error"),
        (b"n,a=other,n=user,r=abc", "other-error"),
        (b"n,,n=user,r=" + b"a" * MAX_MESSAGE, "other-error"),
    ],
)
def test_a_malformed_first_message_is_refused_s11(message: bytes, error: str) -> None:
    scram = server()
    assert refused(scram.first, message).answer == f"e={error}".encode()
    assert refused(scram.first, b"n,,n=user,r=abc").answer == b"e=other-error"


@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=user,", "y,a=user,"])
def test_headers_without_channel_binding_are_accepted(header: str) -> None:
    client, scram = ScramClient("user", b"pencil", NONCE, header=header), server()
    assert client.believes(scram.final(client.final(scram.first(client.first()))))


def test_extensions_of_kafka_are_ignored() -> None:
    client, scram = ScramClient("user", b"pencil", NONCE), server()
    client.bare += ",tokenauth=true"
    assert client.believes(scram.final(client.final(scram.first(client.first()))))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda final: b"", "other-error"),
        (lambda final: final.partition(b",p=")[0], "other-error"),
        (lambda final: final.replace(b"c=biws", b"c=eSws"), "channel-bindings-dont-match"),
        (lambda final: final.replace(b"c=biws", b"c=!!!!"), "invalid-encoding"),
        (lambda final: final.replace(b"$k0", b"$k1"), "other-error"),
        (lambda final: final.replace(b",p=", b",1=2,p="), "other-error"),
        (lambda final: final.replace(b",p=", b",x=2,p="), "invalid-proof"),
        (lambda final: final[:-5], "invalid-encoding"),
        (lambda final: final.partition(b",p=")[0] + b",p=", "invalid-proof"),
        (lambda final: final.partition(b",p=")[0] + b",p=" + base64.b64encode(b"\0" * 64), "invalid-proof"),
        (lambda final: final.partition(b",p=")[0] + b",p=" + base64.b64encode(b"\0" * 4000), "other-error"),
        (lambda final: b"\xff" + final, "invalid-encoding"),
    ],
)
def test_a_changed_last_message_is_refused_s12(change: object, error: str) -> None:
    client, scram = ScramClient("user", b"pencil", NONCE), server()
    final = client.final(scram.first(client.first()))
    assert refused(scram.final, change(final)).answer == f"e={error}".encode()  # type: ignore[operator]
    assert refused(scram.final, final).answer == b"e=other-error", "no second attempt in one exchange"


def test_no_message_out_of_turn_s12() -> None:
    assert refused(server().final, b"c=biws,r=a,p=aa==").answer == b"e=other-error"
    scram = server()
    scram.first(b"n,,n=user,r=abc")
    assert refused(scram.first, b"n,,n=user,r=abc").answer == b"e=other-error"


def exchange(name: str, password: bytes) -> tuple[bytes, ScramRefused]:
    client, scram = ScramClient(name, password, NONCE), server()
    answer = scram.first(client.first())
    return answer, refused(scram.final, client.final(answer))


def test_an_unknown_name_looks_like_a_wrong_password_s12() -> None:
    wrong, unknown = exchange("user", b"pencils"), exchange("somebody", b"pencil")
    assert wrong[1].answer == unknown[1].answer == b"e=invalid-proof"
    assert str(wrong[1]) == str(unknown[1]) and wrong[1].detail == unknown[1].detail
    assert (wrong[1].cause, unknown[1].cause) == (Cause.WRONG_PASSWORD, Cause.UNKNOWN_USER)
    assert exchange("somebody", b"pencil")[0] == unknown[0], "the salt of an unknown name does not change"
    assert exchange("else", b"pencil")[0] != unknown[0]


def test_a_name_that_no_user_can_have_is_an_unknown_one_s11() -> None:
    for name in ("*", "ANONYMOUS", " user", "us\u202eer"):
        assert exchange(name, b"pencil")[1].cause is Cause.UNKNOWN_USER


def test_stored_material_shows_nothing_s12() -> None:
    assert repr(MATERIAL) == "ScramMaterial(iterations=4096)"
