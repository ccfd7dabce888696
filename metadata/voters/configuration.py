"""The voters of the quorum as an entry of its log: who votes, and with which disk.

A configuration names each voter by node id *and* directory id, so that an empty or a swapped disk never votes under an
old identity (S9), and says where the voter's data listener was when it was written.

It takes effect where it is appended, committed or not, and is rolled back where it is truncated (Raft dissertation,
4.1). That is safe because two configurations that follow one another differ by at most one voter: any majority of the
one shares a voter with any majority of the other (`is_single_step`, and the test that counts them all). A voter on
another disk is another voter, so a replaced disk is two steps: out, then in.

The first configuration of a cluster is what `server init` wrote: node ids alone, since nobody knew the others' disks.
Its leader writes the directory ids down as soon as it has met them (`pinned`); that changes who is named, not who
votes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, DirectoryId, Endpoint

CONFIGURATION = b"\x02"
"""The first byte of such an entry: pysyncobj's kind of a membership change."""

FORMAT_VERSION = 1

MAX_VOTERS = 7
"""Five, and room to add before one removes."""

UNKNOWN_DIRECTORY = DirectoryId(b"")
"""Of a voter that no leader has met yet."""


class Voter(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """One voter. `host` is empty where no address is known beyond what the node's own folder says."""

    node_id: Annotated[BrokerId, msgspec.Meta(ge=0, le=2**31 - 1)]
    directory_id: Annotated[DirectoryId, msgspec.Meta(max_length=16)] = UNKNOWN_DIRECTORY
    host: Annotated[str, msgspec.Meta(max_length=255)] = ""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0

    @property
    def pinned(self) -> bool:
        """Its disk is agreed upon."""
        return self.directory_id != UNKNOWN_DIRECTORY

    @property
    def endpoint(self) -> Endpoint | None:
        """Where its data listener was."""
        return Endpoint(self.host, self.port) if self.host else None

    @staticmethod
    def of(node_id: BrokerId, directory_id: DirectoryId, endpoint: Endpoint | None) -> Voter:
        """A voter with its disk."""
        if endpoint is None:
            return Voter(node_id, directory_id)
        return Voter(node_id, directory_id, endpoint.host, endpoint.port)


class Configuration(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The voters, by node id."""

    version: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    voters: Annotated[tuple[Voter, ...], msgspec.Meta(min_length=1, max_length=64)]

    @staticmethod
    def of(voters: Iterable[Voter]) -> Configuration:
        """Sorted."""
        return Configuration(FORMAT_VERSION, tuple(sorted(voters, key=lambda voter: voter.node_id)))

    @staticmethod
    def initial(node_ids: Iterable[BrokerId]) -> Configuration:
        """What `server init` was told."""
        return Configuration.of(Voter(node_id) for node_id in node_ids)

    @property
    def node_ids(self) -> tuple[BrokerId, ...]:
        """Sorted."""
        return tuple(voter.node_id for voter in self.voters)

    @property
    def is_pinned(self) -> bool:
        """All voters' disks are agreed upon."""
        return all(voter.pinned for voter in self.voters)

    def voter(self, node_id: int) -> Voter | None:
        """By node id."""
        for voter in self.voters:
            if voter.node_id == node_id:
                return voter
        return None

    def with_voter(self, voter: Voter) -> Configuration:
        """One voter more."""
        return Configuration.of((*self.voters, voter))

    def without(self, node_id: int) -> Configuration:
        """One voter less."""
        return Configuration.of(voter for voter in self.voters if voter.node_id != node_id)

    def pinned(self, met: Mapping[BrokerId, Voter]) -> Configuration:
        """The same voters, those that were met with the disk that they were met with."""
        return Configuration.of(voter if voter.pinned else met.get(voter.node_id, voter) for voter in self.voters)


def is_single_step(old: Configuration, new: Configuration) -> bool:
    """Whether all majorities of the one share a voter with all majorities of the other: at most one voter came or went,
    and none changed its disk, but for one whose disk was not written down before."""
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
    """As a snapshot and a journal's header carry it."""
    return _encoder.encode(configuration)


def decode_configuration(packed: bytes) -> Configuration:
    """Raises `RemoteProtocolError` for bytes that are none, or of a newer version."""
    try:
        configuration = _decoder.decode(packed)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"malformed configuration of the quorum: {error}") from None
    node_ids = list(configuration.node_ids)
    if configuration.version != FORMAT_VERSION or node_ids != sorted(set(node_ids)):
        raise RemoteProtocolError(f"a configuration of version {configuration.version} with the voters {node_ids}")
    if any(len(voter.directory_id) not in (0, 16) for voter in configuration.voters):
        raise RemoteProtocolError("a configuration with a directory id that is none")
    return configuration


def encode_entry(configuration: Configuration) -> bytes:
    """As an entry of the log."""
    return CONFIGURATION + encode_configuration(configuration)


def decode_entry(command: bytes) -> Configuration | None:
    """The configuration that an entry holds; None for another kind of entry. Raises `RemoteProtocolError`."""
    return decode_configuration(command[1:]) if command[:1] == CONFIGURATION else None
