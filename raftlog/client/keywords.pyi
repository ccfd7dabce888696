"""The keywords of the clients' constructors: the fields of `settings.py`, from which this is generated."""

from collections.abc import Callable
from datetime import timedelta
from ssl import SSLContext
from typing import TypedDict

from raftlog.client.credentials import Credentials
from raftlog.model import Acks
from raftlog.trace_context import TraceContext

class AdminKeywords(TypedDict, total=False):
    credentials: Credentials | None
    """`Credentials(token=...)`, `Credentials(token_file=...)` or `Credentials(user=..., password=...)`.

    None: the token of the variable `RAFTLOG_TOKEN`, or of the file that `RAFTLOG_TOKEN_FILE` names, if one is set.
    """
    tls_authority: str | None
    """PEM file with the certificates of the authorities that sign the nodes' certificates.

    With it, data connections use TLS; with a credential, addresses without a scheme are `https://`, too. None: the
    system's authorities, for addresses that begin with `https://`.
    """
    tls_certificate: str | None
    """PEM file with the client's own certificate, and then any intermediate certificates."""
    tls_key: str | None
    """PEM file with the key of `tls_certificate`, without a pass phrase; None: the same file."""
    ssl: SSLContext | None
    """A TLS context instead of the files: `ssl.create_default_context(cafile="authority.pem")`.

    It serves one client at a time: its ALPN protocols are set.
    """
    insecure_credentials: bool
    """Whether a credential may be sent without TLS, or to nodes that TLS does not verify, beyond this machine."""

class ProducerKeywords(TypedDict, total=False):
    acks: Acks | int | str
    """`"all"`, 1 (the leader's disk) or 0."""
    compression: str
    """`"none"`, `"gzip"`, `"snappy"`, `"lz4"` or `"zstd"`; larger batches are compressed on threads."""
    linger_ms: float | timedelta
    """Time for which a batch waits for more records.

    With 0, a batch waits only while its broker has a request of this producer in flight, and 5 ms at most.
    """
    batch_bytes: int
    """Size at which a batch is full; up to 1 MiB."""
    max_in_flight: int
    """Requests in flight per broker; of one partition, at most five batches."""
    buffer_bytes: int
    """Memory for unacknowledged records, including Python's overhead.

    With `acks=0`, it is for unsent ones, up to 1 MiB per broker.
    """
    delivery_timeout_ms: float | timedelta
    """Time from the opening of a batch to its failure."""
    request_timeout_ms: float | timedelta
    """Longest wait of a broker for its replicas."""
    idempotent: bool | None
    """Whether the producer is idempotent; None: it is with `acks="all"`."""
    transactional_id: str | None
    """The name under which the producer's transactions fence those of earlier producers of the same name.

    Such a producer sends only in transactions.
    """
    transaction_timeout_ms: int | timedelta
    """Time after which the cluster aborts a transaction that is still open."""
    trace_context: Callable[[], TraceContext | None] | None
    """Function that returns the W3C trace context of the present work, called for each record that is sent alone.

    The record carries it as its headers `traceparent` and `tracestate`, unless it has a `traceparent` of its own.
    """
    credentials: Credentials | None
    """`Credentials(token=...)`, `Credentials(token_file=...)` or `Credentials(user=..., password=...)`.

    None: the token of the variable `RAFTLOG_TOKEN`, or of the file that `RAFTLOG_TOKEN_FILE` names, if one is set.
    """
    tls_authority: str | None
    """PEM file with the certificates of the authorities that sign the nodes' certificates.

    With it, data connections use TLS; with a credential, addresses without a scheme are `https://`, too. None: the
    system's authorities, for addresses that begin with `https://`.
    """
    tls_certificate: str | None
    """PEM file with the client's own certificate, and then any intermediate certificates."""
    tls_key: str | None
    """PEM file with the key of `tls_certificate`, without a pass phrase; None: the same file."""
    ssl: SSLContext | None
    """A TLS context instead of the files: `ssl.create_default_context(cafile="authority.pem")`.

    It serves one client at a time: its ALPN protocols are set.
    """
    insecure_credentials: bool
    """Whether a credential may be sent without TLS, or to nodes that TLS does not verify, beyond this machine."""

class ConsumerKeywords(TypedDict, total=False):
    max_wait_ms: int | timedelta
    """Longest wait of a broker for `min_bytes`."""
    min_bytes: int
    """Number of bytes that a broker waits for; 0 means 1."""
    on_out_of_range: str
    """Reaction to a position that is not, or no longer, in the log.

    `"error"`, or `"earliest"` or `"latest"` to continue at that offset.
    """
    prefetch_bytes: int
    """Limit of bytes fetched ahead, for all partitions together."""
    isolation: str
    """`"read_committed"`: records of committed transactions and of no transaction, up to the first open transaction.

    `"read_uncommitted"` includes records of open and aborted transactions.
    """
    credentials: Credentials | None
    """`Credentials(token=...)`, `Credentials(token_file=...)` or `Credentials(user=..., password=...)`.

    None: the token of the variable `RAFTLOG_TOKEN`, or of the file that `RAFTLOG_TOKEN_FILE` names, if one is set.
    """
    tls_authority: str | None
    """PEM file with the certificates of the authorities that sign the nodes' certificates.

    With it, data connections use TLS; with a credential, addresses without a scheme are `https://`, too. None: the
    system's authorities, for addresses that begin with `https://`.
    """
    tls_certificate: str | None
    """PEM file with the client's own certificate, and then any intermediate certificates."""
    tls_key: str | None
    """PEM file with the key of `tls_certificate`, without a pass phrase; None: the same file."""
    ssl: SSLContext | None
    """A TLS context instead of the files: `ssl.create_default_context(cafile="authority.pem")`.

    It serves one client at a time: its ALPN protocols are set.
    """
    insecure_credentials: bool
    """Whether a credential may be sent without TLS, or to nodes that TLS does not verify, beyond this machine."""

class GroupConsumerKeywords(TypedDict, total=False):
    auto_offset_reset: str
    """Starting position if no offset is committed, or the committed one is no longer in the log.

    `"latest"`, `"earliest"` or `"error"`.
    """
    enable_auto_commit: bool
    """Whether `poll` commits what was processed."""
    auto_commit_interval_ms: float | timedelta
    """Time between automatic commits."""
    session_timeout_ms: int | timedelta
    """Time without a heartbeat after which the group removes the member."""
    heartbeat_interval_ms: float | timedelta
    """Time between heartbeats; less than `session_timeout_ms`."""
    max_poll_interval_ms: float | timedelta
    """Time without a `poll` after which the member leaves the group."""
    rebalance_timeout_ms: int | timedelta | None
    """Time allowed for releasing a partition; None: `max_poll_interval_ms`."""
    instance_id: str
    """Name of a static member, which keeps its partitions over a restart."""
    client_id: str
    """Prefix of the member id."""
    assignor: str
    """Assignment strategy: `"uniform"`, `"range"` or `"cooperative-sticky"`."""
    prefetch_bytes: int
    """Limit of bytes fetched ahead, for all partitions together."""
    isolation: str
    """`"read_committed"`: records of committed transactions and of no transaction, up to the first open transaction.

    `"read_uncommitted"` includes records of open and aborted transactions.
    """
    credentials: Credentials | None
    """`Credentials(token=...)`, `Credentials(token_file=...)` or `Credentials(user=..., password=...)`.

    None: the token of the variable `RAFTLOG_TOKEN`, or of the file that `RAFTLOG_TOKEN_FILE` names, if one is set.
    """
    tls_authority: str | None
    """PEM file with the certificates of the authorities that sign the nodes' certificates.

    With it, data connections use TLS; with a credential, addresses without a scheme are `https://`, too. None: the
    system's authorities, for addresses that begin with `https://`.
    """
    tls_certificate: str | None
    """PEM file with the client's own certificate, and then any intermediate certificates."""
    tls_key: str | None
    """PEM file with the key of `tls_certificate`, without a pass phrase; None: the same file."""
    ssl: SSLContext | None
    """A TLS context instead of the files: `ssl.create_default_context(cafile="authority.pem")`.

    It serves one client at a time: its ALPN protocols are set.
    """
    insecure_credentials: bool
    """Whether a credential may be sent without TLS, or to nodes that TLS does not verify, beyond this machine."""
