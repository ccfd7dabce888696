"""Bytes → records: their ends, their content, and the input before a fault."""

from __future__ import annotations

import itertools

import pytest

from raftlog.cli.records import input as produce_input
from raftlog.cli.records.columns import Columns, rows_by_partition
from raftlog.cli.records.input import record_input


def read(pieces: list[bytes], format: str = "lines", **options: object) -> Columns:
    """All records of an input that arrives in these pieces."""
    source = record_input(format, **options)  # type: ignore[arg-type]
    whole = Columns([], [], [], [], [])
    for piece in [*pieces, None]:
        columns = source.end() if piece is None else source.feed(piece)
        count = len(columns)
        whole.values += columns.values
        whole.keys += columns.keys or [None] * count  # type: ignore[operator]
        whole.timestamps_ms += columns.timestamps_ms or [None] * count  # type: ignore[operator]
        whole.headers += columns.headers or [()] * count  # type: ignore[operator]
        whole.partitions += columns.partitions or [None] * count  # type: ignore[operator]
        whole.fault = columns.fault
        if columns.fault is not None:
            break
    return whole


def in_two(text: bytes) -> list[list[bytes]]:
    return [[text[:at], text[at:]] for at in range(len(text) + 1)]


class TestLines:
    def test_line_feeds_end_records_and_are_not_part_of_them(self) -> None:
        assert read([b"one\ntwo\r\n\nlast"]).values == [b"one", b"two", b"", b"last"]

    def test_no_input_is_no_record(self) -> None:
        assert read([]).values == []
        assert read([b""]).values == []

    @pytest.mark.parametrize("text", [b"a\r\nb\r\n\r\n\xff\rc\n", b"\n", b"no end", b"\r\n\r"])
    def test_it_does_not_matter_where_the_input_is_cut(self, text: bytes) -> None:
        whole = read([text])
        assert all(read(pieces) == whole for pieces in in_two(text))
        assert read([text[i : i + 1] for i in range(len(text))]) == whole

    def test_the_first_separator_ends_the_key(self) -> None:
        columns = read([b"k=v=w\n=v\nk=\n"], key_separator=b"=")
        assert columns.keys == [b"k", b"", b"k"]
        assert columns.values == [b"v=w", b"v", b""]

    def test_a_line_without_separator_is_named_and_earlier_ones_count(self) -> None:
        columns = read([b"a:1\n", b"b:2\nbad\nc:3\n"], key_separator=b":")
        assert columns.values == [b"1", b"2"]
        assert columns.fault is not None
        assert "line 3" in columns.fault.detail and "':'" in columns.fault.detail

    def test_an_endless_line_does_not_take_all_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(produce_input, "MAX_RECORD_BYTES", 100)
        columns = read([b"ok\n", *[b"x" * 40] * 5])
        assert columns.values == [b"ok"]
        assert columns.fault is not None and "line 2" in columns.fault.detail


class TestRecords:
    def test_a_record_may_have_all_members_of_the_api(self) -> None:
        columns = read(
            [
                b'{"value": "v", "key": "k", "timestamp": 5, "partition": 2, "headers": {"h": "x", "n": null}}\n'
                b'{"value": null}\n'
                b'{"value": {"a": 1.50}, "key": 7, "timestamp": -1, "offset": 3, "headers": [{"key": "h"}]}\n'
                b'{"value": {"base64": "/w=="}}\n'
            ],
            "ndjson",
        )
        assert columns.fault is None
        assert columns.values == [b"v", None, b'{"a": 1.50}', b"\xff"]
        assert columns.keys == [b"k", None, b"7", None]
        assert columns.timestamps_ms == [5, None, None, None]
        assert columns.partitions == [2, None, None, None]
        assert list(map(list, columns.headers or ())) == [[("h", b"x"), ("n", None)], [], [("h", None)], []]

    def test_unused_columns_are_left_out(self) -> None:
        columns = record_input("ndjson").feed(b'{"value": "a"}\n{"value": "b", "key": null}\n')
        others = (columns.keys, columns.timestamps_ms, columns.headers, columns.partitions, columns.fault)
        assert others == (None,) * 5

    def test_blank_lines_are_no_records_and_are_counted(self) -> None:
        columns = read([b'\n{"value": "a"}\n  \n{"value": "b"}\nnot json\n'], "ndjson")
        assert columns.values == [b"a", b"b"]
        assert columns.fault is not None
        assert columns.fault.code == "invalid_json" and columns.fault.detail.startswith("line 5:")

    @pytest.mark.parametrize(
        ("line", "code", "says"),
        [
            (b'{"id": 1}', "invalid_request", "--key-field"),
            (b'{"value": "v", "key": {"base64": "***"}}', "invalid_request", "key"),
            (b'{"value": "v", "headers": {"h": {"base64": 1}}}', "invalid_request", "header"),
            (b'{"value": {"base64": "?"}}', "invalid_request", "value"),
            (b'{"value": "v", "timestamp": -2}', "invalid_request", "timestamp"),
            (b'{"value": "v", "partition": -1}', "invalid_request", "partition"),
            (b'{"value": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "invalid_json", "deep"),
            (b'{"value": "\xff"}', "invalid_json", ""),
            (b"{", "invalid_json", ""),
        ],
    )
    def test_a_fault_is_reported_with_its_line_after_earlier_records(self, line: bytes, code: str, says: str) -> None:
        columns = read([b'{"value": 1}\n' + line + b'\n{"value": 2}\n'], "ndjson")
        assert columns.values == [b"1"]
        assert columns.fault is not None
        assert columns.fault.code == code
        assert columns.fault.detail.startswith("line 2: ") and says in columns.fault.detail

    def test_the_first_of_two_faults_counts(self) -> None:
        columns = read([b'{"value": 1}\n{"value": {"base64": 1}}\n{"value": 2, "key": {"base64": 1}}\n'], "ndjson")
        assert len(columns) == 1
        assert columns.fault is not None and columns.fault.detail.startswith("line 2: value")


class TestKeyField:
    def test_the_object_is_the_value_and_its_field_the_key(self) -> None:
        text = b'{"id": "a", "n": 1.0}\n{"n": 2, "id": 17}\n{"id": null}\n'
        columns = read([text], "ndjson", key_field="id")
        assert columns.values == text.splitlines()
        assert columns.keys == [b"a", b"17", None]

    def test_an_object_without_the_field_is_a_fault(self) -> None:
        columns = read([b'{"id": "a"}\n{"other": "a"}\n'], "ndjson", key_field="id")
        assert columns.keys == [b"a"]
        assert columns.fault is not None and "line 2" in columns.fault.detail and "`id`" in columns.fault.detail

    def test_json_of_several_lines_becomes_one_and_numbers_keep_their_digits(self) -> None:
        columns = read([b'{\n  "id": "a",\n  "n": 1.500\n}'], "json", key_field="id")
        assert columns.values == [b'{"id":"a","n":1.500}']


TRICKY = rb'[ {"value": "}{][\"\\"}, {"value": {"a": ["\\\\", {"b": "\\\""}]}} ,{"value":"\u005c"}]'


class TestJson:
    def test_objects_in_an_array_or_one_after_the_other(self) -> None:
        assert read([b'[{"value": 1}, {"value": 2}]\n'], "json").values == [b"1", b"2"]
        assert read([b'{"value": 1}\n\n{"value":\n 2} {"value": 3}'], "json").values == [b"1", b"2", b"3"]
        assert read([b" [ ] "], "json").values == []

    def test_it_does_not_matter_where_the_input_is_cut(self) -> None:
        whole = read([TRICKY], "json")
        assert whole.fault is None
        assert whole.values == [rb'}{]["' + b"\\", rb'{"a": ["\\\\", {"b": "\\\""}]}', b"\\"]
        for cuts in itertools.combinations(range(len(TRICKY)), 2):
            pieces = [TRICKY[: cuts[0]], TRICKY[cuts[0] : cuts[1]], TRICKY[cuts[1] :]]
            assert read(pieces, "json") == whole, pieces
        assert read([TRICKY[i : i + 1] for i in range(len(TRICKY))], "json") == whole

    @pytest.mark.parametrize(
        ("text", "count", "says"),
        [
            (b'[{"value": 1} {"value": 2}]', 1, "after record 1"),
            (b'[{"value": 1},]', 1, "after record 1"),
            (b'[,{"value": 1}]', 0, "at the beginning"),
            (b'[{"value": 1}] {"value": 2}', 1, "after record 1"),
            (b'[{"value": 1}]]', 1, "after record 1"),
            (b'{"value": 1}, {"value": 2}', 1, "after record 1"),
            (b'"text"', 0, "at the beginning"),
            (b"\xff", 0, "at the beginning"),
            (b'{"value": 1}{"value": "2', 1, "record 2 is incomplete"),
            (b'[{"value": 1}', 1, "array is incomplete"),
            (b'{"value": 1}{"value": 2]', 1, "record 2: "),
        ],
    )
    def test_invalid_json_is_a_fault_after_earlier_records(self, text: bytes, count: int, says: str) -> None:
        for pieces in in_two(text):
            columns = read(pieces, "json")
            assert len(columns) == count
            assert columns.fault is not None and says in columns.fault.detail

    def test_an_endless_object_does_not_take_all_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(produce_input, "MAX_RECORD_BYTES", 100)
        columns = read([b'{"value": 1}{"value": "', *[b"x" * 40] * 5], "json")
        assert columns.values == [b"1"]
        assert columns.fault is not None and "record 2" in columns.fault.detail


def test_rows_keep_their_order_within_each_partition() -> None:
    assert rows_by_partition([1, 0, 1, 1, 0]) == {1: [0, 2, 3], 0: [1, 4]}
    taken = Columns([b"a", b"b", b"c"], [b"x", None, b"z"], [1, 2, 3]).take([2, 0])
    assert (taken.values, taken.keys, taken.timestamps_ms, taken.headers) == ([b"c", b"a"], [b"z", b"x"], [3, 1], None)
    assert taken.sizes() == [2, 2]
