"""The mark of a loss that the quorum may not know: changed between two recoveries, by what the process knows.

A recovery sets the mark before it cuts anything, and the log removes it once the quorum has accepted the report.
"""

from __future__ import annotations

from msgspec.structs import replace

from partitions.files.checkpoint import CHECKPOINT_NAME, DamagedFile, LogCheckpoint, read_file
from partitions.files.durable import Steps, replaced
from raftlog.ports import Disk


def mark_loss(disk: Disk, path: str, *, unreported: bool, shared: bool) -> Steps[None]:
    """Write into the checkpoint of a closed log whether the next recovery has to report an earlier loss.

    An absent or damaged checkpoint stays as it is: recovery does not vouch for a log without one. Raises `DiskError`.
    """
    try:
        content = read_file(disk, f"{path}/{CHECKPOINT_NAME}")
        checkpoint = None if content is None else LogCheckpoint.decode(content)
    except DamagedFile:
        return
    if checkpoint is not None and checkpoint.unreported_loss is not unreported:
        marked = replace(checkpoint, unreported_loss=unreported)
        yield from replaced(disk, path, {CHECKPOINT_NAME: marked.encode()}, hold=not shared)
