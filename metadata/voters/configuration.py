"""The voters of the quorum as an entry of its log: which nodes vote, and with which disks.

A configuration names each voter by node id *and* directory id, so that an empty or swapped disk never votes under an
old identity (S9). It also records the address of the voter's data listener at the time of writing.

A configuration takes effect where it is appended, committed or not, and is rolled back if its entry is truncated
(Raft dissertation, 4.1). This is safe because consecutive configurations differ by at most one voter, so any majority
of one shares a voter with any majority of the other (`is_single_step`, and the test that enumerates them). A voter on
another disk is another voter, so replacing a disk takes two steps: remove, then add.

The first configuration of a cluster is the one that `server init` wrote. It has node ids only, since no node knew the
disks of the others. The leader adds the directory ids (`pinned`) as soon as it has met the voters; that changes which
disks are named, not which nodes vote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, DirectoryId, Endpoint

CONFIGURATION = b"\x02"
"""The first byte of a configuration entry: pysyncobj's type for membership changes."""

FORMAT_VERSION = 1

MAX_VOTERS = 7
"""Five voters, and room to add replacements before old voters are removed."""

UNKNOWN_DIRECTORY = DirectoryId(b"")
"""The directory id of a voter that no leader has met yet."""


class Voter(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """One voter. `host` is empty if the only known address is the one in the node's own data folder."""

    node_id: Annotated[BrokerId, msgspec.Meta(ge=0, le=2**31 - 1)]
    directory_id: Annotated[DirectoryId, msgspec.Meta(max_length=16)] = UNKNOWN_DIRECTORY
    host: Annotated[str, msgspec.Meta(max_length=255)] = ""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0

    @property
    def pinned(self) -> bool:
        """Whether its directory id is part of the configuration."""
        return self.directory_id != UNKNOWN_DIRECTORY

    @property
    def endpoint(self) -> Endpoint | None:
        """The address of its data listener when the configuration was written."""
        return Endpoint(self.host, self.port) if self.host else None

    @staticmethod
    def of(node_id: BrokerId, directory_id: DirectoryId, endpoint: Endpoint | None) -> Voter:
        """Return the voter with its directory id and address."""
        if endpoint is None:
            return Voter(node_id, directory_id)
        return Voter(node_id, directory_id, endpoint.host, endpoint.port)


class Configuration(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The voters, sorted by node id."""

    version: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    voters: Annotated[tuple[Voter, ...], msgspec.Meta(min_length=1, max_length=64)]

    @staticmethod
    def of(voters: Iterable[Voter]) -> Configuration:
        return Configuration(FORMAT_VERSION, tuple(sorted(voters, key=lambda voter: voter.node_id)))

    @staticmethod
    def initial(node_ids: Iterable[BrokerId]) -> Configuration:
        """Return the configuration that `server init` wrote: node ids only."""
        return Configuration.of(Voter(node_id) for node_id in node_ids)

    @property
    def node_ids(self) -> tuple[BrokerId, ...]:
        return tuple(voter.node_id for voter in self.voters)

    @property
    def is_pinned(self) -> bool:
        """Whether the configuration names the disk of every voter."""
        return all(voter.pinned for voter in self.voters)

    def voter(self, node_id: int) -> Voter | None:
        """Return the voter with this node id, or None."""
        for voter in self.voters:
            if voter.node_id == node_id:
                return voter
        return None

    def with_voter(self, voter: Voter) -> Configuration:
        """Return the configuration with this voter added."""
        return Configuration.of((*self.voters, voter))

    def without(self, node_id: int) -> Configuration:
        """Return the configuration without this voter."""
        return Configuration.of(voter for voter in self.voters if voter.node_id != node_id)

    def pinned(self, met: Mapping[BrokerId, Voter]) -> Configuration:
        """Return the same voters, with directory ids from `met` where the configuration names none."""
        return Configuration.of(voter if voter.pinned else met.get(voter.node_id, voter) for voter in self.voters)


def is_single_step(old: Configuration, new: Configuration) -> bool:
    """Return whether every majority of one configuration shares a voter with every majority of the other.

    That is the case if at most one voter was added or removed and no voter changed its disk. Naming a disk that was not
    named before is not a change of disk.
    """
    kept = set(old.node_ids) & set(new.node_ids)
    for node_id in kept:
        before, after = old.voter(node_id), new.voter(node_id)
        assert before is not None and after is not None
        if before.pinned and before.directory_id != after.directory_id:
            return False
    return len(set(old.node_ids) ^ set(new.node_ids)) <= 1


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Configuration)


def encode_configuration(configuration: Configuration) -> bytes:
    """Encode the configuration as snapshots and the journal's header hold it."""
    return _encoder.encode(configuration)


def decode_configuration(packed: bytes) -> Configuration:
    """Decode a configuration. Raises `RemoteProtocolError` if it is malformed or of another version."""
    try:
        configuration = _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"malformed configuration of the quorum: {error}") from None
    node_ids = list(configuration.node_ids)
    if configuration.version != FORMAT_VERSION or node_ids != sorted(set(node_ids)):
        raise RemoteProtocolError(f"invalid configuration: version {configuration.version}, voters {node_ids}")
    if any(len(voter.directory_id) not in (0, 16) for voter in configuration.voters):
        raise RemoteProtocolError("invalid configuration: malformed directory id")
    return configuration


def encode_entry(configuration: Configuration) -> bytes:
    """Encode the configuration as an entry of the log."""
    return CONFIGURATION + encode_configuration(configuration)


def decode_entry(command: bytes) -> Configuration | None:
    """Return the configuration that an entry holds, or None for another kind of entry. Raises `RemoteProtocolError`."""
    return decode_configuration(command[1:]) if command[:1] == CONFIGURATION else None
