"""Access tokens: the advice of RFC 8725, the claims, and keys that are unknown. S11, S12."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey, OctKey, RSAKey

from raftlog.broker.security.identity_provider.access_tokens import MAX_CHARACTERS, AccessClaims, AccessTokens
from raftlog.broker.security.identity_provider.key_set import KeySet, parse_key_set
from raftlog.broker.security.unauthenticated import TEXT, Cause, Unauthenticated
from raftlog.config import OidcConfig
from raftlog.errors import RaftlogError, RetriableError
from raftlog.security.principals import Principal
from raftlog.security.secrets import Secret
from tests.support.security.identity_provider import (
    AUDIENCE,
    ISSUER,
    NOW,
    NOW_MS,
    IdentityProvider,
    signed,
    unsigned,
)


@functools.cache
def provider() -> IdentityProvider:
    return IdentityProvider()


class Keys:
    """Keys that a reading replaces by `later`."""

    def __init__(self, now: KeySet, later: KeySet | None = None) -> None:
        self.now = now
        self.later = later
        self.readings = 0

    @property
    def is_known(self) -> bool:
        return len(self.now) > 0

    def find(self, key_id: str | None, algorithm: str) -> Any:
        return self.now.find(key_id, algorithm)

    def after_reading(self, then: Callable[[], None]) -> None:
        self.readings += 1
        self.now = self.later or self.now
        then()


def check(text: str, keys: Keys | None = None, now_ms: int = NOW_MS, **settings: str) -> AccessClaims | RaftlogError:
    found = keys or Keys(parse_key_set(provider().published()))
    tokens = AccessTokens(OidcConfig(issuer=ISSUER, audience=AUDIENCE, **settings), found, lambda: now_ms)
    answers: list[AccessClaims | RaftlogError] = []
    tokens.check(Secret(text), answers.append)
    (answer,) = answers
    if isinstance(answer, Unauthenticated):
        assert str(answer) == f"unauthenticated: {TEXT}"
        assert len(text) < 20 or text not in answer.reason
    return answer


def refused(text: str, cause: Cause = Cause.INVALID_ACCESS_TOKEN, why: str = "", **settings: Any) -> None:
    answer = check(text, **settings)
    assert isinstance(answer, Unauthenticated) and answer.cause is cause and why in answer.why, answer


@pytest.mark.parametrize(("key", "algorithm"), [("rsa", "RS256"), ("rsa", "PS256"), ("ec", "ES256"), ("ed", "Ed25519")])
def test_a_token_of_the_provider_is_accepted(key: str, algorithm: str) -> None:
    text = provider().token(key, algorithm, groups=["analysts", "ops", "ops"])
    assert check(text) == AccessClaims(Principal("alice", ("analysts", "ops")), (NOW + 360) * 1000)


def test_eddsa_is_the_older_name_of_ed25519() -> None:
    header = {"alg": "EdDSA", "kid": "ed"}
    payload = json.dumps({"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW + 1}).encode()
    unproved = unsigned(json.dumps(header).encode(), payload).rstrip(".")
    signature = provider().keys["ed"].private_key.sign(unproved.encode())  # type: ignore[union-attr, call-arg]
    assert isinstance(check(unproved + unsigned(b"", b"", signature)[1:]), AccessClaims)


class TestAlgorithms:
    """RFC 8725 sections 2.1 and 3.1."""

    def test_no_signature_s12(self) -> None:
        payload = json.dumps({"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW + 1}).encode()
        for name in ("none", "None", "NONE", ""):
            refused(unsigned(b'{"alg":"%s"}' % name.encode(), payload), why="is not accepted")
        refused(unsigned(b'{"alg":"ES256","kid":"ec"}', payload), why="the signature is not valid")

    def test_the_public_key_as_an_hmac_secret_s12(self) -> None:
        public = provider().keys["rsa"].as_pem(private=False)
        refused(provider().token(OctKey.import_key(public[27:]), "HS256"), why="'HS256' is not accepted")

    def test_a_secret_in_the_key_set_is_no_key_s12(self) -> None:
        shared = OctKey.generate_key(256, {"kid": "oct"})
        keys = json.loads(provider().published())
        keys["keys"].append(shared.as_dict())
        found = parse_key_set(json.dumps(keys).encode())
        assert len(found) == 3
        refused(provider().token(shared, "HS256", {"kid": "oct"}), keys=Keys(found))

    @pytest.mark.parametrize("algorithm", ["RS512", "ES384"])
    def test_other_signatures_s12(self, algorithm: str) -> None:
        key = ECKey.generate_key("P-384") if algorithm == "ES384" else provider().keys["rsa"]
        refused(provider().token(key, algorithm), why=f"{algorithm!r} is not accepted")

    def test_a_key_of_another_family_s12(self) -> None:
        refused(provider().token("ec", "ES256", {"kid": "rsa"}), why="no key of the provider fits")


class TestHeaders:
    """The header is untrusted: RFC 8725 sections 2.7 to 2.9."""

    def test_keys_and_urls_in_the_header_are_ignored_s12(self) -> None:
        own = ECKey.generate_key("P-256")
        header = {"kid": "ec", "jwk": own.as_dict(private=False), "jku": "https://evil.example/", "x5c": ["AA=="]}
        refused(provider().token(own, "ES256", header), why="the signature is not valid")

    @pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"crit": None, "b64": False}, {"crit": []}])
    def test_extensions_s12(self, header: dict[str, Any]) -> None:
        text = json.dumps({"alg": "ES256", "kid": "ec", **{k: v for k, v in header.items() if v is not None}})
        refused(unsigned(text.encode(), b"{}", b"x" * 64), why="requires an extension")

    @pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "application/at+jwt", None])
    def test_access_tokens_by_type(self, kind: str | None) -> None:
        assert isinstance(check(provider().token(header={"typ": kind})), AccessClaims)

    @pytest.mark.parametrize("kind", ["logout+jwt", "dpop+jwt", "secevent+jwt", ""])
    def test_other_types_s12(self, kind: str) -> None:
        refused(provider().token(header={"typ": kind}), why="is no access token")

    def test_unknown_headers_are_ignored(self) -> None:
        assert isinstance(check(provider().token(header={"x5t": "abc", "vendor": {"a": [1]}})), AccessClaims)

    @pytest.mark.parametrize(
        "text",
        [
            *("", ".", "..", "a.b", "a.b.c.d", "é.b.c", "!.b.c", "e30.e30.", "W10.e30.", "bnVsbA.e30.", '"alg"..'),
            *(unsigned(b'{"alg":1}', b"{}"), unsigned(b'{"alg":"ES256","kid":7}', b"{}"), unsigned(b"[" * 2000, b"{}")),
            *(unsigned(b'"alg"', b"{}"), unsigned(b" " * 4000, b"{}"), "a" * (MAX_CHARACTERS + 1)),
        ],
    )
    def test_malformed_tokens_s11(self, text: str) -> None:
        refused(text, Cause.MALFORMED)


class TestSignatures:
    def test_any_change_s12(self) -> None:
        text = provider().token()
        header, payload, signature = text.split(".")
        other = provider().token(sub="bob").split(".")
        refused(f"{header}.{other[1]}.{signature}", why="the signature is not valid")
        refused(f"{header}.{payload}.{other[2]}", why="the signature is not valid")
        refused(f"{header}.{payload}.", why="the signature is not valid")
        refused(f"{header}.{payload}.{signature}A", why="the signature is not valid")
        refused(f"{header}.{payload}.{signature[:-4]}", why="the signature is not valid")

    def test_another_providers_key_with_the_same_id_s12(self) -> None:
        refused(provider().token(ECKey.generate_key("P-256"), "ES256", {"kid": "ec"}), why="not valid")

    def test_a_token_without_key_id(self) -> None:
        """It is accepted if one key fits only, and never tried with several."""
        text = provider().token(provider().keys["rsa"], "RS256")
        assert isinstance(check(text), AccessClaims)
        two = json.loads(provider().published())
        two["keys"].append(RSAKey.generate_key(2048, {"kid": "second"}).as_dict(private=False))
        refused(text, why="without a key id", keys=Keys(parse_key_set(json.dumps(two).encode())))


class TestClaims:
    @pytest.mark.parametrize(
        ("claims", "why"),
        [
            ({"iss": "https://login.example.org"}, "the issuer is"),
            ({"iss": None}, "malformed"),
            ({"iss": 7}, "malformed"),
            ({"aud": "other"}, "another audience"),
            ({"aud": ["other", "raftlog2"]}, "another audience"),
            ({"aud": []}, "another audience"),
            ({"aud": None}, "malformed"),
            ({"aud": {"raftlog": 1}}, "malformed"),
            ({"exp": None}, "malformed"),
            ({"exp": "9999999999"}, "malformed"),
            ({"exp": True}, "malformed"),
            ({"exp": 10**300}, "out of range"),
            ({"exp": -1}, "out of range"),
            ({"nbf": NOW + 61}, f"nbf {NOW + 61} is ahead"),
            ({"iat": NOW + 61}, f"iat {NOW + 61} is ahead"),
            ({"nbf": "soon"}, "malformed"),
            ({"sub": None}, "'sub' is not a text"),
            ({"sub": 7}, "'sub' is not a text"),
            ({"sub": ""}, "1 to 255"),
            ({"sub": "ANONYMOUS"}, "reserved"),
            ({"sub": "*"}, "reserved"),
            ({"sub": "a\nb"}, "U+000A"),
            ({"groups": "analysts"}, "not a list"),
            ({"groups": [7]}, "not a list"),
            ({"groups": ["*"]}, "not a group"),
            ({"groups": [""]}, "1 to 255"),
            ({"groups": ["g"] * 257}, "names 257 groups"),
        ],
    )
    def test_claims_that_are_not_for_us_s12(self, claims: dict[str, Any], why: str) -> None:
        refused(provider().token(**claims), why=why)

    @pytest.mark.parametrize("audience", ["raftlog", ["raftlog"], ["a", "raftlog"]])
    def test_the_audience_is_one_of_several(self, audience: Any) -> None:
        assert isinstance(check(provider().token(aud=audience)), AccessClaims)

    @pytest.mark.parametrize("claims", [{"nbf": NOW + 60}, {"iat": NOW + 60}, {"iat": None}, {"exp": NOW - 59.5}])
    def test_a_minute_of_skew_is_tolerated(self, claims: dict[str, Any]) -> None:
        assert isinstance(check(provider().token(**claims)), AccessClaims)

    def test_a_token_ends_s12(self) -> None:
        text = provider().token(exp=NOW + 300)
        assert isinstance(check(text, now_ms=(NOW + 359) * 1000), AccessClaims)
        for later in (360, 361):  # the same words, so that the audit log counts repetitions into one line
            refused(text, Cause.EXPIRED, f"the access token ended at {NOW + 300}", now_ms=(NOW + later) * 1000)

    def test_other_claims_name_user_and_groups(self) -> None:
        text = provider().token(preferred_username="bob", roles=["a"], groups="ignored")
        answer = check(text, principal_claim="preferred_username", groups_claim="roles")
        assert isinstance(answer, AccessClaims) and answer.principal == Principal("bob", ("a",))

    @pytest.mark.parametrize("payload", [b"", b"[]", b"null", b"7", b"{", b"[" * 5000, b"\xff", b'{"iss":1e999}'])
    def test_a_signed_payload_that_is_no_object_s11(self, payload: bytes) -> None:
        refused(signed(provider().keys["ec"], "ES256", payload, {"kid": "ec"}), why="")


class TestUnknownKeys:
    def test_a_new_key_is_read_once_and_used(self) -> None:
        keys = Keys(parse_key_set(provider().published("rsa")), parse_key_set(provider().published()))
        assert isinstance(check(provider().token("ec"), keys), AccessClaims) and keys.readings == 1
        assert isinstance(check(provider().token("ec"), keys), AccessClaims) and keys.readings == 1

    def test_a_key_that_stays_unknown_s12(self) -> None:
        keys = Keys(parse_key_set(provider().published("rsa")))
        refused(provider().token("ec"), why="of key 'ec' and ES256", keys=keys)

    def test_keys_that_were_never_read_are_no_fault_of_the_token(self) -> None:
        answer = check(provider().token(), Keys(KeySet(())))
        assert isinstance(answer, RetriableError) and answer.code == "identity_provider_unavailable"

    def test_a_token_that_no_key_could_save_causes_no_reading(self) -> None:
        keys = Keys(parse_key_set(provider().published("rsa")))
        for text in ("x", provider().token(OctKey.generate_key(256), "HS256"), provider().token(header={"typ": "x"})):
            assert isinstance(check(text, keys), Unauthenticated)
        assert keys.readings == 0


@given(st.text(st.characters(max_codepoint=0x7F), max_size=60), st.binary(max_size=60), st.binary(max_size=70))
def test_any_text_is_refused_s11(text: str, header: bytes, payload: bytes) -> None:
    for form in (text, f"{text}.{text}.{text}", unsigned(header, payload, payload)):
        assert isinstance(check(form), Unauthenticated)


@given(
    st.dictionaries(
        st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "groups"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
        ),
    )
)
def test_any_signed_claims_give_a_principal_or_one_error_s11(claims: dict[str, Any]) -> None:
    answer = check(signed(provider().keys["ec"], "ES256", json.dumps(claims).encode(), {"kid": "ec"}))
    assert isinstance(answer, AccessClaims | Unauthenticated)
