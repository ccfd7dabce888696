"""Principals: the authenticated names behind requests, and the caller of one request.

The text form is Kafka's: `User:alice`. A group (`Group:analysts`) is no principal of its own; access tokens of an
identity provider state the groups of a user, and rules may name them.
"""

from __future__ import annotations

import ipaddress
import re

import msgspec

from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId

USER, GROUP = "User", "Group"
MAX_NAME = 255
IPV6_PREFIX = 64
MAX_GROUPS = 256
"""The most groups of one principal; more in an access token are refused rather than ignored, as one may be denied."""
EVERYBODY = "User:*"
"""Every user in a rule, including the anonymous one."""
_ANONYMOUS_NAME = "ANONYMOUS"
_RESERVED = frozenset({_ANONYMOUS_NAME, "*"})

_BLANKS = " \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
"""The characters of Unicode's category Zs."""
_AT_THE_ENDS = re.compile(f"\\A[{_BLANKS}]|[{_BLANKS}]\\Z")
_UNREADABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters
    "\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # formats
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U000e00ff\U000f0000-\U0010ffff]"  # others
)
"""Characters that mislead a reader of a log or a terminal. The quorum decides about names, so all nodes must agree: the
table does not depend on the Unicode version of the interpreter.
"""


class Principal(msgspec.Struct, frozen=True):
    """A user, with the groups that its identity provider stated."""

    name: str
    groups: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The principals that a rule may name to apply to this one."""
        return (f"{USER}:{self.name}", EVERYBODY, *(f"{GROUP}:{group}" for group in self.groups))

    def __str__(self) -> str:
        return f"{USER}:{self.name}"


ANONYMOUS = Principal(_ANONYMOUS_NAME)
"""The principal of requests without a credential, where these are accepted (Kafka's name)."""


class Caller(msgspec.Struct, frozen=True):
    """The caller of one request: it travels with the request through the broker and to the node that decides."""

    principal: Principal
    host: str
    """IP address of the client, without a port; empty if the request did not arrive over a network."""
    superuser: bool = False
    """Whether no rule applies to it."""
    node: BrokerId | None = None
    """The node of the cluster that called, authenticated by its certificate; None: a client."""
    mechanism: str = ""
    """How it was authenticated, for the audit log: `token`, `password`, `access_token`, `certificate` or empty."""

    def __str__(self) -> str:
        return str(self.principal)


def check_user_name(name: str) -> str:
    """Return the name if a user may have it. Raises `InvalidRequest`."""
    if name in _RESERVED:
        raise InvalidRequest("invalid_request", f"the name {name!r} is reserved")
    check_text(name, "a user's name")
    return name


def check_principal(text: str) -> str:
    """Return the text if a rule may name it: `User:name`, `Group:name` or `User:*`. Raises `InvalidRequest`."""
    kind, colon, name = text.partition(":")
    if not colon or kind not in (USER, GROUP):
        raise InvalidRequest("invalid_request", f"{text[:64]!a} is not a principal: write User:NAME or Group:NAME")
    if kind == GROUP and name in _RESERVED:
        raise InvalidRequest("invalid_request", f"{name!r} is not a group; {EVERYBODY} stands for everybody")
    if name != "*":
        check_text(name, "a principal's name")
    return text


def host_of(address: str) -> str:
    """Return an IP address in its canonical form; an IPv4 address inside an IPv6 one becomes plain.

    Raises `InvalidRequest` for anything else.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        raise InvalidRequest("invalid_request", f"{address[:64]!a} is not an IP address") from None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def network_of(address: str) -> str:
    """Return the network that an IP address counts as in bounds by address; a text that is none counts as itself.

    An address of IPv6 counts as its /64 network, whose addresses all belong to one customer (RFC 6177): a single
    machine has them all.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), IPV6_PREFIX), strict=False))


def check_text(text: str, what: str, *, least: int = 1, most: int = MAX_NAME) -> None:
    """Check a text that logs and terminals show: no control characters, no invisible ones, no blanks at the ends.

    `what` names the text, `least` and `most` are its permitted lengths in characters. Raises `InvalidRequest`.
    """
    if not least <= len(text) <= most:
        raise InvalidRequest("invalid_request", f"{what} has {least} to {most} characters")
    if _AT_THE_ENDS.search(text):
        raise InvalidRequest("invalid_request", f"{what} neither begins nor ends with a blank")
    bad = _UNREADABLE.search(text)
    if bad is not None:
        raise InvalidRequest("invalid_request", f"{what} must not contain the character U+{ord(bad.group()):04X}")
