"""Whether a client has got the whole of an answer: its TCP has acknowledged the last byte.

The kernel says how many bytes of a socket are not acknowledged yet (`SIOCOUTQ`, Linux). A client that closes its
connection has acknowledged what came before its end of stream only if none are left at that moment; one whose
connection breaks has not confirmed anything. On a busy HTTP/2 connection the answer to a PING that was sent after the
last byte says the same. The peer may be a proxy: a buffering one acknowledges for its client.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import sys
import termios

from aiohttp import web

from http_api.exchange.transport import ExchangeTransport
from raftlog.http2 import Http2Connection

FIRST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.02
PROBE_AFTER_S = 0.05
"""Seconds after which an HTTP/2 client is asked: other answers on its connection may never let the socket rest."""
PATIENCE_S = 30.0
"""Longest wait for an acknowledgement, in seconds."""
_INT = struct.calcsize("i")


async def is_delivered(request: web.Request) -> bool:
    """Wait until everything that was written to the request's connection is acknowledged. False if that did not happen:
    the connection broke, or the client does not read."""
    pause = FIRST_PAUSE_S
    loop = asyncio.get_running_loop()
    starts = loop.time()
    while (waited := loop.time() - starts) < PATIENCE_S:
        transport = request.transport
        if transport is None or transport.is_closing():
            return was_delivered(request)
        if is_acknowledged(transport):
            return True
        if isinstance(transport, ExchangeTransport) and waited > PROBE_AFTER_S:
            transport.probe()
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
    return False


def was_delivered(request: web.Request) -> bool:
    """Return whether everything was acknowledged when the client ended its side of a connection that is closed now."""
    return bool(getattr(request.protocol, "acknowledged_at_end", False))


def is_acknowledged(transport: asyncio.BaseTransport) -> bool:
    """Return whether no byte waits in the transport or in its socket for the peer's acknowledgement."""
    if isinstance(transport, ExchangeTransport):
        return transport.is_probed or (transport.is_sent and _socket_rests(transport.connection))
    if isinstance(transport, asyncio.WriteTransport) and transport.get_write_buffer_size():
        return False
    return _socket_rests(transport)


def _socket_rests(connection: asyncio.BaseTransport | Http2Connection) -> bool:
    found = connection.get_extra_info("socket")
    if found is None or found.fileno() < 0:
        return False
    return unacknowledged(found.fileno()) == 0


def is_all_acknowledged(connection: Http2Connection) -> bool:
    """Return whether the peer of an HTTP/2 connection has acknowledged everything."""
    return connection.is_sent and _socket_rests(connection)


def unacknowledged(descriptor: int) -> int:
    """Return the bytes of a TCP socket that the peer has not acknowledged. Elsewhere than on Linux, 0: what the socket
    took counts as delivered."""
    if not sys.platform.startswith("linux"):
        return 0
    answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_INT))
    return int(struct.unpack("i", answer)[0])
