"""A progress line on standard error, only on a terminal and removed at the end; and the final summary line."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

import rich_click as click

if TYPE_CHECKING:
    from rich.progress import Progress


class ProgressLine:
    """A progress line: `with ProgressLine(...) as line: ... line.advance(bytes, records)`."""

    def __init__(
        self, label: str, total_bytes: int | None, *, total_records: int | None = None, wanted: bool = True
    ) -> None:
        """`total_bytes` is None if it is unknown; the bar then follows the records, if their total is known.

        With `wanted` False the line never shows.
        """
        self._label = label
        self._total_bytes = total_bytes
        self._total_records = total_records if total_bytes is None else None
        self._wanted = wanted and sys.stderr.isatty()
        self._progress: Progress | None = None
        self.bytes = 0
        self.records = 0

    @property
    def shows(self) -> bool:
        """Whether the line is on the terminal."""
        return self._progress is not None

    def advance(self, size: int, records: int) -> None:
        """Add to the progress."""
        self.records += records
        of = "" if self._total_records is None else f" of {self._total_records:,}"
        self.show(self.bytes + size, f"{self.records:,}{of} records")

    def show(self, done_bytes: int, note: str) -> None:
        """Show the progress and a note about it."""
        self.bytes = done_bytes
        if self._progress is not None:
            done = done_bytes if self._total_records is None else self.records
            self._progress.update(self._progress.task_ids[0], completed=done, note=note)

    def __enter__(self) -> Self:
        if self._wanted:
            from rich import progress
            from rich.console import Console

            sizes = (progress.DownloadColumn(), progress.TransferSpeedColumn()) if self._total_records is None else ()
            self._progress = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                *sizes,
                progress.TextColumn("{task.fields[note]}"),
                progress.TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
                # Lines on standard output go above the moving one. Output to a pipe or a file is not redirected.
                redirect_stdout=sys.stdout.isatty(),
            )
            total = self._total_bytes if self._total_records is None else self._total_records
            self._progress.add_task(self._label, total=total, note="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


def summary(verb: str, records: int, size: int, seconds: float) -> None:
    """Print `1000 records sent, 52000.0 records/s (5.20 MB/s) in 0.02 s` on standard error. MB is 10**6 bytes."""
    seconds = max(seconds, 1e-6)
    noun = "record" if records == 1 else "records"
    click.echo(
        f"{records} {noun} {verb}, {records / seconds:.1f} records/s ({size / seconds / 1e6:.2f} MB/s) "
        f"in {seconds:.2f} s",
        err=True,
    )
