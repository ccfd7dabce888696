"""The display of a running benchmark: a bar on a terminal, and a producer's line every five seconds."""

from __future__ import annotations

import time

import rich_click as click

from raftlog.cli.terminal.progress import ProgressLine

from .histogram import Histogram
from .lines import producer_window
from .messages import Progress

WINDOW_SECONDS = 5.0
"""Interval of the lines, as in Kafka's tool, in seconds."""


class Watch:
    """The display, which gets every child's progress through `see`.

    It leaves the last window to the total, as Kafka's tool does.
    """

    def __init__(self, line: ProgressLine, *, quiet: bool) -> None:
        """`quiet`: no lines, only the bar."""
        self._line = line
        self._quiet = quiet
        self._began = time.monotonic()
        self._records = self._bytes = 0
        self._latency = Histogram()

    def see(self, progress: Progress) -> None:
        """Add to the progress."""
        self._line.advance(progress.bytes, progress.records)
        if self._quiet:
            return
        self._records += progress.records
        self._bytes += progress.bytes
        self._latency.merge(progress.latency)
        seconds = time.monotonic() - self._began
        if seconds >= WINDOW_SECONDS:
            if self._records:
                click.echo(producer_window(self._records, self._bytes, seconds, self._latency))
            self._began, self._records, self._bytes, self._latency = time.monotonic(), 0, 0, Histogram()
