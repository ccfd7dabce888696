"""The places where an identity provider's keys are: a file, or an https URL. Everything here blocks, on a worker.

The URL is a setting, or the provider's discovery document names it (OpenID Connect Discovery 1.0 section 4): its
`issuer` must be exactly the configured one. Only https is spoken, redirections are not followed, and an answer is
bounded in size and time, so that a broken provider costs one thread for some seconds and nothing else.
"""

from __future__ import annotations

import http.client
import os
import ssl
import stat
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import urlsplit

import msgspec

from raftlog.config import KIB, OidcConfig
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.ports import Clock

MAX_BYTES = 256 * KIB
"""Most bytes of a key set or discovery document; real ones have a few KiB."""
STEP_SECONDS = 5.0
"""Most seconds for one step of a request: to connect, or to receive the next bytes."""
REQUEST_SECONDS = 10.0
"""Most seconds for the body of an answer."""
DISCOVERY_PATH = "/.well-known/openid-configuration"

_PIECE = 16 * KIB

KeySource: TypeAlias = Callable[[], bytes | None]
"""Returns the key set's JSON, or None if it has not changed since the last call. Raises `RaftlogError`."""

Fetch: TypeAlias = Callable[[str], bytes]
"""Returns the body at an https URL. Raises `RaftlogError`."""


class KeyFile:
    """A file with the key set."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None

    def __call__(self) -> bytes | None:
        """Return the content if the file has changed since the last call that succeeded."""
        try:
            found = os.stat(self._path)
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if stamp == self._stamp:
                return None
            if not stat.S_ISREG(found.st_mode):  # opening a pipe could wait without end
                raise InvalidRequest("invalid_config", f"{self._path} is not a regular file")
            with open(self._path, "rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise InvalidRequest("invalid_config", f"cannot read {self._path}: {error.strerror}") from None
        if len(content) > MAX_BYTES:
            raise InvalidRequest("invalid_config", f"{self._path} has more than {MAX_BYTES} bytes")
        self._stamp = stamp
        return content


class KeyUrl:
    """The provider's own URL of the key set, by the configuration or by discovery."""

    def __init__(self, config: OidcConfig, fetch: Fetch) -> None:
        self._config = config
        self._fetch = fetch

    def __call__(self) -> bytes:
        return self._fetch(self._config.jwks or self._discovered())

    def _discovered(self) -> str:
        url = self._config.issuer.rstrip("/") + DISCOVERY_PATH
        try:
            found = msgspec.json.decode(self._fetch(url), type=_Discovery)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise InvalidRequest("invalid_config", f"{url} is no discovery document: {error}") from None
        if found.issuer != self._config.issuer:
            raise InvalidRequest(
                "invalid_config",
                f"{url} is of issuer {found.issuer[:200]!r}: security.oidc.issuer must be exactly that",
            )
        if urlsplit(found.jwks_uri).scheme != "https":
            raise InvalidRequest("invalid_config", f"{url} names a key set that is not on https")
        return found.jwks_uri


class _Discovery(msgspec.Struct):
    issuer: str
    jwks_uri: str


class HttpsGet:
    """GET requests over https, through the proxy that the environment names, if any."""

    def __init__(self, clock: Clock, authority: str = "") -> None:
        """`authority` is a PEM file; empty: the authorities that the system trusts. Raises `InvalidRequest`."""
        self._clock = clock
        try:
            context = ssl.create_default_context(cafile=authority or None)
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                "invalid_config", f"security.oidc.authority: {authority} contains no certificate: {error}"
            ) from None
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPSHandler(context=context),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
        ):
            self._opener.add_handler(handler)

    def __call__(self, url: str) -> bytes:
        """Return the body. Raises `RetriableError` if the server is away, slow, or answers with something else."""
        if urlsplit(url).scheme != "https":
            raise _away(url, "it is no https URL")
        request = urllib.request.Request(url, headers={"Accept": "application/json", "User-Agent": "raftlog"})
        until = self._clock.monotonic() + REQUEST_SECONDS
        try:
            response = self._opener.open(request, timeout=STEP_SECONDS)
            with response:
                body = bytearray()
                while piece := response.read1(_PIECE):
                    body += piece
                    if len(body) > MAX_BYTES:
                        raise _away(url, f"it answers with more than {MAX_BYTES} bytes")
                    if self._clock.monotonic() > until:
                        raise _away(url, f"it has not answered completely within {REQUEST_SECONDS:.0f} s")
                if response.length:
                    raise _away(url, f"its answer ended {response.length} bytes too early")
        except urllib.error.HTTPError as error:
            error.close()
            raise _away(url, f"it answers with status {error.code}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _away(url, str(error)) from None
        return bytes(body)


def _away(url: str, why: str) -> RetriableError:
    return RetriableError("overloaded", f"no answer from {url}: {why}")
