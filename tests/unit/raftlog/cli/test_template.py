"""Templates of records: fields, encodings, escapes, and what is none of them."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.cli.records.run import RecordRun, runs
from raftlog.cli.records.template import Template
from raftlog.client.consuming.records import ConsumerRecord
from raftlog.errors import InvalidRequest


def record(offset: int = 7, key: bytes | None = b"k", value: bytes | None = b"v\xff", **more: object) -> ConsumerRecord:
    shown = {
        "topic": "orders",
        "partition": 3,
        "timestamp_ms": 1_700_000_000_123,
        "headers": (("h", b"1"), ("i", None)),
    }
    return ConsumerRecord(**(shown | {"offset": offset, "key": key, "value": value} | more))  # type: ignore[arg-type]


def shown(template: str, *records: ConsumerRecord) -> bytes:
    run = RecordRun(records or [record()])
    return Template(template).format(run, len(run))


@pytest.mark.parametrize(
    ("template", "output"),
    [
        ("%t %p %o", b"orders 3 7"),
        ("%k|%v|%s", b"k|v\xff|v\xff"),
        ("%d", b"2023-11-14T22:13:20.123Z"),
        ("%T", b"1700000000123"),
        ("%K,%S", b"1,2"),
        ("%h", b"h=1,i="),
        ("%h{hex}", b"h=31,i="),
        ("%v{hex}", b"76ff"),
        ("%v{base64}", b"dv8="),
        ("%v{utf8}", "v\ufffd".encode()),
        ("%v{json}", b'{"base64":"dv8="}'),
        ("%k{json}", b'"k"'),
        ("%k{raw}", b"k"),
        ("100%% {json}", b"100% {json}"),
        (r"\n\r\t\0\\\x41\xff", b"\n\r\t\0\\A\xff"),
        ("é\n", "é\n".encode()),
    ],
)
def test_fields_and_escapes(template: str, output: bytes) -> None:
    assert shown(template) == output


def test_absent_parts() -> None:
    nothing = record(key=None, value=None, headers=(), timestamp_ms=-1)
    assert shown("[%k][%v][%h][%K][%S][%d][%v{hex}][%v{json}]", nothing) == b"[][][][-1][-1][-][][null]"
    assert shown("%d", record(timestamp_ms=2**62)) == str(2**62).encode()


@pytest.mark.parametrize("template", ["%", "%x", "%t{hex}", "%v{rot13}", "\\", "\\q", "%p %"])
def test_others_are_refused_with_the_reason(template: str) -> None:
    with pytest.raises(InvalidRequest, match="the template of --format is not valid: "):
        Template(template)


@given(st.binary(), st.binary())
def test_encodings_are_reversible(key: bytes, value: bytes) -> None:
    line = shown("%k{hex} %v{base64}", record(key=key, value=value))
    first, _, second = line.partition(b" ")
    assert (bytes.fromhex(first.decode()), base64.b64decode(second)) == (key, value)


@given(st.text(st.characters(exclude_characters="%\\", codec="utf-8")))
def test_other_text_stands_for_itself(text: str) -> None:
    assert shown(text) == text.encode()


def test_only_the_wanted_records_are_shown() -> None:
    run = RecordRun([record(1), record(2), record(3)])
    assert Template("%o;").format(run, 2) == b"1;2;"


def test_runs_keep_the_order_and_never_mix_partitions() -> None:
    mixed = [record(1), record(2), record(1, partition=4), record(3)]
    assert [(run.partition, list(run.offsets())) for run in runs(mixed)] == [(3, [1, 2]), (4, [1]), (3, [3])]
    assert msgspec.json.encode([len(run) for run in runs([])]) == b"[]"
