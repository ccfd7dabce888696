"""Every measure of the client library. `docs/metrics.md` is made from this file, too.

A client returns families of these as its property `metrics`. `raftlog/client/prometheus.py` exports them, with the
client's name as a further label, `client`.
"""

from __future__ import annotations

from .measure import Measure

_TOPIC = ("topic",)
_CODE = ("code",)

# --- Producers -------------------------------------------------------------------------------------------------------

BUFFERED = Measure("raftlog_client_buffered_bytes", "gauge", "Memory that records occupy until they are acknowledged.")
BUFFER_LIMIT = Measure("raftlog_client_buffer_limit_bytes", "gauge", "The setting `buffer_bytes`.")
IN_FLIGHT = Measure("raftlog_client_produce_requests_in_flight", "gauge", "Produce requests that are not answered yet.")
ACKNOWLEDGED_RECORDS = Measure(
    "raftlog_client_acknowledged_records_total", "counter", "Records that the cluster acknowledged.", _TOPIC
)
ACKNOWLEDGED_BYTES = Measure(
    "raftlog_client_acknowledged_bytes_total", "counter", "Bytes of acknowledged batches, before compression.", _TOPIC
)
FAILED_RECORDS = Measure(
    "raftlog_client_failed_records_total", "counter", "Records whose delivery failed, by the code of the error.",
    ("topic", "code"),
)  # fmt: skip
RETRIES = Measure(
    "raftlog_client_produce_retries_total", "counter",
    "Attempts to append a batch that failed and are made again, by the code of the error.", _CODE,
)  # fmt: skip
BATCH_RECORDS = Measure("raftlog_client_batch_records", "histogram", "Records of an acknowledged batch.")
BATCH_BYTES = Measure("raftlog_client_batch_bytes", "histogram", "Bytes of an acknowledged batch, before compression.")
DELIVERY_SECONDS = Measure(
    "raftlog_client_delivery_duration_seconds", "histogram", "Time from the opening of a batch to its acknowledgement."
)

# --- Consumers -------------------------------------------------------------------------------------------------------

PREFETCHED = Measure("raftlog_client_prefetched_bytes", "gauge", "Bytes that were fetched ahead of the program.")
FETCHED_RECORDS = Measure("raftlog_client_fetched_records_total", "counter", "Records that were fetched.", _TOPIC)
FETCHED_BYTES = Measure("raftlog_client_fetched_bytes_total", "counter", "Bytes of the answers to fetches.", _TOPIC)
FETCHED_BATCH_RECORDS = Measure("raftlog_client_fetched_batch_records", "histogram", "Records of a fetched batch.")
FETCH_RETRIES = Measure(
    "raftlog_client_fetch_retries_total", "counter",
    "Fetches, of a partition or as a whole, that failed and are made again, by the code of the error.", _CODE,
)  # fmt: skip
LAG = Measure(
    "raftlog_client_lag_records", "gauge",
    "Offsets between the next record to hand out and the end of what may be read, as a leader reported it last.",
    ("topic", "partition"),
)  # fmt: skip
ASSIGNED = Measure("raftlog_client_assigned_partitions", "gauge", "Partitions that a member of a group reads.")

ALL_OF_CLIENTS: tuple[Measure, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Measure))
"""Every measure, in the order above."""
