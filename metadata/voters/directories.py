"""The directory id with which each voter was first met: a voter that returns on another disk is not the same voter.

A voter that lost its disk no longer knows which entries it acknowledged and for whom it voted. If it continued under
its old identity, an acknowledged entry could be lost or two leaders elected (S9). The log says with which disk each
voter votes, but its first configuration has node ids only, since `server init` knows no other node's disk. Until a
leader has added the directory ids, every node remembers, durably, the directory id with which it first met each other
voter. A voter that comes with another one receives the log, but its votes and acknowledgements do not count.

`quorum/voters` is `8 bytes magic | u32 CRC-32C of the rest | msgpack [version, cluster id, {node id: directory id}]`,
replaced atomically. Bit rot in it could make a voter distrust its peers, or trust one that lost its memory. A damaged
file is therefore refused while it is needed; once the log begins with a configuration that names all disks, the file
is no longer read. (Version 1 had neither magic nor checksum. It is read and rewritten.)
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from crc32c import crc32c

from raftlog.errors import DiskDamaged
from raftlog.model import BrokerId, DirectoryId
from raftlog.ports import Disk

from .damage import advising
from .identity import FOLDER, QuorumIdentity

PATH = f"{FOLDER}/voters"
MAGIC = b"RLOGVOTE"
FORMAT_VERSION = 2

_CRC = struct.Struct(">I")
_HEAD_BYTES = len(MAGIC) + _CRC.size

_VERSION_1 = b"\x93\x01"
"""The first bytes of a version 1 file: a msgpack array of three, with the version first."""


class _Body(msgspec.Struct, array_like=True, frozen=True):
    version: int
    cluster_id: str
    directories: dict[int, Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]]


class VoterDirectories:
    """The directory ids with which the other voters were first met."""

    def __init__(self, disk: Disk, identity: QuorumIdentity, *, needed: bool = True) -> None:
        """Load the file.

        `needed`: whether the log does not name all disks from its beginning on. If it is false, the file is not read.
        Raises `DiskDamaged` for a damaged file that is needed, and `DiskFailed`.
        """
        self._disk = disk
        self._identity = identity
        with advising(identity.node_id):
            self._known: dict[BrokerId, DirectoryId] = self._load() if needed else {}

    def is_the_same(self, voter: BrokerId, directory_id: DirectoryId) -> bool:
        """Return whether the voter was first met with this disk. The first meeting is recorded durably."""
        known = self._known.get(voter)
        if known is None:
            directories = {**self._known, voter: directory_id}
            self._save(directories)
            self._known = directories
        return known is None or known == directory_id

    def _save(self, directories: dict[BrokerId, DirectoryId]) -> None:
        packed = {int(number): bytes(directory) for number, directory in sorted(directories.items())}
        body = msgspec.msgpack.encode(_Body(FORMAT_VERSION, self._identity.cluster_id, packed))
        self._disk.replace(PATH, b"".join([MAGIC, _CRC.pack(crc32c(body)), body]))

    def _load(self) -> dict[BrokerId, DirectoryId]:
        try:
            content = self._disk.read(PATH)
        except FileNotFoundError:
            return {}
        body = content[_HEAD_BYTES:]
        old = content.startswith(_VERSION_1)
        if old:
            body = content
        elif content[:_HEAD_BYTES] != MAGIC + _CRC.pack(crc32c(body)):
            raise self._damaged("its checksum is wrong")
        try:
            decoded = msgspec.msgpack.decode(body, type=_Body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise self._damaged(str(error)) from None
        if decoded.version != (1 if old else FORMAT_VERSION) or decoded.cluster_id != self._identity.cluster_id:
            raise self._damaged(f"it is of format {decoded.version} and cluster {decoded.cluster_id!r}")
        known = {BrokerId(voter): DirectoryId(directory) for voter, directory in decoded.directories.items()}
        if old:
            self._save(known)
        return known

    def _damaged(self, why: str) -> DiskDamaged:
        return DiskDamaged(
            f"{PATH} is damaged: {why}. It records the disks with which this node first met the other voters; without "
            "it a voter that lost its disk could count toward a majority again"
        )
