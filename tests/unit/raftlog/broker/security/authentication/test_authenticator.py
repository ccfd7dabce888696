"""Credentials in, a caller or one error out. S11, S12."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.authentication.authenticator import MAX_AUTHORIZATION
from raftlog.broker.security.identity_provider.access_claims import AccessClaims
from raftlog.broker.security.unauthenticated import TEXT, Unauthenticated
from raftlog.errors import RetriableError
from raftlog.security.presented import Presented
from raftlog.security.principals import ANONYMOUS, Caller, Principal
from raftlog.security.secrets import Secret
from tests.support.security.authenticated_world import (
    HOST,
    AuthenticatedWorld,
    basic,
    bearer,
    hashed,
    header,
)

PASSWORD = "correct horse"


def world(**settings: Any) -> AuthenticatedWorld:
    made = AuthenticatedWorld(**settings)
    made.put_user("alice", PASSWORD)
    made.put_user("bob", "battery staple")
    return made


def caller(name: str, mechanism: str, **more: Any) -> Caller:
    return Caller(Principal(name), HOST, mechanism=mechanism, **more)


class TestEachCredential:
    def test_a_token(self) -> None:
        w = world()
        token = w.put_token("alice")
        found = w.accepted(bearer(token))
        assert found == Authentication(caller("alice", "token"), "alice", 1, token.token_id)

    def test_a_token_is_answered_at_once(self) -> None:
        w = world()
        assert len(w.ask(bearer(w.put_token("alice")))) == 1 and not w.hasher.calls

    def test_a_name_and_password(self) -> None:
        w = world()
        assert w.accepted(basic("alice", PASSWORD)) == Authentication(caller("alice", "password"), "alice", 1)

    def test_a_password_may_have_colons_and_any_letters(self) -> None:
        w = world()
        w.put_user("zoë", "a:b:ü")
        assert w.accepted(basic("zoë", "a:b:ü")).user == "zoë"

    def test_a_certificate(self) -> None:
        assert world().accepted(header(None, certificate="alice")) == Authentication(
            caller("alice", "certificate"), "alice", 1
        )

    def test_an_access_token(self) -> None:
        w = world()
        principal = Principal("carol@example.org", ("analysts",))
        w.access_tokens.valid["a.b.c"] = AccessClaims(principal, 5_000)
        assert w.accepted(bearer("a.b.c")) == Authentication(
            Caller(principal, HOST, mechanism="access_token"), ends_ms=5_000
        )

    @pytest.mark.parametrize("scheme", ["Basic", "basic", "BASIC", " Basic", "Basic  "])
    def test_the_case_of_the_scheme_does_not_matter(self, scheme: str) -> None:
        text = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
        assert world().accepted(header(f"{scheme} {text}")).user == "alice"


class TestRefusals:
    """One text for every cause; the cause is in the report."""

    def test_wrong_credentials_s12(self) -> None:
        w = world()
        token, gone = w.put_token("alice"), w.put_token("alice")
        w.remove_token(gone)
        w.put_user("carol")
        changed = token.text.reveal()[:-1] + ("A" if token.text.reveal()[-1] != "A" else "B")
        cases = [
            (header(None), "no_credential", ""),
            (basic("alice", "wrong"), "wrong_password", "alice"),
            (basic("nobody", PASSWORD), "unknown_user", "nobody"),
            (basic("carol", ""), "user_without_password", "carol"),
            (basic("alice", ""), "wrong_password", "alice"),
            (basic("alice", "x\0y"), "wrong_password", "alice"),
            (bearer(changed), f"unknown_token: token {token.token_id}", ""),
            (bearer(gone), f"unknown_token: token {gone.token_id}", ""),
            (bearer("rlt_short"), "malformed_credential: the text is not a whole token", ""),
            (bearer("x.y.z"), "invalid_access_token: unknown", ""),
            (header(None, certificate="nobody"), "unknown_user", "nobody"),
            (header("Negotiate abc"), "malformed_credential: the scheme", ""),
        ]
        for presented, reason, claimed in cases:
            assert w.refused(presented).startswith(reason)
            assert w.refusals[-1][1] == claimed
            answer = w.answer(presented)
            assert isinstance(answer, Unauthenticated)
            assert (answer.code, answer.detail, str(answer)) == ("unauthenticated", TEXT, f"unauthenticated: {TEXT}")

    @pytest.mark.parametrize(
        "text",
        ["", " ", "Basic", "Bearer", "Basic ", "Basic !", "Basic YWxpY2U=", "Basic /w==", "Basic Ojo=", "Basic é"]
        + ["Basic YTo", "alice", "Bearer é", "Bearer \ud800", "Basic \ud800", "Basic " + "A" * MAX_AUTHORIZATION]
        + ["Basic " + base64.b64encode(name.encode() + b":x").decode() for name in ("*", "ANONYMOUS", " a", "a\n")],
    )
    def test_malformed_headers_s11(self, text: str) -> None:
        for mode in ("required", "optional"):
            assert world(mode=mode, oidc=False).refused(header(text)).startswith("malformed_credential")

    def test_an_expired_token_s12(self) -> None:
        w = world()
        end = w.clock.wall_ms() + 1000
        token = w.put_token("alice", end)
        assert w.accepted(bearer(token)).ends_ms == end
        w.clock.advance(1.0)
        assert w.refused(bearer(token)) == f"expired: token {token.token_id} has expired"

    def test_a_removed_user_is_shut_out_whatever_it_holds_s12(self) -> None:
        w = world()
        token = w.put_token("alice")
        w.accepted(basic("alice", PASSWORD))
        w.remove_user("alice")
        for presented in (basic("alice", PASSWORD), bearer(token), header(None, certificate="alice")):
            w.refused(presented)

    def test_without_an_identity_provider_a_jwt_is_malformed_s12(self) -> None:
        assert "no identity provider is configured" in world(oidc=False).refused(bearer("a.b.c"))

    def test_an_identity_provider_that_is_away_is_no_refusal(self) -> None:
        w = world()
        w.access_tokens.away = True
        answer = w.answer(bearer("a.b.c"))
        assert isinstance(answer, RetriableError) and answer.code == "identity_provider_unavailable"
        assert w.refusals == []

    def test_no_report_has_the_secret_s12(self) -> None:
        w = world()
        token = w.put_token("bob")
        w.remove_user("bob")
        secrets = [PASSWORD + "!", "p4ssw0rd", token.text.reveal(), "eyJ.secret.jwt"]
        w.answer(basic("alice", secrets[0]))
        w.answer(basic("nobody", secrets[1]))
        w.answer(bearer(token))
        w.answer(bearer(secrets[3]))
        w.answer(header(f"Basic {base64.b64encode(secrets[1].encode()).decode()}"))
        assert len(w.refusals) == 5
        for secret in (*secrets, token.text.reveal()[17:], hashed(PASSWORD)):
            assert secret not in repr(w.refusals)


class TestModes:
    def test_off_looks_at_nothing(self) -> None:
        w = world(mode="off")
        for presented in (header(None), header("nonsense"), basic("alice", "wrong"), header(None, certificate="x")):
            assert w.accepted(presented) == Authentication(Caller(ANONYMOUS, HOST))
        assert not w.hasher.calls

    def test_optional_lets_requests_without_a_credential_be_anonymous(self) -> None:
        w = world(mode="optional")
        assert w.accepted(header(None)) == Authentication(Caller(ANONYMOUS, HOST))
        assert w.accepted(basic("alice", PASSWORD)).caller.principal.name == "alice"

    def test_optional_refuses_a_wrong_credential_s12(self) -> None:
        w = world(mode="optional")
        for presented in (basic("alice", "wrong"), bearer("rlt_x"), header(""), header(None, certificate="nobody")):
            w.refused(presented)

    def test_a_certificate_of_a_node_is_no_credential_s12(self) -> None:
        shown = {"subjectAltName": (("URI", "raftlog:/user/alice"), ("URI", "raftlog:/cluster/c1/node/1"))}
        assert world().refused(Presented(HOST, None, shown)) == "no_credential"
        anonymous = world(mode="optional").accepted(Presented(HOST, None, shown))
        assert anonymous.caller.principal == ANONYMOUS and anonymous.caller.node is None


class TestSeveralCredentials:
    def test_they_agree(self) -> None:
        w = world()
        token = w.put_token("alice")
        w.access_tokens.valid["alice"] = AccessClaims(Principal("alice", ("ops",)), 9)
        assert w.accepted(bearer(token, certificate="alice")) == Authentication(
            caller("alice", "token"), "alice", 1, token.token_id
        )
        assert w.accepted(basic("alice", PASSWORD, certificate="alice")).caller == caller("alice", "password")
        assert w.accepted(bearer("alice", certificate="alice")) == Authentication(
            Caller(Principal("alice", ("ops",)), HOST, mechanism="access_token"), "alice", 1, ends_ms=9
        )

    def test_they_disagree_s12(self) -> None:
        w = world()
        w.access_tokens.valid["bob"] = AccessClaims(Principal("bob"), 9)
        for presented in (
            bearer(w.put_token("bob"), certificate="alice"),
            basic("bob", "battery staple", certificate="alice"),
            bearer("bob", certificate="alice"),
        ):
            assert w.refused(presented) == (
                "credentials_disagree: the certificate is of User:alice, the header of User:bob"
            )

    def test_one_of_them_is_wrong_s12(self) -> None:
        w = world()
        assert w.refused(basic("alice", "wrong", certificate="alice")) == "wrong_password"
        assert w.refused(basic("alice", PASSWORD, certificate="nobody")) == "unknown_user"
        assert w.refused(header("nonsense", certificate="alice")).startswith("malformed")
        several = {"subjectAltName": (("URI", "raftlog:/user/alice"), ("URI", "raftlog:/user/bob"))}
        text = f"Bearer {w.put_token('alice').text.reveal()}"
        assert w.refused(Presented(HOST, Secret(text), several)).startswith("ambiguous_certificate")


class TestSuperusers:
    def test_by_the_settings_whatever_authenticated_them(self) -> None:
        w = world(super_users=("User:alice",))
        w.access_tokens.valid["a"] = AccessClaims(Principal("alice"), 9)
        for presented in (basic("alice", PASSWORD), bearer("a"), header(None, certificate="alice")):
            assert w.accepted(presented).caller.superuser
        assert not w.accepted(basic("bob", "battery staple")).caller.superuser

    def test_by_the_quorum_for_its_own_credentials_only_s12(self) -> None:
        w = world()
        w.put_user("root", "very secret", superuser=True)
        w.access_tokens.valid["r"] = AccessClaims(Principal("root"), 9)
        for presented in (basic("root", "very secret"), bearer(w.put_token("root")), header(None, certificate="root")):
            assert w.accepted(presented).caller.superuser
        assert not w.accepted(bearer("r")).caller.superuser
        assert w.accepted(bearer("r", certificate="root")).caller.superuser

    def test_a_group_of_that_name_is_none_s12(self) -> None:
        w = world(super_users=("User:alice",))
        w.access_tokens.valid["x"] = AccessClaims(Principal("mallory", ("User:alice", "alice")), 9)
        assert not w.accepted(bearer("x")).caller.superuser


class TestChangesMeanwhile:
    def test_a_password_that_changes_during_its_check_is_checked_again_s12(self) -> None:
        w = world()
        answers = w.ask(basic("alice", PASSWORD))
        w.put_user("alice", "another one")
        w.worker.run_all()
        assert isinstance(answers[0], Unauthenticated) and w.refusals[-1][3] == "wrong_password"
        answers = w.ask(basic("alice", "a third one"))
        w.put_user("alice", "a third one")
        w.worker.run_all()
        assert isinstance(answers[0], Authentication) and answers[0].user_version == w.index

    def test_a_user_that_is_removed_during_the_check_s12(self) -> None:
        w = world()
        answers = w.ask(basic("alice", PASSWORD))
        w.remove_user("alice")
        w.worker.run_all()
        assert isinstance(answers[0], Unauthenticated) and w.refusals[-1][3] == "unknown_user"

    def test_a_user_that_changes_all_the_time_ends_the_check_s11(self) -> None:
        w = world()
        answers = w.ask(basic("alice", PASSWORD))
        for _ in range(10):
            w.put_user("alice", PASSWORD)
            w.worker.run_all() if not w.worker.pending else w.worker.run_one()
            w.put_user("alice", PASSWORD)
            w.scheduler.run()
        assert len(answers) == 1 and isinstance(answers[0], Unauthenticated)

    def test_the_certificates_user_changes_while_the_header_is_checked_s12(self) -> None:
        w = world()
        answers = w.ask(basic("alice", PASSWORD, certificate="alice"))
        w.remove_user("alice")
        w.worker.run_all()
        assert isinstance(answers[0], Unauthenticated)


@given(st.text(max_size=50), st.sampled_from(["", "Basic ", "Bearer ", "Bearer rlt_"]), st.booleans())
def test_any_header_is_refused_with_one_error_s11(text: str, scheme: str, encoded: bool) -> None:
    w = AuthenticatedWorld(oidc=False)
    if encoded:
        text = base64.b64encode(text.encode()).decode()
    w.refused(header(scheme + text))
