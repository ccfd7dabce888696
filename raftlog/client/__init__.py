"""The client library: what user programs, the CLI and Spark speak to a cluster with.

`Producer`, `Consumer` and `Admin` here are what `import raftlog` offers, with the values that they take and give.
"""

from __future__ import annotations

from .admin import Admin
from .consumed import ConsumedBatch, ConsumerRecord
from .consumer import Consumer
from .delivery import Delivery, DeliveryFuture, RecordMetadata
from .group_api import GroupPartition
from .group_consumer import GroupConsumer
from .producer import Producer
from .transaction import Transaction, TransactionState, commit_together
from .transaction_api import (
    ConsumedOffsets,
    ConsumedRange,
    NamedPosition,
    ProducerIdBlock,
    TransactionInfo,
    TransactionOutput,
)

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
