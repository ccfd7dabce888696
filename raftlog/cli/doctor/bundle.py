"""An archive for support: settings, the cluster's state, findings, the ends of logs, and a listing of the data folder.

No secret is in it. Files of keys, tokens and profiles are never read; what is read passes `redacted`, which removes
texts that have the form of a token, a password, an `Authorization` header or a private key. The contents of records are
not read, but names are shown: those of topics, groups and nodes, and addresses.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from raftlog.config import MIB
from raftlog.errors import InvalidRequest

TAIL_BYTES = 4 * MIB
MAX_LISTED = 100_000
REMOVED = "[removed]"

_TOKEN = re.compile(r"rlt_[A-Za-z0-9_-]{4,}")
_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*)?")
_HEADER = re.compile(r"(?i)\b(bearer|basic|scram-sha-256|digest)\s+[A-Za-z0-9+/=._~,:-]{6,}")
_PRIVATE = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_NAMED = re.compile(
    r"""(?ix)
    (["']?[A-Za-z0-9_.-]*(?:password|passwd|passphrase|secret|token|credential|api_?key)[A-Za-z0-9_.-]*["']?\s*[:=]\s*)
    (?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;}\]"']+)
    """
)
_URL = re.compile(r"(://[^/\s:@]+:)[^@\s/]+@")
_SAFE_NAMES = re.compile(r"(?i)token_file|password_file|token_id|password_length|tokens_?count|has_password")


def redacted(text: str) -> str:
    """Return a text without what looks like a secret."""
    text = _PRIVATE.sub(lambda match: f"-----BEGIN {match[1]}----- {REMOVED}", text)
    text = _TOKEN.sub(f"rlt_{REMOVED}", text)
    text = _JWT.sub(REMOVED, text)
    text = _HEADER.sub(lambda match: f"{match[1]} {REMOVED}", text)
    text = _URL.sub(lambda match: f"{match[1]}{REMOVED}@", text)
    return _NAMED.sub(_without_value, text)


def _without_value(match: re.Match[str]) -> str:
    return match[0] if _SAFE_NAMES.search(match[1]) else f'{match[1]}"{REMOVED}"'


class Bundle:
    """An archive that is being written (`.tar.gz`), readable by its owner alone. Close it."""

    def __init__(self, path: str) -> None:
        """Raises `InvalidRequest` if the file exists or cannot be created."""
        self.path = path
        self._folder = os.path.basename(path).removesuffix(".tar.gz")
        self._names: set[str] = set()
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidRequest("invalid_request", f"cannot create {path}: {error.strerror}") from None
        self._file = open(descriptor, "wb")  # noqa: SIM115  closed by `close`
        self._archive = tarfile.open(fileobj=self._file, mode="w:gz")  # noqa: SIM115  closed by `close`

    def add(self, name: str, text: str) -> None:
        """Add a text file, without secrets."""
        assert name not in self._names, name
        self._names.add(name)
        content = redacted(text).encode(errors="replace")
        entry = tarfile.TarInfo(f"{self._folder}/{name}")
        entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
        self._archive.addfile(entry, io.BytesIO(content))

    def add_json(self, name: str, document: Any) -> None:
        """Add what msgspec encodes."""
        self.add(name, msgspec.json.format(msgspec.json.encode(document), indent=2).decode())

    @property
    def names(self) -> list[str]:
        return sorted(self._names)

    def close(self) -> None:
        """Finish the archive."""
        self._archive.close()
        self._file.close()


def tail(path: str, limit: int = TAIL_BYTES) -> str:
    """Return the last whole lines of a file. Raises `InvalidRequest`."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - limit))
            content = file.read(limit)
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot read {path}: {error.strerror}") from None
    if size > limit:
        content = content.partition(b"\n")[2]
    return content.decode(errors="replace")


def listed(folder: str) -> str:
    """Return mode, owner, size, time and name of everything in a folder, one in a line, without reading any file."""
    lines: list[str] = []
    for path in _walk(folder):
        if len(lines) == MAX_LISTED:
            lines.append(f"... more than {MAX_LISTED} files")
            break
        try:
            found = os.lstat(path)
        except OSError as error:
            lines.append(f"{os.path.relpath(path, folder)}: {error.strerror}")
            continue
        changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.st_mtime))
        owner = f"{found.st_uid}:{found.st_gid}"
        lines.append(
            f"{stat.filemode(found.st_mode)} {owner} {found.st_size:>12} {changed} {os.path.relpath(path, folder)}"
        )
    return "\n".join(lines) + "\n"


def _walk(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders.sort()
        yield from (os.path.join(parent, name) for name in sorted([*folders, *files]))


def environment(variables: Mapping[str, str]) -> str:
    """Return the variables that concern raftlog; a value that may be a secret is replaced."""
    shown = [name for name in sorted(variables) if name.startswith(("RAFTLOG_", "PYTHON", "LC_", "LANG", "TZ"))]
    return "".join(f"{name}={variables[name]}\n" for name in shown if not _is_secret(name)) + "".join(
        f"{name} is set\n" for name in shown if _is_secret(name)
    )


def _is_secret(name: str) -> bool:
    return name in ("RAFTLOG_TOKEN", "RAFTLOG_PASSWORD") or name.endswith(("_SECRET", "_PASSWORD", "_TOKEN"))


def failures(errors: Iterable[str]) -> str:
    """Return the text about what could not be had."""
    return "".join(f"{error}\n" for error in errors) or "everything was there\n"
