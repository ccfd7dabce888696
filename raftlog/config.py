"""Settings and limits, each with its type, its unit in its name, and its reason. Relations between them are asserted.

`NodeConfig` is a node's `node.toml`. It holds settings, never identity, which is in `node.json` in the data folder
(`raftlog/broker/identity.py`). `TopicConfig` holds a topic's settings, with Kafka's names, units and defaults. Three
differ on purpose: `min.insync.replicas` defaults to a majority of the replicas; `flush` and `restoring` exist only in
raftlog.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_type_hints
from urllib.parse import urlsplit

import msgspec

from .errors import InvalidRequest
from .model import Endpoint
from .security.principals import USER, check_user_name
from .toml_settings import TomlSettings, WrongSetting

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

AT_NEXT_START = "at the next start"
AT_ONCE = "at once"


def _about(
    meaning: str, unit: str = "", *, effect: str = AT_NEXT_START, default: str = "", range: str = "", **bounds: Any
) -> msgspec.Meta:
    """Describe a setting, beside its type and default, for `raftlog/settings.py` and `docs/settings.md`.

    `meaning` is Markdown. `effect`: when a change takes effect. `default` and `range` replace the text that is derived
    from the type, the default and the `bounds`, which are those of `msgspec.Meta`.
    """
    extra = {"unit": unit, "effect": effect, "default": default, "range": range}
    return msgspec.Meta(description=meaning, extra=extra, **bounds)


def _of_topic(meaning: str, unit: str = "", *, effect: str = AT_ONCE, **options: Any) -> msgspec.Meta:
    return _about(meaning, unit, effect=effect, **options)


_NO_LIMIT = 2**62
_UP_TO_NO_LIMIT = {"ge": 0, "le": _NO_LIMIT}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings. The field `retention_ms` is the setting `retention.ms`, and so on. -1 means no limit."""

    retention_ms: Annotated[
        int, _of_topic("Age from which segments are deleted. -1: no limit.", "milliseconds", ge=-1, le=_NO_LIMIT)
    ] = 7 * 24 * 3_600_000
    retention_bytes: Annotated[
        int,
        _of_topic(
            "Size of a partition above which its oldest segments are deleted. -1: no limit.",
            "bytes",
            ge=-1,
            le=_NO_LIMIT,
        ),
    ] = -1
    segment_bytes: Annotated[
        int,
        _of_topic(
            "Size above which a segment is closed and a new one begins.",
            "bytes",
            effect="with the next batch",
            ge=1024,
            le=2**31 - 1,
        ),
    ] = 1024 * MIB
    segment_ms: Annotated[
        int,
        _of_topic(
            "Time that a segment covers at most, by its records' timestamps.",
            "milliseconds",
            effect="with the next batch",
            ge=1,
            le=_NO_LIMIT,
        ),
    ] = 7 * 24 * 3_600_000
    max_message_bytes: Annotated[
        int,
        _of_topic("Largest compressed batch that is accepted.", "bytes", ge=1024, le=MAX_BATCH_BYTES),
    ] = MAX_BATCH_BYTES
    index_interval_bytes: Annotated[
        int,
        _of_topic(
            "Bytes of the log between two entries of the offset index.",
            "bytes",
            effect="with the next batch",
            ge=0,
            le=2**31 - 1,
        ),
    ] = 4096
    message_timestamp_type: Annotated[
        TimestampType,
        _of_topic("`CreateTime`: the producer's timestamps are kept. `LogAppendTime`: the leader sets them."),
    ] = "CreateTime"
    message_timestamp_after_max_ms: Annotated[
        int,
        _of_topic(
            "How far a producer's timestamp may be ahead of the leader's clock. Others are refused.",
            "milliseconds",
            **_UP_TO_NO_LIMIT,
        ),
    ] = 3_600_000
    cleanup_policy: Annotated[
        CleanupPolicy,
        _of_topic(
            "`delete`: old segments are deleted. `compact`: only the last record of each key is kept. "
            "`compact,delete`: both."
        ),
    ] = "delete"
    min_cleanable_dirty_ratio: Annotated[
        float,
        _of_topic(
            "Part of a compacted log that was written since the last pass, from which on the next pass begins.",
            "fraction",
            ge=0,
            le=1,
        ),
    ] = 0.5
    min_compaction_lag_ms: Annotated[
        int, _of_topic("Age below which no record is compacted.", "milliseconds", **_UP_TO_NO_LIMIT)
    ] = 0
    max_compaction_lag_ms: Annotated[
        int,
        _of_topic(
            "Age of a record from which on a pass begins, whatever the ratio.",
            "milliseconds",
            ge=1,
            le=_NO_LIMIT,
            default="no limit",
        ),
    ] = _NO_LIMIT
    delete_retention_ms: Annotated[
        int,
        _of_topic(
            "Time for which a tombstone is kept after the first compaction that sees it.",
            "milliseconds",
            **_UP_TO_NO_LIMIT,
        ),
    ] = 24 * 3_600_000
    flush: Annotated[
        Flush,
        _of_topic(
            "`fsync`: a record is acknowledged after it is fsynced on every in-sync replica. `os`: the operating "
            "system writes it later, as by default in Kafka."
        ),
    ] = "fsync"
    min_insync_replicas: Annotated[
        int,
        _of_topic(
            "In-sync replicas without which `acks=all` is refused. The default is computed when the topic is created.",
            "replicas",
            ge=1,
            le=32,
            default="a majority of the replicas",
        ),
    ] = 0
    """0 stands for a majority of the replicas, computed when the topic is created."""
    restoring: Annotated[
        int,
        _of_topic(
            "Set while `raftlog backup restore` restores the topic: producers are refused, and nothing expires or is "
            "compacted. It can only be removed, which makes the topic an ordinary one. The value: all producer ids in "
            "the restored batches are below it. -1: the topic is not being restored.",
            "producer ids",
            ge=-1,
            le=_NO_LIMIT,
        ),
    ] = -1

    @property
    def is_restoring(self) -> bool:
        """Whether the log gets batches with their own offsets, from a backup alone."""
        return self.restoring >= 0

    @property
    def compacts(self) -> bool:
        """Whether only the last record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether `retention.ms` and `retention.bytes` apply."""
        return "delete" in self.cleanup_policy


def _topic_ranges() -> dict[str, tuple[float, float]]:
    """Return the bounds of the settings that are numbers, by field."""
    hints = get_type_hints(TopicConfig, include_extras=True)
    found = {
        name: next(part for part in get_args(hint) if isinstance(part, msgspec.Meta)) for name, hint in hints.items()
    }
    return {name: (meta.ge, meta.le) for name, meta in found.items() if meta.ge is not None and meta.le is not None}


_RANGES = _topic_ranges()
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

RESTORING = "restoring"
"""The setting of a topic that is being restored."""
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

_DAY_MS = 24 * 3_600_000
_MOST_BYTES = 2**40
_FILE_READ_AGAIN = "at the next start; a changed file within seconds"


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

    @property
    def is_unspecified(self) -> bool:
        """Whether it stands for all addresses of the machine, so that no other machine can dial it."""
        try:
            return ip_address(self.host).is_unspecified
        except ValueError:
            return False


class ListenerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address at which a node listens, and the one that it advertises if that differs."""

    listen: Annotated[
        Address,
        _about(
            "Address at which the node listens. `0.0.0.0` and `::` stand for all addresses of the machine, and need "
            "`advertised`. Port 0 is any free port.",
            default="none: a file must name it",
        ),
    ] = Address()
    advertised: Annotated[
        Address | None,
        _about(
            "Address that clients and other nodes use, if it differs: behind NAT, in a container, or if the node "
            "listens at all addresses.",
            default="as `listen`",
        ),
    ] = None


class PeerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address at which this node dials a peer's data listener, so that a proxy can sit on each directed link."""

    data: Annotated[
        Address,
        _about(
            "Address at which this node dials the data listener of the node with that id.", default="the advertised one"
        ),
    ]


DEFAULT_NODE_NAME = "URI:raftlog:/cluster/{cluster_id}/node/{node_id}"


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Paths of PEM files, relative to `node.toml`. The files are read again when they change.

    With this section the data listener accepts only TLS, and this node dials its peers only with TLS. With
    `security.mode` other than `off` the HTTP API speaks TLS as well. See `docs/security.md`.
    """

    certificate: Annotated[
        _Text,
        _about(
            "File of the node's own certificate, followed by the intermediate ones up to the authority's.",
            effect=_FILE_READ_AGAIN,
        ),
    ]
    key: Annotated[
        _Text, _about("File of the certificate's private key, without a pass phrase.", effect=_FILE_READ_AGAIN)
    ]
    authority: Annotated[
        _Text,
        _about(
            "File of the trusted authorities' certificates. A holder of a certificate that they signed may be a node.",
            effect=_FILE_READ_AGAIN,
        ),
    ]
    node_name: Annotated[
        _Text,
        _about(
            "Pattern of the subject alternative name that identifies a node.",
            range="`URI:` or `DNS:` and a text with `{node_id}` and perhaps `{cluster_id}`",
        ),
    ] = DEFAULT_NODE_NAME
    api_certificate: Annotated[
        str,
        _about(
            "File of a certificate for the HTTP API alone, for clients that trust another authority.",
            effect=_FILE_READ_AGAIN,
            default="the node's own",
        ),
    ] = ""
    api_key: Annotated[
        str,
        _about(
            "File of the private key of `api_certificate`, without a pass phrase.",
            effect=_FILE_READ_AGAIN,
            default="the node's own",
        ),
    ] = ""
    migrating: Annotated[
        bool,
        _about(
            "Whether nodes still accept plain text from each other, and dial peers that speak no TLS in plain text, "
            "for the time in which a cluster changes to TLS by restarts of one node after the other. Everybody who "
            "reaches the data listener can act as a node for as long."
        ),
    ] = False

    def __post_init__(self) -> None:
        _check_name_pattern("node_name", self.node_name, "node_id", _SEPARATORS)
        if bool(self.api_certificate) != bool(self.api_key):
            raise WrongSetting(
                "api_certificate and api_key are set together, or neither is", "api_certificate", "api_key"
            )

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

    issuer: Annotated[
        _Text,
        _about("The provider's identifier, which equals the `iss` claim exactly.", range="an https URL"),
    ]
    audience: Annotated[
        _Text,
        _about("The value that the `aud` claim must contain, so that tokens for other services are refused."),
    ]
    jwks: Annotated[
        str,
        _about(
            "The provider's signing keys.",
            effect=_FILE_READ_AGAIN,
            default="the URL that the issuer's `/.well-known/openid-configuration` names",
            range="an https URL, or a file relative to `node.toml`",
        ),
    ] = ""
    authority: Annotated[
        str,
        _about(
            "PEM file with the authorities of the provider's https certificate.", default="those that the system trusts"
        ),
    ] = ""
    principal_claim: Annotated[_Text, _about("The claim with the user's name.")] = "sub"
    groups_claim: Annotated[
        _Text, _about("The claim with the user's groups, a list of texts. A token without it has no groups.")
    ] = "groups"

    def __post_init__(self) -> None:
        _check_https_url("issuer", self.issuer)
        if "?" in self.issuer or "#" in self.issuer:
            raise WrongSetting(f"issuer must have neither a query nor a fragment: {self.issuer!r}", "issuer")
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

    level: Annotated[
        Literal["refused", "changes", "all"],
        _about(
            "`refused`: failed logins and refused requests. `changes`: also every request that changes more than "
            "records and offsets. `all`: also reading and writing of those."
        ),
    ] = "changes"
    file: Annotated[
        str,
        _about(
            "File of JSON lines; a relative path is inside the data folder. Empty: no file. A file that was renamed is "
            "created again, so log rotation needs no signal."
        ),
    ] = "audit.log"
    stdout: Annotated[bool, _about("Whether the lines go to the standard output, too.")] = False
    topic: Annotated[
        str, _about("Topic to which the lines are appended, too. It must exist. Empty: none.", default="none")
    ] = ""


class SecurityConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Authentication and authorization of clients. Users, tokens and rules are in the metadata quorum, not here."""

    mode: Annotated[
        SecurityMode,
        _about(
            "`required`: every request carries a credential. `optional`: one without a credential is `ANONYMOUS`, and "
            "rules decide what it may do. `off`: no credential is looked at, and everything is allowed."
        ),
    ] = "off"
    super_users: Annotated[
        tuple[str, ...],
        _about(
            "Principals that no rule restricts, whatever authenticated them.",
            default="none",
            range='texts such as `"User:admin"`',
        ),
    ] = ()
    insecure: Annotated[
        bool, _about("Whether listeners without security may listen on addresses that are not loopback.")
    ] = False
    user_name: Annotated[
        _Text,
        _about(
            "Pattern of the subject alternative name that identifies a user.",
            range="`URI:`, `DNS:` or `email:` and a text with `{user}` and perhaps `{cluster_id}`",
        ),
    ] = DEFAULT_USER_NAME
    oidc: Annotated[
        OidcConfig | None, _about("The identity provider whose access tokens (JWT) the node accepts.", default="none")
    ] = None
    audit: Annotated[
        AuditConfig, _about("The audit log: who did what from where, allowed or refused, and by which rule.")
    ] = AuditConfig()

    def __post_init__(self) -> None:
        _check_name_pattern("user_name", self.user_name, "user", {**_SEPARATORS, "email": "@"})
        for principal in self.super_users:
            kind, _, name = principal.partition(":")
            if kind != USER:
                raise WrongSetting(f'super_users must name users, as in "User:admin", not {principal!r}', "super_users")
            try:
                check_user_name(name)
            except InvalidRequest as error:
                raise WrongSetting(f"super_users: {error.detail}", "super_users") from None

    @property
    def is_on(self) -> bool:
        """Whether credentials are checked."""
        return self.mode != "off"


_SEPARATORS = {"URI": "/", "DNS": "."}
"""Kind of a subject alternative name → the character between its parts."""


def _check_name_pattern(setting: str, pattern: str, field: str, separators: Mapping[str, str]) -> None:
    """Check a pattern of subject alternative names with one `{field}` and at most one `{cluster_id}`.

    Raises `WrongSetting`.
    """
    kind, colon, text = pattern.partition(":")
    separator = separators.get(kind)
    if not colon or separator is None:
        kinds = [f"'{kind}:'" for kind in separators]
        raise WrongSetting(
            f"{setting} must begin with {', '.join(kinds[:-1])} or {kinds[-1]}, not {pattern!r}", setting
        )
    pieces = re.split(rf"(\{{{field}\}}|\{{cluster_id\}})", text)
    places, between = pieces[1::2], pieces[2:-1:2]
    if places.count(f"{{{field}}}") != 1 or len(places) > 2 or places == [f"{{{field}}}"] * 2:
        raise WrongSetting(f"{setting} must contain {{{field}}} once, and {{cluster_id}} at most once", setting)
    if any(brace in piece for piece in pieces[::2] for brace in "{}"):
        raise WrongSetting(f"{setting} may contain only the fields {{{field}}} and {{cluster_id}}", setting)
    if any(separator not in piece for piece in between):
        # Otherwise node 2 of cluster "a1" and node 12 of cluster "a" could have the same name.
        raise WrongSetting(f"{setting} must have a {separator!r} between {{cluster_id}} and {{{field}}}", setting)


def _check_https_url(setting: str, text: str) -> None:
    """Check a URL of the identity provider. Raises `WrongSetting`."""
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError as error:
        raise WrongSetting(f"{setting} {text!r} is no URL: {error}", setting) from None
    if url.username is not None or url.password is not None:
        raise WrongSetting(f"{setting} must not contain a user or a password", setting)
    if url.scheme != "https" or not url.hostname:
        raise WrongSetting(f"{setting} must be an https URL, so that its answers are authentic, not {text!r}", setting)


def _timing(meaning: str) -> msgspec.Meta:
    return _about(meaning, "milliseconds", ge=1, le=_DAY_MS)


class TimingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Timings in milliseconds. Failover within two seconds depends on the relations that are asserted below."""

    election_timeout_min_ms: Annotated[
        int, _timing("Shortest election timeout of the quorum. Each election draws one between this and the longest.")
    ] = 300
    election_timeout_max_ms: Annotated[
        int, _timing("Longest election timeout of the quorum. With `broker_session_ms` it is at most 1,500.")
    ] = 600
    quorum_heartbeat_ms: Annotated[
        int, _timing("Interval of the quorum leader's heartbeats: less than half of the shortest election timeout.")
    ] = 100
    broker_session_ms: Annotated[int, _timing("Time without a heartbeat after which a broker is fenced.")] = 900
    broker_heartbeat_ms: Annotated[
        int, _timing("Interval of a broker's heartbeats: less than a third of `broker_session_ms`.")
    ] = 200
    replica_lag_max_ms: Annotated[
        int,
        _timing("Time after which a follower that is not caught up leaves the ISR. A fenced follower leaves at once."),
    ] = 5_000
    produce_timeout_ms: Annotated[
        int, _timing("Time for which a produce request that names no timeout may wait for replicas.")
    ] = 30_000

    def __post_init__(self) -> None:
        relations = {
            ("election_timeout_min_ms < election_timeout_max_ms"): self.election_timeout_min_ms
            < self.election_timeout_max_ms,
            "2 * quorum_heartbeat_ms < election_timeout_min_ms": 2 * self.quorum_heartbeat_ms
            < self.election_timeout_min_ms,
            "3 * broker_heartbeat_ms < broker_session_ms": 3 * self.broker_heartbeat_ms < self.broker_session_ms,
            "election_timeout_max_ms + broker_session_ms <= 1500": self.election_timeout_max_ms + self.broker_session_ms
            <= 1500,
        }
        broken = [text for text, holds in relations.items() if not holds]
        if broken:
            settings = re.findall(r"[a-z_]+_ms", broken[0])
            raise WrongSetting(f"timing settings must keep {broken[0]}", *settings)


class MetricsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The section `metrics`: how many series a node shows."""

    partitions: Annotated[
        Literal["partition", "topic"],
        _about(
            "Detail of the series about partitions and about the lag of groups: one for each partition, or one for "
            "each topic, whose label `partition` is `(all)`."
        ),
    ] = "partition"
    max_series: Annotated[
        int,
        _about(
            "Most series of one metric. If there are more partitions, they are joined by topic; further topics and "
            "groups are joined as `(other)`.",
            "series",
            ge=100,
            le=100_000,
        ),
    ] = 10_000


class NodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of `node.toml`. A relative `data_folder` is relative to that file."""

    data_folder: Annotated[
        _Text, _about("Data folder, relative to `node.toml`. `raftlog server init` prepares it.")
    ] = "data"
    rack: Annotated[
        str,
        _about("Rack of the node. Replicas of a partition are placed on different racks if possible.", default="none"),
    ] = ""
    api: Annotated[
        ListenerConfig,
        _about(
            "The HTTP API (HTTP/1.1 and HTTP/2): what people and HTTP clients use, and the bootstrap address of all "
            "clients."
        ),
    ] = ListenerConfig()
    data: Annotated[
        ListenerConfig,
        _about(
            "The data listener (HTTP/2): records of native clients, replication, the quorum and forwarded requests."
        ),
    ] = ListenerConfig()
    allowed_hosts: Annotated[
        tuple[str, ...],
        _about(
            "Further values of `Host` that the HTTP API accepts, beside loopback and the names of the listeners "
            "([http-api.md](http-api.md)).",
            default="none",
        ),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        _about(
            "Pages on other hosts whose scripts may use the HTTP API ([http-api.md](http-api.md)).",
            default="none",
            range="texts such as `https://console.example.org`",
        ),
    ] = ()
    peers: Annotated[
        dict[_NodeId, PeerConfig], _about("Overrides of the addresses of other nodes, by node id.", default="none")
    ] = {}
    """The ids are text because TOML's keys are strings."""
    tls: Annotated[
        TlsConfig | None,
        _about(
            "TLS for the data listener and for all links between nodes, and with `security.mode` other than `off` also "
            "for the HTTP API ([security.md](security.md)). Paths are relative to `node.toml`.",
            default="none: plain text",
        ),
    ] = None
    security: Annotated[
        SecurityConfig,
        _about(
            "Authentication and rights of clients ([security.md](security.md)). Users, tokens and rules are in the "
            "metadata quorum, not here."
        ),
    ] = SecurityConfig()
    metrics: Annotated[MetricsConfig, _about("What `/metrics` of the HTTP API shows ([metrics.md](metrics.md)).")] = (
        MetricsConfig()
    )
    timing: Annotated[
        TimingConfig,
        _about(
            "Timings of elections, sessions and replication. Give all nodes the same. Failover within two seconds "
            "depends on their relations, which are checked."
        ),
    ] = TimingConfig()
    scheduling: Annotated[
        Literal["batch", "other"],
        _about(
            "CPU scheduling policy of the node's threads. `batch` (`SCHED_BATCH`, Linux only): a thread that wakes "
            "does not take a core from one that has not finished, so on few cores single records have lower latency "
            "([performance.md](performance.md)). `other`: the system's default."
        ),
    ] = "batch"
    fsync_threads: Annotated[
        int,
        _about(
            "Threads that write and fsync logs: the number of logs that are fsynced at the same time.",
            "threads",
            ge=1,
            le=64,
        ),
    ] = 2
    worker_threads: Annotated[
        int,
        _about(
            "Threads for all other blocking work: reads that miss the page cache, opening and removing logs.",
            "threads",
            ge=1,
            le=64,
        ),
    ] = 2
    retention_check_ms: Annotated[
        int, _about("Time between two checks of retention.", "milliseconds", ge=1, le=_DAY_MS)
    ] = 30_000
    scrub_bytes_per_second: Annotated[
        int,
        _about(
            "Maximum read rate of the scrubber ([storage-faults.md](storage-faults.md)). 0 turns it off.",
            "bytes a second",
            ge=0,
            le=_MOST_BYTES,
        ),
    ] = 1 * MIB
    scrub_interval_ms: Annotated[
        int,
        _about(
            "Time between the end of one scrub of all replicas and the start of the next.",
            "milliseconds",
            ge=1,
            le=_DAY_MS,
        ),
    ] = _DAY_MS
    rest_consumer_timeout_ms: Annotated[
        int,
        _about(
            "Time after which an unused consumer of the REST Proxy API is removed (Confluent's "
            "`consumer.instance.timeout.ms`).",
            "milliseconds",
            ge=1_000,
            le=7 * 24 * 3_600_000,
        ),
    ] = 300_000
    rest_compat: Annotated[
        Literal["confluent", "strimzi"],
        _about(
            "What an offset means that a consumer of the REST Proxy API commits: the record that was processed "
            "(`confluent`, and Karapace), or the one to read next (`strimzi`, and Redpanda).",
        ),
    ] = "confluent"
    offsets_retention_minutes: Annotated[
        int,
        _about(
            "Time for which the committed offsets of a consumer group without members are kept.",
            "minutes",
            ge=1,
            le=10 * 525_600,
        ),
    ] = 10_080
    transactional_id_expiration_minutes: Annotated[
        int,
        _about(
            "Time for which an unused `transactional_id` is kept, since its last transaction began or ended.",
            "minutes",
            ge=1,
            le=10 * 525_600,
        ),
    ] = 10_080
    transaction_max_timeout_ms: Annotated[
        int,
        _about(
            "The longest timeout that a transaction may ask for on this node; give all nodes the same. A transaction "
            "that its producer abandoned holds back `read_committed` consumers for as long (Kafka's "
            "`transaction.max.timeout.ms`).",
            "milliseconds",
            ge=100,
            le=3_600_000,
        ),
    ] = 3_600_000
    producer_id_expiration_ms: Annotated[
        int,
        _about(
            "Time for which a partition keeps the state of an idempotent producer that writes nothing, counted while "
            "its replica is in service (Kafka's `producer.id.expiration.ms`).",
            "milliseconds",
            ge=1,
            le=366 * _DAY_MS,
        ),
    ] = _DAY_MS
    producer_state_bytes: Annotated[
        int,
        _about(
            "Memory for a partition's producer state. The default holds some 35,000 producers that wrote one batch, or "
            "12,000 that wrote five or more, within `producer_id_expiration_ms`. When it is full, a new producer is "
            "refused with `overloaded` until there is room. Idempotency keys have as much memory of their own.",
            "bytes",
            ge=64 * KIB,
            le=1024 * MIB,
        ),
    ] = 16 * MIB
    metadata_snapshot_entries: Annotated[
        int,
        _about(
            "Entries of the metadata quorum's journal after which the node writes a snapshot and starts a new "
            "journal. A journal of 16 MiB triggers that as well. A lower number makes starts faster and snapshots more "
            "frequent.",
            "entries",
            ge=10,
            le=10_000_000,
        ),
    ] = 10_000
    disk_ballast_bytes: Annotated[
        int,
        _about(
            "Disk space that is reserved for operations that free space or must not fail on a full disk: retention, "
            "the metadata quorum and a start. The reserve takes at most a sixteenth of the disk. 0: no reserve. The "
            "default holds the quorum's journal (16 MiB) and its successor.",
            "bytes",
            ge=0,
            le=_MOST_BYTES,
        ),
    ] = 32 * MIB
    disk_reserved_bytes: Annotated[
        int,
        _about(
            "Free disk space below which the node refuses batches from clients; below half of it, from leaders too. It "
            "is at most a twentieth of the disk. 0: batches are accepted until the disk is full.",
            "bytes",
            ge=0,
            le=_MOST_BYTES,
        ),
    ] = 1 * GIB
    fetch_cache_bytes: Annotated[
        int,
        _about(
            "Memory for recently appended batches, over all partitions, which serves readers at the end of the log.",
            "bytes",
            ge=0,
            le=_MOST_BYTES,
        ),
    ] = 64 * MIB
    shutdown_timeout_ms: Annotated[
        int,
        _about(
            "Time in which a node that must stop hands its leaderships over, answers the requests in progress and "
            "writes its logs out. After it, or at a second signal, the process ends at once; the next start recovers "
            "as after a crash.",
            "milliseconds",
            ge=1_000,
            le=600_000,
        ),
    ] = 30_000
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _about("Lowest level of the lines in the node's log.")
    ] = "info"

    def __post_init__(self) -> None:
        if self.security.is_on and self.tls is None:
            raise WrongSetting(
                f"security.mode is {self.security.mode!r}, which needs the section [tls]: credentials must not travel "
                'in plain text. Add [tls] (see `raftlog tls`), or set security.mode = "off"',
                "security.mode",
            )
        if self.security.mode == "required" and self.tls is not None and self.tls.migrating:
            raise WrongSetting(
                "tls.migrating is true, so that anybody can be a node, but security.mode is 'required': remove "
                'tls.migrating when every node has [tls]; until then, use security.mode = "optional"',
                "tls.migrating",
            )
        if self.exposed and not self.security.insecure:
            raise WrongSetting(
                f"{' and '.join(self.exposed.values())}: other machines can reach the address, but security.mode is "
                "'off', so everybody there could read, write and delete everything. Set up security (`raftlog server "
                "init --secure` does), or listen on 127.0.0.1. On a network with trusted machines only, set "
                "`insecure = true` under [security]",
                *self.exposed,
            )

    @property
    def accepts_plain(self) -> bool:
        """Whether a data listener with TLS serves plain connections, too."""
        return self.security.mode == "optional" or (self.tls is not None and self.tls.migrating)

    @property
    def exposed(self) -> dict[str, str]:
        """Return the listeners, with their addresses, that other machines can use without a credential."""
        if self.security.is_on:
            return {}
        listeners = {"api.listen": self.api.listen, "data.listen": self.data.listen}
        return {name: f"{name} {address.endpoint}" for name, address in listeners.items() if not address.is_loopback}


class NodeFile(TomlSettings[NodeConfig]):
    """The text of a `node.toml`, and all that is wrong with it."""

    def __init__(self, text: str) -> None:
        super().__init__(text, NodeConfig)
        if self.value is not None:
            self._check_listeners(self.value)

    def _check_listeners(self, config: NodeConfig) -> None:
        """Add problems of listeners that no other machine, or no client, could find.

        They are no problems of a `NodeConfig`, whose defaults are for nodes inside a program.
        """
        for name, listener, port in (("api", config.api, BASE_PORT), ("data", config.data, BASE_PORT + 1)):
            if not self.has(name, "listen", "port"):
                self.add_problem(
                    f"{name}.listen.port",
                    "is missing: the node would listen on a random port, where neither clients nor other nodes find "
                    f'it. Add, for example, {name}.listen = {{ host = "127.0.0.1", port = {port} }}',
                )
            advertised = listener.advertised
            if advertised is None and listener.listen.is_unspecified:
                self.add_problem(
                    f"{name}.listen.host",
                    f"is {listener.listen.host}, which stands for all addresses of this machine, so clients and other "
                    f"nodes cannot dial it: add the address that they use as {name}.advertised",
                )
            if advertised is not None and (advertised.is_unspecified or not advertised.port):
                self.add_problem(
                    f"{name}.advertised", f"is {advertised.endpoint}, which clients and other nodes cannot dial"
                )


def load_node_config(text: str) -> NodeConfig:
    """Parse the text of `node.toml`, without the demand that it names both listeners.

    Raises `InvalidRequest`, which names line, setting and reason.
    """
    return TomlSettings(text, NodeConfig).checked("node.toml")
