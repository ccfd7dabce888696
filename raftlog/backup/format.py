"""The format of a backup: the documents that describe it, and the names of its files (`docs/backup.md`).

A backup is a folder of the repository with `manifest.json`, the files of batches that it names, and `complete.json`,
which is written last and has the manifest's checksum. Without that file it is incomplete, and nothing reads it.

Documents come from a store that others may have written to: every field is checked, and no name leaves the repository.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from raftlog.api.security import Acl, QuotaFields
from raftlog.api.transactions import NamedPosition
from raftlog.config import MAX_BATCH_BYTES, MIB
from raftlog.errors import InvalidRequest

FORMAT = 1
"""The format that this version writes, and the newest that it reads."""

RESTORING = "restoring"
"""The setting of topics that are being restored. No backup has it."""

MANIFEST = "manifest.json"
COMPLETE = "complete.json"
MAX_MANIFEST_BYTES = 256 * MIB
MAX_FILE_BYTES = 64 * MIB
"""Bound on the batches of one file, of which several are in memory. A file ends before the batch that passes it."""
DEFAULT_FILE_BYTES = 16 * MIB
MAX_STORED_BYTES = MAX_FILE_BYTES + MAX_BATCH_BYTES

_NAME = re.compile(r"[0-9]{6}-[0-9a-f]{8}")
Natural = Annotated[int, Meta(ge=0, le=2**62)]
Id = Annotated[int, Meta(ge=-1, le=2**62)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
HexId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
BackupName = Annotated[str, Meta(pattern=rf"\A{_NAME.pattern}\Z")]
PartitionNumber = Annotated[int, Meta(ge=0, lt=2**31)]


class BatchFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of whole batches with rising offsets, without gaps between them."""

    base_offset: Natural
    end_offset: Natural
    """The offset after the last record."""
    bytes: Annotated[int, Meta(ge=1, le=MAX_STORED_BYTES)]
    batches: Annotated[int, Meta(ge=1)]
    sha256: Digest
    content_sha256: Digest
    """The same without the leader epochs, which a restore replaces."""
    first_epoch: Id
    last_epoch: Id

    @property
    def name(self) -> str:
        return f"{self.base_offset:020d}.batches"


class LastBatch(msgspec.Struct, frozen=True):
    """The last batch of a partition. The next backup continues only if the cluster still has the same batch."""

    base_offset: Natural
    crc: Natural


class BackedUpPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: all offsets from the batch that holds `log_start_offset` to `end_offset` are in the files."""

    partition: PartitionNumber
    log_start_offset: Natural
    end_offset: Natural
    """The high watermark when the backup began."""
    continues: bool = False
    """Whether the partition's files of the previous backup come before these."""
    last: LastBatch | None = None
    greatest_producer_id: Id = -1
    """The greatest in the batches of these files; -1: none has one."""
    files: list[BatchFile] = []


class BackedUpTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with its own settings, and all its partitions in order."""

    name: Annotated[str, Meta(min_length=1, max_length=249)]
    id: HexId
    created_index: Natural = 0
    replication_factor: Annotated[int, Meta(ge=1, le=32)]
    configs: dict[str, str] = {}
    """The settings that differ from the defaults."""
    partitions: Annotated[list[BackedUpPartition], Meta(min_length=1, max_length=10_000)]

    @property
    def compacts(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")


class BackedUpOffset(msgspec.Struct, frozen=True):
    """A committed offset."""

    topic: str
    topic_id: HexId
    partition: PartitionNumber
    offset: Natural
    metadata: Annotated[str, Meta(max_length=1_024)] = ""


class BackedUpGroup(msgspec.Struct, frozen=True):
    """A consumer group. Its members are not in a backup: they join again."""

    group: Annotated[str, Meta(min_length=1, max_length=255)]
    offsets: list[BackedUpOffset]


class BackedUpQuota(msgspec.Struct, frozen=True):
    entity: str
    limits: QuotaFields


class BackedUpSecurity(msgspec.Struct, frozen=True):
    """Access rules, quotas and the names of users. Passwords and tokens are not in a backup, not even their hashes."""

    acls: list[Acl]
    quotas: list[BackedUpQuota]
    users: list[str]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a backup."""

    format: Natural = FORMAT
    name: BackupName
    previous: BackupName | None = None
    """The backup that this one continues."""
    previous_sha256: Digest | None = None
    """The checksum of that backup's manifest."""
    created_ms: Natural
    version: str
    """The version of raftlog that wrote it."""
    cluster_id: str
    feature_level: Natural
    next_producer_id: Natural
    """All producer ids that the cluster had granted were below this one."""
    topics: list[BackedUpTopic]
    groups: list[BackedUpGroup] = []
    positions: list[NamedPosition] = []
    security: BackedUpSecurity | None = None

    @property
    def number(self) -> int:
        """The place in the repository's order."""
        return number_of(self.name)


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The mark of a complete backup."""

    format: Natural = FORMAT
    manifest_bytes: Natural
    manifest_sha256: Digest


Document = TypeVar("Document", Manifest, Completion)


def is_backup_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def backup_name(number: int, unique: str) -> str:
    """Return a name. `unique`: eight random hexadecimal digits, so that two writers never use one folder."""
    return f"{number:06d}-{unique}"


def number_of(name: str) -> int:
    return int(name.partition("-")[0])


def data_path(topic_id: str, partition: int, file: BatchFile) -> str:
    """Return the path of a file of batches inside its backup."""
    return f"data/{topic_id}/{partition}/{file.name}"


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encode(document: Manifest | Completion) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def decode(data: bytes, kind: type[Document], where: str) -> Document:
    """Decode a document. Raises `InvalidRequest`, which names `where` it came from."""
    try:
        document = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequest("invalid_request", f"{where} is damaged: {error}") from None
    if document.format > FORMAT:
        told = f"{where} has format {document.format}, and this version reads up to {FORMAT}: use a newer one"
        raise InvalidRequest("unsupported_version", told)
    return document
