"""The file of profiles: connections by name, in `raftlog/profiles.toml` of the user's configuration folder.

The folder is `$XDG_CONFIG_HOME`, or `~/.config` (XDG Base Directory Specification). The file may hold credentials, so
it is written for its owner alone, and refused if others can read or change it.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec

from raftlog.errors import InvalidRequest

from .connection import Connection

MODE = 0o600
MAX_BYTES = 1 << 20
MAX_PROFILES = 1_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class Profiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    current: str = ""
    """Name of the profile that commands use if they get no address otherwise; empty: none."""
    profiles: dict[str, Connection] = {}

    def named(self, name: str) -> Connection:
        """Return a profile. Raises `InvalidRequest`."""
        found = self.profiles.get(name)
        if found is None:
            known = ", ".join(sorted(self.profiles)) or "there are none"
            raise InvalidRequest("invalid_request", f"there is no profile {name[:64]!r} (profiles: {known})")
        return found

    @property
    def in_use(self) -> Connection | None:
        """The current profile. Raises `InvalidRequest` if the file names one that it does not have."""
        return self.named(self.current) if self.current else None

    def with_profile(self, name: str, profile: Connection) -> Profiles:
        """Add or replace a profile. The first one becomes the current one. Raises `InvalidRequest`."""
        if not _NAME.fullmatch(name):
            told = "1 to 64 letters, digits and ._-, and begins with a letter or digit"
            raise InvalidRequest("invalid_request", f"the name of a profile has {told}, not {name[:64]!r}")
        if len(self.profiles) >= MAX_PROFILES and name not in self.profiles:
            raise InvalidRequest("invalid_request", f"there are {MAX_PROFILES} profiles already: delete some")
        return Profiles(self.current or name, {**self.profiles, name: profile})

    def without(self, name: str) -> Profiles:
        """Remove a profile. Raises `InvalidRequest`."""
        self.named(name)
        left = {other: profile for other, profile in self.profiles.items() if other != name}
        return Profiles("" if self.current == name else self.current, left)

    def using(self, name: str) -> Profiles:
        """Make a profile the current one. Raises `InvalidRequest`."""
        self.named(name)
        return Profiles(name, self.profiles)

    def text(self) -> str:
        """Return the file's text (TOML 1.0)."""
        lines = ["# Connections of the command `raftlog`. The file may hold credentials: keep its mode 0600.", ""]
        if self.current:
            lines += [f"current = {_string(self.current)}", ""]
        for name, profile in sorted(self.profiles.items()):
            lines.append(f"[profiles.{_string(name)}]")
            for key, value in msgspec.to_builtins(profile).items():
                lines.append(f"{key} = {'true' if value is True else _string(value)}")
            lines.append("")
        return "\n".join(lines)


def profiles_path(environment: Mapping[str, str] | None = None) -> str:
    """Return the path of the file of this user."""
    variables: Mapping[str, str] = os.environ if environment is None else environment
    base = variables.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # a relative path is invalid and ignored, by the specification
        base = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "raftlog", "profiles.toml")


def load_profiles(path: str) -> Profiles:
    """Return the content of a file; a missing one is empty.

    Raises `InvalidRequest` if others can read or change the file, or if it cannot be decoded; no text of it is shown.
    """
    try:
        with open(path, "rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot read the profiles {path}: {error.strerror}") from None
    try:
        if len(content) > MAX_BYTES:
            raise ValueError(f"it is longer than {MAX_BYTES} bytes")
        decoded: dict[str, Any] = tomllib.loads(content.decode())
        found = msgspec.convert(decoded, Profiles)
        for name, raw in decoded.get("profiles", {}).items():
            unknown = sorted(set(raw) - set(Connection.__struct_fields__))
            if unknown:
                raise ValueError(f"profile {name} has the unknown setting {unknown[0]}")
    except (ValueError, msgspec.ValidationError) as error:  # neither has a value of the file in its text
        why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InvalidRequest("invalid_request", f"the profiles {path} cannot be used: {why}") from None
    return found


def save_profiles(path: str, profiles: Profiles) -> None:
    """Replace the file, for its owner alone. If that fails, nothing of it is left. Raises `InvalidRequest`."""
    folder = os.path.dirname(path)
    temporary = f"{path}.{secrets.token_hex(4)}"
    try:
        content = profiles.text().encode()
    except UnicodeEncodeError:  # arguments and variables may be any bytes
        told = "an address, a name or a path is not UTF-8"
        raise InvalidRequest("invalid_request", f"the profile cannot be kept: {told}") from None
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        # The mode is there before the content.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)  # it holds credentials
            raise
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot write the profiles {path}: {error.strerror}") from None


def _check_owner(path: str, found: os.stat_result) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        told = f"others can read or change the profiles {path} (mode {mode:04o}): run `chmod 600 {path}`"
        raise InvalidRequest("invalid_request", f"{told}, and replace the credentials in it if others saw them")
    if found.st_uid not in (os.geteuid(), 0):
        raise InvalidRequest("invalid_request", f"the profiles {path} belong to another user: `chown` or remove them")


def _string(text: str) -> str:
    """Return a basic string of TOML."""
    escaped = "".join(
        f"\\u{ord(character):04x}" if character < " " or character in '"\\\x7f' else character for character in text
    )
    return f'"{escaped}"'
