"""Pages of records as Arrow IPC streams and Parquet files (`raftlog/records/arrow_files.py`), slice by slice."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from http_api.web.compression import compressor
from http_api.web.limits import SLICE_BYTES, SLICE_RECORDS
from raftlog.ports import Buffer
from raftlog.records.record_filter import RecordFilter

from .page import Page, Run

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

        self._slices = deque(part for run in plan.runs for part in _slices(run))
        self._file = ArrowFile(names, where, is_parquet=media_type == PARQUET_TYPE)
        self._compressor = compressor(coding) if coding else None
        self.ended = False
        """Whether everything was returned."""

    def next(self) -> bytes:
        """Return the next piece; it may be empty."""
        piece = b""
        if self._slices:
            piece = self._file.write(*self._slices.popleft())
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


def _slices(run: Run) -> Iterator[tuple[Buffer, int, int]]:
    """Cut a run into slices of about equal numbers of records, without decoding it."""
    count = run.end - run.start
    step = max(1, min(SLICE_RECORDS, count * SLICE_BYTES // max(run.size, 1)))
    for start in range(run.start, run.end, step):
        yield run.batch, start, min(start + step, run.end)
