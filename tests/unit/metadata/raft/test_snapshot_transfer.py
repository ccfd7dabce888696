"""A snapshot from the leader in chunks that may arrive twice, out of order, or from another snapshot (S7)."""

from __future__ import annotations

from itertools import pairwise

from crc32c import crc32c

from metadata.journal.snapshot_file import Snapshot
from metadata.raft.messages import SnapshotChunk
from metadata.raft.snapshot_transfer import IncomingSnapshot


def chunks_of(snapshot: Snapshot, *cuts: int) -> list[SnapshotChunk]:
    """The snapshot as a leader sends it, cut at these offsets."""
    edges = [0, *cuts, len(snapshot.state)]
    return [
        SnapshotChunk(
            term=snapshot.term,
            index=snapshot.index,
            last_term=snapshot.term,
            size=len(snapshot.state),
            crc=snapshot.crc,
            offset=start,
            chunk_crc=crc32c(snapshot.state[start:end]),
            data=snapshot.state[start:end],
            configuration=snapshot.configuration,
        )
        for start, end in pairwise(edges)
    ]


def test_a_snapshot_in_chunks_is_complete_with_the_last_one() -> None:
    snapshot, incoming = Snapshot.of(9, 3, b"a state in chunks"), IncomingSnapshot()
    first, second, last = chunks_of(snapshot, 5, 9)
    assert incoming.on_chunk(first) is None and incoming.held_bytes == 5
    assert incoming.on_chunk(first) is None and incoming.held_bytes == 5, "a copy adds nothing"
    assert incoming.on_chunk(last) is None and incoming.held_bytes == 5, "nor does one behind a gap"
    assert incoming.on_chunk(second) is None and incoming.held_bytes == 9
    assert incoming.on_chunk(last) == snapshot
    assert incoming.held_bytes == 0


def test_chunks_of_two_snapshots_are_not_mixed() -> None:
    older, newer, incoming = Snapshot.of(9, 3, b"older state"), Snapshot.of(12, 3, b"newer state"), IncomingSnapshot()
    begun, _ = chunks_of(older, 6)
    first, last = chunks_of(newer, 4)
    assert incoming.on_chunk(begun) is None and incoming.held_bytes == 6
    assert incoming.on_chunk(first) is None and incoming.held_bytes == 4, "nothing of the older one stays"
    assert incoming.on_chunk(last) == newer
