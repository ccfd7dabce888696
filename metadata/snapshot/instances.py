"""HTTP consumer instances as bytes inside a snapshot: sorted, nothing derived."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from metadata.commands.fields import WireStruct
from metadata.commands.groups import TopicPartitions, pack_partitions, unpack_partitions
from metadata.image.instance_state import InstancesState
from metadata.records.groups import in_order
from metadata.records.instances import InstanceRecord, InstanceSettings
from raftlog.model import BrokerId, Incarnation
from raftlog.ports import Buffer

PER_STEP = 500
"""Some milliseconds of work."""


class _Instance(WireStruct, frozen=True):
    group_id: str
    name: str
    settings: InstanceSettings
    principal: str
    owner: BrokerId
    owner_incarnation: Incarnation
    epoch: int
    topics: tuple[str, ...]
    pattern: str
    partitions: tuple[TopicPartitions, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Instance)
_list_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])


def pack_instances(state: InstancesState) -> Generator[None, None, msgspec.Raw]:
    """Encode all instances in steps; changes applied meanwhile are not included."""
    return _packed(list(state.records()))


def _packed(records: list[InstanceRecord]) -> Generator[None, None, msgspec.Raw]:
    packed: list[msgspec.Raw] = []
    for number, record in enumerate(records, 1):
        fields = {**msgspec.structs.asdict(record), "partitions": pack_partitions(record.partitions)}
        packed.append(msgspec.Raw(_encoder.encode(_Instance(**fields))))
        if number % PER_STEP == 0:
            yield
    return msgspec.Raw(_encoder.encode(packed))


def unpack_instances(state: InstancesState, packed: Buffer) -> Generator[None, None, None]:
    """Decode all instances in steps into a state that has none."""
    for number, one in enumerate(_list_decoder.decode(packed), 1):
        instance = _decoder.decode(one)
        fields = {
            **msgspec.structs.asdict(instance),
            "partitions": tuple(in_order(unpack_partitions(instance.partitions))),
        }
        state.put(InstanceRecord(**fields))
        if number % PER_STEP == 0:
            yield
