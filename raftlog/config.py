"""Settings and limits, each with its type, its unit in its name, and its reason. Relations between them are asserted.

`NodeConfig` is a node's `node.toml`. It holds settings, never identity, which is in `node.json` in the data folder
(`raftlog/broker/identity.py`). `TopicConfig` holds a topic's settings, with Kafka's names, units and defaults. Two
differ on purpose: `min.insync.replicas` defaults to a majority of the replicas, and `flush` exists only in raftlog.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from typing import Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec

from .errors import InvalidRequest
from .model import Endpoint
from .security.principals import USER, check_user_name

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# --- Bounds that are part of formats and protocols -------------------------------------------------------------------

MAX_BATCH_BYTES = 1 * MIB
"""Default and maximum of `max.message.bytes`: the size of a compressed batch on disk. A batch always fits one push
message."""

MAX_BATCH_DECOMPRESSED_BYTES = 16 * MIB
"""Maximum size of a decompressed batch, which bounds the memory that a decompression bomb can take."""

PUSH_MESSAGE_BYTES = MAX_BATCH_BYTES + 64 * KIB
"""Maximum bytes of batches in one replication push (about 1 MiB measured best). At least one batch fits."""

MAX_PUSHES_IN_FLIGHT = 2
"""Pushes that a leader sends ahead of the follower's answer. A third gains nothing and holds memory."""

MAX_WIRE_MESSAGE_BYTES = 32 * MIB
"""Largest message on an HTTP/2 stream. If a larger length is announced, the connection ends before the message is read.
"""

MAX_REQUEST_BYTES = 16 * MIB
"""Largest produce request and largest HTTP body."""

MAX_FETCH_BYTES = 16 * MIB
"""Largest answer to a fetch, not counting the first batch of each partition."""

MAX_FETCH_WAIT_MS = 60_000
"""Longest long poll."""

DEFAULT_PRODUCE_TIMEOUT_MS = 30_000
MAX_PRODUCE_TIMEOUT_MS = 300_000
"""Longest time to wait for the acknowledgement of a produce request."""

MAX_REQUEST_HEAD_BYTES = 2 * MIB
"""Largest head of a request, which is parsed on the loop. It fits 10,000 partitions of up to 64 bytes each, with some
to spare, and every commit of transactions that fits into a body of the HTTP API."""

MAX_TOPIC_NAME = 249
"""Kafka's limit, so that topics can move between the two."""

MAX_PARTITIONS_PER_TOPIC = 10_000

MAX_UNREPLICATED_BYTES = 64 * MIB
"""Bytes that a partition accepts with `acks` 0 or 1 before its followers have them. Beyond that it refuses with
`overloaded`."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")


def check_topic_name(name: str) -> str:
    """Return the name if Kafka's rule allows it.

    Raises `InvalidRequest`.
    """
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
    """A topic's settings. The field `retention_ms` is the setting `retention.ms`, and so on. -1 means no limit."""

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
    """Time for which a tombstone is kept after the first compaction that sees it."""
    flush: Flush = "fsync"
    min_insync_replicas: int = 0
    """0 stands for a majority of the replicas, computed when the topic is created."""

    @property
    def compacts(self) -> bool:
        """Whether only the last record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether `retention.ms` and `retention.bytes` apply."""
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
"""Settings whose value is between 0 and 1."""
_CHOICES: dict[str, tuple[str, ...]] = {
    "message_timestamp_type": get_args(TimestampType),
    "cleanup_policy": get_args(CleanupPolicy),
    "flush": get_args(Flush),
}

_FRACTION = re.compile(r"[0-9]{0,19}\.?[0-9]{1,19}", re.ASCII)
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")
"""Kafka's syntax of a whole number. Python's `int` also accepts blanks, underscores and the digits of other scripts."""

TOPIC_CONFIG_NAMES: dict[str, str] = {field.name.replace("_", "."): field.name for field in fields(TopicConfig)}
"""Setting → field: `retention.ms` → `retention_ms`."""


def majority(replicas: int) -> int:
    """Return the smallest number that is more than half. Any two majorities share a member."""
    return replicas // 2 + 1


def parse_topic_config(configs: Mapping[str, str]) -> TopicConfig:
    """Return the typed settings for the given strings by Kafka's names.

    Raises `InvalidRequest`, which names the setting and its range.
    """
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
    """A host and a port in `node.toml`."""

    host: _Text = "127.0.0.1"
    port: _Port = 0

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. A host's name other than `localhost` (RFC 6761) is not looked up."""
        try:
            address = ip_address(self.host)
        except ValueError:
            return self.host.lower().rstrip(".") == "localhost"
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback


class ListenerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address at which a node listens, and the one that it advertises if that differs."""

    listen: Address = Address()
    advertised: Address | None = None


class PeerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address at which this node dials a peer's data listener, so that a proxy can sit on each directed link."""

    data: Address


DEFAULT_NODE_NAME = "URI:raftlog:/cluster/{cluster_id}/node/{node_id}"


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Paths of PEM files, relative to `node.toml`. The files are read again when they change.

    With this section the data listener accepts only TLS, and this node dials its peers only with TLS. With
    `security.mode` other than `off` the HTTP API speaks TLS as well. See `docs/security.md`.
    """

    certificate: _Text
    """The node's own certificate, followed by the intermediate ones up to the authority's."""
    key: _Text
    """The certificate's private key, without a pass phrase."""
    authority: _Text
    """Certificates of the trusted authorities. A holder of a certificate that they signed may be a node."""
    node_name: _Text = DEFAULT_NODE_NAME
    """Pattern of the subject alternative name that identifies a node: `URI:` or `DNS:` and a text with `{node_id}`."""
    api_certificate: str = ""
    """A certificate for the HTTP API alone, for clients that trust another authority. Empty: the node's own."""
    api_key: str = ""
    """The private key of `api_certificate`, without a pass phrase."""
    migrating: bool = False
    """Whether nodes still accept plain text from each other, and dial peers that speak no TLS in plain text. For the
    time in which a cluster changes to TLS by restarts of one node after the other."""

    def __post_init__(self) -> None:
        _check_name_pattern("node_name", self.node_name, "node_id", _SEPARATORS)
        if bool(self.api_certificate) != bool(self.api_key):
            raise ValueError("api_certificate and api_key are set together, or neither is")

    @property
    def paths(self) -> dict[str, str]:
        """Return the files by the name of their setting."""
        paths = {"certificate": self.certificate, "key": self.key, "authority": self.authority}
        if self.api_certificate:
            paths |= {"api_certificate": self.api_certificate, "api_key": self.api_key}
        return paths


DEFAULT_USER_NAME = "URI:raftlog:/user/{user}"

SecurityMode: TypeAlias = Literal["off", "optional", "required"]


class OidcConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The identity provider whose access tokens (JWT, RFC 7519 and 9068) the node accepts."""

    issuer: _Text
    """The provider's identifier, an https URL that equals the `iss` claim exactly."""
    audience: _Text
    """The value that the `aud` claim must contain, so that tokens for other services are refused."""
    jwks: str = ""
    """The provider's signing keys: an https URL, or a file relative to `node.toml`, which is read again when it
    changes. Empty: the URL that the issuer's `/.well-known/openid-configuration` names."""
    authority: str = ""
    """PEM file with the authorities of the provider's https certificate. Empty: those that the system trusts."""
    principal_claim: _Text = "sub"
    """The claim with the user's name."""
    groups_claim: _Text = "groups"
    """The claim with the user's groups, a list of texts. A token without it has no groups."""

    def __post_init__(self) -> None:
        _check_https_url("issuer", self.issuer)
        if "?" in self.issuer or "#" in self.issuer:
            raise ValueError(f"issuer must have neither a query nor a fragment: {self.issuer!r}")
        if self.jwks_is_a_url:
            _check_https_url("jwks", self.jwks)

    @property
    def jwks_is_a_url(self) -> bool:
        """Whether `jwks` is a URL, and no file."""
        return "://" in self.jwks


class AuditConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The audit log: who did what from where, allowed or refused, and by which rule.

    Each destination gets all lines.
    """

    level: Literal["refused", "changes", "all"] = "changes"
    """`refused`: failed logins and refused requests. `changes`: also every request that changes more than records and
    offsets. `all`: also reading and writing of those."""
    file: str = "audit.log"
    """File of JSON lines; a relative path is inside the data folder. Empty: no file. A file that was renamed is created
    again, so log rotation needs no signal."""
    stdout: bool = False
    """Whether the lines go to the standard output, too."""
    topic: str = ""
    """Topic to which the lines are appended, too. It must exist. Empty: none."""


class SecurityConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Authentication and authorization of clients. Users, tokens and rules are in the metadata quorum, not here."""

    mode: SecurityMode = "off"
    """`required`: every request carries a credential. `optional`: one without a credential is `ANONYMOUS`, and rules
    decide what it may do. `off`: no credential is looked at, and everything is allowed."""
    super_users: tuple[str, ...] = ()
    """Principals (`User:NAME`) that no rule restricts, whatever authenticated them."""
    insecure: bool = False
    """Whether listeners without security may listen on addresses that are not loopback."""
    user_name: _Text = DEFAULT_USER_NAME
    """Pattern of the subject alternative name that identifies a user: `URI:`, `DNS:` or `email:` and a text with
    `{user}`."""
    oidc: OidcConfig | None = None
    audit: AuditConfig = AuditConfig()

    def __post_init__(self) -> None:
        _check_name_pattern("user_name", self.user_name, "user", {**_SEPARATORS, "email": "@"})
        for principal in self.super_users:
            kind, _, name = principal.partition(":")
            if kind != USER:
                raise ValueError(f'super_users must name users, as in "User:admin", not {principal!r}')
            try:
                check_user_name(name)
            except InvalidRequest as error:
                raise ValueError(f"super_users: {error.detail}") from None

    @property
    def is_on(self) -> bool:
        """Whether credentials are checked."""
        return self.mode != "off"


_SEPARATORS = {"URI": "/", "DNS": "."}
"""Kind of a subject alternative name → the character between its parts."""


def _check_name_pattern(setting: str, pattern: str, field: str, separators: Mapping[str, str]) -> None:
    """Check a pattern of subject alternative names with one `{field}` and at most one `{cluster_id}`.

    Raises `ValueError`.
    """
    kind, colon, text = pattern.partition(":")
    separator = separators.get(kind)
    if not colon or separator is None:
        kinds = [f"'{kind}:'" for kind in separators]
        raise ValueError(f"{setting} must begin with {', '.join(kinds[:-1])} or {kinds[-1]}, not {pattern!r}")
    pieces = re.split(rf"(\{{{field}\}}|\{{cluster_id\}})", text)
    places, between = pieces[1::2], pieces[2:-1:2]
    if places.count(f"{{{field}}}") != 1 or len(places) > 2 or places == [f"{{{field}}}"] * 2:
        raise ValueError(f"{setting} must contain {{{field}}} once, and {{cluster_id}} at most once")
    if any(brace in piece for piece in pieces[::2] for brace in "{}"):
        raise ValueError(f"{setting} may contain only the fields {{{field}}} and {{cluster_id}}")
    if any(separator not in piece for piece in between):
        # Otherwise node 2 of cluster "a1" and node 12 of cluster "a" could have the same name.
        raise ValueError(f"{setting} must have a {separator!r} between {{cluster_id}} and {{{field}}}")


def _check_https_url(setting: str, text: str) -> None:
    """Check a URL of the identity provider. Raises `ValueError`."""
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError as error:
        raise ValueError(f"{setting} {text!r} is no URL: {error}") from None
    if url.username is not None or url.password is not None:
        raise ValueError(f"{setting} must not contain a user or a password")
    if url.scheme != "https" or not url.hostname:
        raise ValueError(f"{setting} must be an https URL, so that its answers are authentic, not {text!r}")


class TimingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Timings in milliseconds. Failover within two seconds depends on the relations that are asserted below."""

    election_timeout_min_ms: _Milliseconds = 300
    election_timeout_max_ms: _Milliseconds = 600
    quorum_heartbeat_ms: _Milliseconds = 100
    broker_session_ms: _Milliseconds = 900
    broker_heartbeat_ms: _Milliseconds = 200
    replica_lag_max_ms: _Milliseconds = 5_000
    """Time after which a follower that is not caught up leaves the ISR. A fenced follower leaves at once."""
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
    """The content of `node.toml`. A relative `data_folder` is relative to that file."""

    data_folder: _Text = "data"
    rack: str = ""
    api: ListenerConfig = ListenerConfig()
    data: ListenerConfig = ListenerConfig()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    peers: dict[_NodeId, PeerConfig] = {}
    """Overrides by node id. The ids are text because TOML's keys are strings."""
    tls: TlsConfig | None = None
    """TLS for the data listener and for all links between nodes. None: plain text."""
    security: SecurityConfig = SecurityConfig()
    timing: TimingConfig = TimingConfig()
    scheduling: Literal["batch", "other"] = "batch"
    """CPU scheduling policy of the node's threads.

    `batch` (`SCHED_BATCH`, Linux only): a thread that wakes does not take a core from one that has not finished, so on
    few cores single records have lower latency. `other`: the system's default.
    """
    fsync_threads: _Threads = 2
    """Threads that write and fsync logs: the number of logs that are fsynced at the same time."""
    worker_threads: _Threads = 2
    """Threads for all other blocking work: reads that miss the page cache, opening and removing logs."""
    retention_check_ms: _Milliseconds = 30_000
    scrub_bytes_per_second: _Bytes = 1 * MIB
    """Maximum read rate of the scrubber in bytes a second. 0 turns it off."""
    scrub_interval_ms: _Milliseconds = 24 * 3_600_000
    """Time between the end of one scrub of all replicas and the start of the next."""
    offsets_retention_minutes: Annotated[int, msgspec.Meta(ge=1, le=10 * 525_600)] = 10_080
    """Time for which the committed offsets of a consumer group without members are kept."""
    transactional_id_expiration_minutes: Annotated[int, msgspec.Meta(ge=1, le=10 * 525_600)] = 10_080
    """Time for which an unused `transactional_id` is kept, since its last transaction began or ended."""
    transaction_max_timeout_ms: Annotated[int, msgspec.Meta(ge=100, le=3_600_000)] = 3_600_000
    """The longest timeout that a transaction may ask for on this node. A transaction that its producer abandoned holds
    back `read_committed` consumers for as long (Kafka's `transaction.max.timeout.ms`)."""
    producer_id_expiration_ms: Annotated[int, msgspec.Meta(ge=1, le=366 * 24 * 3_600_000)] = 24 * 3_600_000
    """Time for which a partition keeps the state of an idempotent producer that writes nothing, counted while its
    replica is in service (Kafka's `producer.id.expiration.ms`)."""
    producer_state_bytes: Annotated[int, msgspec.Meta(ge=64 * 1024, le=1024 * MIB)] = 16 * MIB
    """Memory for a partition's producer state.

    The default holds some 35,000 producers that wrote one batch, or 12,000 that wrote five or more, within
    `producer_id_expiration_ms`. When it is full, a new producer is refused with `overloaded` until there is room.
    """
    metadata_snapshot_entries: Annotated[int, msgspec.Meta(ge=10, le=10_000_000)] = 10_000
    """Entries of the metadata quorum's journal after which the node writes a snapshot and starts a new journal.

    A journal of 16 MiB triggers that as well. A lower number makes starts faster and snapshots more frequent.
    """
    disk_ballast_bytes: _Bytes = 32 * MIB
    """Disk space that is reserved for operations that free space or must not fail on a full disk.

    These are retention, the metadata quorum and a start. The reserve takes at most a sixteenth of the disk. 0: no
    reserve. The default holds the quorum's journal (16 MiB) and its successor.
    """
    disk_reserved_bytes: _Bytes = 1 * GIB
    """Free disk space below which the node refuses batches from clients; below half of it, from leaders too.

    It is at most a twentieth of the disk. 0: batches are accepted until the disk is full.
    """
    fetch_cache_bytes: _Bytes = 64 * MIB
    """Memory for recently appended batches, over all partitions, which serves readers at the end of the log."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        if self.security.is_on and self.tls is None:
            raise ValueError(
                f"security.mode is {self.security.mode!r}, which needs the section [tls]: credentials must not travel "
                'in plain text. Add [tls] (see `raftlog tls`), or set security.mode = "off"'
            )
        if self.security.mode == "required" and self.tls is not None and self.tls.migrating:
            raise ValueError(
                "tls.migrating is true, so that anybody can be a node, but security.mode is 'required': remove "
                'tls.migrating when every node has [tls]; until then, use security.mode = "optional"'
            )
        if self.exposed and not self.security.insecure:
            raise ValueError(
                f"{' and '.join(self.exposed)}: other machines can reach the address, but security.mode is 'off', so "
                "everybody there could read, write and delete everything. Set up security (`raftlog server init "
                "--secure` does), or listen on 127.0.0.1. On a network with trusted machines only, set "
                "`insecure = true` under [security]"
            )

    @property
    def accepts_plain(self) -> bool:
        """Whether a data listener with TLS serves plain connections, too."""
        return self.security.mode == "optional" or (self.tls is not None and self.tls.migrating)

    @property
    def exposed(self) -> list[str]:
        """Return the listeners, with their addresses, that other machines can use without a credential."""
        if self.security.is_on:
            return []
        listeners = {"api.listen": self.api.listen, "data.listen": self.data.listen}
        return [f"{name} {address.endpoint}" for name, address in listeners.items() if not address.is_loopback]


def load_node_config(text: str) -> NodeConfig:
    """Parse the text of `node.toml`.

    Raises `InvalidRequest`, which names the wrong field.
    """
    try:
        return msgspec.toml.decode(text.encode(), type=NodeConfig)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequest("invalid_config", f"node.toml: {error}") from None
