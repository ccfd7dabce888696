"""A repository: the backups at one place, complete or not. Every call blocks."""

from __future__ import annotations

import msgspec

from raftlog.errors import InvalidRequest

from .chain import MAX_CHAIN, newest
from .format import (
    COMPLETE,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    MAX_STORED_BYTES,
    BatchFile,
    Completion,
    Manifest,
    data_path,
    decode,
    digest_of,
    encode,
    is_backup_name,
    number_of,
)
from .storage import FileStore

_MAX_COMPLETION_BYTES = 64 * 1024


class BackupNames(msgspec.Struct, frozen=True):
    """The backups of a repository by name, oldest first."""

    complete: list[str]
    incomplete: list[str]
    """They are being written, or their writer was stopped. Nothing reads them."""

    @property
    def next_number(self) -> int:
        return max(map(number_of, (*self.complete, *self.incomplete)), default=0) + 1


class Repository:
    """The backups below one path or URI."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self.uri = store.uri

    def names(self) -> BackupNames:
        found = sorted(filter(is_backup_name, self._store.folders()))
        complete = [name for name in found if self._store.exists(f"{name}/{COMPLETE}")]
        return BackupNames(complete, [name for name in found if name not in complete])

    def choose(self, name: str | None) -> str:
        """Return the backup of this name; None: the newest complete one. Raises `InvalidRequest`."""
        names = self.names()
        if name is None:
            found = newest(names.complete)
            if found is None:
                left = f"; {len(names.incomplete)} are incomplete" if names.incomplete else ""
                raise InvalidRequest("not_found", f"there is no complete backup at {self.uri}{left}")
            return found
        if name in names.incomplete:
            raise InvalidRequest("invalid_request", f"backup {name} is incomplete: its writer has not finished it")
        if name not in names.complete:
            known = ", ".join(names.complete[-5:]) or "none"
            raise InvalidRequest("not_found", f"there is no backup {name[:64]!r} at {self.uri}; the last are: {known}")
        return name

    def manifest(self, name: str) -> tuple[Manifest, str]:
        """Return the manifest of a complete backup and its checksum. Raises `InvalidRequest` if it is damaged."""
        where = f"{name}/{COMPLETE}"
        mark = decode(self._store.read(where, _MAX_COMPLETION_BYTES), Completion, where)
        where = f"{name}/{MANIFEST}"
        data = self._store.read(where, MAX_MANIFEST_BYTES)
        digest = digest_of(data)
        if (len(data), digest) != (mark.manifest_bytes, mark.manifest_sha256):
            raise InvalidRequest("invalid_request", f"{where} is damaged: it is not what {COMPLETE} describes")
        manifest = decode(data, Manifest, where)
        if manifest.name != name:
            raise InvalidRequest("invalid_request", f"{where} belongs to backup {manifest.name}")
        return manifest, digest

    def chain(self, name: str) -> list[Manifest]:
        """Return the manifest of a backup and of those that it continues, the last first. Raises `InvalidRequest`."""
        manifest, _ = self.manifest(name)
        found = [manifest]
        while manifest.previous is not None:
            if number_of(manifest.previous) >= manifest.number or len(found) >= MAX_CHAIN:
                raise InvalidRequest("invalid_request", f"backup {manifest.name} continues {manifest.previous}")
            expected = manifest.previous_sha256
            try:
                manifest, digest = self.manifest(manifest.previous)
            except InvalidRequest as error:
                told = f"{error.detail}; backup {manifest.name} continues it"
                raise InvalidRequest(error.code, told) from None
            if digest != expected:
                raise InvalidRequest(
                    "invalid_request", f"backup {manifest.name} is not the one that {found[-1].name} continues"
                )
            found.append(manifest)
        return found

    def read_batches(self, backup: str, topic_id: str, partition: int, file: BatchFile) -> bytes:
        """Return the content of a file, unchecked. Raises `InvalidRequest` if it is missing, `DiskError`."""
        return self._store.read(f"{backup}/{data_path(topic_id, partition, file)}", MAX_STORED_BYTES)

    def write_batches(self, backup: str, topic_id: str, partition: int, file: BatchFile, data: bytes) -> None:
        self._store.write(f"{backup}/{data_path(topic_id, partition, file)}", data)

    def complete(self, manifest: Manifest) -> None:
        """Write the manifest and then the mark, once all that comes before is durable."""
        data = encode(manifest)
        if len(data) > MAX_MANIFEST_BYTES:
            told = f"the manifest has {len(data)} bytes, more than {MAX_MANIFEST_BYTES}: back up fewer topics at once"
            raise InvalidRequest("invalid_request", told)
        self._store.write(f"{manifest.name}/{MANIFEST}", data)
        self._store.settle()
        mark = Completion(manifest_bytes=len(data), manifest_sha256=digest_of(data))
        self._store.write(f"{manifest.name}/{COMPLETE}", encode(mark))
        self._store.settle()
