"""The error texts for a disk that lost or changed fsynced data.

A voter on such a disk may have promised what it no longer knows (S9). Whichever of its files is affected, it does not
start, or takes no part in the quorum (`metadata/raft/forgotten.py`). The remedy is always the same: remove the node
from the quorum, prepare it on a good disk, and add it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from raftlog.errors import DiskDamaged


def way_back(node_id: int) -> str:
    """Return the steps that move a node off a disk that cannot be trusted."""
    return (
        f"remove the node from the quorum (raftlog quorum remove {node_id}; --plan shows the effect), prepare it again "
        f"on a good disk (raftlog server init --observer), start it, and add it (raftlog quorum add {node_id})"
    )


def forgot(node_id: int) -> str:
    """Return the error text for a node that lacks entries which it had acknowledged, with the remedy."""
    return (
        f"node {node_id} forgot entries of the metadata log that it had acknowledged: its disk lost fsynced data. "
        f"It no longer takes part in the quorum: {way_back(node_id)}"
    )


@contextmanager
def advising(node_id: int) -> Iterator[None]:
    """Extend a `DiskDamaged` raised inside with its consequence and the remedy."""
    try:
        yield
    except DiskDamaged as error:
        raise DiskDamaged(
            f"{error.detail}. This is the disk's fault: fsynced data is lost or changed, so this node may have made "
            f"promises that it no longer knows, and does not start. The other voters have the data: "
            f"{way_back(node_id)}. Do not delete the file: the node could then vote twice in one term"
        ) from None
