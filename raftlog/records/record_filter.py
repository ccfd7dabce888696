"""Which columns and records of stored batches a reader wants (`raftlog/records/arrow_files.py`)."""

from __future__ import annotations

import msgspec

COLUMNS = ("offset", "timestamp", "key", "value", "headers")
"""The names of the columns, in the order of `arrow.SCHEMA`."""


class RecordFilter(msgspec.Struct, frozen=True):
    """The records that fit in every respect. None: any fits. Ranges do not include their end."""

    key: bytes | None = None
    end_offset: int | None = None
    start_timestamp_ms: int | None = None
    end_timestamp_ms: int | None = None
