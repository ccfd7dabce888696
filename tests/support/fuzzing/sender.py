"""Sends mutated conversations to a port, at a bounded rate, and looks at no answer."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
import time
from collections.abc import Sequence

from raftlog.model import Endpoint

from .captures import Capture, any_of
from .mutations import mutate

PATIENCE_S = 3.0
ANSWER_S = 0.05
READ_BYTES = 64 * 1024
WORKERS = 8


class Sender:
    """Everything that it does follows from the seed, but for the times."""

    def __init__(
        self,
        target: Endpoint,
        found: Sequence[Capture],
        seed: int,
        *,
        tls: ssl.SSLContext | None = None,
        per_second: float = 150.0,
    ) -> None:
        """`tls`: conversations are held within TLS, and some beside it, in plain text or broken handshakes."""
        self._target = target
        self._found = found
        self._rng = random.Random(seed)
        self._tls = tls
        self._pause_s = WORKERS / per_second
        self.connections = 0
        self.sent_bytes = 0
        self.refused = 0
        """Connections that could not be made, or that ended in the handshake."""

    async def run(self, seconds: float) -> None:
        """Send for this time."""
        until = time.monotonic() + seconds
        seeds = [self._rng.getrandbits(64) for _ in range(WORKERS)]
        async with asyncio.TaskGroup() as group:
            for seed in seeds:
                group.create_task(self._work(random.Random(seed), until))

    async def _work(self, rng: random.Random, until: float) -> None:
        while (now := time.monotonic()) < until:
            pieces = mutate(any_of(self._found, rng), self._found, rng)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._send(pieces, rng)
            except (OSError, TimeoutError, EOFError):  # what the node did to the connection is no finding
                self.refused += 1
            self.connections += 1
            await asyncio.sleep(max(now + self._pause_s - time.monotonic(), 0))

    async def _send(self, pieces: list[bytes], rng: random.Random) -> None:
        tls = self._tls
        if tls is not None and rng.random() < 0.2:
            tls = None
            if rng.random() < 0.5:
                pieces = [_broken_handshake(self._tls, rng), *pieces]  # type: ignore[arg-type]
        reader, writer = await asyncio.open_connection(self._target.host, self._target.port, ssl=tls, limit=READ_BYTES)
        try:
            whole = rng.random() < 0.7
            for piece in [b"".join(pieces)] if whole else pieces:
                writer.write(piece)
                self.sent_bytes += len(piece)
                await writer.drain()
                if not whole:
                    await asyncio.sleep(0)
            if tls is None and rng.random() < 0.3:
                writer.write_eof()
            if rng.random() < 0.8:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(READ_BYTES), ANSWER_S)
        finally:
            sock = writer.get_extra_info("socket")
            if rng.random() < 0.3 and sock is not None and sock.fileno() >= 0:  # a RST instead of a FIN
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


def _broken_handshake(context: ssl.SSLContext, rng: random.Random) -> bytes:
    """Return a ClientHello with changed bytes."""
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = bytearray(outgoing.read())
    for _ in range(rng.choice((0, 1, 3, 20))):
        hello[rng.randrange(len(hello))] = rng.randrange(256)
    return bytes(hello[: rng.choice((len(hello), rng.randrange(1, len(hello))))])
