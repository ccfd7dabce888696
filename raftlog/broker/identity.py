"""Who a node is: what `raftlog server init` writes into a data folder, and what every start adds to it.

`node.json` is written once: format version, cluster id, node id, a directory id drawn for this folder, and the initial
voters with their data addresses. A node starts only on such a folder; an empty one is refused, so that a lost disk
never looks like a first start (S9). `starts.json` counts the starts: a registration of an earlier start that arrives
late is refused by the quorum. `clean-shutdown` exists exactly while the node is stopped after an orderly stop; it is
read and removed, durably, before anything else is touched.

Settings are not here (`raftlog/config.py`): a folder can be moved to another port, never to another identity.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
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
    """`node.json`."""

    format_version: int
    cluster_id: str
    node_id: NodeNumber
    directory_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    voters: dict[NodeNumber, _Voter]


class _StartsFile(msgspec.Struct, frozen=True):
    starts: Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A prepared data folder, opened for one start."""

    cluster_id: str
    node_id: BrokerId
    directory_id: DirectoryId
    voters: dict[BrokerId, Endpoint]
    start_number: int
    """1 at the first start."""
    clean: bool
    """The last stop was an orderly one (or there was none yet)."""


def new_cluster_id() -> str:
    """22 characters nobody else has."""
    return secrets.token_urlsafe(16)


def init_data_folder(
    folder: str, *, cluster_id: str, node_id: int, voters: Mapping[int, Endpoint], observer: bool = False
) -> None:
    """Prepare an empty or absent folder of this machine. `voters` maps the node ids of the initial voters to their data
    listeners; for an `observer`, voters of now, of which it is none. Raises `InvalidRequest` where the folder is
    prepared already or holds anything."""
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
    """`init_data_folder` on any disk. The quorum's journal is written first and `node.json` last: a folder that was
    prepared by half is refused as not empty."""
    if observer and (node_id in voters or not voters):
        raise InvalidRequest(
            "invalid_config",
            f"node {node_id} is to observe: name the other nodes that vote now, and not this one. A voter that lost "
            "its disk comes back so, and is removed and added again (raftlog quorum remove, raftlog quorum add)",
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
        raise InvalidRequest("invalid_config", f"cannot make {folder}: {error.strerror}") from None
    if disk.exists(NODE_FILE):
        raise InvalidRequest("invalid_config", f"{folder} is a node's data folder already; it is left as it is")
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
    """`node.json`, checked. Raises `InvalidRequest` saying what is wrong with the folder."""
    try:
        node = msgspec.json.decode(disk.read(NODE_FILE), type=NodeFile)
    except FileNotFoundError:
        raise InvalidRequest(
            "invalid_config",
            f"{folder} was never prepared, or its disk was lost: run `raftlog server init` on an empty folder. "
            "A node that lost its disk must not come back under its old identity",
        ) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidRequest("invalid_config", f"{folder}/{NODE_FILE} is damaged: {error}") from None
    if node.format_version != FORMAT_VERSION:
        raise InvalidRequest(
            "unsupported_version",
            f"{folder} has format {node.format_version}, this raftlog knows format {FORMAT_VERSION}",
        )
    return node


def begin_start(disk: Disk, folder: str) -> NodeIdentity:
    """Count this start and take the clean-shutdown marker away, durably, before anything else is done."""
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
    """Tell the next start that everything was fsynced and closed in order; False where the disk does not take the mark,
    for want of room or of descriptors, say: then the next start checks what it finds, as after a crash."""
    try:
        disk.replace(CLEAN_SHUTDOWN_FILE, b"")
    except DiskError:
        return False
    return True
