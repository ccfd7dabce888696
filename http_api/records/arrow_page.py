"""Pages of records as Arrow IPC streams and Parquet files (`raftlog/records/arrow_files.py`), slice by slice."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from http_api.web.compression import compressor
from raftlog.records.record_filter import RecordFilter

from .page import Page

ARROW_TYPE = "application/vnd.apache.arrow.stream"
PARQUET_TYPE = "application/vnd.apache.parquet"


class ArrowPageEncoder:
    """Encodes a page slice by slice, with the interface of `PageEncoder`."""

    def __init__(
        self, plan: Page, names: Sequence[str], where: RecordFilter, media_type: str, coding: str = ""
    ) -> None:
        """`coding`: the content coding (`web/compression.py`); empty: none."""
        # pyarrow is imported when the API starts, not with this module.
        from raftlog.records.arrow_files import ArrowFile

        self._slices = deque(plan.slices)
        self._file = ArrowFile(names, where, is_parquet=media_type == PARQUET_TYPE)
        self._compressor = compressor(coding) if coding else None
        self.ended = False
        """Whether everything was returned."""

    def next(self) -> bytes:
        """Return the next piece; it may be empty."""
        piece = b""
        if self._slices:
            part = self._slices.popleft()
            piece = self._file.write(part.batch, part.start, part.end)
        if not self._slices:
            piece += self._file.close()
            self.ended = True
        if self._compressor is None:
            return piece
        packed = self._compressor.compress(piece)
        return packed + self._compressor.flush() if self.ended else packed

    def forget(self) -> None:
        """Drop the decoded batch, because the reader does not read."""
        self._file.forget()
