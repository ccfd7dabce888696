"""Stored batches → pages: from the offset asked for, bounded, without control batches, never past what is corrupt."""

from __future__ import annotations

import gzip
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.records import page as records_out
from http_api.records.page import Page, PageEncoder, PageOptions, native_rows, page, weight
from http_api.web.limits import OFFLOAD_BYTES, SLICE_BYTES, SLICE_RECORDS
from raftlog.errors import RaftlogError
from raftlog.json_values import FORMATS
from raftlog.records.batch import Codec, encode, encode_control
from raftlog.wire import AbortedRange


def batch(base_offset: int, values: list[bytes | None], **options: Any) -> bytes:
    return encode(values, base_offset=base_offset, base_timestamp_ms=1000 + base_offset, **options)


def options(max_records: int = 1000, max_bytes: int = 1 << 20, *, lines: bool = False) -> PageOptions:
    return PageOptions(max_records, max_bytes, native_rows(FORMATS["text"], FORMATS["text"]), lines)


def pieces(found: Page, chosen: PageOptions, *, forgetful: bool = False, **more: Any) -> list[bytes]:
    """All pieces of a page, encoded one after the other."""
    encoder = PageEncoder(found, chosen, **more)
    made = [encoder.next()]
    while not encoder.ended:
        if forgetful:
            encoder.forget()
        made.append(encoder.next())
    return made


def body(found: Page, chosen: PageOptions) -> bytes:
    """The whole page; an array is enclosed in brackets."""
    ends = {} if chosen.lines else {"head": b"[", "tail": b"]"}
    return b"".join(pieces(found, chosen, **ends))


def offsets(found: Page) -> list[int]:
    return [record["offset"] for record in msgspec.json.decode(body(found, options()))]


THREE = batch(10, [b"a", b"b", b"c"]) + batch(13, [b"d"]) + batch(14, [b"e", b"f"])


def test_records_below_the_offset_are_left_out() -> None:
    found = page(THREE, 12, options())
    assert offsets(found) == [12, 13, 14, 15]
    assert (found.next_offset, found.records) == (16, 4)


@pytest.mark.parametrize(
    ("start", "end", "expected", "next_offset"),
    [
        (10, 12, [10, 11], 12),
        (10, 13, [10, 11, 12], 13),
        (12, 15, [12, 13, 14], 15),
        (14, 14, [], 14),
        (10, 100, [10, 11, 12, 13, 14, 15], 16),
        (16, 17, [], 16),
    ],
)
def test_a_page_ends_before_an_offset(start: int, end: int, expected: list[int], next_offset: int) -> None:
    found = page(THREE, start, msgspec.structs.replace(options(), end_offset=end))
    assert (offsets(found), found.next_offset) == (expected, next_offset)


def test_a_page_whose_records_are_gone_ends_at_its_end() -> None:
    """Compaction has removed everything below offset 13."""
    found = page(batch(13, [b"d"]), 10, msgspec.structs.replace(options(), end_offset=12))
    assert (found.records, found.next_offset) == (0, 12)


def test_a_record_has_offset_timestamp_key_value_and_headers() -> None:
    stored = batch(5, [b"v", None], keys=[b"k", None], timestamps_ms=[7, 8], headers=[[("h", b"x"), ("h", None)], None])
    assert msgspec.json.decode(body(page(stored, 5, options()), options())) == [
        {
            "offset": 5,
            "timestamp": 7,
            "key": "k",
            "value": "v",
            "headers": [{"key": "h", "value": "x"}, {"key": "h", "value": None}],
        },
        {"offset": 6, "timestamp": 8, "key": None, "value": None, "headers": []},
    ]


def test_lines_hold_a_record_each() -> None:
    lines = body(page(THREE, 10, options(lines=True)), options(lines=True))
    assert [msgspec.json.decode(line)["value"] for line in lines.splitlines()] == list("abcdef")
    assert lines.endswith(b"\n")


@pytest.mark.parametrize(("most", "seen", "next_offset"), [(1, [11], 12), (2, [11, 12], 13), (3, [11, 12, 13], 14)])
def test_a_page_ends_after_so_many_records(most: int, seen: list[int], next_offset: int) -> None:
    found = page(THREE, 11, options(max_records=most))
    assert (offsets(found), found.next_offset) == (seen, next_offset)


def test_a_page_ends_before_so_many_bytes_but_has_one_record() -> None:
    stored = batch(0, [b"x" * 100] * 5) + batch(5, [b"y" * 100] * 5)
    assert offsets(page(stored, 0, options(max_bytes=250))) == [0, 1]
    assert offsets(page(stored, 4, options(max_bytes=250))) == [4, 5]
    assert offsets(page(stored, 0, options(max_bytes=1))) == [0]
    assert page(stored, 0, options(max_bytes=1)).next_offset == 1
    assert offsets(page(stored, 0, options(max_bytes=500))) == [0, 1, 2, 3, 4]


def test_control_batches_are_passed_over() -> None:
    control = encode_control(1, [(1, 0, 3)], base_timestamp_ms=1, base_offset=3)
    assert offsets(page(batch(0, [b"a"] * 3) + control + batch(4, [b"b"]), 0, options())) == [0, 1, 2, 4]
    alone = page(control, 3, options())
    assert (offsets(alone), alone.next_offset) == ([], 4)


def test_nothing_is_an_empty_page_at_the_same_offset() -> None:
    assert page(b"", 7, options()) == Page(7)
    assert body(Page(7), options()) == b"[]"


def test_a_corrupt_batch_ends_the_page_before_it_and_is_told_when_it_is_first() -> None:
    broken = batch(13, [b"secret"]).replace(b"secret", b"public")
    good = batch(10, [b"a", b"b", b"c"])
    found = page(good + broken, 10, options())
    assert (offsets(found), found.next_offset) == ([10, 11, 12], 13)
    with pytest.raises(RaftlogError) as caught:
        page(broken, 13, options())
    assert caught.value.code == "internal_error"


def test_compressed_batches_weigh_more_than_their_bytes() -> None:
    plain = batch(0, [b"x" * 1000] * 50)
    packed = batch(0, [b"x" * 1000] * 50, codec=Codec.ZSTD)
    assert weight(plain) > len(plain)
    assert weight(packed) > 10 * len(packed)
    assert offsets(page(packed, 49, options())) == [49]


def test_many_small_batches_are_not_weighed_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are weighed on the loop: once it is clear that a thread has to show them, that is enough."""
    looked = []
    parse = records_out.parse_header
    monkeypatch.setattr(records_out, "parse_header", lambda one: looked.append(1) or parse(one))
    one = batch(0, [b"x"])
    assert OFFLOAD_BYTES < weight(one * 50_000) < 2 * OFFLOAD_BYTES
    assert len(looked) < 2_000


@given(
    st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=8), min_size=1, max_size=6),
    st.integers(1, 10),
    st.integers(1, 60),
)
def test_reading_page_by_page_gives_every_record_once(
    batches: list[list[bytes]], max_records: int, max_bytes: int
) -> None:
    stored, end = b"", 0
    for values in batches:
        stored += batch(end, list(values))
        end += len(values)
    seen: list[int] = []
    offset = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records_out, "SLICE_BYTES", 16)
        while offset < end:
            found = page(stored, offset, options(max_records, max_bytes))
            assert 1 <= found.records <= max_records
            assert found.size <= max_bytes or found.records == 1
            seen += offsets(found)
            offset = found.next_offset
    assert seen == list(range(end))


def test_what_is_aborted_is_left_out_by_transaction_and_place() -> None:
    """S13."""

    def batch(base: int, producer_id: int, epoch: int, *, transactional: bool = True) -> bytes:
        named = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": 0}
        values = [b"%d" % base, b"%d" % (base + 1)]
        return encode(values, base_timestamp_ms=1, base_offset=base, transactional=transactional, **named)

    stored = batch(0, 7, 3) + batch(2, 7, 4) + batch(4, 8, 3) + batch(6, 7, 3) + batch(8, 7, 3, transactional=False)
    aborted = [AbortedRange(7, 3, 0, 2), AbortedRange(7, 3, 8, 20), AbortedRange(8, 3, 0, 20)]
    assert offsets(page(stored, 0, options(), aborted)) == [2, 3, 6, 7, 8, 9]
    assert page(stored[: len(batch(0, 7, 3))], 0, options(), aborted).next_offset == 2, "it is read on behind them"


@pytest.mark.parametrize("lines", [True, False])
def test_a_large_page_is_encoded_in_bounded_pieces_and_the_same_after_a_pause(lines: bool) -> None:
    """A reader that does not read holds no decoded batch; its page continues where it was."""
    stored = batch(0, [b"\x01" * 100_000] * 20, codec=Codec.ZSTD) + batch(20, [b"x"] * 10_000)
    chosen = options(100_000, 1 << 24, lines=lines)
    found = page(stored, 0, chosen)
    whole = pieces(found, chosen)
    assert len(whole) > 10 and max(map(len, whole)) <= 6 * (SLICE_BYTES + 100_000) + 100 * SLICE_RECORDS
    assert pieces(found, chosen, forgetful=True) == whole
    records = b"".join(whole).splitlines() if lines else msgspec.json.decode(b"[" + b"".join(whole) + b"]")
    assert len(records) == 10_020 == found.records
    packed = b"".join(pieces(found, chosen, coding="gzip"))
    assert gzip.decompress(packed) == b"".join(whole)
