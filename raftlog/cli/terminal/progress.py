"""A progress line on standard error, only on a terminal and removed at the end; and the final summary line."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import rich_click as click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressLine:
    """A progress line: `with ProgressLine(...) as line: ... line.advance(bytes, records)`."""

    def __init__(self, label: str, total_bytes: int | None, *, wanted: bool = True) -> None:
        """`total_bytes` is None if it is unknown. With `wanted` False the line never shows."""
        self._label = label
        self._total_bytes = total_bytes
        self._wanted = wanted and sys.stderr.isatty()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._records = 0

    def advance(self, size: int, records: int) -> None:
        """Add to the progress."""
        self._records += records
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=size, records=f"{self._records:,} records")

    def __enter__(self) -> ProgressLine:
        if self._wanted:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TransferSpeedColumn,
            )

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TextColumn("{task.fields[records]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
                # Lines on standard output go above the moving one. Output to a pipe or a file is not redirected.
                redirect_stdout=sys.stdout.isatty(),
            )
            self._task = self._progress.add_task(self._label, total=self._total_bytes, records="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


class Stopwatch:
    """The time since its creation, in seconds."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._started, 1e-6)


def summary(verb: str, records: int, size: int, seconds: float) -> None:
    """Print `1000 records sent, 52000.0 records/s (5.20 MB/s) in 0.02 s` on standard error. MB is 10**6 bytes."""
    noun = "record" if records == 1 else "records"
    click.echo(
        f"{records} {noun} {verb}, {records / seconds:.1f} records/s ({size / seconds / 1e6:.2f} MB/s) "
        f"in {seconds:.2f} s",
        err=True,
    )
