"""The small files beside a log: one envelope with a CRC for all of them, replaced as a whole or not at all.

    magic b"rlog" | u16 kind | u16 version | u32 payload bytes | payload | u32 CRC-32C of all before     (big-endian)

A file that does not pass the check is damaged: `Disk.replace` leaves no torn ones. `partitions/recovery/recover.py`
decides what follows from that. This module has the payloads of a log's checkpoint and of its leader epochs; indexes
have their own modules.
"""

from __future__ import annotations

import enum
import struct

import msgspec
from crc32c import crc32c

from raftlog.model import LeaderEpoch, Offset
from raftlog.ports import Disk

from .leader_epochs import EpochStart, LeaderEpochHistory

CHECKPOINT_NAME = "checkpoint"
LEADER_EPOCHS_NAME = "leader-epochs"
CLEANER_CHECKPOINT_NAME = "cleaner-checkpoint"
FLUSH_OS_NAME = "flush-os"
"""Marker file: its presence means acknowledged batches may not be fsynced. Its content is ignored."""

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
    """The content of an envelope. Numbers are never reused."""

    CHECKPOINT = 1
    LEADER_EPOCHS = 2
    OFFSET_INDEX = 3
    TIME_INDEX = 4
    PRODUCER_SNAPSHOT = 5
    CLEANER_CHECKPOINT = 6


class DamagedFile(Exception):
    """The file exists, but is not what was written."""


def wrap(kind: Kind, payload: bytes) -> bytes:
    """Wrap the payload in its envelope."""
    head = _HEAD.pack(_MAGIC, kind, _VERSION, len(payload))
    return b"".join((head, payload, _CRC.pack(crc32c(payload, crc32c(head)))))


def unwrap(kind: Kind, content: bytes) -> bytes:
    """Return the payload. Raises `DamagedFile`."""
    if len(content) < _HEAD.size + _CRC.size:
        raise DamagedFile(f"{len(content)} bytes are not an envelope")
    magic, found, version, length = _HEAD.unpack_from(content)
    if (magic, found, version, length) != (_MAGIC, kind, _VERSION, len(content) - _HEAD.size - _CRC.size):
        raise DamagedFile(f"magic {magic!r} kind {found} version {version} length {length} in {len(content)} bytes")
    (crc,) = _CRC.unpack_from(content, len(content) - _CRC.size)
    if crc != crc32c(memoryview(content)[: -_CRC.size]):
        raise DamagedFile("the CRC-32C differs")
    return content[_HEAD.size : -_CRC.size]


class LogCheckpoint(msgspec.Struct, frozen=True):
    """The facts about a log that its batches do not contain.

    Invariant: everything from `log_start_offset` to `recovery_point` was fsynced when this was written.
    """

    log_start_offset: Offset
    recovery_point: Offset
    """The offset below which everything was fsynced: a log that ends below it has lost something."""
    closed_clean: bool
    """Whether a clean close wrote this; reverted before the first write after it."""
    unreported_loss: bool = False
    """Whether recovery could not vouch for the log (S9), and the quorum may not know that.

    Written before anything is cut, so that a crash in between cannot hide the loss.
    """
    emptying: bool = False
    """Whether a job is about to remove every segment on purpose and to begin a new one: until then none need exist."""

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
    """Encode the file `cleaner-checkpoint`: compaction has seen every key below this offset."""
    return wrap(Kind.CLEANER_CHECKPOINT, _CLEANER.pack(first_dirty_offset))


def decode_cleaner_checkpoint(content: bytes) -> Offset:
    """Decode the file `cleaner-checkpoint`. Raises `DamagedFile`."""
    payload = unwrap(Kind.CLEANER_CHECKPOINT, content)
    if len(payload) != _CLEANER.size or payload[0] & 0x80:
        raise DamagedFile("no cleaner checkpoint")
    return Offset(_CLEANER.unpack(payload)[0])


def encode_leader_epochs(entries: tuple[EpochStart, ...]) -> bytes:
    """Encode the file `leader-epochs`."""
    return wrap(Kind.LEADER_EPOCHS, b"".join(_EPOCH.pack(*entry) for entry in entries))


def decode_leader_epochs(content: bytes) -> LeaderEpochHistory:
    """Decode the file `leader-epochs`. Raises `DamagedFile`."""
    payload = unwrap(Kind.LEADER_EPOCHS, content)
    try:
        entries = [EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in _EPOCH.iter_unpack(payload)]
        return LeaderEpochHistory(entries)
    except (struct.error, ValueError) as error:
        raise DamagedFile(str(error)) from None


class ProducerSnapshot(msgspec.Struct, frozen=True):
    """The producer state after the batches below `offset`.

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
    """Return the file's bytes; None if it does not exist."""
    try:
        return disk.read(path)
    except FileNotFoundError:
        return None
