"""Values in JSON: their stored and shown forms, and that neither loses a byte."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import InvalidRequest
from raftlog.json_values import FORMATS, MAX_SHOWN_DEPTH, show_column, value_bytes
from raftlog.json_values import encode as encode_json


def shown(value: bytes | None, how: str) -> Any:
    """As a client sees it."""
    return msgspec.json.decode(encode_json(FORMATS[how](value)))


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (b'"plain"', b"plain"),
        (b'""', b""),
        (b'"caf\\u00e9 \\ud83d\\ude00 \\n"', "café 😀 \n".encode()),
        (b"null", None),
        (b"true", b"true"),
        (b"1.50", b"1.50"),
        (b"123456789012345678901234567890.1e5", b"123456789012345678901234567890.1e5"),
        (b'{"a" : [1, 2]}', b'{"a" : [1, 2]}'),
        (b'{"base64":"AAH/"}', b"\x00\x01\xff"),
        (b'{"base64":""}', b""),
        (b'{"b\\u0061se64":"AAH/"}', b"\x00\x01\xff"),
        (b'{"base64":"AAH/","more":1}', b'{"base64":"AAH/","more":1}'),
        (b'["base64"]', b'["base64"]'),
    ],
)
def test_the_stored_form_of_a_json_value(text: bytes, stored: bytes | None) -> None:
    assert value_bytes(text) == stored


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b'{"base64":"A"}', "invalid_request"),
        (b'{"base64":"!!!!"}', "invalid_request"),
        (b'{"base64":7}', "invalid_request"),
        (b'"\xff"', "invalid_json"),
        (b'{"a":"\xff"}', "invalid_json"),
        (b'["\xc3"]', "invalid_json"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused(text: bytes, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        value_bytes(text)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("value", "auto", "text", "json"),
    [
        (None, None, None, None),
        (b"", "", "", {"base64": ""}),
        (b"words", "words", "words", {"base64": "d29yZHM="}),
        (b"12", "12", "12", 12),
        (b"null", "null", "null", {"base64": "bnVsbA=="}),
        (b'"quoted"', '"quoted"', '"quoted"', "quoted"),
        (b'{"a":1}', {"a": 1}, '{"a":1}', {"a": 1}),
        (b'[1,\n {"b": null}]', [1, {"b": None}], '[1,\n {"b": null}]', [1, {"b": None}]),
        (b"{broken", "{broken", "{broken", {"base64": "e2Jyb2tlbg=="}),
        (b'{"a":1} x', '{"a":1} x', '{"a":1} x', {"base64": "eyJhIjoxfSB4"}),
        (b"\xff\xfe", {"base64": "//4="}, {"base64": "//4="}, {"base64": "//4="}),
        (b'["\xff"]', {"base64": "WyL/Il0="}, {"base64": "WyL/Il0="}, {"base64": "WyL/Il0="}),
        (
            b'{"base64":"QQ=="}',
            {"base64": "eyJiYXNlNjQiOiJRUT09In0="},
            '{"base64":"QQ=="}',
            {"base64": "eyJiYXNlNjQiOiJRUT09In0="},
        ),
    ],
)
def test_the_shown_form_of_a_stored_value(value: bytes | None, auto: Any, text: Any, json: Any) -> None:
    assert shown(value, "auto") == auto
    assert shown(value, "text") == text
    assert shown(value, "json") == json


@given(st.one_of(st.none(), st.binary(max_size=60), st.text(max_size=30).map(str.encode)))
def test_every_format_but_json_reads_back_to_the_same_bytes_or_the_same_json(value: bytes | None) -> None:
    for how in ("auto", "text", "base64"):
        seen = encode_json(FORMATS[how](value))
        back = value_bytes(seen)
        if how == "auto" and value and value[:1] in {b"{", b"["} and seen[:1] in b"{[" and back != value:
            assert back is not None
            assert msgspec.json.decode(back) == msgspec.json.decode(value)
        else:
            assert back == value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_stored_json_is_shown_as_that_json(value: Any) -> None:
    text = encode_json(value)
    stored = value_bytes(text)
    if isinstance(value, str) or stored is None or (isinstance(value, dict) and set(value) == {"base64"}):
        return
    assert shown(stored, "json") == msgspec.json.decode(text)
    if isinstance(value, dict | list):
        assert shown(stored, "auto") == msgspec.json.decode(text)


def test_the_shown_form_is_one_line() -> None:
    assert b"\n" not in encode_json(FORMATS["auto"](b'{\n "a": [1,\r\n2]\n}'))


def test_deeply_nested_json_is_shown_as_text_so_that_readers_can_parse_the_page() -> None:
    fits = b"[" * MAX_SHOWN_DEPTH + b"]" * MAX_SHOWN_DEPTH
    deeper = b"[" + fits + b"]"
    assert shown(fits, "auto") == msgspec.json.decode(fits)
    assert shown(deeper, "auto") == deeper.decode()
    assert set(shown(deeper, "json")) == {"base64"}
    bottomless = b"[" * 100_000 + b"]" * 100_000
    assert shown(bottomless, "auto") == bottomless.decode()


def test_brackets_in_strings_are_no_nesting() -> None:
    text = encode_json({"a": "[" * 500 + '"\\' + "{" * 500})
    assert shown(text, "auto") == msgspec.json.decode(text)
    flat = encode_json([[] for _ in range(500)])
    assert shown(flat, "auto") == msgspec.json.decode(flat)


@pytest.mark.parametrize("how", FORMATS)
@given(
    st.lists(
        st.none()
        | st.binary(max_size=8)
        | st.text(max_size=8).map(str.encode)
        | st.sampled_from([b"{}", b"[1]", b"null", b'{"base64":"AA=="}', b"{", b"\xff"])
    )
)
def test_a_column_is_shown_as_its_values_are(how: str, values: list[bytes | None]) -> None:
    column = show_column(FORMATS[how], values)
    assert encode_json(list(column)) == encode_json([FORMATS[how](value) for value in values])
