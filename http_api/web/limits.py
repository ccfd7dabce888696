"""Every bound of the HTTP API, with its reason."""

from __future__ import annotations

import msgspec

from raftlog.config import KIB, MAX_BATCH_BYTES, MAX_FETCH_BYTES, MAX_REQUEST_BYTES, MIB

OFFLOAD_BYTES = 256 * KIB
"""Bodies above this are parsed, encoded and compressed in a thread, so that no call holds the loop for 20 ms."""

SLICE_BYTES = 256 * KIB
"""Threads parse and encode in slices of about this size, because a call into C holds the GIL while it runs."""

SLICE_RECORDS = 4_096
"""The maximum number of records in a slice."""

MAX_RECORD_JSON_BYTES = 4 * MAX_BATCH_BYTES
"""A record as JSON: escapes and base64 make it longer than it is in a batch. A slice has at least one record, so this
also bounds how long a call may take."""

SMALL_BODY_BYTES = 256 * KIB
"""The maximum for bodies that are parsed on the event loop: requests about topics are short."""

COMMIT_BODY_BYTES = 2 * MIB
"""The maximum for a commit of transactions, some hundred thousand offsets: one document, decoded in one call."""

PIECE_BYTES = 256 * KIB
"""The size of one write to the transport, which copies what the socket does not take."""

SMALL_REGION_BYTES = 16 * KIB
"""Regions of files up to this are read and joined: a `sendfile` of its own costs more than the copy."""

DEFAULT_READ_BYTES = 1 * MIB
MAX_READ_BYTES = MAX_FETCH_BYTES
DEFAULT_READ_RECORDS = 10_000
MAX_READ_RECORDS = 100_000

COUNTED_BYTES = 16 * KIB
"""Waiting bytes of a connection are counted from this number on: to count the usual head would cost more than it
holds."""

COUNTED_ANSWER_BYTES = 1 * KIB
"""Answers up to this size fit into the socket, or are the only one that waits on their connection."""

MAX_RECORDS_PER_REQUEST = 200_000
"""The smallest records are 12 bytes of JSON: without a bound one body would create a million and a half objects, and
each full garbage collection, which blocks the event loop, would visit them all."""

GATHERED_BODY_BYTES = 4 * KIB
"""Up to this size, the records of a produce request may share an append with those of other requests: above it the cost
of an append is small beside that of the records."""

GATHERED_REQUESTS = 64
"""The maximum number of such requests in an append: together they are packed on the event loop."""

OFFSETS_LISTED = 1_000
"""Up to this number of records the answer to a produce request lists every offset, unless the request says
otherwise."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what one client, and all clients together, may make a node hold. Tests set smaller ones."""

    max_body_bytes: int = MAX_REQUEST_BYTES
    """The size of a body, both on the wire and decompressed."""
    max_held_bytes: int = 256 * MIB
    """The bodies of all requests in progress, and answers of more than `COUNTED_ANSWER_BYTES` until they are sent;
    above it: `overloaded`."""
    max_held_bytes_of_caller: int = 192 * MIB
    """The same of one user, or of one address of clients without a name: the rest is for others."""
    max_concurrent_requests: int = 1_024
    """Requests in progress, long polls included; above it: `overloaded`. Health and readiness are always answered."""
    max_requests_of_caller: int = 768
    """The same of one user, or of one address of clients without a name: the rest is for others."""
    max_streams: int = 2_048
    """Streams of records in progress, which count as requests only until they begin; above it: `overloaded`."""
    max_streams_of_caller: int = 1_536
    """The same of one user, or of one address of clients without a name: the rest is for others."""
    max_connections: int = 4_096
    """An idle connection gives way to a further one; if all are at work, that one is answered `overloaded` and
    closed. With TLS an eighth of them are for handshakes."""
    max_handshakes: int = 512
    """TLS handshakes in progress; beyond it, one of the address with the most gives way."""
    share_of_others: int = 4
    """One part in this many of all connections is not for the address that has the rest."""
    max_strangers: int = 512
    """Connections without an authenticated request, where requests need a credential; beyond it, one of the address
    with the most gives way."""
    max_strangers_per_address: int = 384
    """The same of one address; beyond it, its oldest gives way."""
    stranger_timeout_s: float = 30.0
    """The time after which a connection without an authenticated request is closed."""
    max_stranger_bytes: int = 1 * MIB
    """Bytes of unanswered input of a stranger's connection; beyond it, the connection is cut."""
    max_waiting_bytes: int = 64 * MIB
    """Bytes of heads that are not complete, and of requests behind another one of their connection, of all
    connections; beyond it, the one with the most is cut."""
    max_line_bytes: int = 8_190
    """The request line, and each header field."""
    max_header_fields: int = 64
    body_timeout_s: float = 20.0
    """The deadline of a body, plus the time that the received bytes take at `body_min_bytes_per_s`."""
    body_min_bytes_per_s: int = 64 * KIB
    stream_idle_timeout_s: float = 300.0
    """A stream of records ends if nothing arrives for this time."""
    write_timeout_s: float = 30.0
    """The time in which a client must read a piece of an answer, plus its time at `write_min_bytes_per_s`."""
    write_min_bytes_per_s: int = 64 * KIB
    keepalive_timeout_s: float = 75.0
    """An idle connection is closed after this time, and so is one that has not sent a whole header."""
    linger_s: float = 5.0
    """The time for which the rest of a refused body is read and discarded, so that the client sees the answer."""
    codec_threads: int = 2
    decoded_pages: int = 4
    """Large answers in progress whose batch stays decoded between two slices, at most 16 MiB each; the others decode it
    again for each slice."""
    codec_queue: int = 64
    """Bodies waiting for a codec thread; above it: `overloaded`."""
    shutdown_timeout_s: float = 5.0
    """The time that requests in progress get when the API closes; then they are cancelled."""
