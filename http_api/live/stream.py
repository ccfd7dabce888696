"""`GET /v1/events`: the documents of some paths, now and whenever they change, as server-sent events.

The events of one stream are those of the WHATWG's HTML standard (9.2): `event: document`, and one line of data.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from http_api.service.access import Usage
from http_api.web.call import Call
from http_api.web.replies import write_deadline, write_in_time
from http_api.web.revocation import Revocation
from raftlog.errors import RaftlogError

from .feed import FEED

WATCH = "watch"
QUERY: tuple[str, ...] = ()
REPEATABLE = (WATCH,)
HEARTBEAT_SECONDS = 15.0
"""A comment is sent after this time without a change, so that both ends notice a lost connection."""
_HEARTBEAT = b":\n\n"
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def stream_events(call: Call) -> web.StreamResponse:
    """Send the documents until the client leaves, its credential ends or the node stops."""
    feed, context = call.request.app[FEED], call.context
    stream = feed.open(call.request, call.query.texts(WATCH))
    ends = asyncio.timeout(None)
    try:
        unwatch = call.watch(Revocation(ends))
    except RaftlogError:
        feed.close(stream)
        raise
    context.polls.add(ends)
    response = web.StreamResponse(headers=_HEADERS)
    try:
        async with ends:
            async with asyncio.timeout(write_deadline(context, 0)):
                await response.prepare(call.request)
            while not context.closing:
                events = b"".join(await stream.changes(HEARTBEAT_SECONDS)) or _HEARTBEAT
                call.service.access.charge(call.caller, Usage.BYTES_OUT, len(events))
                await write_in_time(response, context, events)
    except TimeoutError:
        # Not ended by us: the client does not read. Ended: what it has is whole events.
        if not ends.expired() and call.request.transport is not None:
            call.request.transport.abort()
            raise ConnectionResetError("the client does not read its events") from None
    finally:
        context.polls.discard(ends)
        unwatch()
        feed.close(stream)
    await response.write_eof()
    return response
