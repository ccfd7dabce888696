"""Whether a client has got the whole of an answer: its TCP has acknowledged the last byte.

The kernel says how many bytes of a socket are not acknowledged yet (`SIOCOUTQ`, Linux). A client that closes its
connection has acknowledged what came before its end of stream only if none are left at that moment; one whose
connection breaks has not confirmed anything. The peer may be a proxy: a buffering one acknowledges for its client.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import sys
import termios

from aiohttp import web

FIRST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.02
PATIENCE_S = 30.0
"""Longest wait for an acknowledgement, in seconds."""
_INT = struct.calcsize("i")


async def is_delivered(request: web.Request) -> bool:
    """Wait until everything that was written to the request's connection is acknowledged. False if that did not happen:
    the connection broke, or the client does not read."""
    pause = FIRST_PAUSE_S
    loop = asyncio.get_running_loop()
    ends = loop.time() + PATIENCE_S
    while loop.time() < ends:
        transport = request.transport
        if transport is None or transport.is_closing():
            return was_delivered(request)
        if is_acknowledged(transport):
            return True
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
    return False


def was_delivered(request: web.Request) -> bool:
    """Return whether everything was acknowledged when the client ended its side of a connection that is closed now."""
    return bool(getattr(request.protocol, "acknowledged_at_end", False))


def is_acknowledged(transport: asyncio.BaseTransport) -> bool:
    """Return whether no byte waits in the transport or in its socket for the peer's acknowledgement."""
    if isinstance(transport, asyncio.WriteTransport) and transport.get_write_buffer_size():
        return False
    found = transport.get_extra_info("socket")
    if found is None or found.fileno() < 0:
        return False
    return unacknowledged(found.fileno()) == 0


def unacknowledged(descriptor: int) -> int:
    """Return the bytes of a TCP socket that the peer has not acknowledged. Elsewhere than on Linux, 0: what the socket
    took counts as delivered."""
    if not sys.platform.startswith("linux"):
        return 0
    answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_INT))
    return int(struct.unpack("i", answer)[0])
