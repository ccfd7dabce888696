"""Allowed `Host` names and `Origin` pages: a foreign web page must not reach a log through a user's browser.

A browser sends the requests of any page to any address, including a name that its owner points at 127.0.0.1 (DNS
rebinding). So `Host` must be one of the node's names, and `Origin`, if present, the same place or one that the
operator allowed. Programs send no `Origin`, which is accepted.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address

import msgspec

_AUTHORITY = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")


@lru_cache(maxsize=64)
def host_name(authority: str) -> str | None:
    """Return the name in `name`, `name:port`, `[v6]` or `[v6]:port`: lower case, without a final dot, an IPv6 address
    in its shortest form. None if the text is none of these."""
    match = _AUTHORITY.fullmatch(authority.strip())
    if match is None:
        return None
    host = match["host"]
    if host.startswith("["):
        return _bare_ipv6(host[1:-1])
    return host.rstrip(".").lower() or None


def is_loopback(name: str) -> bool:
    """Return whether a name can only mean this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


class HostPolicy(msgspec.Struct, frozen=True):
    """The allowed names and origins. Loopback names are always allowed."""

    hosts: frozenset[str]
    origins: frozenset[str]

    @classmethod
    def of(cls, hosts: Iterable[str], origins: Iterable[str]) -> HostPolicy:
        """Return the policy for `hosts` (listen, advertised and further names, with or without a port) and `origins`
        (`scheme://name[:port]`). Raises `ValueError` for text that is not a host name."""
        names = []
        for host in hosts:
            name = host_name(host) or _bare_ipv6(host)
            if name is None:
                raise ValueError(f"{host!r} is not a host name")
            names.append(name)
        return cls(frozenset(names), frozenset(origin.rstrip("/").lower() for origin in origins))

    def allows_host(self, authority: str) -> bool:
        """Return whether a `Host` header names this node."""
        name = host_name(authority)
        return name is not None and (name in self.hosts or is_loopback(name))

    def allows_origin(self, origin: str, authority: str) -> bool:
        """Return whether a page from `origin` may use the API that it reached as `authority`, an allowed host."""
        origin = origin.strip().lower()
        return origin in self.origins or self.is_same(origin, authority)

    def is_same(self, origin: str, authority: str) -> bool:
        """Return whether the page was loaded from this node itself."""
        return origin.lower() in {f"http://{authority.strip().lower()}", f"https://{authority.strip().lower()}"}


def _bare_ipv6(text: str) -> str | None:
    try:
        return str(ip_address(text))
    except ValueError:
        return None
