"""The TLS context of a client's files, which are read again when they change, so that a rotation needs no restart.

The files are looked at before each connection. Files that cannot be used are reported once in the log, and what was
read before stays in use: a certificate is replaced before its key, or after it.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from typing import TypeAlias

from raftlog.client.settings import Settings
from raftlog.errors import InvalidRequest

logger = logging.getLogger("raftlog.client")

_Stamp: TypeAlias = tuple[int, int, int] | None


class TlsContext:
    """The context for a client's next connection. Belongs to one event loop."""

    def __init__(self, settings: Settings, prepare: Callable[[ssl.SSLContext], ssl.SSLContext]) -> None:
        """Read the files. `prepare` sets what is common to all connections of the kind.

        Raises `InvalidRequest` (`invalid_config`) if they cannot be used.
        """
        self._settings = settings
        self._prepare = prepare
        named = (settings.tls_authority, settings.tls_certificate, settings.tls_key)
        self._paths = [path for path in named if path is not None]
        self._stamps = self._look()
        self._context = prepare(context_of_files(settings))

    def __call__(self) -> ssl.SSLContext:
        """Return the context of the newest usable files."""
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps  # of before the reading: a file that changes meanwhile is read again
            try:
                self._context = self._prepare(context_of_files(self._settings))
            except InvalidRequest as error:
                logger.warning("the previously read TLS files are still in use: %s", error.detail)
        return self._context

    def _look(self) -> list[_Stamp]:
        """Return values that change when a file does; links are followed."""
        return [_stamp(path) for path in self._paths]


def context_of_files(settings: Settings) -> ssl.SSLContext:
    """Return a new context that verifies certificates and host names, with the client's own certificate, if any.

    Raises `InvalidRequest` (`invalid_config`).
    """
    authority, certificate = settings.tls_authority, settings.tls_certificate
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as error:
        raise _unusable(f"{authority} contains no certificate of an authority", error) from None
    if certificate is not None:
        key = settings.tls_key or certificate
        try:
            context.load_cert_chain(certificate, key, password=_no_pass_phrase)
        except (OSError, ValueError) as error:
            raise _unusable(f"{certificate} and {key} are not a certificate and its key", error) from None
    return context


def _stamp(path: str) -> _Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None  # the reading says why
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _unusable(what: str, error: Exception) -> InvalidRequest:
    why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return InvalidRequest("invalid_config", f"{what}: {why}")


def _no_pass_phrase() -> str:
    """Refuse an encrypted key. Otherwise OpenSSL asks for the pass phrase at the terminal, and waits."""
    raise ValueError("the key is encrypted: use one without a pass phrase, in a file that only its user can read")
