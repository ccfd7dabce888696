"""What a control batch says, read by whoever keeps state of a log: its payload against its own CRC.

Users' batches are never looked into; these are rare and small, and what they say changes what readers see (S13). One
that does not say anything a marker can say is damage: a later version of markers comes only with a feature level that
this node does not know, and then it does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raftlog.model import FilePosition
from raftlog.ports import Buffer
from raftlog.records.batch import HEADER_BYTES, BatchHeader, Control, check_crc
from raftlog.records.control import decode_control


def control_of(header: BatchHeader, batch: Buffer) -> Control | None:
    """What the batch says if it is a control batch, else None. Its CRC was checked. Raises `CorruptBatch`."""
    if not header.is_control:
        return None
    return decode_control(header, memoryview(batch)[HEADER_BYTES:])


def checked_control_of(header: BatchHeader, pieces: Sequence[Buffer]) -> Control | None:
    """The same of a batch in pieces, whose CRC nobody has looked at. Raises `CorruptBatch`."""
    if not header.is_control:
        return None
    batch = b"".join(pieces)
    check_crc(batch)
    return control_of(header, batch)


def control_in_file(pread: Callable[[int, int], bytes], header: BatchHeader, position: FilePosition) -> Control | None:
    """The same of a batch that lies in a file. Raises `CorruptBatch` and what reading does."""
    return checked_control_of(header, [pread(header.total_bytes, position)]) if header.is_control else None
