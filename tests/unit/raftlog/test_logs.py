"""Log lines: their node, in both forms, and that nothing depends on their being written."""

from __future__ import annotations

import errno
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from raftlog.logs import configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**configured)


def fail() -> None:
    secret = "what a record said"
    raise RuntimeError(f"broken{secret[:0]}")


def test_lines_are_json_and_name_their_node() -> None:
    stream = io.StringIO()
    configure_logging(cluster_id="c", node_id=0, stream=stream)
    structlog.get_logger().info("said", partition="orders/3", epoch=7, key=b"\xff")
    structlog.get_logger().debug("not said")
    logging.getLogger("aiohttp").error("said by %s", "another")
    logging.getLogger("aiohttp").info("small talk")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["level"], line["cluster"], line["node"]) for line in lines] == [
        ("said", "info", "c", "0"),
        ("said by another", "error", "c", "0"),
    ]
    assert (lines[0]["partition"], lines[0]["epoch"]) == ("orders/3", 7)
    assert lines[0]["timestamp"].endswith("Z")


@pytest.mark.parametrize("as_json", [True, False])
def test_an_error_has_its_traceback_and_no_users_data(as_json: bool) -> None:
    """A traceback with every frame's variables takes a third of a second of the loop, and contains users' records."""
    stream = io.StringIO()
    configure_logging(as_json=as_json, stream=stream)
    for logger in (structlog.get_logger(), logging.getLogger("asyncio")):
        try:
            fail()
        except RuntimeError:
            logger.exception("failed")
    assert stream.getvalue().count("RuntimeError: broken") == 2
    assert "what a record said" not in stream.getvalue()


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize("as_json", [True, False])
def test_a_line_that_cannot_be_written_is_lost(as_json: bool) -> None:
    """The full disk may also be the disk of the logs: the caller that logs continues."""
    configure_logging(as_json=as_json, stream=Full())
    structlog.get_logger().error("the disk is full")
    logging.getLogger("asyncio").error("the disk is full")
