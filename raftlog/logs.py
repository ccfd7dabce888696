"""The configuration of logging: JSON lines for machines, a readable form on a terminal.

Every line carries its time, level, cluster and node; callers bind partition and epoch themselves. raftlog's modules get
their logger from `structlog.get_logger()`. The standard library's loggers (aiohttp's, asyncio's) write to the same
stream. If a line cannot be written, it is dropped.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logging(
    level: str = "info",
    *,
    cluster_id: str = "",
    node_id: int | None = None,
    as_json: bool | None = None,
    stream: TextIO | None = None,
) -> None:
    """Set up logging for the process.

    `as_json` None: JSON unless the stream (default stderr) is a terminal.
    """
    target = stream or sys.stderr
    if as_json is None:
        as_json = not target.isatty()
    lines = cast(TextIO, _Lines(target))
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _Identity(cluster_id, node_id),
    ]
    renderer: structlog.typing.Processor
    if as_json:
        renderer = structlog.processors.JSONRenderer()
        last: list[structlog.typing.Processor] = [structlog.processors.format_exc_info, renderer]
    else:
        # structlog's default form shows every variable, including users' records, and takes a third of a second.
        renderer = structlog.dev.ConsoleRenderer(colors=True, exception_formatter=structlog.dev.plain_traceback)
        last = [renderer]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=lines),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last], foreign_pre_chain=shared
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Messages of other libraries below a warning are noise here.
    root.setLevel(max(LEVELS[level], logging.WARNING))


class _Lines:
    """A stream that drops a line if it cannot be written: the full disk may also be that of the logs, and logging must
    not stop the caller."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


class _Identity:
    """A processor that adds the cluster and the node to every line."""

    def __init__(self, cluster_id: str, node_id: int | None) -> None:
        self._fields = {"cluster": cluster_id} if cluster_id else {}
        if node_id is not None:
            self._fields["node"] = str(node_id)

    def __call__(self, logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        for name, value in self._fields.items():
            event.setdefault(name, value)
        return event
