"""Every bound of the HTTP API, with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.config import KIB, MAX_BATCH_BYTES, MAX_FETCH_BYTES, MAX_REQUEST_BYTES, MIB

OFFLOAD_BYTES = 256 * KIB
"""Bodies above this are parsed, encoded and compressed in a thread, so that no call holds the loop for 20 ms."""

SLICE_BYTES = 256 * KIB
"""Threads parse and encode in slices of about this size: a call into C keeps the interpreter's lock while it runs."""

SLICE_RECORDS = 4_096
"""And of at most so many records."""

MAX_RECORD_JSON_BYTES = 4 * MAX_BATCH_BYTES
"""A record as JSON: escapes and base64 make it longer than it is in a batch. A slice has at least one record, so this
also bounds how long a call may take."""

SMALL_BODY_BYTES = 256 * KIB
"""The most for bodies that are parsed at once, on the loop: what is done to topics is short."""

COMMIT_BODY_BYTES = 2 * MIB
"""The most for a commit of transactions, some hundred thousand offsets. It is one document, decoded in one call."""

PIECE_BYTES = 256 * KIB
"""Written to the transport at once: what the socket does not take is copied."""

SMALL_REGION_BYTES = 16 * KIB
"""Regions of files up to this are read and joined: a `sendfile` of its own costs more than the copy."""

DEFAULT_PRODUCE_TIMEOUT_MS = 30_000

DEFAULT_READ_BYTES = 1 * MIB
MAX_READ_BYTES = MAX_FETCH_BYTES
DEFAULT_READ_RECORDS = 10_000
MAX_READ_RECORDS = 100_000

MAX_RECORDS_PER_REQUEST = 200_000
"""The smallest records are 12 bytes of JSON: without a bound one body would make a million and a half objects, and each
full garbage collection, which holds the loop, would visit them all."""

OFFSETS_LISTED = 1_000
"""Up to this many records the answer to a produce request lists every offset, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client, and all together, may make a node hold. Tests set smaller ones."""

    max_body_bytes: int = MAX_REQUEST_BYTES
    """A body, as it came and when decompressed."""
    max_held_bytes: int = 256 * MIB
    """Bodies of all requests under way; above it: `overloaded`."""
    max_concurrent_requests: int = 1_024
    """Long polls included; above it: `overloaded`. Health and readiness are answered always."""
    max_connections: int = 4_096
    """A further one is told `overloaded` and closed."""
    max_line_bytes: int = 8_190
    """The request line, and each header field."""
    max_header_fields: int = 64
    body_timeout_s: float = 20.0
    """A body must have come by then, plus the time that what came takes at `body_min_bytes_per_s`."""
    body_min_bytes_per_s: int = 64 * KIB
    write_timeout_s: float = 30.0
    """How long a reader may take for a piece of an answer, plus the time that it takes at `write_min_bytes_per_s`."""
    write_min_bytes_per_s: int = 64 * KIB
    keepalive_timeout_s: float = 75.0
    """An idle connection is closed, and so is one that has not sent a whole header by then."""
    linger_s: float = 5.0
    """How long the rest of a refused body is read and dropped, so that the client sees the answer."""
    codec_threads: int = 2
    codec_queue: int = 64
    """Bodies waiting for a codec thread; above it: `overloaded`."""
    shutdown_timeout_s: float = 5.0
    """What requests under way have when the API is closed; then they are cancelled."""
