"""A disk that lost or changed what was fsynced: what the operator is told.

A voter on such a disk may have promised what it no longer knows (S9). It does not start, whichever of its files it was,
or takes no part (`metadata/raft/forgotten.py`). The way back is one and the same: out of the quorum, onto a good disk,
and in again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from raftlog.errors import DiskDamaged


def way_back(node_id: int) -> str:
    """The steps by which a node gets rid of a disk that is not to be trusted."""
    return (
        f"take the node out (raftlog quorum remove {node_id}; --plan shows what would become of it), prepare it anew "
        f"on a good disk (raftlog server init --observer), start it, and add it again (raftlog quorum add {node_id})"
    )


def forgot(node_id: int) -> str:
    """Of a node that lacks what it had acknowledged: what is wrong, and what to do."""
    return (
        f"node {node_id} forgot entries of the metadata log that it had acknowledged: its disk lost what it had "
        f"fsynced. It takes no part in the quorum any more: {way_back(node_id)}"
    )


@contextmanager
def advising(node_id: int) -> Iterator[None]:
    """`DiskDamaged` from within leaves with what it means and what to do."""
    try:
        yield
    except DiskDamaged as error:
        raise DiskDamaged(
            f"{error.detail}. This is the disk's fault. What it had fsynced is lost or changed, so this node may have "
            f"promised what it no longer knows, and does not start. The other voters have the data: "
            f"{way_back(node_id)}. Deleting the file would make it a voter that may vote twice"
        ) from None
