"""Reading the content of control batches, for the state that is kept of a log.

Users' batches are not decoded; control batches are rare and small, and their content changes what readers see (S13). A
control batch that is not a valid marker is damage: a later version of markers comes only with a feature level that this
node does not know, and then the node does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raftlog.model import FilePosition
from raftlog.ports import Buffer
from raftlog.records.batch import HEADER_BYTES, BatchHeader, Control, check_crc
from raftlog.records.control import decode_control


def control_of(header: BatchHeader, batch: Buffer) -> Control | None:
    """Return the content of a control batch, else None. Its CRC was checked. Raises `CorruptBatch`."""
    if not header.is_control:
        return None
    return decode_control(header, memoryview(batch)[HEADER_BYTES:])


def checked_control_of(header: BatchHeader, pieces: Sequence[Buffer]) -> Control | None:
    """Return the content of a control batch in pieces, after checking its CRC; else None. Raises `CorruptBatch`."""
    if not header.is_control:
        return None
    batch = b"".join(pieces)
    check_crc(batch)
    return control_of(header, batch)


def control_in_file(pread: Callable[[int, int], bytes], header: BatchHeader, position: FilePosition) -> Control | None:
    """Return the content of a control batch in a file; else None. Raises `CorruptBatch` and the errors of reading."""
    return checked_control_of(header, [pread(header.total_bytes, position)]) if header.is_control else None
