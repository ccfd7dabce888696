"""The snapshot file: the state machine after one entry of the log, replaced as a whole.

`quorum/snapshot` is `8 bytes magic | u32 CRC-32C of the rest | msgpack [version, cluster id, index, term, state,
configuration]`. It is replaced atomically and durably *before* the journal drops what it covers; so a journal whose log
begins after the snapshot's index was robbed of its snapshot, and the node does not start.

A large one is written in slices (`save_in_steps`), each fsynced by itself, so that votes and heartbeats leave between
two of them. It takes the old one's place with the last, by a rename; what a stop left half written is removed by the
next start.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
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
"""Written and fsynced at a time: some milliseconds."""

_CRC = struct.Struct(">I")
_BIN_32 = struct.Struct(">BI")
"""msgpack's head of bytes whose number has four bytes."""
_HEAD_BYTES = len(MAGIC) + _CRC.size


class _Body(msgspec.Struct, array_like=True, frozen=True):
    version: int
    cluster_id: str
    index: Annotated[int, msgspec.Meta(ge=1)]
    term: Annotated[int, msgspec.Meta(ge=0)]
    state: bytes
    configuration: bytes = b""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state machine after entry `index`, which has `term`."""

    index: int
    term: int
    state: bytes
    crc: int
    """CRC-32C of `state`."""
    configuration: bytes = b""
    """In effect at `index`; empty: the initial voters."""

    @staticmethod
    def of(index: int, term: int, state: bytes, configuration: bytes = b"") -> Snapshot:
        if len(state) > MAX_SNAPSHOT_BYTES:
            raise InvariantViolation(f"a snapshot of {len(state)} bytes is larger than {MAX_SNAPSHOT_BYTES}")
        return Snapshot(index, term, state, crc32c(state), configuration)


def save_snapshot(disk: Disk, identity: QuorumIdentity, snapshot: Snapshot) -> None:
    """Replace the snapshot; durable when this returns. Raises `DiskFailed` or `DiskFull`: the old one is there then."""
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
    """The same file, a slice at a time: durable when this has ended. Whoever does not go on leaves nothing that counts.
    What is no larger than a slice goes to `save_small`. Raises `DiskFailed` or `DiskFull`."""
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
    """The body in slices, the state in it not copied: what goes before it in the coded array, it, and what follows."""
    body = _Body(FORMAT_VERSION, identity.cluster_id, snapshot.index, snapshot.term, b"", snapshot.configuration)
    empty = msgspec.msgpack.encode(b"")
    tail = empty + msgspec.msgpack.encode(snapshot.configuration)
    head = msgspec.msgpack.encode(body).removesuffix(tail)
    yield memoryview(head + _BIN_32.pack(0xC6, len(snapshot.state)))
    for start in range(0, len(snapshot.state), SLICE_BYTES):
        yield memoryview(snapshot.state)[start : start + SLICE_BYTES]
    yield memoryview(tail.removeprefix(empty))


def load_snapshot(disk: Disk, identity: QuorumIdentity) -> Snapshot | None:
    """The snapshot, if there is one. Raises `DiskDamaged`: a voter never goes on without the state that it had; and
    `InvariantViolation` where another version or another cluster wrote it."""
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
    """Make one log of journal and snapshot, as a stop between their two writes may have left them. Raises `DiskDamaged`
    where no stop can have."""
    with advising(journal.node_id):
        _check_one_life(journal, snapshot)
    if snapshot is not None and journal.term_at(snapshot.index) != snapshot.term:
        # Installed from a leader, and stopped before the log gave way: nothing in it was committed beyond.
        journal.reset(snapshot.index, snapshot.term, snapshot.configuration)


def _check_one_life(journal: Journal, snapshot: Snapshot | None) -> None:
    if snapshot is None:
        if journal.base_index != FIRST_INDEX:
            raise DiskDamaged(f"the quorum's log begins after {journal.base_index} and its snapshot is missing")
        return
    if snapshot.index < journal.base_index or snapshot.term > journal.term:
        raise DiskDamaged(
            f"the quorum's snapshot ends at {snapshot.index} of term {snapshot.term}, but its log begins after "
            f"{journal.base_index} in term {journal.term}: they are not of one node's life"
        )
