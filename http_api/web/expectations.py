"""`Expect: 100-continue` (RFC 9110, 10.1.1): the client sends its body after an interim answer, which it gets when a
handler reads the body. So a caller that is refused has sent nothing.

aiohttp would answer before the middleware runs, and for paths that do not exist without asking anybody. The server
therefore takes the header away from it (`server.py`).
"""

from __future__ import annotations

from aiohttp import web

from http_api.exchange.writer import ExchangeWriter
from raftlog.errors import InvalidRequest

EXPECTATION: web.RequestKey[str] = web.RequestKey("expectation", str)
"""The value of the header; removed after the interim answer."""


def check_expectation(request: web.Request) -> None:
    """Raise `InvalidRequest` for an expectation that cannot be met."""
    given = request.get(EXPECTATION)
    if given is not None and given.lower() != "100-continue":
        raise InvalidRequest("invalid_request", f"Expect {given[:64]!r} is not supported")


def is_body_unsent(request: web.Request) -> bool:
    """Return whether the client still waits for the interim answer."""
    return EXPECTATION in request


async def let_send(request: web.Request) -> None:
    """Send the interim answer if the client waits for it."""
    if EXPECTATION not in request:
        return
    del request[EXPECTATION]
    if isinstance(request.writer, ExchangeWriter):
        request.writer.send_interim(100)
        return
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # The answer itself has not started.
