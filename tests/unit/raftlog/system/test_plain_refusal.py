"""A connection without TLS at a listener that requires it, whose peer resets it before the answer (S11)."""

from __future__ import annotations

import asyncio
import errno

from raftlog.system.tls_door import PlainRefusal


class ResetTransport(asyncio.WriteTransport):
    """The transport of a connection that the peer resets between the answer and its end."""

    aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """The kernel accepts it."""

    def write_eof(self) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    def abort(self) -> None:
        self.aborted = True


async def test_a_reset_before_the_end_of_the_answer_is_no_error_of_the_node() -> None:
    transport = ResetTransport()
    refusal = PlainRefusal(b"no")
    refusal.connection_made(transport)
    assert transport.aborted
    refusal.connection_lost(None)
