"""The caller before a forwarded message. S12."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raftlog.broker.requests.forwarded import MAX_CALLER_BYTES, head_of, split_caller
from raftlog.errors import InvalidRequest
from raftlog.security.principals import ANONYMOUS, Caller, Principal
from raftlog.wire import OffsetQuery, OffsetsRequest, encode

ALICE = Caller(Principal("alice", ("analysts",)), "10.0.0.7", superuser=True, mechanism="token")
GOLDEN = bytes.fromhex(
    "0000002a"
    "96"
    "a8" + b"caller.1".hex() + "a5" + b"alice".hex() + "91"
    "a8" + b"analysts".hex() + "a8" + b"10.0.0.7".hex() + "c3" + "a5" + b"token".hex()
)
MESSAGE = b"".join(bytes(part) for part in encode(OffsetsRequest(1, [OffsetQuery(b"t" * 16, 0, -1)])))  # type: ignore[arg-type]

texts = st.text(max_size=20)
callers = st.builds(
    Caller,
    st.builds(Principal, texts, st.lists(texts, max_size=3).map(tuple)),
    texts,
    superuser=st.booleans(),
    mechanism=texts,
)


def test_the_bytes_are_fixed() -> None:
    assert bytes(head_of(ALICE)) == GOLDEN


@given(callers, st.binary(max_size=40))
@example(Caller(ANONYMOUS, ""), b"")
def test_a_caller_arrives_as_it_was_sent(caller: Caller, message: bytes) -> None:
    found, rest = split_caller(bytes(head_of(caller)) + message)
    assert (found, bytes(rest)) == (caller, message)


def test_a_message_without_a_caller_is_left_alone() -> None:
    assert split_caller(MESSAGE) == (None, MESSAGE)


@given(st.integers(0, len(GOLDEN) - 1), st.integers(0, 255))
def test_damaged_callers_are_refused_or_are_other_callers_s11(position: int, byte: int) -> None:
    damaged = bytearray(GOLDEN + MESSAGE)
    damaged[position] = byte
    try:
        caller, rest = split_caller(damaged)
    except InvalidRequest:
        return
    assert caller is None or len(rest) <= len(damaged)


@given(st.binary(max_size=100))
def test_any_bytes_are_split_or_refused_s11(some: bytes) -> None:
    try:
        caller, rest = split_caller(some)
    except InvalidRequest:
        return
    assert caller is not None or rest == some


@pytest.mark.parametrize("length", [MAX_CALLER_BYTES + 1, len(GOLDEN) + 1, 2**32 - 1])
def test_impossible_lengths_are_refused(length: int) -> None:
    with pytest.raises(InvalidRequest, match="malformed caller"):
        split_caller(length.to_bytes(4, "big") + GOLDEN[4:])
