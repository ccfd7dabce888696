"""`GET /v1/stream`: the records of many partitions as one endless answer that resumes."""

from __future__ import annotations

from aiohttp import web

from http_api.web.call import Call
from http_api.web.negotiation import negotiate
from http_api.web.topics import partition_numbered, topic_named
from raftlog.security.acls import Operation, Resource, ResourceType

from .asked import asked_of
from .pages import SharedPages
from .record_stream import RecordStream
from .senders import EVENT_STREAM, NDJSON, BodySender, SocketSender
from .waits import Waits

PAGES: web.AppKey[SharedPages] = web.AppKey("pages", SharedPages)


async def stream_records(call: Call) -> web.StreamResponse:
    """Send records until the client leaves, its credential or a right ends, or the node stops."""
    request, context = call.request, call.context
    asked = asked_of(call)
    is_socket = request.headers.get("Upgrade", "").strip().lower() == "websocket"
    media_type = "" if is_socket else negotiate(request, (EVENT_STREAM, NDJSON))
    for name in sorted(asked.names):
        call.check(Operation.READ, Resource(ResourceType.TOPIC, name))
    known = call.view
    lacking = [name for name in asked.names if known.topic(name) is None]
    if lacking or any(known.topic_by_id(one.topic_id) is None for one in asked.cursor or ()):
        await call.catch_up(f"topic {lacking[0][:249]!r}" if lacking else "a topic of the cursor")
    if asked.cursor is None:
        # A stream that resumes may wait for a topic that is created again.
        for name in lacking:
            topic_named(call.view, name)
        for name, partition in asked.offsets:
            partition_numbered(topic_named(call.view, name), partition)
    waits = Waits(context.polls)
    sender = SocketSender(call, waits, asked.heartbeat_s) if is_socket else BodySender(call, media_type)
    stream = RecordStream(call, asked, sender, waits, request.app[PAGES])
    stream.check_width()
    context.begin_stream(request)
    unwatch = call.watch(stream.end, stream.check_rights)
    unsubscribe = call.view.subscribe(stream.on_view)
    try:
        return await stream.run()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client does not read its stream") from None
    finally:
        unsubscribe()
        unwatch()
        if isinstance(sender, SocketSender):
            sender.abandon()
