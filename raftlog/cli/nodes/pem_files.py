"""Files with certificates, keys and credentials: none is overwritten, and secrets are readable by their owner only."""

from __future__ import annotations

import os
from collections.abc import Iterable

from raftlog.errors import InvalidRequest

MAX_BYTES = 1 << 20
PUBLIC = 0o644
PRIVATE = 0o600


def read_file(path: str) -> bytes:
    """Return the first MiB of a file. Raises `InvalidRequest` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES)
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot read {path}: {error.strerror}") from None


def check_absent(paths: Iterable[str]) -> None:
    """Raise `InvalidRequest` if one of the files exists."""
    for path in paths:
        if os.path.lexists(path):
            raise InvalidRequest("invalid_request", f"{path} already exists; it was not changed")


def write_new(path: str, content: bytes, mode: int) -> None:
    """Write a file that does not exist yet, with its folder, durably. Raises `InvalidRequest`."""
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        # The mode is there before the content: a secret is never readable by others, not even for a moment.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except FileExistsError:
        raise InvalidRequest("invalid_request", f"{path} already exists; it was not changed") from None
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot write {path}: {error.strerror}") from None


def write_pair(folder: str, name: str, certificate: bytes, key: bytes) -> list[str]:
    """Write `NAME.key` and `NAME.pem`, and return their paths. If one of them exists, neither is written.

    Raises `InvalidRequest`.
    """
    key_path, certificate_path = (os.path.join(folder, f"{name}.{suffix}") for suffix in ("key", "pem"))
    check_absent((key_path, certificate_path))
    write_new(key_path, key, PRIVATE)
    write_new(certificate_path, certificate, PUBLIC)
    return [key_path, certificate_path]
