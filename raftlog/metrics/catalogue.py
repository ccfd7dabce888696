"""Every measure of a node: name, kind, help and labels.

`docs/metrics.md` is made from this file, and tests compare a running node's answer, the alert rules and the
dashboard (`deploy/monitoring/`) with it. The numbers are counted where things happen and read by
`raftlog/broker/metrics/`, those of HTTP requests by `http_api/metrics/`. Prometheus's own client adds the measures of
any process (`process_...`, `python_...`).
"""

from __future__ import annotations

from .measure import Measure

_PARTITION = ("topic", "partition")

# --- The node --------------------------------------------------------------------------------------------------------

BUILD = Measure("raftlog_build", "gauge", "Always 1; its labels are the node's version and cluster.",
                ("version", "cluster_id", "node_id"))  # fmt: skip
READY = Measure("raftlog_ready", "gauge", "1 if the node is registered, not fenced, and knows the quorum's leader.")
START_NUMBER = Measure("raftlog_start_number", "gauge", "How often this node's data folder has been started.")
FENCED_BROKERS = Measure("raftlog_fenced_brokers", "gauge", "Brokers that send no heartbeats, as this node knows it.")
BROKERS = Measure("raftlog_brokers", "gauge", "Registered brokers, as this node knows it.")
LOOP_STALLS = Measure(
    "raftlog_event_loop_stalls_total", "counter", "Turns of the event loop that took 20 milliseconds or more."
)
LOOP_WORST = Measure(
    "raftlog_event_loop_worst_stall_seconds", "gauge", "The longest turn of the event loop in the last minute."
)
THREAD_CPU = Measure(
    "raftlog_thread_cpu_seconds_total", "counter", "Processor time by kind of thread; the event loop's is `loop`.",
    ("thread",),
)  # fmt: skip
DISK_FREE = Measure(
    "raftlog_disk_free_bytes", "gauge", "Free room on the disk of the data folder, less what was appended since."
)
DISK_RESERVED = Measure(
    "raftlog_disk_reserved_bytes", "gauge", "Room that must stay free: below it the node refuses clients' batches."
)
DISK_SHORT = Measure("raftlog_disk_short", "gauge", "1 while batches are refused because the disk is short of room.")
DESCRIPTORS_RESERVED = Measure(
    "raftlog_reserved_fds", "gauge", "File descriptors that connections must leave to the node's own files."
)
TLS_EXPIRY = Measure(
    "raftlog_tls_certificate_expiry_timestamp_seconds", "gauge", "The end of a certificate's validity, since 1970.",
    ("certificate",),
)  # fmt: skip
DATA_CONNECTIONS = Measure("raftlog_data_connections", "gauge", "Open connections to the data listener.")

# --- Requests --------------------------------------------------------------------------------------------------------

REQUESTS = Measure(
    "raftlog_requests_total", "counter",
    "Requests on data connections that were answered; `error` if the answer, or any partition of it, has one.",
    ("kind", "outcome"),
)  # fmt: skip
REQUEST_SECONDS = Measure(
    "raftlog_request_duration_seconds", "histogram",
    "Time from a request's arrival on a data connection to its answer; a long poll's includes its wait.", ("kind",),
)  # fmt: skip
REQUEST_BYTES = Measure(
    "raftlog_request_received_bytes_total", "counter", "Bytes of requests on data connections.", ("kind",)
)
RESPONSE_BYTES = Measure(
    "raftlog_request_sent_bytes_total", "counter", "Bytes of record batches in answers on data connections.", ("kind",)
)
HTTP_REQUESTS = Measure(
    "raftlog_http_requests_total", "counter", "Requests to the HTTP API that were answered.",
    ("method", "route", "status"),
)  # fmt: skip
HTTP_SECONDS = Measure(
    "raftlog_http_request_duration_seconds", "histogram",
    "Time from a request's head at the HTTP API to the end of its answer; a long poll's includes its wait.",
    ("method", "route"),
)  # fmt: skip
HTTP_RECEIVED = Measure(
    "raftlog_http_received_bytes_total", "counter", "Bytes of request bodies at the HTTP API, as they were announced."
)
HTTP_SENT = Measure("raftlog_http_sent_bytes_total", "counter", "Bytes of the bodies of the HTTP API's answers.")
HTTP_CONNECTIONS = Measure("raftlog_http_connections", "gauge", "Open connections to the HTTP API.")
HTTP_IN_PROGRESS = Measure("raftlog_http_requests_in_progress", "gauge", "Requests to the HTTP API in progress.")
HTTP_STREAMS = Measure(
    "raftlog_http_streams", "gauge", "Streams of records of the HTTP API (`/v1/stream`) in progress."
)
THROTTLED = Measure(
    "raftlog_quota_delays_total", "counter", "Charges to a quota after which the caller has to wait.", ("quota",)
)
FAILED_LOGINS = Measure(
    "raftlog_failed_authentications_total", "counter", "Credentials that were refused, by mechanism.", ("mechanism",)
)

# --- Topics and partitions -------------------------------------------------------------------------------------------

TOPIC_BYTES_IN = Measure(
    "raftlog_topic_appended_bytes_total", "counter", "Bytes of batches that this node appended as a leader.", ("topic",)
)
TOPIC_RECORDS_IN = Measure(
    "raftlog_topic_appended_records_total", "counter", "Records that this node appended as a leader.", ("topic",)
)
TOPIC_BATCHES_IN = Measure(
    "raftlog_topic_appended_batches_total", "counter", "Batches that this node appended as a leader.", ("topic",)
)
TOPIC_BYTES_OUT = Measure(
    "raftlog_topic_fetched_bytes_total", "counter", "Bytes of batches that consumers read from this node.", ("topic",)
)
TOPIC_REPLICATED = Measure(
    "raftlog_topic_replicated_bytes_total", "counter", "Bytes of batches that this node appended as a follower.",
    ("topic",),
)  # fmt: skip
COLD_READS = Measure(
    "raftlog_cold_reads_total", "counter",
    "Reads of data that was not in the page cache, which a worker thread loads; `reader` is consumer or follower.",
    ("reader",),
)  # fmt: skip
LOG_END = Measure(
    "raftlog_log_end_offset", "gauge", "The offset behind the last record of this replica's log.", _PARTITION
)
LOG_START = Measure("raftlog_log_start_offset", "gauge", "The first offset of this replica's log.", _PARTITION)
HIGH_WATERMARK = Measure("raftlog_high_watermark", "gauge", "The high watermark as this replica knows it.", _PARTITION)
LOG_BYTES = Measure("raftlog_log_size_bytes", "gauge", "The bytes of all batches of this replica's log.", _PARTITION)
FOLLOWER_LAG = Measure(
    "raftlog_partition_follower_lag_records", "gauge",
    "Records that the follower furthest behind does not have on its disk; of partitions led here.", _PARTITION,
)  # fmt: skip
REPLICAS = Measure("raftlog_replicas", "gauge", "Replicas in service on this node.")
LEADERS = Measure("raftlog_leaders", "gauge", "Partitions that this node leads.")
REPLICAS_OFFLINE = Measure("raftlog_offline_replicas", "gauge", "Replicas of this node that are out of service.")
PARTITIONS_OFFLINE = Measure(
    "raftlog_offline_partitions", "gauge", "Partitions of the cluster without a leader, as this node knows it."
)
UNDER_MIN_ISR = Measure(
    "raftlog_under_min_isr_partitions", "gauge",
    "Partitions of the cluster with fewer in-sync replicas than `min.insync.replicas`, as this node knows it.",
)  # fmt: skip
UNDER_REPLICATED = Measure(
    "raftlog_under_replicated_partitions", "gauge",
    "Partitions of the cluster with a leader and with replicas out of sync, as this node knows it.",
)  # fmt: skip
REASSIGNING = Measure(
    "raftlog_reassigning_partitions", "gauge", "Partitions of the cluster that are moving, as this node knows it."
)
ELECTIONS = Measure("raftlog_leader_elections_total", "counter", "Elections of this node as a partition's leader.")
ISR_SHRINKS = Measure("raftlog_isr_shrinks_total", "counter", "Replicas that left the ISR of a partition led here.")
ISR_EXPANSIONS = Measure(
    "raftlog_isr_expansions_total", "counter", "Replicas that joined the ISR of a partition led here."
)

# --- The log's writes ------------------------------------------------------------------------------------------------

SYNC_SECONDS = Measure(
    "raftlog_fsync_duration_seconds", "histogram",
    "Time of one call that makes data durable (`fdatasync`, `syncfs`, or a write with `RWF_DSYNC`).",
)  # fmt: skip
COMMIT_LOGS = Measure(
    "raftlog_group_commit_logs", "histogram", "Logs that one round of the group commit wrote together."
)
COMMIT_BATCHES = Measure(
    "raftlog_group_commit_batches", "histogram", "Batches of one log that one fsync made durable together."
)

# --- Replication -----------------------------------------------------------------------------------------------------

REPLICATION_RECORDS = Measure(
    "raftlog_replication_lag_records", "gauge",
    "Records of partitions led here that a follower does not have on its disk, summed.", ("follower",),
)  # fmt: skip
REPLICATION_BYTES = Measure(
    "raftlog_replication_lag_bytes", "gauge",
    "The same in bytes, estimated from the average size of a record of each log.", ("follower",),
)  # fmt: skip
REPLICATION_SECONDS = Measure(
    "raftlog_replication_lag_seconds", "gauge",
    "Time since a follower last had all of a partition led here, for the partition that is furthest behind.",
    ("follower",),
)  # fmt: skip

# --- Consumer groups and transactions --------------------------------------------------------------------------------

GROUPS = Measure("raftlog_groups", "gauge", "Consumer groups of the cluster, as this node knows it.")
GROUP_RECORDS = Measure(
    "raftlog_group_lag_records", "gauge",
    "Records between a group's committed offset and the high watermark; of partitions led here, so sum over nodes.",
    ("group", *_PARTITION),
)  # fmt: skip
GROUP_SECONDS = Measure(
    "raftlog_group_lag_seconds", "gauge",
    "Age of the first record that a group has not processed, estimated from the high watermark's past; the greatest "
    "of the topic's partitions led here.",
    ("group", "topic"),
)  # fmt: skip
TRANSACTIONS = Measure("raftlog_open_transactions", "gauge", "Open transactions in partitions led here.")
TRANSACTION_AGE = Measure(
    "raftlog_oldest_open_transaction_seconds", "gauge",
    "Time for which the oldest open transaction in a partition led here has been seen open; 0 if there is none.",
)  # fmt: skip

# --- The metadata quorum ---------------------------------------------------------------------------------------------

QUORUM_TERM = Measure("raftlog_quorum_term", "gauge", "The quorum's term, which rises with each of its elections.")
QUORUM_LEADER = Measure("raftlog_quorum_leader", "gauge", "The node id of the quorum's leader; -1 if none is known.")
QUORUM_COMMIT = Measure("raftlog_quorum_commit_index", "gauge", "The index of the last committed metadata entry.")
QUORUM_LAST = Measure("raftlog_quorum_last_index", "gauge", "The index of the last entry of this node's journal.")
QUORUM_APPLIED = Measure("raftlog_quorum_applied_index", "gauge", "The index that this node's quorum has applied.")
VIEW_INDEX = Measure("raftlog_metadata_view_index", "gauge", "The index up to which this node acts on the metadata.")
QUORUM_VOTERS = Measure("raftlog_quorum_voters", "gauge", "Voters of the quorum.")
QUORUM_LAG = Measure(
    "raftlog_quorum_lag_entries", "gauge",
    "Entries that the quorum's leader knows a node not to have; only on the leader.", ("node",),
)  # fmt: skip
QUORUM_FORGETFUL = Measure(
    "raftlog_quorum_forgetful_nodes", "gauge", "Nodes that lost what they had acknowledged, and no longer take part."
)

# --- This page -------------------------------------------------------------------------------------------------------

SERIES_JOINED = Measure(
    "raftlog_metrics_joined_series", "gauge",
    "Series that the last answer joined with others, because of `metrics.max_series` or `metrics.partitions`.",
)  # fmt: skip
SCRAPE_SECONDS = Measure(
    "raftlog_metrics_collect_seconds", "gauge", "Time that this answer's numbers took to collect, all slices together."
)

ALL: tuple[Measure, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Measure))
"""Every measure, in the order above."""
