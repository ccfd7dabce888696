"""The store of a repository of backups: a folder, or an object store that `pyarrow.fs` knows, by path or URI.

Every call blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from raftlog.errors import DiskError, InvalidRequest

TOO_LONG = "it is longer than a file of a backup may be"


class FileStore:
    """The files below one path or URI."""

    def __init__(self, uri: str) -> None:
        """`uri`: a path, or `file:`, `s3:`, `gs:` and so on. Raises `InvalidRequest`."""
        from pyarrow import fs

        self.uri = _without_options(uri)
        self._kinds = fs.FileType
        self._selector = fs.FileSelector
        self._changed_folders: set[str] = set()
        try:
            if "://" in uri:
                self._files, self._root = fs.FileSystem.from_uri(uri)
            else:
                self._files, self._root = fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(uri))
        except (OSError, ValueError) as error:
            told = f"{self.uri} is neither a path nor the URI of a store: {str(error).replace(uri, self.uri)}"
            raise InvalidRequest("invalid_request", told) from None
        self._root = self._root.rstrip("/") or "/"
        self._is_local = isinstance(self._files, fs.LocalFileSystem)

    def folders(self) -> list[str]:
        """Return the names of the folders at the top. Raises `DiskError`."""
        with self._told(""):
            infos = self._files.get_file_info(self._selector(self._root, allow_not_found=True))
        return sorted(one.base_name for one in infos if one.type == self._kinds.Directory)

    def exists(self, path: str) -> bool:
        with self._told(path):
            info = self._files.get_file_info(self._path(path))
        return bool(info.type == self._kinds.File)

    def read(self, path: str, limit: int) -> bytes:
        """Return the content of a file. Raises `InvalidRequest` if there is none or it is longer, `DiskError`."""
        with self._told(path), self._files.open_input_stream(self._path(path), compression=None) as stream:
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise InvalidRequest("invalid_request", f"{self._shown(path)}: {TOO_LONG}")
        return bytes(data)

    def write(self, path: str, data: bytes) -> None:
        """Write a new file; on a local disk it is fsynced. Raises `DiskError`."""
        full = self._path(path)
        with self._told(path):
            if self._is_local:
                folder = os.path.dirname(full)
                self._files.create_dir(folder, recursive=True)
                while len(folder) >= len(self._root):
                    self._changed_folders.add(folder)
                    folder = os.path.dirname(folder)
            with self._files.open_output_stream(full, compression=None) as stream:
                stream.write(data)
            if self._is_local:
                _sync(full)

    def settle(self) -> None:
        """Make the folders of all written files durable, too. Raises `DiskError`."""
        with self._told(""):
            for folder in sorted(self._changed_folders):
                _sync(folder)
        self._changed_folders.clear()

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _shown(self, path: str) -> str:
        return f"{self.uri.rstrip('/')}/{path}" if path else self.uri

    @contextmanager
    def _told(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise InvalidRequest("not_found", f"there is no {self._shown(path)}") from None
        except OSError as error:
            raise DiskError("disk_failed", f"{self._shown(path)}: {error}") from None


def _without_options(uri: str) -> str:
    """Return a URI for people: without credentials and options."""
    if "://" not in uri:
        return uri
    scheme, _, rest = uri.partition("://")
    place = rest.partition("?")[0]
    authority, slash, path = place.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
