"""The callers of a benchmark's cluster: its administrator, and clients that rules allow what they do.

A cluster without security has neither: the same code then runs without credentials.
"""

from __future__ import annotations

from raftlog import Admin
from raftlog.api.security import Acl
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.cli.terminal.connection import Access
from raftlog.security.acls import Operation, PatternType, ResourceType

CLIENT = "bench"


def administrator(cluster: LocalCluster) -> Access:
    """Return the access of the first administrator; of a cluster without security none."""
    security = cluster.security
    if security is None:
        return Access()
    return Access(tls_authority=security.authority.certificate, token_file=security.token_file)


async def client(cluster: LocalCluster, topics: str) -> Access:
    """Return the access of a client with a token of its own, and rules that let it write and read topics with this
    prefix. It is no superuser. Of a cluster without security there is none."""
    security = cluster.security
    if security is None:
        return Access()
    rules = [
        Acl(f"User:{CLIENT}", operation, ResourceType.TOPIC, topics, PatternType.PREFIXED)
        for operation in (Operation.WRITE, Operation.READ)
    ]
    async with Admin(cluster.bootstrap, **administrator(cluster).keywords) as admin:
        await admin.create_user(CLIENT)
        await admin.create_acls(rules)
        made = await admin.create_token(CLIENT)
    return Access(tls_authority=security.authority.certificate, token=made.token)
