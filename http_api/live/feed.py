"""The documents that are watched now, each computed once an interval for all who may see the same (S12).

A look is a request of one of the watchers, cloned with the watched path, through the route's own handler: its guard
decides each time. Watchers with the same rights share it: without security everybody, otherwise all superusers, or one
user from one address. Only changes are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import msgspec
from aiohttp import web
from yarl import URL

from http_api.service.access import Usage
from http_api.web.authentication import caller_of
from http_api.web.context import CONTEXT, ApiContext, context_of
from http_api.web.middleware import request_id_of
from http_api.web.problems import error_of_http, problem
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError

from .watched import seconds_of

MAX_STREAMS = 512
"""The most streams of one node."""
MAX_STREAMS_OF_CALLER = 256
"""The most of one user, or of one address of clients without a name."""
MAX_WATCHED = 16
"""The most paths of one stream."""
MAX_DOCUMENTS = 512
"""The most different documents that are watched at once."""
MAX_DOCUMENTS_OF_CALLER = 64
"""The most of one user, or of one address of clients without a name."""
MAX_LOOKING = 8
"""The most looks at once."""
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
TICK_SECONDS = 0.25
LOOK_SECONDS = 15.0
"""The time after which a look is given up."""


class Stream:
    """One watcher."""

    def __init__(self, request: web.Request, holder: Hashable) -> None:
        self.request = request
        self.holder = holder
        self.documents: list[Document] = []
        self._changed: dict[Document, None] = {}
        self._wake = asyncio.Event()

    def notify(self, document: Document) -> None:
        """Note that a document has changed."""
        self._changed[document] = None
        self._wake.set()

    async def changes(self, within_s: float) -> list[bytes]:
        """Return the newest state of the documents that have changed, or nothing if none does in time."""
        try:
            async with asyncio.timeout(within_s):
                await self._wake.wait()
        except TimeoutError:
            return []
        self._wake.clear()
        changed, self._changed = self._changed, {}
        return [document.event for document in changed]


class Document:
    """One path as some watchers see it."""

    def __init__(self, path: str, seconds: float) -> None:
        self.path = path
        self.seconds = seconds
        self.streams: dict[Stream, None] = {}
        self.event = b""
        """The event with the newest state; empty: there was no look yet."""
        self.rules_version = -1
        """The access rules by which the newest look decided."""
        self.due = 0.0
        self.task: asyncio.Task[None] | None = None


class Feed:
    """All streams of one API. Belongs to one event loop."""

    def __init__(self, app: web.Application) -> None:
        self._app = app
        self._documents: dict[tuple[Hashable, str], Document] = {}
        self._streams: dict[Stream, None] = {}
        self._ticks: asyncio.Task[None] | None = None
        self.looks = 0
        """The number of looks until now."""

    @property
    def open_streams(self) -> int:
        """Return the number of streams."""
        return len(self._streams)

    @property
    def watchers(self) -> list[int]:
        """Return the number of streams of each document."""
        return [len(document.streams) for document in self._documents.values()]

    def open(self, request: web.Request, paths: list[str]) -> Stream:
        """Begin a stream. Raises `InvalidRequest` for paths that cannot be watched, and `RetriableError` (`overloaded`)
        if there are too many streams or documents."""
        wanted = dict.fromkeys(paths)
        if not 1 <= len(wanted) <= MAX_WATCHED:
            raise InvalidRequest("invalid_request", f"watch 1 to {MAX_WATCHED} paths, not {len(wanted)}")
        seconds = {path: seconds_of(path) for path in wanted}
        wrong = next((path for path, known in seconds.items() if known is None), None)
        if wrong is not None:
            raise InvalidRequest("invalid_request", f"the path {wrong[:64]!r} cannot be watched")
        context = context_of(request)
        caller = caller_of(request)
        holder = caller.host if not context.service.access.principal_of(caller) else caller.principal
        if len(self._streams) >= MAX_STREAMS:
            raise RetriableError("overloaded", f"{MAX_STREAMS} streams of events are open, the maximum")
        if sum(one.holder == holder for one in self._streams) >= MAX_STREAMS_OF_CALLER:
            raise RetriableError("overloaded", f"{MAX_STREAMS_OF_CALLER} streams of {caller} are open, the maximum")
        own = {document for one in self._streams if one.holder == holder for document in one.documents}
        rights = _rights(request, context)
        more = wanted.keys() - {document.path for document in own}
        if len(own) + len(more) > MAX_DOCUMENTS_OF_CALLER:
            most = MAX_DOCUMENTS_OF_CALLER
            raise RetriableError("overloaded", f"{caller} watches {len(own)} different documents; {most} are the most")
        new = sum((rights, path) not in self._documents for path in wanted)
        if len(self._documents) + new > MAX_DOCUMENTS:
            raise RetriableError("overloaded", f"{MAX_DOCUMENTS} different documents are watched, the maximum")
        stream = Stream(request, holder)
        self._streams[stream] = None
        for path, known in seconds.items():
            assert known is not None
            self._watch(stream, (rights, path), known)
        if self._ticks is None:
            self._ticks = asyncio.get_running_loop().create_task(self._tick())
        else:
            self._begin_due()
        return stream

    def close(self, stream: Stream) -> None:
        """End a stream."""
        self._streams.pop(stream, None)
        for document in stream.documents:
            document.streams.pop(stream, None)
        for key in [key for key, document in self._documents.items() if not document.streams]:
            gone = self._documents.pop(key)
            if gone.task is not None:
                gone.task.cancel()
        if not self._streams and self._ticks is not None:
            self._ticks.cancel()
            self._ticks = None

    def _watch(self, stream: Stream, key: tuple[Hashable, str], seconds: float) -> None:
        document = self._documents.get(key)
        if document is None:
            document = self._documents[key] = Document(key[1], seconds)
        document.streams[stream] = None
        stream.documents.append(document)
        context = context_of(stream.request)
        if document.event and document.rules_version == context.service.access.rules_version:
            stream.notify(document)
        else:
            document.event = b""
            document.due = 0.0

    async def _tick(self) -> None:
        while True:
            self._begin_due()
            await asyncio.sleep(TICK_SECONDS)

    def _begin_due(self) -> None:
        """Begin the looks that are due, a bounded number at once. After a change of the access rules all are."""
        loop = asyncio.get_running_loop()
        now, version = loop.time(), self._app[CONTEXT].service.access.rules_version
        looking = sum(one.task is not None for one in self._documents.values())
        for document in sorted(self._documents.values(), key=lambda one: one.due):
            if looking >= MAX_LOOKING:
                break
            if document.task is None and (document.due <= now or document.rules_version not in (-1, version)):
                looking += 1
                document.due = now + document.seconds
                document.task = loop.create_task(self._look(document))

    async def _look(self, document: Document) -> None:
        """Compute a document in the name of one of its watchers, and wake all of them if it has changed."""
        try:
            request = self._spend(document)
            if request is None:
                return
            self.looks += 1
            version = context_of(request).service.access.rules_version
            status, body = await self._answer(request, document.path)
            event = b'event: document\ndata: {"watch":%b,"status":%d,"document":%b}\n\n' % (
                msgspec.json.encode(document.path),
                status,
                body,
            )
            document.rules_version = version
            if event != document.event:
                document.event = event
                for stream in document.streams:
                    stream.notify(document)
        finally:
            document.task = None

    def _spend(self, document: Document) -> web.Request | None:
        """Count a look as a request of a watcher that has no debt of a quota, and return the watcher's request. If all
        are in debt, put the look off and return None."""
        access = self._app[CONTEXT].service.access
        delays = []
        for stream in document.streams:
            caller = caller_of(stream.request)
            delays.append(access.delay_s(caller, Usage.REQUESTS, Usage.BYTES_OUT))
            if delays[-1] <= 0:
                access.charge(caller, Usage.REQUESTS, 1)
                return stream.request
        document.due = asyncio.get_running_loop().time() + min(delays, default=0.0)
        return None

    async def _answer(self, request: web.Request, path: str) -> tuple[int, bytes]:
        """Return status and body of the route's answer to a request for the path by the same caller."""
        clone = request.clone(method="GET", rel_url=URL(path, encoded=True), headers={})
        try:
            # As aiohttp's application does for a request that arrives.
            found = await self._app.router.resolve(clone)
            found.add_app(self._app)
            found.freeze()
            clone._match_info = found
            async with asyncio.timeout(LOOK_SECONDS):
                response = await found.handler(clone)
            body = response.body if isinstance(response, web.Response) else None
            if not isinstance(body, bytes) or len(body) > MAX_DOCUMENT_BYTES:
                raise RetriableError("overloaded", f"the document has more than {MAX_DOCUMENT_BYTES} bytes")
            return response.status, body
        except RaftlogError as error:
            refused = problem(error, request_id_of(request))
        except TimeoutError:
            overdue = RetriableError("request_timed_out", f"no answer within {LOOK_SECONDS:.0f} s")
            refused = problem(overdue, request_id_of(request))
        except web.HTTPException as error:
            refused = problem(error_of_http(error, path), request_id_of(request))
        finally:
            context_of(request).release(clone)
        assert isinstance(refused.body, bytes)
        return refused.status, refused.body


FEED: web.AppKey[Feed] = web.AppKey("feed", Feed)


def _rights(request: web.Request, context: ApiContext) -> Hashable:
    """Return what is equal for callers that see the same documents."""
    caller = caller_of(request)
    if not context.service.access.principal_of(caller):
        return "everybody"
    return "superuser" if caller.superuser else caller
