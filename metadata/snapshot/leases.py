"""Leases as bytes inside a snapshot: sorted, nothing derived."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from metadata.commands.fields import WireStruct
from metadata.image.lease_state import LeasesState
from metadata.records.leases import LeasedPartition, LeasedRange
from raftlog.model import TopicId, TopicPartition
from raftlog.ports import Buffer

PER_STEP = 500
"""Some milliseconds of work."""


class _Leases(WireStruct, frozen=True):
    group_id: str
    topic_id: TopicId
    partition: int
    committed: int
    next_offset: int
    ranges: tuple[LeasedRange, ...]
    principal: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Leases)
_list_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])


def pack_leases(state: LeasesState) -> Generator[None, None, msgspec.Raw]:
    """Encode all leases in steps; changes applied meanwhile are not included."""
    return _packed(list(state.records()))


def _packed(records: list[LeasedPartition]) -> Generator[None, None, msgspec.Raw]:
    packed: list[msgspec.Raw] = []
    for number, one in enumerate(records, 1):
        place = one.partition
        fields = _Leases(
            one.group_id, place.topic_id, place.partition, one.committed, one.next_offset, one.ranges, one.principal
        )
        packed.append(msgspec.Raw(_encoder.encode(fields)))
        if number % PER_STEP == 0:
            yield
    return msgspec.Raw(_encoder.encode(packed))


def unpack_leases(state: LeasesState, packed: Buffer) -> Generator[None, None, None]:
    """Decode all leases in steps into a state that has none."""
    for number, raw in enumerate(_list_decoder.decode(packed), 1):
        one = _decoder.decode(raw)
        place = TopicPartition(one.topic_id, one.partition)
        state.put(LeasedPartition(one.group_id, place, one.committed, one.next_offset, one.ranges, one.principal))
        if number % PER_STEP == 0:
            yield
