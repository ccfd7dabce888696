"""raftlog: a replicated commit log with its own coordination.

This folder holds the foundation: the shared vocabulary (`model`, `errors`, `config`, `ports`, `records/`, `wire`), the
transport of the data plane (`http2/`) and the client library (`client/`). None of it imports `metadata`, `partitions`,
`http_api`, `spark_source` or `jepsen_like`. It also holds what assembles all of them: `broker/` and `cli/`.

Importing this package loads nothing heavy; the client's names and the errors are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from raftlog.client.transactions.transaction import commit_together

    from .api.groups import GroupPartition
    from .client.admin import Admin
    from .client.consumer import Consumer
    from .client.consuming.records import ConsumedBatch, ConsumerRecord
    from .client.credentials import Credentials
    from .client.groups.consumer import GroupConsumer
    from .client.producer import Producer
    from .client.producing.delivery import Delivery, DeliveryFuture, RecordMetadata
    from .client.settings import AdminSettings, ConsumerSettings, GroupConsumerSettings, ProducerSettings
    from .client.transactions.transaction import Transaction
    from .client.typed_topic import BYTES, TEXT, Serde, TypedRecord, TypedTopic, UnreadableRecord, json_of
    from .errors import ClientClosed, CorruptBatch, InvalidRequest, RaftlogError, RetriableError
    from .trace_context import TraceContext

_ERRORS = ("ClientClosed", "CorruptBatch", "InvalidRequest", "RaftlogError", "RetriableError")

__all__ = [
    "BYTES",
    "TEXT",
    "Admin",
    "AdminSettings",
    "ClientClosed",
    "ConsumedBatch",
    "Consumer",
    "ConsumerRecord",
    "ConsumerSettings",
    "CorruptBatch",
    "Credentials",
    "Delivery",
    "DeliveryFuture",
    "GroupConsumer",
    "GroupConsumerSettings",
    "GroupPartition",
    "InvalidRequest",
    "Producer",
    "ProducerSettings",
    "RaftlogError",
    "RecordMetadata",
    "RetriableError",
    "Serde",
    "TraceContext",
    "Transaction",
    "TypedRecord",
    "TypedTopic",
    "UnreadableRecord",
    "__version__",
    "commit_together",
    "json_of",
]


def __getattr__(name: str) -> Any:
    """Return a name of the client or an error, which is loaded on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _ERRORS:
        from . import errors

        return getattr(errors, name)
    from . import client

    return getattr(client, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
