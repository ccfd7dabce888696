"""The mapping from client certificates to users: subject alternative name → user's name. A pure core.

The pattern is a setting (`security.user_name`), by default the URI `raftlog:/user/<name>`, percent-encoded (RFC 3986
section 2.1). The authority's signature vouches for the name. A certificate that names a node is never a user: it
belongs to a machine of the cluster, and its holder must not gain a user's rights. Certificates are dictionaries from
`ssl.SSLSocket.getpeercert`, which has verified them (S12).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from raftlog.broker.security.unauthenticated import Cause, Unauthenticated
from raftlog.errors import InvalidRequest
from raftlog.security.principals import check_user_name

_TEXTS = {
    "URI": r"(?P<user>(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)",
    "DNS": r"(?P<user>[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)",
    "email": r"(?P<user>[^@\s]+)",
}
"""Kind of a name → the form of `{user}` in it: a path segment, a label, the local part of an address."""


class ClientNames:
    """The names of users in one cluster's client certificates."""

    def __init__(
        self, pattern: str, cluster_id: str, names_a_node: Callable[[Mapping[str, Any]], bool] = lambda _: False
    ) -> None:
        """`pattern` is `SecurityConfig.user_name`, which is already checked. `names_a_node` tells whether a certificate
        has the name of a node."""
        self.kind, _, text = pattern.partition(":")
        written = quote(cluster_id, safe="") if self.kind == "URI" else cluster_id
        before, _, after = text.replace("{cluster_id}", written).partition("{user}")
        self._pattern = re.compile(
            re.escape(before) + _TEXTS[self.kind] + re.escape(after), re.IGNORECASE if self.kind == "DNS" else 0
        )
        self._names_a_node = names_a_node

    def user_of(self, certificate: Mapping[str, Any] | None) -> str | None:
        """Return the user of a certificate; None if it names none, or names a node.

        Raises `Unauthenticated` if it names several users, or one that no user can be.
        """
        if not certificate:
            return None
        found = {
            match["user"]
            for kind, value in certificate.get("subjectAltName", ())
            if kind == self.kind and (match := self._pattern.fullmatch(value)) is not None
        }
        if not found or self._names_a_node(certificate):
            return None
        names = sorted({self._decoded(text) for text in found})
        if len(names) > 1:
            raise Unauthenticated(
                Cause.AMBIGUOUS_CERTIFICATE, f"the certificate names {len(names)} users, one of them {names[0]}"
            )
        return names[0]

    def _decoded(self, text: str) -> str:
        try:
            if self.kind == "URI":
                return check_user_name(unquote(text, errors="strict"))
            return check_user_name(text.lower() if self.kind == "DNS" else text)
        except (InvalidRequest, UnicodeDecodeError) as error:
            why = error.detail if isinstance(error, InvalidRequest) else "it is not UTF-8"
            raise Unauthenticated(Cause.MALFORMED, f"the certificate's name {text[:64]!r}: {why}") from None
