"""The client library: what user programs, the CLI and Spark use to reach a cluster.

This package exports what `import raftlog` offers: `Producer`, `Consumer`, `Admin` and the values that they take and
return.
"""

from __future__ import annotations

from raftlog.client.consuming.consumer import Consumer
from raftlog.client.consuming.records import ConsumedBatch, ConsumerRecord
from raftlog.client.groups.api import GroupPartition
from raftlog.client.groups.consumer import GroupConsumer
from raftlog.client.producing.delivery import Delivery, DeliveryFuture, RecordMetadata
from raftlog.client.transactions.api import (
    ConsumedOffsets,
    ConsumedRange,
    NamedPosition,
    ProducerIdBlock,
    TransactionInfo,
    TransactionOutput,
)
from raftlog.client.transactions.transaction import Transaction, TransactionState, commit_together

from .admin import Admin
from .producer import Producer

__all__ = [
    "Admin",
    "ConsumedBatch",
    "ConsumedOffsets",
    "ConsumedRange",
    "Consumer",
    "ConsumerRecord",
    "Delivery",
    "DeliveryFuture",
    "GroupConsumer",
    "GroupPartition",
    "NamedPosition",
    "Producer",
    "ProducerIdBlock",
    "RecordMetadata",
    "Transaction",
    "TransactionInfo",
    "TransactionOutput",
    "TransactionState",
    "commit_together",
]
