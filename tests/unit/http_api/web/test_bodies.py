"""Compressed bodies: every encoding that is taken, and every bomb and ruin that is not."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.web.bodies import Inflater, decode_json
from raftlog.api.topics import CreateTopic
from raftlog.errors import InvalidRequest

LIMIT = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "raw deflate": raw_deflate,
}


def inflate(body: bytes, encoding: str, limit: int = LIMIT, step: int = 1000) -> bytes:
    inflater = Inflater(body, encoding, limit)
    pieces = []
    while not inflater.ended:
        pieces.append(inflater.read(step))
        assert len(pieces[-1]) <= step
    return b"".join(pieces)


@pytest.mark.parametrize("name", ENCODERS)
@given(data=st.binary(max_size=5000), step=st.integers(1, 3000))
def test_what_was_compressed_comes_back(name: str, data: bytes, step: int) -> None:
    assert inflate(ENCODERS[name](data), name.split()[-1], step=step) == data


def test_a_gzip_body_may_have_several_members() -> None:
    assert inflate(gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"two"), "gzip") == b"one two"


@pytest.mark.parametrize("name", ENCODERS)
def test_a_bomb_stops_at_the_limit(name: str) -> None:
    bomb = ENCODERS[name](bytes(50 * LIMIT))
    inflater = Inflater(bomb, name.split()[-1], LIMIT)
    produced = 0
    with pytest.raises(InvalidRequest) as caught:
        while not inflater.ended:
            produced += len(inflater.read(64 * 1024))
    assert caught.value.code == "body_too_large"
    assert produced <= LIMIT
    assert inflate(ENCODERS[name](bytes(LIMIT)), name.split()[-1], step=LIMIT) == bytes(LIMIT)


def test_thousands_of_empty_members_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="there are bytes after"):
        inflate(gzip.compress(b"") * 1000, "gzip")


@pytest.mark.parametrize("name", ENCODERS)
def test_a_ruined_body_is_refused(name: str) -> None:
    encoding = name.split()[-1]
    whole = ENCODERS[name](b"some text that is compressed " * 20)
    for cut in range(len(whole)):
        with pytest.raises(InvalidRequest) as caught:
            inflate(whole[:cut], encoding)
        assert caught.value.code == "invalid_request"
    for ruined in (b"", b"no compression at all", whole + b"more"):
        with pytest.raises(InvalidRequest):
            inflate(ruined, encoding)
    if name != "raw deflate":  # which has no checksum
        with pytest.raises(InvalidRequest):
            inflate(whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:], encoding)


@pytest.mark.parametrize(
    ("body", "code", "named"),
    [
        (b"", "invalid_json", ""),
        (b"{", "invalid_json", ""),
        (b'{"name":"\xff"}', "invalid_json", ""),
        (b'{"name":' + b"[" * 100_000 + b"}", "invalid_request", "$.name"),
        (b"[]", "invalid_request", "object"),
        (b"{}", "invalid_request", "name"),
        (b'{"name":7}', "invalid_request", "$.name"),
        (b'{"name":"t","partitions":0}', "invalid_request", "$.partitions"),
        (b'{"name":"t","partitions":1000000}', "invalid_request", "$.partitions"),
        (b'{"name":"t","partitions":true}', "invalid_request", "$.partitions"),
        (b'{"name":"t","replication_factor":0}', "invalid_request", "$.replication_factor"),
        (b'{"name":"t","partition":1}', "invalid_request", "partition"),
        (b'{"name":"t","configs":{"a":[]}}', "invalid_request", "$.configs"),
        (b'{"name":"t","configs":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", "invalid_request", "$.configs"),
    ],
)
def test_a_json_body_of_another_shape_is_refused_by_name(body: bytes, code: str, named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(body, CreateTopic)
    assert caught.value.code == code, caught.value
    assert named in caught.value.detail
