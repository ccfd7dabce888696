"""Credentials: what is accepted, the header that they become, and that no text of them is shown (S12)."""

from __future__ import annotations

import copy
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import Credentials
from raftlog.client.credentials import MAX_TOKEN
from raftlog.client.settings import ProducerSettings
from raftlog.errors import InvalidRequest
from raftlog.security.secrets import Secret

TOKEN = "rlt_abcdefghijkl_Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXU"


def text(credentials: Credentials) -> str | None:
    header = credentials.header()
    return None if header is None else header.reveal()


def test_headers(tmp_path: Path) -> None:
    """RFC 6750 section 2.1, and the examples of RFC 7617 sections 2 and 2.1."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert text(Credentials(token=TOKEN)) == text(Credentials(token=Secret(TOKEN))) == f"Bearer {TOKEN}"
    assert text(Credentials(token_file=str(file))) == f"Bearer {TOKEN}"
    aladdin = Credentials(user="Aladdin", password="open sesame")
    assert text(aladdin) == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    assert text(Credentials(user="test", password="123\u00a3")) == "Basic dGVzdDoxMjPCow=="
    assert text(Credentials()) is None and Credentials().is_anonymous and not aladdin.is_anonymous


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"token": TOKEN, "token_file": "f"}, "give one credential"),
        ({"token": TOKEN, "user": "alice", "password": "secret-1"}, "give one credential"),
        ({"user": "alice"}, "belong together"),
        ({"password": "secret-1"}, "belong together"),
        ({"token": ""}, "is empty"),
        ({"token": "secret-1 secret-1"}, "is not a token"),
        ({"token": "secret-1\r\nhost: evil"}, "is not a token"),
        ({"token": "secret-1" * MAX_TOKEN}, "is not a token"),
        ({"user": "al:ice", "password": "secret-1"}, "without a colon"),
        ({"user": "al\nice", "password": "secret-1"}, "printable"),
        ({"user": "alice", "password": ""}, "must have 1 to"),
        ({"user": "alice", "password": "secret-1\x00"}, "no control characters"),
        ({"user": "alice", "password": "secret-1" * 200}, "must have 1 to"),
    ],
)
def test_text_that_is_no_credential_is_refused_and_not_shown(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        Credentials(**given)
    assert error.value.code == "invalid_config" and told in error.value.detail
    assert "secret-1" not in "".join(traceback.format_exception(error.value)).replace(repr(given), "")


@given(st.text(max_size=40))
def test_every_text_is_a_header_of_one_line_or_an_error(text_: str) -> None:
    try:
        header = Credentials(token=text_).header()
    except InvalidRequest:
        return
    assert header is not None and header.reveal() == f"Bearer {text_}"
    assert text_.isascii() and text_.isprintable() and " " not in text_


def test_the_environment_gives_a_token_or_a_file(tmp_path: Path) -> None:
    assert text(Credentials.of_environment({"RAFTLOG_TOKEN": f" {TOKEN}\n"})) == f"Bearer {TOKEN}"
    assert Credentials.of_environment({"RAFTLOG_TOKEN": ""}).is_anonymous
    named = Credentials.of_environment({"RAFTLOG_TOKEN_FILE": str(tmp_path / "t")})
    assert named.token_file == str(tmp_path / "t")
    with pytest.raises(InvalidRequest, match="unset one of them"):
        Credentials.of_environment({"RAFTLOG_TOKEN": TOKEN, "RAFTLOG_TOKEN_FILE": "t"})
    with pytest.raises(InvalidRequest, match="the token of RAFTLOG_TOKEN is not a token"):
        Credentials.of_environment({"RAFTLOG_TOKEN": "a b"})


@pytest.mark.parametrize("content", [None, b"", b"\n", b"secret-1 secret-1", b"\xffsecret-1", b"secret-1" * 4000])
def test_a_token_file_without_a_token_is_reported_by_its_name(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidRequest) as error:
        Credentials(token_file=str(file)).header()
    assert str(file) in error.value.detail and "secret-1" not in error.value.detail


def test_no_text_is_shown_compared_in_variable_time_or_pickled() -> None:
    for credentials in (Credentials(token="secret-1"), Credentials(user="alice", password="secret-1")):
        settings = ProducerSettings(credentials=credentials)
        for shown in (repr(credentials), str(credentials), f"{credentials}", repr(settings), credentials.shown):
            assert "secret-1" not in shown and "c2VjcmV0LTE" not in shown
        assert repr(credentials.header()) == "***"
        assert copy.deepcopy(credentials) == credentials != Credentials(token="secret-2")
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(credentials)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"credentials": "rlt_x"}, "credentials must be Credentials(token=...)"),
        ({"ssl": object(), "tls_authority": "a.pem"}, "give either ssl or files"),
        ({"tls_key": "k.pem"}, "tls_key needs its certificate"),
    ],
)
def test_settings_that_contradict_each_other(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        ProducerSettings(**given)
    assert error.value.code == "invalid_config" and told in error.value.detail and "rlt_x" not in error.value.detail
