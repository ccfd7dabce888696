"""W3C Trace Context (https://www.w3.org/TR/trace-context/) in the headers of records.

A record carries the trace of the request that sent it as its headers `traceparent` and `tracestate`, with the values
that the HTTP headers of these names have. So a consumer continues the producer's trace. A malformed header is no trace:
as the standard has it, nothing is refused because of it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MAX_TRACESTATE = 512
"""Longest `tracestate` that is kept, in characters: what the standard asks everybody to keep (3.3.1.5)."""
SAMPLED = 0x01

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_PRINTABLE = re.compile(r"[ -~]*", re.ASCII)
_OWN_VERSION, _NO_VERSION = "00", "ff"

Pairs = Sequence[tuple[str, bytes | None]]


class TraceContext(msgspec.Struct, frozen=True):
    """One span of a trace: what is done because of it belongs to the same trace. Make it with `parse`."""

    traceparent: str
    """`00-<trace id>-<span id>-<flags>`, in hexadecimal digits."""
    tracestate: str = ""
    """The members that tracing systems add for themselves."""

    @property
    def trace_id(self) -> str:
        """The trace, 32 hexadecimal digits."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """The span within the trace, 16 hexadecimal digits: the parent of what follows."""
        return self.traceparent[36:52]

    @property
    def sampled(self) -> bool:
        """Whether the caller may have recorded its span."""
        return bool(int(self.traceparent[53:55], 16) & SAMPLED)

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """The headers of a record."""
        state = ((TRACESTATE, self.tracestate.encode()),) if self.tracestate else ()
        return ((TRACEPARENT, self.traceparent.encode()), *state)


def parse(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Return the context, or None if `traceparent` is invalid. An invalid `tracestate` is left out."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == _NO_VERSION or not int(trace_id, 16) or not int(span_id, 16):
        return None
    if version == _OWN_VERSION:
        if more is not None:
            return None
    else:  # a later version: what this one knows of it (3.2.4)
        traceparent = f"{_OWN_VERSION}-{trace_id}-{span_id}-{int(flags, 16) & SAMPLED:02x}"
    kept = len(tracestate) <= MAX_TRACESTATE and _PRINTABLE.fullmatch(tracestate)
    return TraceContext(traceparent, tracestate.strip() if kept else "")


def trace_of(headers: Iterable[tuple[str, bytes | None]]) -> TraceContext | None:
    """Return the context in the headers of a record, or None. Of several headers of one name, the first counts."""
    first: dict[str, bytes | None] = {}
    for name, value in headers:
        if name in (TRACEPARENT, TRACESTATE):
            first.setdefault(name, value)
    texts = [(first.get(name) or b"").decode("latin-1") for name in (TRACEPARENT, TRACESTATE)]
    return parse(*texts)


def with_trace(headers: Pairs, context: TraceContext) -> Pairs:
    """Return a record's headers with the context, unless they have a `traceparent` already."""
    if not headers:
        return context.headers
    if any(name == TRACEPARENT for name, _ in headers):
        return headers
    # A `tracestate` says nothing without its `traceparent`.
    return [*(pair for pair in headers if pair[0] != TRACESTATE), *context.headers]
