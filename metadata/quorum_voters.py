"""Which disk each voter votes with: a voter that comes back on another one is not the voter that it was.

A voter that lost its disk forgot which entries it acknowledged and whom it voted for; if it went on as before, an
acknowledged entry could be lost or two leaders elected (S9). The voters never change, so every node remembers, durably,
the directory id with which it met each other voter first. One that comes with another directory id gets the log and
counts nowhere, until an operator decides.

What is *not* here: what counting nowhere means (`pysyncobj_core.py`).
"""

from __future__ import annotations

import msgspec

from raftlog.errors import InvariantViolation
from raftlog.model import BrokerId, DirectoryId
from raftlog.ports import Disk

from .quorum_identity import FOLDER, QuorumIdentity

PATH = f"{FOLDER}/voters"
FORMAT_VERSION = 1


class _File(msgspec.Struct, array_like=True, frozen=True):
    version: int
    cluster_id: str
    directories: dict[int, bytes]


class VoterDirectories:
    """The other voters' directory ids, as first met."""

    def __init__(self, disk: Disk, identity: QuorumIdentity) -> None:
        """Raises `InvariantViolation` where the file is damaged."""
        self._disk = disk
        self._cluster_id = identity.cluster_id
        self._known: dict[BrokerId, DirectoryId] = {}
        try:
            file = msgspec.msgpack.decode(disk.read(PATH), type=_File)
        except FileNotFoundError:
            return
        except (msgspec.MsgspecError, ValueError) as error:
            raise InvariantViolation(f"{PATH} is damaged: {error}") from None
        if file.version != FORMAT_VERSION or file.cluster_id != identity.cluster_id:
            raise InvariantViolation(f"{PATH} is of format {file.version} and cluster {file.cluster_id!r}")
        self._known = {BrokerId(voter): DirectoryId(directory) for voter, directory in file.directories.items()}

    def is_the_same(self, voter: BrokerId, directory_id: DirectoryId) -> bool:
        """Whether this is the disk that the voter was met with; at the first meeting it is remembered, durably."""
        known = self._known.get(voter)
        if known is None:
            directories = {**self._known, voter: directory_id}
            packed = {int(number): bytes(directory) for number, directory in sorted(directories.items())}
            self._disk.replace(PATH, msgspec.msgpack.encode(_File(FORMAT_VERSION, self._cluster_id, packed)))
            self._known = directories
        return known is None or known == directory_id
