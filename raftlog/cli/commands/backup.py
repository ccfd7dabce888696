"""`raftlog backup`: the cluster's metadata and topics in a folder or an object store, and back."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import rich_click as click

from raftlog.cli.terminal.command import argument, command, option
from raftlog.cli.terminal.connection import Connection
from raftlog.cli.terminal.exit_codes import EXIT_FAILED
from raftlog.cli.terminal.names import complete_topics
from raftlog.cli.terminal.off_loop import off_loop
from raftlog.cli.terminal.options import ReplicationFactor
from raftlog.cli.terminal.output import Output, counted, fields, listing, show
from raftlog.cli.terminal.progress import ProgressLine
from raftlog.cli.terminal.units import Size

if TYPE_CHECKING:
    from raftlog.backup.create import CreateOptions
    from raftlog.backup.format import Manifest
    from raftlog.backup.repository import Repository
    from raftlog.backup.restore import Restored, RestoreOptions
    from raftlog.backup.verify import Verification

MIB = 1024 * 1024
Uri: TypeAlias = Annotated[str, argument(metavar="URI")]
BackupChoice: TypeAlias = Annotated[
    str | None, option("Name of the backup (default: the newest complete one).", "--backup", metavar="NAME")
]
ChosenTopics: TypeAlias = Annotated[
    tuple[str, ...],
    option("Only this topic; repeatable (default: all).", metavar="TOPIC", shell_complete=complete_topics),
]


@click.group()
def backup() -> None:
    """Back up the cluster to a folder or an object store, and restore it."""


class Line(ProgressLine):
    """A progress line on which warnings appear above it."""

    def warn(self, text: str) -> None:
        """Show a warning on standard error, also without a terminal."""
        click.echo(f"Warning: {text}", err=True)


class CreatedBackup(msgspec.Struct, frozen=True):
    """The result of `create`."""

    backup: str
    previous: str | None
    topics: int
    partitions: int
    groups: int
    positions: int
    bytes: int
    """Of the batches that this backup added."""
    seconds: float


@command(backup)
def create(
    connection: Connection,
    uri: Uri,
    topic: ChosenTopics = (),
    full: Annotated[bool, "Read all records again, instead of those since the newest backup."] = False,
    security: Annotated[bool, "Include access rules, quotas and the names of users."] = False,
    file_size: Annotated[int, Size(1024, 64 * MIB), "Size of a file of batches."] = 16 * MIB,
    parallel: Annotated[int, click.IntRange(1, 64), "Partitions that are read at the same time."] = 4,
    output: Output = "table",
) -> None:
    """Write a backup: topics with their records, groups with their offsets, named positions.

    URI is a folder, or an object store such as s3://bucket/path. If there is a backup already, only newer records are
    read. A backup is complete, or nothing reads it.

    Examples:
        raftlog backup create /var/backups/raftlog
        raftlog backup create s3://backups/orders --topic orders --full
    """
    from raftlog.backup.create import CreateOptions

    options = CreateOptions(topics=topic, full=full, security=security, file_bytes=file_size, parallel=parallel)
    began = time.monotonic()
    with Line("Backing up", None) as line:
        manifest = asyncio.run(_create(connection, _repository(uri), options, line))
    partitions = [one for each in manifest.topics for one in each.partitions]
    result = CreatedBackup(
        backup=manifest.name,
        previous=manifest.previous,
        topics=len(manifest.topics),
        partitions=len(partitions),
        groups=len(manifest.groups),
        positions=len(manifest.positions),
        bytes=sum(file.bytes for one in partitions for file in one.files),
        seconds=round(time.monotonic() - began, 3),
    )
    show(output, result, lambda wide: f"Backup {result.backup} is complete: {_contents(manifest)}.")


async def _create(connection: Connection, repository: Repository, options: CreateOptions, line: Line) -> Manifest:
    from raftlog.backup.create import BackupCreation
    from raftlog.client import Admin

    await connection.reach()
    async with Admin(connection.bootstrap, **connection.keywords) as admin, connection.api() as api:
        return await BackupCreation(admin, api, repository, options, line, off_loop).run()


class ListedBackup(msgspec.Struct, frozen=True):
    """One backup of a list; an incomplete one has only a name."""

    backup: str
    complete: bool
    created_ms: int | None = None
    previous: str | None = None
    topics: int | None = None
    groups: int | None = None
    bytes: int | None = None


@command(backup, "list")
def list_backups(uri: Uri, output: Output = "table") -> None:
    """List the backups at a place, oldest first.

    Examples:
        raftlog backup list /var/backups/raftlog
    """
    repository = _repository(uri)
    names = repository.names()
    found = []
    for name in sorted((*names.complete, *names.incomplete)):
        if name in names.incomplete:
            found.append(ListedBackup(name, False))
            continue
        manifest, _ = repository.manifest(name)
        size = sum(file.bytes for topic in manifest.topics for one in topic.partitions for file in one.files)
        counts = (len(manifest.topics), len(manifest.groups), size)
        found.append(ListedBackup(name, True, manifest.created_ms, manifest.previous, *counts))
    rows = [
        (
            one.backup,
            "complete" if one.complete else "INCOMPLETE",
            "-" if one.created_ms is None else _time(one.created_ms),
            one.previous or "-",
            *("-" if count is None else count for count in (one.topics, one.groups, one.bytes)),
        )
        for one in found
    ]
    show(output, found, listing(("BACKUP", "STATE", "CREATED", "CONTINUES", "#TOPICS", "#GROUPS", "BYTES"), rows))


@command(backup)
def verify(uri: Uri, chosen: BackupChoice = None, output: Output = "table") -> int:
    """Check every checksum, CRC and offset of a backup and of those that it continues. No cluster is needed.

    Exit code 1: something is damaged or missing.

    Examples:
        raftlog backup verify s3://backups/orders
        raftlog backup verify /var/backups/raftlog --backup 000002-5f0c1a7e
    """
    from raftlog.backup.verify import verify_backup

    with Line("Verifying", None) as line:
        found = verify_backup(_repository(uri), chosen, line)
    show(output, found, lambda wide: _verification_text(found))
    return EXIT_FAILED if found.problems else 0


@command(backup)
def restore(
    connection: Connection,
    uri: Uri,
    chosen: BackupChoice = None,
    topic: ChosenTopics = (),
    replication_factor: ReplicationFactor = None,
    no_groups: Annotated[bool, "Restore neither groups nor named positions."] = False,
    security: Annotated[bool, "Also restore access rules and quotas, if the backup has them."] = False,
    parallel: Annotated[int, click.IntRange(1, 64), "Partitions that are restored at the same time."] = 4,
    output: Output = "table",
) -> None:
    """Restore a backup: the same records at the same offsets, the same producers, groups and positions.

    The topics must not exist. A restore that was stopped goes on when it is started again: batches that are there
    already are compared with the backup.

    Examples:
        raftlog backup restore s3://backups/orders
        raftlog backup restore /var/backups/raftlog --topic orders --replication-factor 3
    """
    from raftlog.backup.restore import RestoreOptions

    options = RestoreOptions(
        backup=chosen,
        topics=topic,
        replication_factor=replication_factor,
        groups=not no_groups,
        security=security,
        parallel=parallel,
    )
    with Line("Restoring", None) as line:
        found = asyncio.run(_restore(connection, _repository(uri), options, line))
    for name in found.users_without_credentials:
        line.warn(f"user {name} is not restored: create it, with a password or tokens (raftlog user create)")
    show(output, found, lambda wide: _restored_text(found))


async def _restore(connection: Connection, repository: Repository, options: RestoreOptions, line: Line) -> Restored:
    from raftlog.backup.restore import Restoration
    from raftlog.client import Admin

    await connection.reach()
    async with Admin(connection.bootstrap, **connection.keywords) as admin, connection.api() as api:
        return await Restoration(admin, api, repository, options, line, off_loop).run()


def _restored_text(found: Restored) -> str:
    return (
        f"Backup {found.backup} is restored: {counted(found.topics, 'topic')} with "
        f"{counted(found.partitions, 'partition')}, {found.appended_bytes} bytes of batches appended and "
        f"{found.compared_bytes} compared, {counted(found.groups, 'group')} with "
        f"{counted(found.offsets, 'committed offset')}, {counted(found.positions, 'named position')}."
    )


def _verification_text(found: Verification) -> str:
    state = "DAMAGED" if found.problems else "good"
    lines = [
        fields(
            {
                "Backup": f"{found.backup} ({counted(found.backups, 'backup')} in the chain)",
                "State": state,
                "Content": f"{counted(found.topics, 'topic')}, {counted(found.partitions, 'partition')}, "
                f"{counted(found.files, 'file')}, {found.bytes} bytes of batches",
            }
        )
    ]
    lines += [f"PROBLEM  {one}" for one in found.problems]
    lines += [f"Note  {one}" for one in found.notes]
    return "\n".join(lines)


def _contents(manifest: Manifest) -> str:
    files = [file for topic in manifest.topics for one in topic.partitions for file in one.files]
    size = sum(file.bytes for file in files)
    continued = "" if manifest.previous is None else f" since backup {manifest.previous}"
    partitions = sum(len(topic.partitions) for topic in manifest.topics)
    return (
        f"{counted(len(manifest.topics), 'topic')} with {counted(partitions, 'partition')}, "
        f"{counted(len(manifest.groups), 'group')}, {counted(len(files), 'file')} with {size} bytes of "
        f"batches{continued}"
    )


def _repository(uri: str) -> Repository:
    from raftlog.backup.repository import Repository
    from raftlog.backup.storage import FileStore

    return Repository(FileStore(uri))


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
