"""The credentials of one request, as the transport received them. Nothing in them is checked yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .secrets import Secret


class Presented(msgspec.Struct, frozen=True):
    """The credentials of one request."""

    host: str
    """IP address of the client, without a port."""
    authorization: Secret | None = None
    """The value of the `authorization` header (RFC 9110 section 11.6.2); None: there was none. Of a request
    with several such headers none counts: its text is empty, which is refused."""
    certificate: Mapping[str, Any] | None = None
    """The client's certificate as `ssl.SSLSocket.getpeercert` returns it after verification; None: none was shown."""
