"""Control batches: markers that brokers write into a partition for its readers.

    payload = msgpack [version, kind, [[producer id, producer epoch, named offset], ...]]

One batch names every producer of a transaction that wrote to this partition, and for each the offset up to which
(exclusive) the decision covers its records. It takes one offset of the log, and is never delivered to users.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgpack
import msgspec

from raftlog.errors import CorruptBatch
from raftlog.ports import Buffer

from .header import MAGIC, BatchHeader, Codec, attributes_of, seal

CONTROL_VERSION = 1

_Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_ProducerId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_ProducerEpoch: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)]
_NamedOffset: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]


class ControlKind(enum.IntEnum):
    """The decision about the named records, with Kafka's numbers."""

    ABORT = 0
    COMMIT = 1


class ControlEntry(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """One producer, and the offset up to which (exclusive) its records are covered; -1 if none is named."""

    producer_id: _ProducerId
    producer_epoch: _ProducerEpoch
    named_offset: _NamedOffset


class Control(msgspec.Struct, array_like=True, frozen=True):
    """The payload of a control batch. `kind` is a `ControlKind`, or a number that this version does not know yet."""

    version: _Int32
    kind: _Int32
    entries: list[ControlEntry]


_decoder = msgspec.msgpack.Decoder(Control)


def encode_control(
    kind: int,
    entries: Iterable[tuple[int, int, int]],
    *,
    base_timestamp_ms: int,
    base_offset: int = 0,
    transactional: bool = True,
) -> bytes:
    """Return one control batch, which the leader stamps. `entries` are (producer id, producer epoch, named offset)."""
    payload = msgpack.packb([CONTROL_VERSION, int(kind), [list(entry) for entry in entries]])
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=attributes_of(Codec.NONE, transactional=transactional, control=True),
        last_offset_delta=0,
        base_timestamp=base_timestamp_ms,
        max_timestamp=base_timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
    )
    return seal(header, [payload])


def decode_control(header: BatchHeader, payload: Buffer) -> Control:
    """Decode the payload of a control batch. Raises `CorruptBatch` if it is malformed or of a later version."""
    if header.codec != Codec.NONE:
        # Each entry becomes an object; a compressed megabyte could hold millions of them.
        raise CorruptBatch("a control batch must not be compressed")
    try:
        control = _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptBatch(f"the payload is not that of a control batch: {error}") from None
    if control.version != CONTROL_VERSION:
        raise CorruptBatch(f"a control batch of version {control.version}; supported is {CONTROL_VERSION}")
    return control
