"""The transport of the data plane: HTTP/2 with its own path for DATA frames.

Messages (a list of buffers and file regions, sent in order and never joined) flow both ways over streams; a stream is
named by its path. Any HTTP/2 client can use it: `POST` with a body of messages, each preceded by its length as u32
big-endian.

Serving and dialing::

    class Echo:                                            # a StreamHandler
        def on_message(self, stream, message):             # message: memoryview, yours to keep
            stream.send([b"you said ", message])
        def on_ended(self, stream):                        # the peer sends nothing more
            stream.end()
        def on_closed(self, stream, reason):               # once, and last
            print(stream.path, reason)

    listener = Http2Listener({"/echo": lambda stream: Echo()})
    port = await listener.start("127.0.0.1", 0)
    connection = await connect("127.0.0.1", port)
    stream = connection.open_stream("/echo", {"raftlog-node": "1"}, handler)
    stream.send([b"hello"])                                # handler.on_message(stream, b"you said hello") follows
    stream.end()                                           # handler.on_closed(stream, "ended") follows
    dialer = ReconnectingDialer("127.0.0.1", port, "/echo", handler, random=random.Random(), on_opened=opened)
    await dialer.close()
    await listener.close(grace=1.0)

All calls belong to the thread of the connection's loop, and none blocks. `README.md` in this folder explains the
design.
"""

from __future__ import annotations

from .connection import ExchangeAcceptor, Http2Connection, Http2Stream, StreamAcceptor, StreamHandler
from .dialer import ReconnectingDialer, connect
from .exchange import ExchangeHandler, Http2Exchange
from .limits import Http2Limits
from .listener import Http2Listener

__all__ = [
    "ExchangeAcceptor",
    "ExchangeHandler",
    "Http2Connection",
    "Http2Exchange",
    "Http2Limits",
    "Http2Listener",
    "Http2Stream",
    "ReconnectingDialer",
    "StreamAcceptor",
    "StreamHandler",
    "connect",
]
