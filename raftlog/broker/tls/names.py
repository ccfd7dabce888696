"""The mapping between certificates and nodes: subject alternative name ↔ node of this cluster.

A node's certificate has one name that contains both cluster and node, by default the URI `raftlog:/cluster/<cluster
id>/node/<node id>` (RFC 5280 section 4.2.1.6: with a scheme and without an authority, so it is compared literally). The
authority's signature vouches for the name; this mapping interprets it. So a valid certificate of another cluster, of
another node, or of a user proves nothing here (S12).

A pure core. Certificates are dictionaries from `ssl.SSLSocket.getpeercert`, which has verified them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId

NAMES_SHOWN = 5
MAX_NODE_ID = 2**31 - 1

_DNS_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


class NodeNames:
    """The names of one cluster's nodes."""

    def __init__(self, pattern: str, cluster_id: str) -> None:
        """`pattern` is `TlsConfig.node_name`, which is already checked. Raises `InvalidRequest` if the cluster's id
        cannot be part of such a name."""
        self.kind, _, text = pattern.partition(":")
        if self.kind == "DNS" and "{cluster_id}" in text and not _DNS_LABEL.fullmatch(cluster_id):
            raise InvalidRequest(
                "invalid_config",
                f"cluster id {cluster_id!r} cannot be part of a DNS name: use a URI in tls.node_name, or omit "
                "{cluster_id} and use an authority for this cluster alone",
            )
        written = quote(cluster_id, safe="") if self.kind == "URI" else cluster_id
        self._before, _, self._after = text.replace("{cluster_id}", written).partition("{node_id}")
        self._cluster_id = cluster_id
        self._pattern = re.compile(
            re.escape(self._before) + "(0|[1-9][0-9]{0,9})" + re.escape(self._after),
            re.IGNORECASE if self.kind == "DNS" else 0,
        )

    def name_of(self, node: BrokerId) -> str:
        """Return a node's name in OpenSSL's notation: `URI:...` or `DNS:...`."""
        return f"{self.kind}:{self._before}{node}{self._after}"

    def node_of(self, certificate: Mapping[str, Any] | None) -> BrokerId:
        """Return the node of a certificate.

        Raises `InvalidRequest` (`cluster_authorization_failed`), which says what the certificate is instead.
        """
        if not certificate:
            raise _refusal(f"no certificate was shown: nodes of cluster {self._cluster_id!r} must show theirs")
        names = [f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ())]
        found = {self._node(name) for name in names} - {None}
        if len(found) == 1:
            return BrokerId(found.pop() or 0)
        shown = ", ".join(name[:200] for name in names[:NAMES_SHOWN]) or "none"
        what = "names several nodes" if found else f"names no node of cluster {self._cluster_id!r}"
        raise _refusal(
            f"the certificate {what}: its names are {shown}; a node's name looks like {self.name_of(BrokerId(0))}"
        )

    def names_a_node(self, certificate: Mapping[str, Any]) -> bool:
        """Return whether at least one name of a certificate is that of a node."""
        found = certificate.get("subjectAltName", ())
        return any(self._node(f"{kind}:{value}") is not None for kind, value in found)

    def expect(self, certificate: Mapping[str, Any] | None, node: BrokerId) -> None:
        """Check that a certificate is that of this node. Raises `InvalidRequest` (`cluster_authorization_failed`)."""
        found = self.node_of(certificate)
        if found != node:
            raise _refusal(f"node {node} was expected, but node {found} is the owner of the certificate")

    def _node(self, name: str) -> int | None:
        kind, _, text = name.partition(":")
        match = self._pattern.fullmatch(text) if kind == self.kind else None
        number = int(match[1]) if match else -1
        return number if 0 <= number <= MAX_NODE_ID else None


def _refusal(detail: str) -> InvalidRequest:
    return InvalidRequest("cluster_authorization_failed", detail)
