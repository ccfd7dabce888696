"""A secret is shown by nothing but `reveal`. S12."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import pickle
import traceback

import msgspec
import pytest

from raftlog.security.presented import Presented
from raftlog.security.secrets import Secret

TEXT = "correct horse battery staple"


@dataclasses.dataclass
class Holder:
    secret: Secret


def test_no_text_form_shows_it_s12() -> None:
    secret = Secret(TEXT)
    texts = [repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", f"{secret:>40}", "%s %r" % (secret, secret)]  # noqa: UP031
    texts += [repr(Holder(secret)), repr([secret]), repr(Presented("::1", secret)), str({"a": secret})]
    texts.append(repr(dataclasses.asdict(Holder(secret))))
    assert not [text for text in texts if TEXT in text]
    assert str(secret) == "***"


def test_a_traceback_with_local_variables_does_not_show_it_s12() -> None:
    secret = Secret(TEXT)
    try:
        raise ValueError(secret)
    except ValueError as error:
        lines = traceback.TracebackException.from_exception(error, capture_locals=True).format()
        assert not [line for line in lines if TEXT in line]


def test_a_log_line_does_not_show_it_s12(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("test").warning("refused %s", Secret(TEXT))
    assert "***" in caplog.text and TEXT not in caplog.text


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_is_not_pickled_s12(protocol: int) -> None:
    for value in (Secret(TEXT), [Secret(TEXT)], Presented("::1", Secret(TEXT))):
        with pytest.raises(TypeError, match="secret") as refused:
            pickle.dumps(value, protocol)
        assert TEXT not in str(refused.value)


def test_it_is_not_serialized_s12() -> None:
    with pytest.raises(TypeError):
        json.dumps(Secret(TEXT))
    with pytest.raises(TypeError):
        msgspec.json.encode(Presented("::1", Secret(TEXT)))
    with pytest.raises(TypeError):
        Secret(TEXT).__getstate__()
    with pytest.raises(TypeError):
        vars(Secret(TEXT))


def test_copies_are_the_same_object() -> None:
    secret = Secret(TEXT)
    assert copy.copy(secret) is secret and copy.deepcopy([secret])[0] is secret


def test_equal_texts_are_equal_secrets() -> None:
    assert Secret("ä\udcff") == Secret("ä\udcff")
    assert Secret("a") != Secret("b") and Secret("a") != "a" and Secret("a") != Secret("aa")
    with pytest.raises(TypeError, match="unhashable"):
        {Secret("a")}


def test_reveal_gives_the_text() -> None:
    assert Secret(TEXT).reveal() == TEXT
