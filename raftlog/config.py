"""Every setting and every limit: typed, with its unit in its name, its reason beside it, its relations asserted.

`NodeConfig` is a node's `node.toml`: settings, never identity (that is `node.json` in the data folder, see
`raftlog/broker/identity.py`). `TopicConfig` is what a topic may set, with Kafka's names, units and defaults; where
ours differ it is on purpose: `min.insync.replicas` is a majority of the replicas, and `flush` is ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from .errors import InvalidRequest
from .model import Endpoint

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# --- Bounds that are part of formats and protocols -------------------------------------------------------------------

MAX_BATCH_BYTES = 1 * MIB
"""Default and largest `max.message.bytes`: a batch as it lies on disk, compressed. One always fits a push message."""

MAX_BATCH_DECOMPRESSED_BYTES = 16 * MIB
"""A batch may not grow beyond this when decompressed: what a bomb can make us allocate."""

PUSH_MESSAGE_BYTES = MAX_BATCH_BYTES + 64 * KIB
"""A replication push carries up to this many bytes of batches (about 1 MiB: measured best); at least one batch fits."""

MAX_PUSHES_IN_FLIGHT = 2
"""Pushes that a leader sends ahead of the follower's answer: a third gains nothing, it only holds memory."""

MAX_WIRE_MESSAGE_BYTES = 32 * MIB
"""Largest message on an HTTP/2 stream of ours; a larger announced length ends the connection before it is read."""

MAX_REQUEST_BYTES = 16 * MIB
"""Largest produce request, and largest HTTP body."""

MAX_FETCH_BYTES = 16 * MIB
"""Largest answer to a fetch, first batches apart."""

MAX_FETCH_WAIT_MS = 60_000
"""Longest long poll."""

MAX_PRODUCE_TIMEOUT_MS = 300_000
"""Longest wait for a produce's acknowledgement."""

MAX_REQUEST_HEAD_BYTES = 1 * MIB
"""The most for the head of a produce, fetch or offsets request, which is parsed on the loop: 10,000 partitions of up to
64 bytes, and some."""

MAX_TOPIC_NAME = 249
"""As Kafka: so that names can move there and back."""

MAX_PARTITIONS_PER_TOPIC = 10_000

MAX_UNREPLICATED_BYTES = 64 * MIB
"""With acks 0 or 1 a partition takes this much that its followers do not have yet, then says `overloaded`."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")


def check_topic_name(name: str) -> str:
    """The name, if it is a legal one (Kafka's rule). Raises `InvalidRequest`."""
    if not name or len(name) > MAX_TOPIC_NAME or name in {".", ".."} or not _TOPIC_NAME.fullmatch(name):
        shown = name[:64]
        raise InvalidRequest(
            "invalid_topic_name",
            f"topic name {shown!r} is not allowed: 1 to {MAX_TOPIC_NAME} of letters, digits, '.', '_' and '-'",
        )
    return name


# --- A topic's settings ----------------------------------------------------------------------------------------------

Flush = Literal["fsync", "os"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
CleanupPolicy = Literal["delete", "compact", "compact,delete", "delete,compact"]


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What one topic is set to. Field `retention_ms` is the setting `retention.ms`, and so on. -1 means no limit."""

    retention_ms: int = 7 * 24 * 3_600_000
    retention_bytes: int = -1
    segment_bytes: int = 1024 * MIB
    segment_ms: int = 7 * 24 * 3_600_000
    max_message_bytes: int = MAX_BATCH_BYTES
    index_interval_bytes: int = 4096
    message_timestamp_type: TimestampType = "CreateTime"
    message_timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: CleanupPolicy = "delete"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**62
    delete_retention_ms: int = 24 * 3_600_000
    """How long a tombstone is kept from the first compaction that met it on."""
    flush: Flush = "fsync"
    min_insync_replicas: int = 0
    """0: a majority of the replicas, settled when the topic is created."""

    @property
    def compacts(self) -> bool:
        """Of each key the last record is kept."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """`retention.ms` and `retention.bytes` count."""
        return "delete" in self.cleanup_policy


_RANGES: dict[str, tuple[int, int]] = {
    "retention_ms": (-1, 2**62),
    "retention_bytes": (-1, 2**62),
    "segment_bytes": (1024, 2**31 - 1),
    "segment_ms": (1, 2**62),
    "max_message_bytes": (1024, MAX_BATCH_BYTES),
    "index_interval_bytes": (0, 2**31 - 1),
    "message_timestamp_after_max_ms": (0, 2**62),
    "min_insync_replicas": (1, 32),
    "min_compaction_lag_ms": (0, 2**62),
    "max_compaction_lag_ms": (1, 2**62),
    "delete_retention_ms": (0, 2**62),
}
_FRACTIONS = ("min_cleanable_dirty_ratio",)
"""Between 0 and 1."""
_CHOICES: dict[str, tuple[str, ...]] = {
    "message_timestamp_type": ("CreateTime", "LogAppendTime"),
    "cleanup_policy": ("delete", "compact", "compact,delete", "delete,compact"),
    "flush": ("fsync", "os"),
}

_FRACTION = re.compile(r"[0-9]{0,19}\.?[0-9]{1,19}", re.ASCII)
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
"""As Kafka writes one; Python's `int` takes blanks, underscores and the digits of other scripts too."""

TOPIC_CONFIG_NAMES: dict[str, str] = {field.name.replace("_", "."): field.name for field in fields(TopicConfig)}
"""`retention.ms` → `retention_ms`."""


def majority(replicas: int) -> int:
    """The smallest number that is more than half: two majorities share a member."""
    return replicas // 2 + 1


def parse_topic_config(configs: Mapping[str, str]) -> TopicConfig:
    """Settings by Kafka's names, as strings → typed. Raises `InvalidRequest` naming the setting and its range."""
    values: dict[str, Any] = {}
    for name, text in configs.items():
        attribute = TOPIC_CONFIG_NAMES.get(name)
        if attribute is None:
            known = ", ".join(sorted(TOPIC_CONFIG_NAMES))
            raise InvalidRequest("invalid_config", f"unknown topic setting {name[:64]!r}; known are {known}")
        if attribute in _CHOICES:
            if text not in _CHOICES[attribute]:
                choices = " or ".join(_CHOICES[attribute])
                raise InvalidRequest("invalid_config", f"{name} must be {choices}, not {text[:64]!r}")
            values[attribute] = text
            continue
        if attribute in _FRACTIONS:
            if not _FRACTION.fullmatch(text) or not 0 <= float(text) <= 1:
                raise InvalidRequest("invalid_config", f"{name} must be between 0 and 1, not {text[:64]!r}")
            values[attribute] = float(text)
            continue
        low, high = _RANGES[attribute]
        if not _WHOLE_NUMBER.fullmatch(text):
            raise InvalidRequest("invalid_config", f"{name} must be a whole number, not {text[:64]!r}")
        number = int(text)
        if not low <= number <= high:
            raise InvalidRequest("invalid_config", f"{name} must be between {low} and {high}, not {number}")
        values[attribute] = number
    return TopicConfig(**values)


# --- A node's settings -----------------------------------------------------------------------------------------------

BASE_PORT = 9640
"""Node i listens at base + 10 * i (API) and base + 10 * i + 1 (data)."""

_Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
_Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
_NodeId: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A(0|[1-9][0-9]{0,8})\Z")]
_Milliseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=24 * 3_600_000)]
_Threads: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=64)]
_Bytes: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class Address(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Host and port as `node.toml` writes them."""

    host: _Text = "127.0.0.1"
    port: _Port = 0

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port)


class ListenerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a node listens, and what it tells others to dial where that differs."""

    listen: Address = Address()
    advertised: Address | None = None


class PeerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Overrides where *this* node dials a peer's data listener, so that a proxy can sit on each directed link."""

    data: Address


DEFAULT_NODE_NAME = "URI:raftlog:/cluster/{cluster_id}/node/{node_id}"


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Files in PEM, relative to `node.toml`; read again when they change. With this section the data listener speaks
    TLS only, and so does this node to its peers. See `docs/security.md`."""

    certificate: _Text
    """This node's own, followed by those between it and the authority's."""
    key: _Text
    """Its private key, without a pass phrase."""
    authority: _Text
    """Certificates of those whose signature counts: whoever has one of their certificates may be a node."""
    node_name: _Text = DEFAULT_NODE_NAME
    """The subject alternative name by which a certificate is a node's: `URI:` or `DNS:` and a text with `{node_id}`."""

    def __post_init__(self) -> None:
        kind, colon, text = self.node_name.partition(":")
        separator = {"URI": "/", "DNS": "."}.get(kind)
        if not colon or separator is None:
            raise ValueError(f"node_name must begin with 'URI:' or 'DNS:', not as in {self.node_name!r}")
        pieces = re.split(r"(\{node_id\}|\{cluster_id\})", text)
        places, between = pieces[1::2], pieces[2:-1:2]
        if places.count("{node_id}") != 1 or len(places) > 2 or places == ["{node_id}"] * 2:
            raise ValueError("node_name must hold {node_id} once, and {cluster_id} at most once")
        if any(brace in piece for piece in pieces[::2] for brace in "{}"):
            raise ValueError("node_name knows {node_id} and {cluster_id} only")
        if any(separator not in piece for piece in between):
            # Else cluster a1's node 2 and cluster a's node 12 could have one name.
            raise ValueError(f"node_name must have a {separator!r} between {{cluster_id}} and {{node_id}}")


class TimingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Milliseconds. The relations that failover within two seconds rests on are asserted below."""

    election_timeout_min_ms: _Milliseconds = 300
    election_timeout_max_ms: _Milliseconds = 600
    quorum_heartbeat_ms: _Milliseconds = 100
    broker_session_ms: _Milliseconds = 900
    broker_heartbeat_ms: _Milliseconds = 200
    replica_lag_max_ms: _Milliseconds = 5_000
    """A follower that was not caught up for this long leaves the ISR (it also leaves at once when it is fenced)."""
    produce_timeout_ms: _Milliseconds = 30_000

    def __post_init__(self) -> None:
        relations = {
            "election_timeout_min_ms < election_timeout_max_ms": self.election_timeout_min_ms
            < self.election_timeout_max_ms,
            "2 * quorum_heartbeat_ms < election_timeout_min_ms": 2 * self.quorum_heartbeat_ms
            < self.election_timeout_min_ms,
            "3 * broker_heartbeat_ms < broker_session_ms": 3 * self.broker_heartbeat_ms < self.broker_session_ms,
            "election_timeout_max_ms + broker_session_ms <= 1500": self.election_timeout_max_ms + self.broker_session_ms
            <= 1500,
        }
        broken = [text for text, holds in relations.items() if not holds]
        if broken:
            raise ValueError(f"timing settings must keep {broken[0]}")


class NodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`node.toml`. A relative `data_folder` is relative to the file."""

    data_folder: _Text = "data"
    rack: str = ""
    api: ListenerConfig = ListenerConfig()
    data: ListenerConfig = ListenerConfig()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    peers: dict[_NodeId, PeerConfig] = {}
    """By node id, as text: TOML's keys are strings."""
    tls: TlsConfig | None = None
    """Of the data listener and of all links between nodes; none: plain text."""
    timing: TimingConfig = TimingConfig()
    scheduling: Literal["batch", "other"] = "batch"
    """`batch`: threads of this node that wake do not take a core from who has not finished (`SCHED_BATCH`, Linux only):
    where cores are few, records that come alone are through sooner. `other`: as any process."""
    fsync_threads: _Threads = 2
    """For writing and fsyncing logs: a round of group commit goes over so many logs at once."""
    worker_threads: _Threads = 2
    """For all else that blocks: reads that the page cache does not have, opening and removing logs."""
    retention_check_ms: _Milliseconds = 30_000
    scrub_bytes_per_second: _Bytes = 1 * MIB
    """How fast the scrubber reads, at most; 0: it reads nothing by itself."""
    scrub_interval_ms: _Milliseconds = 24 * 3_600_000
    """From the end of one pass over all replicas to the next."""
    offsets_retention_minutes: Annotated[int, msgspec.Meta(ge=1, le=10 * 525_600)] = 10_080
    """How long the committed offsets of a consumer group without members are kept."""
    transactional_id_expiration_minutes: Annotated[int, msgspec.Meta(ge=1, le=10 * 525_600)] = 10_080
    """How long a `transactional_id` is kept with which nothing is begun or ended."""
    producer_id_expiration_ms: Annotated[int, msgspec.Meta(ge=1, le=366 * 24 * 3_600_000)] = 24 * 3_600_000
    """How long a partition remembers an idempotent producer that has written nothing, by the time that its replica was
    in service (Kafka's `producer.id.expiration.ms`)."""
    producer_state_bytes: Annotated[int, msgspec.Meta(ge=64 * 1024, le=1024 * MIB)] = 16 * MIB
    """Memory for what a partition remembers of its idempotent producers: some 35,000 that wrote one batch, or 12,000
    that wrote five or more, within `producer_id_expiration_ms`. A new one is told `overloaded` then, until there is
    room."""
    metadata_snapshot_entries: Annotated[int, msgspec.Meta(ge=10, le=10_000_000)] = 10_000
    """Of the metadata quorum, after which the node writes a snapshot and begins its journal anew; it does so anyway
    when the journal has 16 MiB. Fewer: a shorter start, and snapshots more often."""
    disk_ballast_bytes: _Bytes = 32 * MIB
    """Room that is occupied from the start and given up to what makes room on a full disk: retention, the metadata
    quorum, a start. At most a sixteenth of the disk; 0: none. The default holds the quorum's journal (16 MiB) and the
    one that takes its place."""
    disk_reserved_bytes: _Bytes = 1 * GIB
    """With less room than this on the disk the node takes no batches from clients, and from its leaders none with less
    than half of it. At most a twentieth of the disk; 0: it takes batches until the disk is full."""
    fetch_cache_bytes: _Bytes = 64 * MIB
    """Recently appended batches kept in memory for readers at the end of the log, over all partitions."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def load_node_config(text: str) -> NodeConfig:
    """`node.toml`'s text → settings. Raises `InvalidRequest` naming the field at fault."""
    try:
        return msgspec.toml.decode(text.encode(), type=NodeConfig)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequest("invalid_config", f"node.toml: {error}") from None
