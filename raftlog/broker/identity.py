"""The identity of a node: what `raftlog server init` writes into a data folder, and what every start adds to it.

`node.json` is written once: format version, cluster id, node id, a random directory id, and the initial voters with
their data addresses. A node starts only on such a folder. An empty one is refused, so that a lost disk never looks like
a first start (S9). `starts.json` counts the starts, so that the quorum can refuse a late registration of an earlier
start. `clean-shutdown` exists only while the node is stopped after an orderly stop; it is read and durably removed
before anything else is done.

Settings are elsewhere (`raftlog/config.py`): a folder can be moved to another port, never to another identity.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated

import msgspec

from metadata.journal.journal import prepare_journal
from metadata.voters.identity import QuorumIdentity
from raftlog.errors import DiskError, InvalidRequest
from raftlog.model import BrokerId, DirectoryId, Endpoint
from raftlog.ports import Disk
from raftlog.system.disk import LocalDisk

LOCK_FILE = "lock"
NODE_FILE = "node.json"
STARTS_FILE = "starts.json"
CLEAN_SHUTDOWN_FILE = "clean-shutdown"
FORMAT_VERSION = 1

VOTER_COUNTS = (1, 3, 5)


NodeNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Voter(msgspec.Struct, frozen=True):
    host: str
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]


class NodeFile(msgspec.Struct, frozen=True):
    """The content of `node.json`."""

    format_version: int
    cluster_id: str
    node_id: NodeNumber
    directory_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    voters: dict[NodeNumber, _Voter]

    @property
    def voter_address(self) -> Endpoint | None:
        """This node's data address, as its cluster was prepared; None if it is no initial voter."""
        voter = self.voters.get(self.node_id)
        return None if voter is None else Endpoint(voter.host, voter.port)


class _StartsFile(msgspec.Struct, frozen=True):
    starts: Annotated[int, msgspec.Meta(ge=0)]


class NodeIdentity(msgspec.Struct, frozen=True):
    """A prepared data folder, opened for one start."""

    cluster_id: str
    node_id: BrokerId
    directory_id: DirectoryId
    voters: dict[BrokerId, Endpoint]
    start_number: int
    """Number of this start; 1 is the first."""
    clean: bool
    """Whether the last stop was orderly, or this is the first start."""


def new_cluster_id() -> str:
    """Return a random id of 22 characters."""
    return secrets.token_urlsafe(16)


def init_data_folder(
    folder: str, *, cluster_id: str, node_id: int, voters: Mapping[int, Endpoint], observer: bool = False
) -> None:
    """Prepare an empty or missing folder on this machine.

    `voters` maps the node ids of the initial voters to their data listeners. For an `observer` they are the current
    voters, without this node. Raises `InvalidRequest` if the folder is already prepared or not empty.
    """
    prepare_folder(
        LocalDisk(folder),
        folder,
        cluster_id=cluster_id,
        node_id=node_id,
        voters=voters,
        directory_id=secrets.token_bytes(16),
        observer=observer,
    )


def prepare_folder(
    disk: Disk,
    folder: str,
    *,
    cluster_id: str,
    node_id: int,
    voters: Mapping[int, Endpoint],
    directory_id: bytes,
    observer: bool = False,
) -> None:
    """Prepare a data folder on any disk, like `init_data_folder`.

    The quorum's journal is written first and `node.json` last, so that a half-prepared folder is refused as not empty.
    """
    if observer and (node_id in voters or not voters):
        raise InvalidRequest(
            "invalid_config",
            f"node {node_id} is an observer: name the other nodes, which vote now, but not this one. A voter that lost "
            "its disk must return as an observer, then be removed and added (raftlog quorum remove and add)",
        )
    if not observer and len(voters) not in VOTER_COUNTS:
        counts = ", ".join(map(str, VOTER_COUNTS))
        raise InvalidRequest(
            "invalid_config", f"the number of initial voters must be one of {counts}, not {len(voters)}"
        )
    if not cluster_id or len(cluster_id) > 64:
        raise InvalidRequest("invalid_config", "the cluster id must have 1 to 64 characters")
    if not 0 <= node_id < 2**31:
        raise InvalidRequest("invalid_config", f"the node id must be between 0 and {2**31 - 1}, not {node_id}")
    for voter, endpoint in voters.items():
        if not 0 <= voter < 2**31:
            raise InvalidRequest("invalid_config", f"a voter's node id must be between 0 and {2**31 - 1}, not {voter}")
        if list(voters.values()).count(endpoint) > 1:
            raise InvalidRequest("invalid_config", f"two voters cannot both listen at {endpoint}")
    try:
        disk.make_directory("")
    except (FileNotFoundError, FileExistsError) as error:
        raise InvalidRequest("invalid_config", f"cannot create {folder}: {error.strerror}") from None
    if disk.exists(NODE_FILE):
        raise InvalidRequest("invalid_config", f"{folder} is already a node's data folder; it was not changed")
    present = disk.list("")
    if present:
        raise InvalidRequest(
            "invalid_config", f"{folder} is not empty (it holds {present[0]!r}): choose an empty folder"
        )
    content = NodeFile(
        format_version=FORMAT_VERSION,
        cluster_id=cluster_id,
        node_id=node_id,
        directory_id=directory_id.hex(),
        voters={voter: _Voter(endpoint.host, endpoint.port) for voter, endpoint in sorted(voters.items())},
    )
    directory = DirectoryId(directory_id)
    ids = tuple(BrokerId(voter) for voter in sorted(voters))
    prepare_journal(disk, QuorumIdentity(cluster_id, BrokerId(node_id), directory, ids))
    disk.replace(CLEAN_SHUTDOWN_FILE, b"")
    disk.replace(NODE_FILE, msgspec.json.format(msgspec.json.encode(content)))


def read_identity(disk: Disk, folder: str) -> NodeFile:
    """Read and check `node.json`. Raises `InvalidRequest`, which says what is wrong with the folder."""
    try:
        node = msgspec.json.decode(disk.read(NODE_FILE), type=NodeFile)
    except FileNotFoundError:
        raise InvalidRequest(
            "invalid_config",
            f"{folder} is not prepared, or its disk was lost: run `raftlog server init` on an empty folder. "
            "A node that lost its disk must not come back under its old identity",
        ) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidRequest("invalid_config", f"{folder}/{NODE_FILE} is damaged: {error}") from None
    if node.format_version != FORMAT_VERSION:
        raise InvalidRequest(
            "unsupported_version",
            f"{folder} has format {node.format_version}, but this version of raftlog supports format {FORMAT_VERSION}",
        )
    return node


def begin_start(disk: Disk, folder: str) -> NodeIdentity:
    """Count this start and remove the clean-shutdown marker, durably, before anything else is done."""
    node = read_identity(disk, folder)
    try:
        starts = msgspec.json.decode(disk.read(STARTS_FILE), type=_StartsFile).starts
    except FileNotFoundError:
        starts = 0
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidRequest("invalid_config", f"{folder}/{STARTS_FILE} is damaged: {error}") from None
    clean = disk.exists(CLEAN_SHUTDOWN_FILE)
    disk.replace(STARTS_FILE, msgspec.json.encode(_StartsFile(starts + 1)))
    disk.remove(CLEAN_SHUTDOWN_FILE)
    disk.fsync_directory("")
    return NodeIdentity(
        cluster_id=node.cluster_id,
        node_id=BrokerId(node.node_id),
        directory_id=DirectoryId(bytes.fromhex(node.directory_id)),
        voters={BrokerId(voter): Endpoint(v.host, v.port) for voter, v in node.voters.items()},
        start_number=starts + 1,
        clean=clean,
    )


def mark_clean_shutdown(disk: Disk) -> bool:
    """Record for the next start that everything was fsynced and closed in order.

    Returns False if the disk does not accept the marker, for example for lack of space or of descriptors. Then the next
    start recovers as after a crash.
    """
    try:
        disk.replace(CLEAN_SHUTDOWN_FILE, b"")
    except DiskError:
        return False
    return True
