"""The ring on disk: a file of rows, and a small one that says what their columns are.

Nothing is fsynced but the small file, which must not be older than the rows: a column would have another series'
values. The space reserve is not for these files, so a full disk costs the samples and nothing else.
"""

from __future__ import annotations

from raftlog.errors import DiskError
from raftlog.ports import Disk

from .columns import Columns
from .rows import ROW_BYTES, ROWS, Averages, Span, place_of

FOLDER = "plots"
RING = f"{FOLDER}/ring"
COLUMNS = f"{FOLDER}/columns"
ROWS_PER_READ = 64


class Ring:
    """The files of one node."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def load(self) -> Columns:
        """Return the columns that an earlier process left; empty ones if they cannot be read. Blocks."""
        try:
            return Columns.decode(self._disk.read(COLUMNS)) if self._disk.exists(COLUMNS) else Columns()
        except (DiskError, FileNotFoundError):
            return Columns()

    def write(self, slot: int, row: bytes, columns: bytes | None) -> None:
        """Write a row, after the columns if they have changed. Raises `DiskError`."""
        self._disk.make_directory(FOLDER)
        if columns is not None:
            self._disk.replace(COLUMNS, columns)
        file = self._disk.open(RING, create=True, bulk=True)
        try:
            file.pwritev([row], place_of(slot))
        finally:
            file.close()

    def read(self, span: Span, columns: range, since: int) -> list[list[float | None]]:
        """Return the averages of columns. Raises `DiskError`."""
        averages = Averages(span, columns, since)
        try:
            file = self._disk.open(RING, bulk=True)
        except FileNotFoundError:
            return averages.columns()
        try:
            left, at = min(ROWS, span.end - span.first), span.first
            while left:
                count = min(ROWS_PER_READ, left, ROWS - at % ROWS)
                averages.add(file.pread(count * ROW_BYTES, place_of(at)))
                left, at = left - count, at + count
        finally:
            file.close()
        return averages.columns()
