"""The snapshot file: the state machine after one entry of the log, replaced as a whole.

`quorum/snapshot` is `8 bytes magic | u32 CRC-32C of the rest | msgpack [version, cluster id, index, term, state,
configuration]`. It is replaced atomically and durably *before* the journal drops the entries that it covers. If a
journal begins after the snapshot's index, its snapshot was lost, and the node does not start.

A large snapshot is written in slices (`save_in_steps`), each with its own fsync, so that votes and heartbeats are
sent between slices. After the last slice a rename puts it in place of the old one. A partial file left by a crash is
removed at the next start.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from typing import Annotated

import msgspec
from crc32c import crc32c

from metadata.voters.damage import advising
from metadata.voters.identity import FOLDER, QuorumIdentity
from raftlog.errors import DiskDamaged, InvariantViolation
from raftlog.ports import Disk

from .journal import FIRST_INDEX, Journal

PATH = f"{FOLDER}/snapshot"
WRITING_PATH = f"{FOLDER}/snapshot.writing"
MAGIC = b"RLOGSNAP"
FORMAT_VERSION = 1
MAX_SNAPSHOT_BYTES = 256 * 1024 * 1024

SLICE_BYTES = 256 * 1024
"""Bytes written and fsynced at a time; a slice takes some milliseconds."""

_CRC = struct.Struct(">I")
_BIN_32 = struct.Struct(">BI")
"""msgpack's header of a byte string with a four-byte length."""
_HEAD_BYTES = len(MAGIC) + _CRC.size


class _Body(msgspec.Struct, array_like=True, frozen=True):
    version: int
    cluster_id: str
    index: Annotated[int, msgspec.Meta(ge=1)]
    term: Annotated[int, msgspec.Meta(ge=0)]
    state: bytes
    configuration: bytes = b""


class Snapshot(msgspec.Struct, frozen=True):
    """The state machine after entry `index`, which has `term`."""

    index: int
    term: int
    state: bytes
    crc: int
    """CRC-32C of `state`."""
    configuration: bytes = b""
    """The encoded configuration in effect at `index`; if empty, the initial voters."""

    @staticmethod
    def of(index: int, term: int, state: bytes, configuration: bytes = b"") -> Snapshot:
        if len(state) > MAX_SNAPSHOT_BYTES:
            raise InvariantViolation(f"a snapshot of {len(state)} bytes is larger than {MAX_SNAPSHOT_BYTES}")
        return Snapshot(index, term, state, crc32c(state), configuration)


def save_snapshot(disk: Disk, identity: QuorumIdentity, snapshot: Snapshot) -> None:
    """Replace the snapshot; durable on return. Raises `DiskFailed` or `DiskFull`; the old snapshot is kept then."""
    body = msgspec.msgpack.encode(
        _Body(
            FORMAT_VERSION,
            identity.cluster_id,
            snapshot.index,
            snapshot.term,
            snapshot.state,
            snapshot.configuration,
        )
    )
    disk.replace(PATH, b"".join([MAGIC, _CRC.pack(crc32c(body)), body]))


def save_in_steps(
    disk: Disk,
    identity: QuorumIdentity,
    snapshot: Snapshot,
    save_small: Callable[[Disk, QuorumIdentity, Snapshot], None],
) -> Generator[None, None, None]:
    """Write the same file one slice at a time; it is durable when the generator has ended.

    An abandoned generator leaves only a temporary file, which is never read. If the state is no larger than a slice,
    `save_small` writes it. Raises `DiskFailed` or `DiskFull`.
    """
    if len(snapshot.state) <= SLICE_BYTES:
        save_small(disk, identity, snapshot)
        return
    pieces = _pieces(identity, snapshot)
    disk.remove(WRITING_PATH)
    file = disk.open(WRITING_PATH, create=True, exclusive=True)
    try:
        position = _HEAD_BYTES
        crc = 0
        for piece in pieces:
            file.pwritev([piece], position)
            file.fsync()
            crc = crc32c(piece, crc)
            position += piece.nbytes
            yield
        file.pwritev([MAGIC, _CRC.pack(crc)], 0)
        file.fsync()
    finally:
        file.close()
    disk.rename(WRITING_PATH, PATH)
    disk.fsync_directory(FOLDER)


def _pieces(identity: QuorumIdentity, snapshot: Snapshot) -> Iterator[memoryview]:
    """Yield the encoded body in slices without copying the state: the array up to the state, the state, and the
    rest."""
    body = _Body(FORMAT_VERSION, identity.cluster_id, snapshot.index, snapshot.term, b"", snapshot.configuration)
    empty = msgspec.msgpack.encode(b"")
    tail = empty + msgspec.msgpack.encode(snapshot.configuration)
    head = msgspec.msgpack.encode(body).removesuffix(tail)
    yield memoryview(head + _BIN_32.pack(0xC6, len(snapshot.state)))
    for start in range(0, len(snapshot.state), SLICE_BYTES):
        yield memoryview(snapshot.state)[start : start + SLICE_BYTES]
    yield memoryview(tail.removeprefix(empty))


def load_snapshot(disk: Disk, identity: QuorumIdentity) -> Snapshot | None:
    """Return the snapshot, or None if there is none.

    Raises `DiskDamaged`, because a voter never continues without the state that it had, and `InvariantViolation` if
    another version or another cluster wrote it.
    """
    disk.remove(WRITING_PATH)
    try:
        content = disk.read(PATH)
    except FileNotFoundError:
        return None
    body = content[_HEAD_BYTES:]
    with advising(identity.node_id):
        if content[: len(MAGIC)] != MAGIC or content[len(MAGIC) : _HEAD_BYTES] != _CRC.pack(crc32c(body)):
            raise DiskDamaged(f"{PATH} is damaged: its checksum is wrong")
    try:
        decoded = msgspec.msgpack.decode(body, type=_Body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvariantViolation(f"{PATH} cannot be read: {error}") from None
    if decoded.version != FORMAT_VERSION:
        raise InvariantViolation(f"{PATH} has format {decoded.version}, this raftlog knows {FORMAT_VERSION}")
    if decoded.cluster_id != identity.cluster_id:
        raise InvariantViolation(f"{PATH} belongs to cluster {decoded.cluster_id!r}")
    return Snapshot.of(decoded.index, decoded.term, decoded.state, decoded.configuration)


def reconcile(journal: Journal, snapshot: Snapshot | None) -> None:
    """Bring journal and snapshot into agreement after a stop between their two writes.

    Raises `DiskDamaged` if no stop can have left them as they are.
    """
    with advising(journal.node_id):
        _check_one_life(journal, snapshot)
    if snapshot is not None and journal.term_at(snapshot.index) != snapshot.term:
        # The node stopped after it had saved the leader's snapshot and before it replaced its log. Nothing in that
        # log was committed beyond the snapshot.
        journal.reset(snapshot.index, snapshot.term, snapshot.configuration)


def _check_one_life(journal: Journal, snapshot: Snapshot | None) -> None:
    if snapshot is None:
        if journal.base_index != FIRST_INDEX:
            raise DiskDamaged(f"the quorum's log begins after {journal.base_index} and its snapshot is missing")
        return
    if snapshot.index < journal.base_index or snapshot.term > journal.term:
        raise DiskDamaged(
            f"the quorum's snapshot ends at {snapshot.index} of term {snapshot.term}, but its log begins after "
            f"{journal.base_index} in term {journal.term}: they do not belong together"
        )
