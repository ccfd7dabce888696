"""The client library: what user programs, the CLI and Spark use to reach a cluster.

This package exports what `import raftlog` offers: `Producer`, `Consumer`, `Admin` and the values that they take and
return.
"""

from __future__ import annotations

from raftlog.api.groups import GroupPartition
from raftlog.api.transactions import ConsumedOffsets, ConsumedRange, NamedPosition, ProducerIdBlock, TransactionInfo
from raftlog.client.consuming.records import ConsumedBatch, ConsumerRecord
from raftlog.client.credentials import Credentials
from raftlog.client.groups.consumer import GroupConsumer
from raftlog.client.producing.delivery import Delivery, DeliveryFuture, RecordMetadata
from raftlog.client.settings import AdminSettings, ConsumerSettings, GroupConsumerSettings, ProducerSettings
from raftlog.client.transactions.transaction import Transaction, TransactionState, commit_together
from raftlog.client.typed_topic import BYTES, TEXT, Serde, TypedRecord, TypedTopic, UnreadableRecord, json_of
from raftlog.trace_context import TraceContext
from raftlog.wire import TransactionOutput

from .admin import Admin
from .consumer import Consumer
from .producer import Producer

__all__ = [
    "BYTES",
    "TEXT",
    "Admin",
    "AdminSettings",
    "ConsumedBatch",
    "ConsumedOffsets",
    "ConsumedRange",
    "Consumer",
    "ConsumerRecord",
    "ConsumerSettings",
    "Credentials",
    "Delivery",
    "DeliveryFuture",
    "GroupConsumer",
    "GroupConsumerSettings",
    "GroupPartition",
    "NamedPosition",
    "Producer",
    "ProducerIdBlock",
    "ProducerSettings",
    "RecordMetadata",
    "Serde",
    "TraceContext",
    "Transaction",
    "TransactionInfo",
    "TransactionOutput",
    "TransactionState",
    "TypedRecord",
    "TypedTopic",
    "UnreadableRecord",
    "commit_together",
    "json_of",
]
