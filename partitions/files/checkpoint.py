"""The small files beside a log: one envelope with a CRC for all of them, replaced as a whole or not at all.

    magic b"rlog" | u16 kind | u16 version | u32 payload bytes | payload | u32 CRC-32C of all before     (big-endian)

A file that does not pass is damaged: `Disk.replace` leaves no torn ones. What follows from that is decided by
`partitions/recovery/recover.py`. Payloads that live here: the checkpoint of a log and its leader epochs; indexes have
their own modules.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from crc32c import crc32c

from raftlog.model import LeaderEpoch, Offset
from raftlog.ports import Disk

from .leader_epochs import EpochStart, LeaderEpochHistory

CHECKPOINT_NAME = "checkpoint"
LEADER_EPOCHS_NAME = "leader-epochs"
CLEANER_CHECKPOINT_NAME = "cleaner-checkpoint"
FLUSH_OS_NAME = "flush-os"
"""Says by being there that acknowledged batches may not be fsynced. What is in it means nothing."""

_MAGIC = b"rlog"
_VERSION = 1
_HEAD = struct.Struct(">4sHHI")
_CRC = struct.Struct(">I")
_CHECKPOINT = struct.Struct(">qqB")
_CLOSED_CLEAN = 1
_UNREPORTED_LOSS = 2
_EMPTYING = 4
_CLEANER = struct.Struct(">q")
_EPOCH = struct.Struct(">iq")
_SNAPSHOT = struct.Struct(">qi")


class Kind(enum.IntEnum):
    """What an envelope holds. Numbers are never used again."""

    CHECKPOINT = 1
    LEADER_EPOCHS = 2
    OFFSET_INDEX = 3
    TIME_INDEX = 4
    PRODUCER_SNAPSHOT = 5
    CLEANER_CHECKPOINT = 6


class DamagedFile(Exception):
    """The file is there and is not what was written."""


def wrap(kind: Kind, payload: bytes) -> bytes:
    """The payload in its envelope."""
    head = _HEAD.pack(_MAGIC, kind, _VERSION, len(payload))
    return b"".join((head, payload, _CRC.pack(crc32c(payload, crc32c(head)))))


def unwrap(kind: Kind, content: bytes) -> bytes:
    """The payload. Raises `DamagedFile`."""
    if len(content) < _HEAD.size + _CRC.size:
        raise DamagedFile(f"{len(content)} bytes are no envelope")
    magic, found, version, length = _HEAD.unpack_from(content)
    if (magic, found, version, length) != (_MAGIC, kind, _VERSION, len(content) - _HEAD.size - _CRC.size):
        raise DamagedFile(f"magic {magic!r} kind {found} version {version} length {length} in {len(content)} bytes")
    (crc,) = _CRC.unpack_from(content, len(content) - _CRC.size)
    if crc != crc32c(memoryview(content)[: -_CRC.size]):
        raise DamagedFile("the CRC-32C differs")
    return content[_HEAD.size : -_CRC.size]


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """What a log must remember that its batches do not say.

    Invariant: everything from `log_start_offset` to `recovery_point` was fsynced when this was written.
    """

    log_start_offset: Offset
    recovery_point: Offset
    """A log that ends below this has lost something."""
    closed_clean: bool
    """Written by a clean close; taken back before the first write after it."""
    unreported_loss: bool = False
    """Recovery could not vouch for the log (S9), and it is not known yet that the quorum was told. Written before
    anything is cut, so that a crash in between cannot make the loss forgotten."""
    emptying: bool = False
    """A job is about to remove every segment on purpose and to begin a new one: until it has, none need be there."""

    def encode(self) -> bytes:
        flags = _CLOSED_CLEAN * self.closed_clean + _UNREPORTED_LOSS * self.unreported_loss
        flags += _EMPTYING * self.emptying
        return wrap(Kind.CHECKPOINT, _CHECKPOINT.pack(self.log_start_offset, self.recovery_point, flags))

    @classmethod
    def decode(cls, content: bytes) -> LogCheckpoint:
        payload = unwrap(Kind.CHECKPOINT, content)
        if len(payload) != _CHECKPOINT.size:
            raise DamagedFile("a checkpoint of another size")
        start, recovery_point, flags = _CHECKPOINT.unpack(payload)
        if not 0 <= start <= recovery_point or flags > _CLOSED_CLEAN | _UNREPORTED_LOSS | _EMPTYING:
            raise DamagedFile(f"start {start}, recovery point {recovery_point}, flags {flags}")
        clean, loss, emptying = (bool(flags & bit) for bit in (_CLOSED_CLEAN, _UNREPORTED_LOSS, _EMPTYING))
        return cls(Offset(start), Offset(recovery_point), clean, loss, emptying)


def encode_cleaner_checkpoint(first_dirty_offset: Offset) -> bytes:
    """The file `cleaner-checkpoint`: below this offset compaction has seen every key."""
    return wrap(Kind.CLEANER_CHECKPOINT, _CLEANER.pack(first_dirty_offset))


def decode_cleaner_checkpoint(content: bytes) -> Offset:
    """Raises `DamagedFile`."""
    payload = unwrap(Kind.CLEANER_CHECKPOINT, content)
    if len(payload) != _CLEANER.size or payload[0] & 0x80:
        raise DamagedFile("no cleaner checkpoint")
    return Offset(_CLEANER.unpack(payload)[0])


def encode_leader_epochs(entries: tuple[EpochStart, ...]) -> bytes:
    """The file `leader-epochs`."""
    return wrap(Kind.LEADER_EPOCHS, b"".join(_EPOCH.pack(*entry) for entry in entries))


def decode_leader_epochs(content: bytes) -> LeaderEpochHistory:
    """Raises `DamagedFile`."""
    payload = unwrap(Kind.LEADER_EPOCHS, content)
    try:
        entries = [EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in _EPOCH.iter_unpack(payload)]
        return LeaderEpochHistory(entries)
    except (struct.error, ValueError) as error:
        raise DamagedFile(str(error)) from None


@dataclass(frozen=True, slots=True)
class ProducerSnapshot:
    """What the batches below `offset` made of the idempotent producers.

    `epoch` is that of the last of those batches: a snapshot of a history that was truncated since does not fit.
    """

    offset: Offset
    epoch: LeaderEpoch
    state: bytes

    def encode(self) -> bytes:
        return wrap(Kind.PRODUCER_SNAPSHOT, _SNAPSHOT.pack(self.offset, self.epoch) + self.state)

    @classmethod
    def decode(cls, content: bytes) -> ProducerSnapshot:
        payload = unwrap(Kind.PRODUCER_SNAPSHOT, content)
        if len(payload) < _SNAPSHOT.size:
            raise DamagedFile("a producer snapshot that is too short")
        offset, epoch = _SNAPSHOT.unpack_from(payload)
        return cls(Offset(offset), LeaderEpoch(epoch), payload[_SNAPSHOT.size :])


def read_file(disk: Disk, path: str) -> bytes | None:
    """The file's bytes, or None where it is absent."""
    try:
        return disk.read(path)
    except FileNotFoundError:
        return None
